"""``spurless sweep``: options, resuming, and the table and JSON that are printed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spurless.bench.executors.task import DIVERGED, Task
from spurless.bench.experiment import Experiment
from spurless.bench.stopping import Stop
from spurless.bench.sweep import SweepResult
from spurless.cli.sweep import format_half_interval, show, to_json
from spurless.core.records import Record
from spurless.metrics.intervals import Spread

Cli = Callable[..., Any]
Refused = Callable[..., None]
TINY = (
    "--data", "planted", "-D", "n_train=200", "-D", "n_val=60", "-D", "n_test=60",
    "--model", "mlp", "-O", "width=8", "--device", "cpu", "--steps", "12", "--seeds", "2",
)  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_values_and_seeds_become_records_and_a_table(cli: Cli, here: Path) -> None:
    result = cli("sweep", "--over", "lr=0.1,0.01", *TINY)
    assert (result.status, result.err) == (0, "")
    records = rows(here / "runs" / "sweep" / "records.jsonl")
    assert [(r["train"]["lr"], r["seed"]) for r in records] == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    assert {r["model"]["options"]["width"] for r in records} == {8}
    assert [r["cell"].split(" ", 1)[1] for r in records] == ["lr=0.01", "lr=0.01", "lr=0.1", "lr=0.1"]
    assert all(r["command"].startswith("spurless sweep --over lr=0.1,0.01") for r in records)
    lines = result.out.splitlines()
    assert lines[0].startswith("erm on planted: accuracy in %")
    assert [line.split()[:2] for line in lines[2:4]] == [["lr=0.01", "2"], ["lr=0.1", "2"]]
    mean = 100 * sum(r["metrics"]["average"] for r in records[2:]) / 2
    assert f" {mean:.1f} ± " in lines[3]
    assert lines[-1] == "records in runs/sweep/records.jsonl"
    assert max(map(len, lines)) <= 80
    assert TINY[0] == "--data"
    again = cli("sweep", "--over", "lr=0.1,0.01", "--dataset", *TINY[1:])  # the two are one word
    assert again.out == result.out
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 4


def test_json_is_one_line(cli: Cli, here: Path) -> None:
    result = cli("sweep", "--over", "step_size=0.01,0.1", *TINY, "--method", "group-dro", "--json", "--out", "all")
    content = json.loads(result.out)
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 1)
    assert [row["value"] for row in content["rows"]] == ["step_size=0.01", "step_size=0.1"]
    assert content["records"] == "all/records.jsonl"
    assert {r["config"]["step_size"] for r in rows(here / "all" / "records.jsonl")} == {0.01, 0.1}


def test_a_sweep_that_stops_says_what_was_not_run(cli: Cli) -> None:
    words = ("sweep", "--over", "lr=0.1,1e30,1e31,1e32", *TINY, "--steps", 60)
    result = cli(*words)
    assert result.status == 0
    text = " ".join(result.out.split())
    assert "Stopped at lr=1e+30: seed 0 diverged. Not run: lr=1e+31; lr=1e+32; --drop none runs all." in text
    everything = cli(*words, "--drop", "none")
    assert "Stopped" not in everything.out
    assert "lr=1e+32" in everything.out


def test_ctrl_c_leaves_130_and_the_same_words_go_on(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.bench.executors.task import run_task

    left = [3]

    def tired(*words: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return run_task(*words)

    monkeypatch.setattr("spurless.bench.executors.in_process.run_task", tired)
    result = cli("sweep", "--over", "lr=0.01,0.1", *TINY)
    assert (result.status, result.out) == (130, "")
    assert result.err == "spurless: stopped; run the same command to resume after the recorded runs.\n"
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 3
    left[0] = 1  # one is enough
    assert cli("sweep", "--over", "lr=0.01,0.1", *TINY).status == 0
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 4


def test_a_recipe_is_the_start_of_every_value(cli: Cli, here: Path) -> None:
    words = ("--recipe", "colored-mnist-dcwp", "--steps", 2, "--seeds", 1, "--drop", "none")
    assert cli("sweep", "--over", "lr=0.1,0.2", *TINY, *words).status == 0
    trains = [record["train"] for record in rows(here / "runs" / "sweep" / "records.jsonl")]
    assert [train["lr"] for train in trains] == [0.1, 0.2]
    assert {(train["optimiser"], train["beta2"], train["steps"]) for train in trains} == {("adam", 0.99, 2)}


def test_own_data_and_a_file_of_settings(cli: Cli, here: Path, csv: Callable[..., Path]) -> None:
    own = csv()
    (here / "s.toml").write_text("[over]\nlr = [0.1, 0.2]\nbatch_size = 16\n[train]\nsteps = 3\n[model]\nwidth = 4\n")
    columns = ("--label", "y", "--attribute", "place", "--split", "split", "--features", "x1,x2")
    words = ("--config", "s.toml", "--data", own, *columns, "--model", "mlp", "--device", "cpu", "--seeds", 1)
    result = cli("sweep", *words, "--over", "lr=0.3", "-T", "schedule=cosine")
    assert (result.status, result.err) == (0, "")
    (record,) = rows(here / "runs" / "sweep" / "records.jsonl")  # the flag wins over the file
    train = record["train"]
    assert (train["lr"], train["batch_size"], train["steps"], train["schedule"]) == (0.3, 16, 3, "cosine")
    assert record["model"]["options"]["width"] == 4
    assert record["data"]["labels"] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), r"a sweep needs a parameter to vary"),
        (("--over", "lr"), r"--over 'lr' is not KEY=VALUE\. .*--over lr=0\.01,0\.1"),
        (("--over", "lr=1", "-T", "fast"), r"is not KEY=VALUE\. Write for example --train-option schedule=cosine\."),
        (("--over", "lr="), r"there is no value of 'lr'"),
        (("--over", "lr=0.1,"), r"option 'lr' of the training loop .*got ''"),
        (("--over", "lr=0.1,fast"), r"expected a number, got 'fast'"),
        (("--over", "lr=0.1,.1"), r"a value of 'lr' is given twice"),
        (("--over", "lr=1", "--over", "lr=2"), r"--over lr is given twice\. Write all values at once: --over lr=1,2\."),
        (("--over", "lrr=1"), r"No parameter is called 'lrr'\. Did you mean 'lr'\?"),
        (
            ("--over", "lr=1", "--executor", "cluster"),
            r"No executor is called 'cluster'\. Known: auto, concurrent, local",
        ),
        (("--over", "lr=1", "--address", "auto"), r"--address needs the executor ray \(got --executor auto\)"),
        (("--over", "lr=1", "--drop", "half"), r"--drop 'half' is not a number"),
        (("--over", "lr=1", "--drop", "25"), r"drop must be a fraction"),
        (("--over", "lr=1", "-M", "preset=x"), r"method 'erm' has no option 'preset'"),
        (("--over", "lr=1", "-O", "seed=3"), r"mlp has no option 'seed'"),
        (("--over", "lr=1", "-D", "name=x"), r"dataset 'planted' has no option 'name'"),
        (("--over", "lr=1", "-T", "learn=x"), r"the training loop has no option 'learn'"),
        (("--over", "lr=1", "--method", "ermm"), r"No method is called 'ermm'\. Did you mean 'erm'\?"),
        (("--over", "lr=1,2", "--lr", "3"), r"lr is swept over and also has a fixed value"),
        (("--over", "l2=1,2", "--weight-decay", "0"), r"l2 is swept over and also has a fixed value"),
        (("--over", "lr=1", "--label", "y"), r"--label, .* are for CSV files"),
        (("--over", "lr=1", "--config", "none.toml"), r"none\.toml: no such file"),
    ],
)
def test_bad_words_are_one_sentence(refused: Refused, words: tuple[str, ...], match: str) -> None:
    refused(match, "sweep", *TINY, *words)


def test_a_section_that_is_none_is_refused(refused: Refused, here: Path) -> None:
    (here / "s.toml").write_text("[overr]\nlr = [1]\n")
    refused(r"s\.toml: \[overr\] is not a known section \(expected .*\[over\]\)", "sweep", *TINY, "--config", "s.toml")


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(refused: Refused, here: Path) -> None:
    (here / "file").touch()
    refused(r"file: cannot write", "sweep", *TINY, "--over", "lr=1", "--out", "file")


def test_help_teaches_and_fits_80_columns(cli: Cli) -> None:
    result = cli("sweep", "--help")
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line.strip() for line in lines if line.strip().startswith("spurless sweep")]
    assert len(examples) == 8
    assert not any(line.split() and line.split()[0] in ("on", "the", "to") and len(line.split()) == 1 for line in lines)


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from spurless.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "sweep", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


CELL = Experiment("planted", "mlp", "erm")


def record(**changes: object) -> Record:
    metrics: dict[str, float | None] = {"average": 0.8, "worst_group": 0.4, "unbiased": None, "val_average": 0.9}
    usual = Record("erm", 0, {}, {}, {}, {}, {}, "last", (), metrics, {})
    return Record(**{**vars(usual), **changes})


def swept() -> SweepResult:
    """Two seeds of three values: fine, one of two cut off, stopped; and one that was not run."""
    cut = {"train": {"stop_loss": 0.1}, "history": ({"stage": "train", "loss": 0.5},), "warnings": ("cut",)}
    gone = {"metrics": {"val_average": None}, "warnings": (f"{DIVERGED} It diverged.",)}
    rows = {
        "lr=0.1": (record(), record(metrics={"average": 0.7, "worst_group": 0.4, "val_average": 0.8})),
        "lr=1": (record(), record(**cut)),
        "lr=10": (record(**gone), record(**gone)),
        "lr=100": (),
    }
    tasks = tuple(
        Task(name, CELL, seed, f"{name}/{seed}", rank=rank) for rank, name in enumerate(rows) for seed in (0, 1)
    )
    records = {f"{name}/{seed}": found for name, both in rows.items() for seed, found in enumerate(both)}
    return SweepResult(tasks, records, (Stop("lr=10", "seed 0 diverged", ("lr=100",), 0, 2),))


def test_the_table_by_hand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show(swept(), "erm on planted", Path("runs/records.jsonl"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]) == "erm on planted"
    assert " ".join(lines[1]) == "value runs unbiased worst group average validation"
    # 12.706 * 0.0707 / sqrt(2) = 0.635
    assert " ".join(lines[2]) == "lr=0.1 2 n/a 40.0 ± 0.0 75.0 ± 63.5 85.0 ± 63.5"
    assert " ".join(lines[3]) == "lr=1 1 n/a 40.0 80.0 90.0 1 cut off"
    assert " ".join(lines[4]) == "lr=10 0 n/a n/a n/a n/a 2 diverged, stopped"
    rest = " ".join(word for line in lines[5:] for word in line)
    assert rest == (
        "Stopped at lr=10: seed 0 diverged. Not run: lr=100; --drop none runs all. "
        "Runs that ended before their stopping rule are cut off and in no mean: allow more epochs. "
        "3 of 6 runs have warnings; see their records. records in runs/records.jsonl"
    )


def test_json_says_the_same_without_nan() -> None:
    content = json.loads(json.dumps(to_json(swept(), Path("r.jsonl")), allow_nan=False))
    assert [
        (row["value"], row["runs"], row["diverged"], row["unreached"], row["stopped"]) for row in content["rows"]
    ] == [
        ("lr=0.1", 2, 0, 0, False),
        ("lr=1", 1, 0, 1, False),
        ("lr=10", 0, 2, 0, True),
    ]
    assert content["rows"][0]["metrics"]["average"]["mean"] == pytest.approx(0.75)
    assert content["rows"][0]["metrics"]["average"]["high"] == pytest.approx(
        0.75 + 12.7062 * 0.1 / math.sqrt(2) / math.sqrt(2)
    )
    assert content["rows"][1]["metrics"]["average"] == {"mean": 0.8, "sd": None, "low": None, "high": None, "n": 1}
    assert content["stops"] == [{"at": "lr=10", "why": "seed 0 diverged", "not_run": ["lr=100"]}]
    assert content["records"] == "r.jsonl"


def test_a_sweep_without_trouble_says_little(capsys: pytest.CaptureFixture[str]) -> None:
    calm = SweepResult((Task("lr=1", CELL, 0, "a"),), {"a": record()}, ())
    show(calm, "erm on planted", Path("r.jsonl"))
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_an_interval_wider_than_all_values_is_a_remark() -> None:
    assert format_half_interval(Spread(0.1, 0.14, -1.171, 1.371, 2)) == " ± >100"
    assert format_half_interval(Spread(0.1, 0.01, 0.08, 0.12, 3)) == " ± 2.0"
    assert format_half_interval(Spread(0.1, float("nan"), float("nan"), float("nan"), 1)) == ""
