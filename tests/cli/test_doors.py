"""Doors: models and data as people bring them; what does not fit is one sentence that names it and says what to do."""

import csv as csv_module
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.user_code import resolve_user_code_name
from spurless.models.weights import save_weights

Cli = Callable[..., Any]
Refused = Callable[..., None]

NETS = """
import os

from torch import nn


def make(n_classes, input_shape):
    if os.environ.get("RAN_HERE"):
        open(os.environ["RAN_HERE"], "a").write("ran\\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], n_classes))


def vector(n_classes, input_shape):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.ReLU(), nn.Linear(8, n_classes))


def three():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def broken():
    raise ZeroDivisionError("by nothing")


class TwoHeads(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.flat, self.answer, self.check = nn.Flatten(), nn.Linear(192, n_classes), nn.Linear(192, n_classes)

    def forward(self, x):
        result, _ = self.answer(self.flat(x)), self.check(self.flat(x))
        return result
"""
QUICK = ("--device", "cpu", "--quiet")
FIT = ("--steps", 3, "--lr", 0.01, *QUICK)


@pytest.fixture
def nets(here: Path) -> Path:
    (here / "nets.py").write_text(NETS)
    return here / "nets.py"


@pytest.fixture
def fitted(cli: Cli, folder: Path, nets: Path) -> Path:
    """Weights of an own model on the folder of pictures."""
    assert cli("fit", "erm", "--data", folder, "--model", "nets.py:make", *FIT).status == 0
    (weights,) = (nets.parent / "runs").glob("*.safetensors")
    return weights


@pytest.fixture
def texts(here: Path) -> Path:
    rows = [f"the film was {'good' if n % 2 else 'bad'} today,{'yes' if n % 2 else 'no'}" for n in range(60)]
    (here / "films.csv").write_text("\n".join(["review,kind", *rows]))
    return here / "films.csv"


def spoil(folder: Path) -> None:
    data = (folder / "dark" / "3.png").read_bytes()
    (folder / "dark" / "3.png").write_bytes(data[: len(data) // 2])


# ------------------------------------------------------------------ models


@pytest.mark.usefixtures("fitted")
def test_records_and_weights_tell_which_factory_it_was(here: Path, fitted: Path) -> None:
    (record,) = [json.loads(line) for line in (here / "runs" / "records.jsonl").read_text().splitlines()]
    assert record["model"]["name"] == f"{(here / 'nets.py').resolve()}:make"
    assert record["model"]["options"]["head"] == "1"
    assert len(record["model"]["options"]["code"]) == 24
    assert record["model"]["name"] == sp.models.weights.read_weights_info(fitted)["name"]


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "{weights}", "--device", "cpu"),
        ("audit", "{weights}", "--only", "worst-class", *QUICK),
        ("explain", "{weights}", "--count", "1", *QUICK),
    ],
)
def test_every_command_takes_the_factory_and_none_runs_it_for_a_file(
    cli: Cli, here: Path, folder: Path, fitted: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    words = [str(fitted) if word == "{weights}" else word for word in command]
    assert cli(*words, "--data", folder, "--model", "nets.py:make").status == 0
    monkeypatch.setenv("RAN_HERE", str(here / "ran.txt"))
    result = cli(*words, "--data", folder)
    assert (result.status, result.out) == (2, "")
    assert "custom model code, which is only run on request. If you trust it, pass --model " in result.err
    assert not (here / "ran.txt").exists()


@pytest.mark.slow
def test_a_sweep_finds_the_factory_again_in_other_processes(cli: Cli, here: Path, nets: Path) -> None:
    small = ("-D", "n_train=60", "-D", "n_val=20", "-D", "n_test=20")
    words = ("--over", "lr=0.01,0.1", "--seeds", 1, "--steps", 2, "--jobs", 2, "--executor", "processes", *QUICK)
    result = cli("sweep", "--data", "planted", *small, "--model", "nets.py:vector", *words, "--json")
    assert result.status == 0, result.err
    records = [json.loads(line) for line in (here / "runs" / "sweep" / "records.jsonl").read_text().splitlines()]
    assert [record["model"]["name"] for record in records] == [resolve_user_code_name(f"{nets}:vector")] * 2


def test_a_sweep_names_the_factory_by_its_whole_path(
    refused: Refused, nets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's processes start in other folders."""

    def stop(asked: Any, **_: Any) -> None:
        raise InputError(f"asked for {asked.experiment.model}")

    monkeypatch.setattr("spurless.bench.sweep.run_sweep", stop)
    refused(
        f"asked for {resolve_user_code_name(f'{nets}:vector')}",
        "sweep",
        "--over",
        "lr=0.1",
        "--model",
        "nets.py:vector",
    )


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ("gone.py:make", r"gone\.py: no such file .expected FILE\.py:NAME"),
        ("nets.py:mak", r"nets\.py:mak: .*Did you mean 'make'\?"),
        ("nets.py:broken", r"nets\.py:broken: the factory failed: ZeroDivisionError: by nothing"),
        ("nets.py:three", r"nets\.py:three: .*3 .*2.*n_classes"),
        ("nets.py:TwoHeads", r"nets\.py:TwoHeads: .*'check'.*-O head=NAME.*answer"),
        ("no_such.nets:make", r"module .*'no_such\.nets'"),
        ("https://example.org/nets.py:make", r"example\.org/nets\.py: code"),
        ("hf:./gone", r"'\./gone': no such folder"),
        ("hf:", r"No model is called 'hf:'"),
    ],
)
@pytest.mark.usefixtures("nets")
def test_a_model_that_cannot_be_is_one_sentence(
    refused: Refused, folder: Path, texts: Path, model: str, sentence: str
) -> None:
    data = (
        ("--data", texts, "--label", "kind", "--text", "review", "-D", "tokenizer=words")
        if "hf" in model
        else ("--data", folder)
    )
    refused(sentence, "fit", "erm", *data, "--model", model, *FIT)


