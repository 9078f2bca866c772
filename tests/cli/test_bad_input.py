"""Bad words: an unknown name, option, section or number is one sentence that names it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from spurless.core.errors import InputError

Refused = Callable[..., None]

WORDS = {
    "method": ("fit", "groupdro"),
    "dataset": ("fit", "erm", "--data", "patched-digit"),
    "model": ("fit", "erm", "--model", "smal-cnn"),
    "torchvision model": ("fit", "erm", "--model", "torchvision:resnet81"),
    "preset": ("fit", "erm", "--data", "planted", "--model", "mlp", "--preset", "plane"),
    "criterion": ("fit", "erm", "--data", "planted", "--model", "mlp", "--select", "val-averag"),
    "dataset option": ("fit", "erm", "--data", "planted", "-D", "n_trian=5"),
    "model option": ("fit", "erm", "--data", "planted", "--model", "mlp", "-O", "widht=5"),
    "list": ("ls", "method"),
    "claim": ("reproduce", "theory/planted-er"),
    "dataset to check": ("data", "check", "plantd"),
    "command": ("fti", "erm"),
    "flag": ("fit", "erm", "--epoch", "3"),
}
NEAR = {
    "method": r"No method is called 'groupdro'\. Did you mean 'group-dro'\? Known: .*erm",
    "dataset": r"'patched-digit' is neither the name of a dataset.*Did you mean 'patched-digits'\?",
    "model": r"No model is called 'smal-cnn'\. Did you mean 'small-cnn'\?",
    "torchvision model": r"No torchvision model is called 'resnet81'\. Did you mean 'resnet18'\?",
    "preset": r"No preset of erm is called 'plane'\. Did you mean 'plain'\?",
    "criterion": r"No selection criterion is called 'val-averag'\. Did you mean 'val-average'\?",
    "dataset option": r"dataset 'planted' has no option 'n_trian'\. Did you mean 'n_train'\?",
    "model option": r"mlp has no option 'widht'\. Did you mean 'width'\?",
    "list": r"No list is called 'method'\. Did you mean 'methods'\?",
    "claim": r"No claim is called 'theory/planted-er'\. Did you mean 'theory/planted-erm'\?",
    "dataset to check": r"'plantd' is neither the name of a dataset.*Did you mean 'planted'\?",
    "command": r"No such command 'fti'. Did you mean 'fix', 'fit'\? See: spurless --help",
    "flag": r"No such option: --epoch .*--epochs.* See: spurless fit --help",
}


@pytest.mark.parametrize("kind", WORDS)
def test_unknown_name_is_refused_with_the_nearest_one(refused: Refused, kind: str) -> None:
    refused(NEAR[kind], *WORDS[kind])


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("-M", "upweight=5"), r"method 'erm' has no option 'upweight'"),
        (("-M", "seed=5"), r"method 'erm' has no option 'seed'"),
        (("-M", "folder=elsewhere"), r"method 'erm' has no option 'folder'"),
        (("-O", "seed=5"), r"mlp has no option 'seed'"),
        (("-O", "n_classes=5"), r"mlp has no option 'n_classes'"),
        (("-O", "width=wide"), r"option 'width' of mlp .*got 'wide'"),
        (("-D", "name=other"), r"dataset 'planted' has no option 'name'"),
        (("-D", "core=high"), r"option 'core' of dataset 'planted' has the wrong type"),
        (("-D", "n_train"), r"--data-option 'n_train' is not KEY=VALUE"),
        (("-M", "=5"), r"--method-option '=5' is not KEY=VALUE"),
        (("-O", "width"), r"--model-option 'width' is not KEY=VALUE"),
        (("--label", "y"), r"--label, .* and --root are for CSV files \(got --data planted\)"),
        (("--lr", "nan"), r"lr.* must be a finite number \(got nan\)"),
        (("--lr", "-1"), r"lr.* must be above 0 \(got -1"),
        (("--lr", "abc"), r"Invalid value for '--lr': .* See: spurless fit --help"),
        (("--epochs", "0"), r"epochs.* must be at least 1 \(got 0\)"),
        (("--steps", "0"), r"steps.* must be at least 1 \(got 0\)"),
        (("--batch-size", "0"), r"batch_size.* must be at least 1 \(got 0\)"),
        (("--optimiser", "sdg"), r"option 'optimiser' .*'sdg'.*'sgd'"),
        (("--schedule", "cosin"), r"option 'schedule' of the training loop cannot be 'cosin'"),
        (("--l1", "-0.1"), r"l1.* must not be negative \(got -0\.1\)"),
        (("--asam", "nan"), r"asam.* must be a finite number \(got nan\)"),
        (("--decay-fraction", "20"), r"decay_fraction.* must be a fraction .*got 20"),
        (("--stop-accuracy", "90"), r"stop_accuracy.* must be a fraction .*got 90"),
        (("--seed", "-1"), r"Invalid value for '--seed'"),
        (("--seeds", "0"), r"Invalid value for '--seeds'"),
        (("--device", "gpu"), r"unknown device 'gpu' \(expected auto, cpu, cuda or cuda:NUMBER\)"),
        (("--device", "cpu:x"), r"unknown device 'cpu:x'"),
        (("--precision", "half"), r"unknown precision 'half' \(expected auto"),
        (("--devices", "0"), r"Invalid value for '--devices'"),
        (("--strategy", "ddpp"), r"unknown strategy 'ddpp' \(expected auto, or ddp for several devices\)"),
        (
            ("--model", "small-cnn", "-O", "width=-3"),
            r"option 'width' of small-cnn must be at least 1 \(got",
        ),
        (("--model", "pooled-cnn", "-O", "channels=8,0,8"), r"option 'channels' of pooled-cnn must be at least 1"),
        (("--lr", "1e30"), r"Training 'train' diverged.*Lower the learning rate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_option_of_fit_is_refused(refused: Refused, words: tuple[str, ...], match: str) -> None:
    refused(match, "fit", "erm", "--data", "planted", "--model", "mlp", "--steps", "5", *words)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[train\nlr = 1", r"run\.toml: the file is not TOML: .*line 1"),
        (
            "[trian]\nlr = 1",
            r"run\.toml: \[trian\] is not a known section \(expected \[data\], \[model\], \[method\], \[train\]\)",
        ),
        ("lr = 1", r"run\.toml: \[lr\] is not a known section"),
        ("[train]\nlearning_rate = 1", r"the training loop has no option 'learning_rate'"),
        ("[train]\nlr = true", r"option 'lr' of the training loop has the wrong type"),
        ("[train]\nepochs = 2.5", r"option 'epochs' of the training loop .*got 2\.5"),
        ("[method]\nseed = 1", r"method 'erm' has no option 'seed'"),
        ("[model]\nwidth = [1]", r"option 'width' of mlp has the wrong type"),
        ("[data]\nn = 5", r"dataset 'planted' has no option 'n'"),
    ],
    ids=lambda text: text.replace("\n", " "),
)
def test_bad_config_file_is_refused(refused: Refused, here: Path, text: str, match: str) -> None:
    (here / "run.toml").write_text(text)
    refused(match, "fit", "erm", "--data", "planted", "--model", "mlp", "--steps", "5", "--config", "run.toml")


def test_missing_or_binary_config_file_is_refused(refused: Refused, here: Path) -> None:
    refused(r"run\.toml: no such file \(expected a TOML file\)", "fit", "erm", "--config", "run.toml")
    (here / "run.toml").write_bytes(b"\xff\xfe\x00")
    refused(r"run\.toml: the file is not TOML", "fit", "erm", "--config", "run.toml")
    refused(r"spurless: \.: this is a folder \(expected a TOML file\)", "bench", ".")


def test_missing_argument_is_refused(refused: Refused) -> None:
    refused(r"Missing argument 'METHOD'\. See: spurless fit --help", "fit")
    refused(
        r"missing argument CLAIM \(expected one of theory/planted-erm, .*See: spurless reproduce --list", "reproduce"
    )
    refused(r"Missing argument 'RECORDS", "report")


def test_error_of_several_lines_is_said_in_one(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("first\n    second\nthird")

    monkeypatch.setattr(import_module("spurless.cli.ls"), "print_table", fail)
    refused(r"^spurless: first second third\.$", "ls")


def test_reproduce_looks_at_its_place_before_it_works(
    refused: Refused, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("it worked first")

    monkeypatch.setattr("spurless.bench.reproduce.run_tasks", work)
    (here / "file").write_text("")
    refused(r"file: cannot write", "reproduce", "theory/planted-erm", "--out", "file/records.jsonl")
    refused(r"cannot write.*: Is a directory", "reproduce", "theory/planted-erm", "--out", here)
