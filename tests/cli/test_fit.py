"""``spurless fit``: one record, one file of weights, no checkpoints; the same words give the same run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

Cli = Callable[..., Any]
TINY = (
    "--data",
    "planted",
    "-D",
    "n_train=200",
    "-D",
    "n_val=60",
    "-D",
    "n_test=60",
    "--model",
    "mlp",
    "--device",
    "cpu",
)


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    (path,) = folder.glob("*.safetensors")
    found: dict[str, torch.Tensor] = load_file(path)
    return found


def test_fit_writes_a_record_and_weights_and_leaves_no_checkpoint(tiny_fit: Cli, here: Path) -> None:
    result = tiny_fit("erm")
    (record,) = result.records(here / "runs" / "records.jsonl")
    assert result.err == ""
    assert "erm on planted, seed 0" in result.out
    assert "minus, right" in result.out
    assert (record["method"], record["seed"], record["data"]["name"], record["train"]["steps"]) == (
        "erm",
        0,
        "planted",
        5,
    )
    names = {path.name for path in (here / "runs").iterdir()}
    assert names == {"records.jsonl", f"erm-planted-seed0-{record['key'][:8]}.safetensors"}


def test_json_is_one_line_for_each_seed_and_nothing_else(tiny_fit: Cli, here: Path) -> None:
    result = tiny_fit("erm", "--json", "--seed", 3, "--seeds", 2)
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert result.err == ""
    assert [row["seed"] for row in rows] == [3, 4]
    assert rows == result.records(here / "runs" / "records.jsonl")
    assert len(list((here / "runs").glob("*.safetensors"))) == 2


def test_a_run_that_is_recorded_is_shown_and_not_repeated(tiny_fit: Cli, here: Path) -> None:
    first = tiny_fit("erm", "--json", "--seeds", 2)
    before = first.records(here / "runs" / "records.jsonl")
    again = tiny_fit("erm", "--json", "--seeds", 3)
    rows = [json.loads(line) for line in again.out.splitlines()]
    assert rows[:2] == before  # the same records, to the second in which they were made
    assert [row["seed"] for row in again.records(here / "runs" / "records.jsonl")] == [0, 1, 2]
    other = tiny_fit("erm", "--lr", 0.02)
    assert len(other.records(here / "runs" / "records.jsonl")) == 4  # other words, another run


def test_weights_that_are_gone_are_trained_again(tiny_fit: Cli, here: Path) -> None:
    tiny_fit("erm")
    (weights,) = (here / "runs").glob("*.safetensors")
    before = weights_in(here / "runs")
    weights.unlink()
    tiny_fit("erm")
    assert all(torch.equal(before[name], value) for name, value in weights_in(here / "runs").items())


def test_the_same_words_give_the_same_key_metrics_and_weights(tiny_fit: Cli, here: Path) -> None:
    for out in ("one", "two"):
        result = tiny_fit("jtt", "--out", out)
    first, second = (result.records(here / out / "records.jsonl")[0] for out in ("one", "two"))
    assert (first["key"], first["metrics"], first["groups"]) == (second["key"], second["metrics"], second["groups"])
    one, two = weights_in(here / "one"), weights_in(here / "two")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_config_file_says_the_same_as_flags_and_flags_win(tiny_fit: Cli, here: Path) -> None:
    (here / "run.toml").write_text("[model]\nwidth = 6\n[method]\nupweight = 7\n[train]\nlr = 0.5\nbatch_size = 16\n")
    files = {
        "flags": ("-O", "width=6", "-M", "upweight=7", "--lr", 0.5, "--batch-size", 16),
        "file": ("--config", "run.toml"),
        "both": ("--config", "run.toml", "--lr", 0.25, "-M", "upweight=8", "-O", "width=5"),
    }
    rows = {}
    for name, words in files.items():
        result = tiny_fit("jtt", *words, "--out", name)
        (rows[name],) = result.records(here / name / "records.jsonl")
    assert rows["flags"]["key"] == rows["file"]["key"]
    both = rows["both"]
    assert (both["train"]["lr"], both["train"]["batch_size"], both["config"]["upweight"]) == (0.25, 16, 8)
    assert both["model"]["options"]["width"] == 5


def test_options_reach_the_record(tiny_fit: Cli, here: Path) -> None:
    words = (
        "-D",
        "agreement=0.8",
        "-O",
        "width=9",
        "-M",
        "upweight=3",
        "--preset",
        "celeba",
        "--select",
        "val-average",
    )
    result = tiny_fit("jtt", *words)
    (record,) = result.records(here / "runs" / "records.jsonl")
    assert record["data"]["options"]["agreement"] == 0.8
    assert record["data"]["options"]["n_train"] == 200
    assert record["model"]["options"]["width"] == 9
    assert record["config"]["upweight"] == 3
    assert record["selection"] == "val-average"
    assert record["command"].startswith("spurless fit jtt --data planted")


def test_settings_of_the_loop_reach_the_record(tiny_fit: Cli, here: Path) -> None:
    words = ("--l1", 0.001, "--asam", 0.5, "--schedule", "warmup-stable-decay", "--decay-fraction", 0.4)
    (record,) = tiny_fit("focal", *words, "-M", "gamma=3").records(here / "runs" / "records.jsonl")
    result = {"l1": 0.001, "asam": 0.5, "schedule": "warmup-stable-decay", "decay_fraction": 0.4}
    assert {name: record["train"][name] for name in result} == result
    assert record["config"] == {"gamma": 3.0}


def test_flags_and_files_override_a_recipe(tiny_fit: Cli, here: Path, refused: Cli) -> None:
    (here / "run.toml").write_text('[train]\nrecipe = "waterbirds-dfr"\nlr = 0.5\n')
    for out, words in (("flags", ("--recipe", "waterbirds-dfr", "--lr", 0.5)), ("file", ("--config", "run.toml"))):
        (record,) = tiny_fit("erm", *words, "--out", out).records(here / out / "records.jsonl")
        train = record["train"]
        assert (train["lr"], train["weight_decay"], train["batch_size"]) == (0.5, 1e-3, 32)
        assert (train["epochs"], train["steps"]) == (100, 5)  # the steps are a flag of this call
    match = r"No recipe is called 'waterbirds-drf'\. Did you mean 'waterbirds-dfr'"
    refused(match, "fit", "erm", "--recipe", "waterbirds-drf")


def test_method_that_repairs_starts_from_given_weights(tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm", "--out", "erm", "--steps", 100).status == 0
    (weights,) = (here / "erm").glob("*.safetensors")
    result = tiny_fit("dfr", "--weights", weights)
    (record,) = result.records(here / "runs" / "records.jsonl")
    assert "train" not in record["seconds"]  # nothing was trained by ERM
    before, after = weights_in(here / "erm"), weights_in(here / "runs")
    assert [name for name in before if not torch.equal(before[name], after[name])] == ["head.weight"]


@pytest.mark.parametrize("kind", ["csv", "tsv", "npz", "folder", "images"])
def test_own_data_go_all_the_way(cli: Cli, here: Path, csv: Cli, npz: Cli, folder: Path, kind: str) -> None:
    columns: tuple[object, ...] = ("--label", "y", "--attribute", "place", "--split", "split")
    if kind == "csv":
        words = (csv(), *columns, "--model", "mlp")
    elif kind == "tsv":
        (here / "own.tsv").write_text(csv().read_text().replace(",", "\t"))
        words = (here / "own.tsv", *columns, "--model", "mlp")
    elif kind == "npz":
        words = (npz(), "--model", "mlp")
    elif kind == "folder":
        words = (folder, "--model", "small-cnn", "-D", "size=16")
    else:
        lines = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
        (here / "meta.csv").write_text("\n".join(["picture,y", *lines]))
        words = ("meta.csv", "--label", "y", "--file", "picture", "--root", folder, "--model", "mlp")
    result = cli("fit", "erm", "--data", *words, "--steps", 30, "--batch-size", 8, "--device", "cpu")
    (record,) = result.records(here / "runs" / "records.jsonl")
    (weights,) = (here / "runs").glob("*.safetensors")
    assert " " not in weights.name
    data = tuple(word for word in words if word not in ("--model", "mlp", "small-cnn"))
    again = cli("eval", weights, "--data", *data, "--json")
    assert again.status == 0, again.err
    assert json.loads(again.out)["metrics"] == record["metrics"]
    assert json.loads(again.out)["data"] == record["data"]


def test_warning_of_ours_is_one_line(tiny_fit: Cli, here: Path) -> None:
    result = tiny_fit("erm", "--lr", 1e-9, "-O", "width=1", "--seed", 0)
    assert result.status == 0
    (record,) = result.records(here / "runs" / "records.jsonl")
    assert result.err.splitlines() == [f"spurless: warning: {text}" for text in record["warnings"]]
    assert "predicts" in result.err


def test_interrupted_run_says_one_line_and_goes_on_to_the_same_weights(
    tiny_fit: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.train.checkpoint import Checkpoints

    words = ("--steps", 60, "--batch-size", 20)
    assert tiny_fit("erm", *words, "--out", "straight").status == 0
    monkeypatch.setattr(Checkpoints, "is_due", lambda *_: True)

    steps: list[int] = []

    @contextmanager
    def listening(limit: int) -> Iterator[Callable[..., None]]:
        def tell(_stage: str, step: int, *_: object) -> None:
            steps.append(step)
            if step >= limit:
                raise KeyboardInterrupt

        yield tell

    clock = SimpleNamespace(monotonic=iter(range(1, 10**6)).__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr("spurless.train.run.time", clock)  # no step goes untold; others have the true time
    monkeypatch.setattr(import_module("spurless.cli.fit"), "progress_bar", lambda _: listening(20))
    result = tiny_fit("erm", *words)
    assert (result.status, result.out) == (130, "")
    assert result.err == "spurless: stopped; run the same command to resume.\n"
    assert steps == list(range(1, 21))
    monkeypatch.setattr(import_module("spurless.cli.fit"), "progress_bar", lambda _: listening(99))
    again = tiny_fit("erm", *words)
    assert len(again.records(here / "runs" / "records.jsonl")) == 1
    assert steps[20] == 21  # it went on, and did not begin again
    assert not (here / "runs" / "checkpoints").exists()
    one, two = weights_in(here / "straight"), weights_in(here / "runs")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_ctrl_c_lets_the_step_end_and_saves_it(tiny_fit: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, steps = ("--steps", 60, "--batch-size", 20), list[int]()
    assert tiny_fit("erm", *words, "--out", "straight").status == 0

    @contextmanager
    def listening(_: bool) -> Iterator[Callable[..., None]]:
        def tell(_stage: str, step: int, *_: object) -> None:
            steps.append(step)
            if steps == list(range(1, 21)):
                signal.raise_signal(signal.SIGINT)

        yield tell

    clock = SimpleNamespace(monotonic=iter(range(1, 10**6)).__next__, perf_counter=time.perf_counter)
    monkeypatch.setattr("spurless.train.run.time", clock)  # no step goes untold; others have the true time
    monkeypatch.setattr(import_module("spurless.cli.fit"), "progress_bar", listening)
    result = tiny_fit("erm", *words)
    assert (result.status, result.err) == (130, "spurless: stopped; run the same command to resume.\n")
    assert tiny_fit("erm", *words).status == 0
    assert steps[19:21] == [20, 22]  # step 21 was made, and saved: half a minute had not gone by
    one, two = weights_in(here / "straight"), weights_in(here / "runs")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_that_another_process_is_at_is_not_begun(
    tiny_fit: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.core.locks import lock_runs

    module, facts = import_module("spurless.cli.fit"), list[Any]()

    def noted(*what: Any) -> Any:
        facts.append(what)
        return lock_runs(*what)

    monkeypatch.setattr(module, "lock_runs", noted)
    assert tiny_fit("erm", "--steps", 5).status == 0
    ((out, (key,)),) = facts
    (here / "runs" / "records.jsonl").unlink()
    holder = (
        "import sys\nfrom pathlib import Path\nfrom spurless.core.locks import lock_runs\n"
        f"with lock_runs(Path({str(here / out)!r}), [{key!r}]):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", holder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        result = tiny_fit("erm", "--steps", 5)
        process.communicate("")
    assert result.status == 2
    assert "runs/records.jsonl: another process is working on this run" in result.err
    assert tiny_fit("erm", "--steps", 5).status == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    tiny_fit("erm", "--steps", 5)
    assert facts[-1][0] is None  # it is one of several that train together


@pytest.mark.slow
def test_killed_run_goes_on_to_the_same_weights_and_one_record(tiny_fit: Cli, here: Path) -> None:
    """The kill comes from outside, at a step that the checkpoint decides."""
    words = ("fit", "erm", *TINY, "--steps", "4000", "--batch-size", "20", "--out", "killed")
    program = (
        "from spurless.train.checkpoint import Checkpoints\n"
        "Checkpoints.is_due = lambda *_: True\n"
        "from spurless.cli import main\n"
        "main()\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", program, *words], cwd=here, env=environment)
    until = time.monotonic() + 60
    while not list(here.glob("killed/checkpoints/*/stage-train.pt")) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (here / "killed" / "records.jsonl").exists()
    again = tiny_fit("erm", *words[len(TINY) + 2 :])
    assert len(again.records(here / "killed" / "records.jsonl")) == 1
    assert tiny_fit("erm", *words[len(TINY) + 2 : -1], "straight").status == 0
    assert {path.suffix for path in (here / "killed").iterdir()} == {".jsonl", ".safetensors"}
    one, two = weights_in(here / "straight"), weights_in(here / "killed")
    assert all(torch.equal(one[name], two[name]) for name in one)


def two_processes(here: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "spurless", "fit", "erm", *TINY, *words, "--devices", "2", "--strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_two_processes_say_it_once_and_end_with_the_weights_of_one(tiny_fit: Cli, here: Path) -> None:
    words = ("--steps", "20", "--batch-size", "64")
    two = two_processes(here, *words, "--out", "two")
    assert (two.returncode, two.stderr) == (0, "")
    one = tiny_fit("erm", *words, "--out", "one")
    assert two.stdout.replace("two/", "one/") == one.out
    assert len(one.records(here / "two" / "records.jsonl")) == 1
    for name, tensor in weights_in(here / "one").items():
        assert torch.allclose(tensor, weights_in(here / "two")[name], atol=1e-5), name


@pytest.mark.slow
def test_each_of_two_processes_that_fail_prints_its_rank(here: Path) -> None:
    result = two_processes(here, "--steps", "20", "--batch-size", "63")
    assert (result.returncode, result.stdout) == (2, "")
    message = "the batch size must be a multiple of the number of devices (got 63 over 2)."
    assert f"spurless: [rank 0] {message}\n" in result.stderr
    lines = [f"spurless: [rank {rank}] {message}" for rank in range(2)]
    assert set(result.stderr.splitlines()) <= set(lines)  # the first to exit may end the other


@pytest.mark.parametrize(("rank", "prefix"), [(None, "spurless:"), ("1", "spurless: [rank 1]")])
def test_an_error_has_the_rank_of_its_process(
    rank: str | None, prefix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    with pytest.raises(SystemExit) as left:
        import_module("spurless.cli")._leave("no such\n  file.", 2)
    assert (left.value.code, capsys.readouterr().err) == (2, f"{prefix} no such file.\n")


def test_coverage_is_recorded_printed_and_part_of_the_key(tiny_fit: Cli, here: Path) -> None:
    plain, shy = tiny_fit("erm"), tiny_fit("erm", "--coverage", "1,0.5", "--steps", 60)
    first, second = shy.records(here / "runs" / "records.jsonl")
    assert "if it may abstain" not in plain.out
    assert "selective prediction by the score 'softmax'" in shy.out
    assert first["selective"] == {}
    assert [row["target"] for row in second["selective"]["rows"]] == [1.0, 0.5]
    assert second["metrics"]["error_at_50"] == second["selective"]["rows"][1]["error"]
    facts = json.loads(tiny_fit("erm", "--coverage", "1,0.5", "--steps", 60, "--json").out)
    assert facts["selective"] == second["selective"]
    assert second["warnings"] == [line.removeprefix("spurless: warning: ") for line in shy.err.splitlines()]


def test_the_weights_before_a_repair_are_kept_where_it_trained_them(tiny_fit: Cli, here: Path) -> None:
    erm = tiny_fit("erm", "--steps", 100, "--out", "erm")
    result = tiny_fit("masktune", "--steps", 100)
    (record,) = result.records(here / "runs" / "records.jsonl")
    name = f"masktune-planted-seed0-{record['key'][:8]}"
    names = {path.name for path in (here / "runs").iterdir()}
    assert names == {"records.jsonl", f"{name}.safetensors", f"{name}-start.safetensors"}
    assert f"weights before the repair in runs/{name}-start.safetensors" in " ".join(result.out.split())
    begun, trained = load_file(here / "runs" / f"{name}-start.safetensors"), weights_in(here / "erm")
    assert all(torch.equal(begun[part], value) for part, value in trained.items())
    assert "before the repair" not in erm.out
    shown = tiny_fit("masktune", "--steps", 100)  # the same words: shown, not repeated, with both places
    assert shown.out == result.out


def test_no_second_weights_where_the_user_brought_them(tiny_fit: Cli, here: Path) -> None:
    tiny_fit("erm", "--steps", 100, "--out", "erm")
    (weights,) = (here / "erm").glob("*.safetensors")
    result = tiny_fit("masktune", "--weights", weights)
    assert result.status == 0, result.err
    assert len(list((here / "runs").glob("*.safetensors"))) == 1
    assert "before the repair" not in result.out


def test_what_was_mined_is_kept_and_given_to_another_method(
    tiny_fit: Cli, refused: Callable[..., None], here: Path
) -> None:
    result = tiny_fit("dcwp", "--preset", "digits", "--out", "dcwp")
    (path,) = (here / "dcwp").glob("*-mined.npz")
    assert f"mined examples in dcwp/{path.name}" in " ".join(result.out.split())
    given = tiny_fit("group-dro", "--mined", path, "--out", "dro")
    plain = tiny_fit("group-dro", "--out", "dro")
    listed, known = given.records(here / "dro" / "records.jsonl")
    assert listed["key"] != known["key"]
    assert "by mined examples: gce chose" in listed["warnings"][0]
    assert "mined in" not in plain.out
    again = tiny_fit("dcwp", "--preset", "digits", "--mined", path, "--out", "again")
    (facts,) = again.records(here / "again" / "records.jsonl")
    assert facts["config"]["mined"] == str(path)
    assert "mine" not in facts["seconds"]
    refused("--mined: erm neither mines", "fit", "erm", *TINY, "--mined", path)
    refused("from other data", "fit", "group-dro", "--mined", path)
    refused("no such file", "fit", "group-dro", *TINY, "--mined", "gone.npz")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--coverage", "80"), r"80 is a percentage\. Write 0\.8\."),
        (("--score", "softmax"), r"--score needs --coverage\. Pass --coverage"),
        (("--score", "sofmax", "--coverage", "0.8"), r"No score is called 'sofmax'\. Did you mean 'softmax'\?"),
        (
            ("--score", "product", "--coverage", "0.8"),
            r"the score 'product' needs two models, but erm does not start from a trained one",
        ),
        (("--score", "selector", "--coverage", "0.8"), r"the score 'selector' is trained, but erm does not train one"),
        (("--select", "val-worst-inferred"), r"val-worst-inferred infers groups from a starting model, but erm"),
    ],
)
def test_abstaining_that_cannot_be_is_refused_and_nothing_is_written(
    refused: Callable[..., None], words: tuple[str, ...], match: str
) -> None:
    refused(match, "fit", "erm", *TINY, *words)


def test_weights_with_a_selector_are_not_repaired(refused: Callable[..., None], tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("selectivenet", "--out", "net").status == 0
    (weights,) = (here / "net").glob("*.safetensors")
    refused(r"\.safetensors: the weights have a selector", "fit", "dfr", *TINY, "--weights", weights)


def test_every_training_setting_is_a_flag_with_its_default() -> None:
    import inspect

    from spurless.cli.fit import fit
    from spurless.train.config import TrainConfig

    flags = inspect.signature(fit).parameters
    shown = {name: flags[name].annotation.__metadata__[0].show_default for name in vars(TrainConfig())}
    assert shown == {
        name: str(value) if value not in (None, ()) else False for name, value in vars(TrainConfig()).items()
    }


def test_a_tracked_run_leaves_its_epochs_beside_its_record(tiny_fit: Cli, here: Path) -> None:
    result = tiny_fit("erm", "--track", "csv")
    (record,) = result.records(here / "runs" / "records.jsonl")
    assert (result.status, result.err) == (0, "")
    place = here / "runs" / "track" / f"erm-planted-seed0-{record['key'][:8]}"
    header, *rows = (place / "metrics.csv").read_text().splitlines()
    assert "train/loss" in header
    assert len(rows) == len(record["history"]) + 1
    assert record["key"] == tiny_fit("erm", "--out", "plain").records(here / "plain" / "records.jsonl")[0]["key"]


@pytest.mark.parametrize("command", [("fit", "erm"), ("sweep", "--over", "lr=0.1"), ("bench", "plan.toml")])
def test_a_tracker_that_is_none_is_refused_before_anything_is_done(
    refused: Callable[..., None], here: Path, command: tuple[str, ...]
) -> None:
    (here / "plan.toml").write_text('methods = ["erm"]\ndatasets = ["planted"]\nmodel = "linear"\n')
    refused(r"No tracker is called 'tensorbord'. Did you mean 'tensorboard'\?", *command, "--track", "tensorbord")
    assert not (here / "runs").exists()


def test_onnx_is_written_of_a_run_and_of_one_that_is_recorded(
    tiny_fit: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spurless.models import export

    def write(path: Path, model: torch.nn.Module, example: torch.Tensor, *, compact: bool) -> Path:
        path.write_text(f"{model(example).shape}{compact}")
        return path

    monkeypatch.setattr(export, "find_spec", lambda _: object())
    monkeypatch.setattr(export, "write_onnx", write)
    for compact in (False, True):
        result = tiny_fit("erm", "-O", "width=6", "--onnx", "m.onnx", *(["--compact"] if compact else []))
        assert result.out.strip().endswith(", ONNX in m.onnx")
        assert (here / "m.onnx").read_text() == f"torch.Size([2, 2]){compact}"
        (here / "m.onnx").unlink()
    assert len(result.records(here / "runs" / "records.jsonl")) == 1