def test_a_head_may_be_named(cli: Cli, here: Path, folder: Path, nets: Path) -> None:
    assert nets.is_file()
    assert cli("fit", "erm", "--data", folder, "--model", "nets.py:TwoHeads", "-O", "head=answer", *FIT).status == 0
    record = json.loads((here / "runs" / "records.jsonl").read_text())
    assert record["model"]["options"]["head"] == "answer"


def test_an_encoder_in_a_folder_is_hf(cli: Cli, here: Path, texts: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.logging.disable_progress_bar()
    with torch.random.fork_rng():
        transformers.BertModel(transformers.BertConfig(vocab_size=40000, **sizes)).save_pretrained(here / "tiny")
    words = ("--label", "kind", "--text", "review", "-D", "tokenizer=words", "-D", "max_length=8")
    result = cli("fit", "erm", "--data", texts, *words, "--model", f"hf:{here / 'tiny'}", *FIT)
    assert result.status == 0, result.err
    assert json.loads((here / "runs" / "records.jsonl").read_text())["model"]["name"] == f"transformers:{here / 'tiny'}"


def test_help_says_that_code_is_run(cli: Cli) -> None:
    for command in ("fit", "audit", "eval", "explain", "sweep"):
        facts = " ".join(cli(command, "--help").out.replace("│", " ").split())
        assert "FILE.py:FACTORY" in facts
        assert "is then run" in facts


# ------------------------------------------------------------------ data


@pytest.mark.parametrize("command", ["fit", "sweep", "check"])
def test_a_broken_image_is_named_and_left_out_by_wish(
    cli: Cli, refused: Refused, here: Path, folder: Path, command: str
) -> None:
    spoil(folder)
    data = ("--data", folder, "--model", "linear", "--device", "cpu")
    words: tuple[object, ...] = {
        "fit": ("fit", "erm", *data, "--steps", 2),
        "sweep": ("sweep", *data, "--over", "lr=0.01", "--seeds", 1, "--steps", 2),
        "check": ("data", "check", folder),
    }[command]
    refused(r"dark/3\.png: .*cannot be read.*--skip-bad", *words, "--quiet")
    result = cli(*words, "--skip-bad", "--quiet")
    assert result.status == 0, result.err
    assert "spurless: warning: Skipped images that cannot be read (1 of 30): " in result.err
    if command == "check":
        assert "Skipped images" in result.out
        return
    record = json.loads(next(here.rglob("records.jsonl")).read_text().splitlines()[0])
    assert any("dark/3.png" in warning for warning in record["warnings"])
    assert sum(map(sum, record["data"]["counts"].values())) == 29


def test_an_audit_tells_what_was_left_out(cli: Cli, here: Path, folder: Path) -> None:
    spoil(folder)
    (folder / "light" / "list.txt").write_text("mine")
    model = sp.build("linear", input_shape=(3, 8, 8), n_classes=2)
    model.trained = True
    save_weights(here / "w.safetensors", model)
    words = ("--data", folder, "--skip-bad", "--only", "suspects", "--part", "train", *QUICK)
    result = cli("audit", "w.safetensors", *words)
    assert result.status == 0, result.err
    facts = json.loads((here / "audit.json").read_text())["facts"]
    assert [note.split("(")[0] for note in facts["notes"]] == [
        "Skipped files without the extension of an image ",
        "Skipped images that cannot be read ",
    ]
    page = (here / "audit.html").read_text()
    assert "dark/3.png" in page
    assert "light/list.txt" in page


def test_an_audit_of_texts_shows_them(cli: Cli, here: Path, texts: Path) -> None:
    data = sp.from_csv(texts, label="kind", text="review", tokenizer="words", max_length=8)
    save_weights(here / "w.safetensors", sp.build("token-mean", data))
    words = ("--label", "kind", "--text", "review", "-D", "tokenizer=words", "-D", "max_length=8")
    result = cli("audit", "w.safetensors", "--data", texts, *words, "--only", "suspects", "--part", "train", *QUICK)
    assert result.status == 0, result.err
    suspects = json.loads((here / "audit.json").read_text())["suspects"]
    lines = texts.read_text().splitlines()
    for suspect in suspects:
        number = int(suspect["file"].removeprefix("films.csv, row "))
        assert lines[number - 1] == f"{suspect['text']},{suspect['label']}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "patched-digits", "--skip-bad"), r"--skip-bad is for class folders"),
        (("--data", "own.npz", "--skip-bad"), r"--skip-bad is for class folders"),
        (
            ("--data", "own.csv", "--label", "y", "--features", "x1", "--skip-bad"),
            r"skip_bad is for images",
        ),
        (
            ("--data", "films.csv", "--label", "kind", "--text", "review", "-D", "tokenizer=words"),
            r"linear takes .*text",
        ),
        (("--data", "pictures", "--model", "token-mean"), r"token-mean takes text .*--text"),
        (("--data", "pictures", "--model", "hf:tiny"), r"transformers:tiny takes text"),
    ],
)
@pytest.mark.usefixtures("texts", "folder")
def test_data_that_do_not_fit_are_one_sentence(
    refused: Refused, csv: Callable[..., Path], npz: Callable[..., Path], words: tuple[str, ...], sentence: str
) -> None:
    csv(), npz()
    model = () if "--model" in words else ("--model", "linear")
    refused(sentence, "fit", "erm", *words, *model, *FIT)


def test_an_empty_class_is_one_sentence(refused: Refused, folder: Path) -> None:
    (folder / "grey").mkdir()
    refused(
        r"pictures/grey: the folder contains no images. Add some", "fit", "erm", "--data", folder, "--model", "linear"
    )
    (folder / "grey" / "1.heic").write_text("?")
    refused(r"grey: the folder contains no images .got 1 files .*1\.heic", "fit", "erm", "--data", folder, *FIT)


def test_weights_that_do_not_fit_are_one_sentence(refused: Refused, here: Path, folder: Path) -> None:
    save_weights(here / "ten.safetensors", sp.build("linear", input_shape=(3, 8, 8), n_classes=10))
    save_weights(here / "large.safetensors", sp.build("linear", input_shape=(3, 9, 9), n_classes=2))
    for command in (("eval",), ("audit", "--quiet"), ("explain", "--quiet")):
        words = (command[0], "ten.safetensors", *command[1:], "--data", folder)
        refused(r"ten\.safetensors: the model has 10 outputs but the data have 2 classes .got dark, light", *words)
    sentence = r"large\.safetensors: the weights do not fit linear: head\.weight is \(2, 243\) and should be \(2, 192\)"
    refused(sentence, "eval", "large.safetensors", "--data", folder)
    refused(sentence, "fit", "erm", "--weights", "large.safetensors", "--data", folder, "--model", "linear", *FIT)
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(10, 192), "bias": torch.zeros(10)}, here / "foreign.safetensors")
    words = ("eval", "foreign.safetensors", "--data", folder, "--model", "linear")
    refused(
        r"foreign\.safetensors: the weights do not fit linear: missing head\.bias, .*; unexpected bias, weight", *words
    )


def test_many_images_are_named_from_the_cache(cli: Cli, here: Path) -> None:
    """From 2,000 on, images are decoded once and mapped: their files are known all the same."""
    for label in ("a", "b"):
        (here / "many" / label).mkdir(parents=True)
        for number in range(1000):
            Image.fromarray(np.full((2, 2, 3), number % 256, np.uint8)).save(here / "many" / label / f"{number}.bmp")
    model = sp.build("linear", input_shape=(3, 2, 2), n_classes=2)
    save_weights(here / "w.safetensors", model)
    words = ("--data", here / "many", "--only", "worst-class", "--export", "s.csv", *QUICK)
    assert cli("audit", "w.safetensors", *words).status == 0
    assert list((here / "cache" / "images").glob("*.rows"))
    with (here / "s.csv").open() as file:
        rows = list(csv_module.DictReader(file))
    assert rows
    assert all(Path(row["file"]).is_file() and Path(row["file"]).parent.name == row["label"] for row in rows)
