"""``spurless sweep``: from words to records, a table and an exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Refused = Callable[..., None]
TINY = (
    "--data", "planted", "-D", "n_train=200", "-D", "n_val=60", "-D", "n_test=60",
    "--model", "mlp", "-O", "width=8", "--device", "cpu", "--steps", "12", "--seeds", "2",
)  # fmt: skip


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_values_and_seeds_become_records_and_a_table(cli: Cli, here: Path) -> None:
    said = cli("sweep", "--over", "lr=0.1,0.01", *TINY)
    assert (said.status, said.err) == (0, "")
    records = rows(here / "runs" / "sweep" / "records.jsonl")
    assert [(r["train"]["lr"], r["seed"]) for r in records] == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    assert {r["model"]["options"]["width"] for r in records} == {8}
    assert [r["cell"].split(" ", 1)[1] for r in records] == ["lr=0.01", "lr=0.01", "lr=0.1", "lr=0.1"]
    assert all(r["command"].startswith("spurless sweep --over lr=0.1,0.01") for r in records)
    lines = said.out.splitlines()
    assert lines[0].startswith("erm on planted: accuracy in %")
    assert [line.split()[:2] for line in lines[2:4]] == [["lr=0.01", "2"], ["lr=0.1", "2"]]
    mean = 100 * sum(r["metrics"]["average"] for r in records[2:]) / 2
    assert f" {mean:.1f} ± " in lines[3]
    assert lines[-1] == "records in runs/sweep/records.jsonl"
    assert max(map(len, lines)) <= 80
    assert TINY[0] == "--data"
    again = cli("sweep", "--over", "lr=0.1,0.01", "--dataset", *TINY[1:])  # the two are one word
    assert again.out == said.out
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 4


def test_json_is_one_line(cli: Cli, here: Path) -> None:
    said = cli("sweep", "--over", "step_size=0.01,0.1", *TINY, "--method", "group-dro", "--json", "--out", "all")
    told = json.loads(said.out)
    assert (said.status, said.err, said.out.count("\n")) == (0, "", 1)
    assert [row["value"] for row in told["rows"]] == ["step_size=0.01", "step_size=0.1"]
    assert told["records"] == "all/records.jsonl"
    assert {r["config"]["step_size"] for r in rows(here / "all" / "records.jsonl")} == {0.01, 0.1}


def test_a_sweep_that_stops_says_what_was_not_run(cli: Cli) -> None:
    words = ("sweep", "--over", "lr=0.1,1e30,1e31,1e32", *TINY, "--steps", 60)
    said = cli(*words)
    assert said.status == 0
    text = " ".join(said.out.split())
    assert "Stopped at lr=1e+30: seed 0 diverged. Not run: lr=1e+31; lr=1e+32; --drop none runs all." in text
    everything = cli(*words, "--drop", "none")
    assert "Stopped" not in everything.out
    assert "lr=1e+32" in everything.out


def test_ctrl_c_leaves_130_and_the_same_words_go_on(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spurless.bench.engines.base import attempt

    left = [3]

    def tired(*words: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return attempt(*words)

    monkeypatch.setattr("spurless.bench.engines.here.attempt", tired)
    said = cli("sweep", "--over", "lr=0.01,0.1", *TINY)
    assert (said.status, said.out) == (130, "")
    assert said.err == "spurless: stopped; the same command goes on after the runs that are recorded.\n"
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 3
    left[0] = 1  # one is enough
    assert cli("sweep", "--over", "lr=0.01,0.1", *TINY).status == 0
    assert len(rows(here / "runs" / "sweep" / "records.jsonl")) == 4


def test_own_data_and_a_file_of_settings(cli: Cli, here: Path, csv: Callable[..., Path]) -> None:
    own = csv()
    (here / "s.toml").write_text("[over]\nlr = [0.1, 0.2]\nbatch_size = 16\n[train]\nsteps = 3\n[model]\nwidth = 4\n")
    columns = ("--label", "y", "--attribute", "place", "--split", "split", "--features", "x1,x2")
    words = ("--config", "s.toml", "--data", own, *columns, "--model", "mlp", "--device", "cpu", "--seeds", 1)
    said = cli("sweep", *words, "--over", "lr=0.3", "-T", "schedule=cosine")
    assert (said.status, said.err) == (0, "")
    (record,) = rows(here / "runs" / "sweep" / "records.jsonl")  # the flag wins over the file
    train = record["train"]
    assert (train["lr"], train["batch_size"], train["steps"], train["schedule"]) == (0.3, 16, 3, "cosine")
    assert record["model"]["options"]["width"] == 4
    assert record["data"]["labels"] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ((), r"a sweep needs a parameter to vary"),
        (("--over", "lr"), r"--over 'lr' is not KEY=VALUE\. Write for example --over lr=0\.01,0\.1\."),
        (("--over", "lr=1", "-T", "fast"), r"is not KEY=VALUE\. Write for example --train-option schedule=cosine\."),
        (("--over", "lr="), r"there is no value of 'lr'"),
        (("--over", "lr=0.1,"), r"option 'lr' of the training loop has the wrong type \(expected a number, got ''\)"),
        (("--over", "lr=0.1,fast"), r"expected a number, got 'fast'"),
        (("--over", "lr=0.1,.1"), r"a value of 'lr' comes twice"),
        (("--over", "lr=1", "--over", "lr=2"), r"--over lr is said twice\. Write all values at once: --over lr=1,2\."),
        (("--over", "lrr=1"), r"No parameter is called 'lrr'\. Did you mean 'lr'\?"),
        (("--over", "lr=1", "--engine", "local"), r"no engine is called 'local'\. Use here, .* or processes, several"),
        (("--over", "lr=1", "--engine", "cluster"), r"No engine is called 'cluster'\. Known: auto, fleet, here"),
        (("--over", "lr=1", "--address", "auto"), r"--address names a Ray cluster \(got --engine auto\)"),
        (("--over", "lr=1", "--drop", "half"), r"--drop 'half' is no share"),
        (("--over", "lr=1", "--drop", "25"), r"drop is a share"),
        (("--over", "lr=1", "-M", "preset=x"), r"method 'erm' has no option 'preset'"),
        (("--over", "lr=1", "-O", "seed=3"), r"mlp has no option 'seed'"),
        (("--over", "lr=1", "-D", "name=x"), r"dataset 'planted' has no option 'name'"),
        (("--over", "lr=1", "-T", "learn=x"), r"the training loop has no option 'learn'"),
        (("--over", "lr=1", "--method", "ermm"), r"No method is called 'ermm'\. Did you mean 'erm'\?"),
        (("--over", "lr=1,2", "--lr", "3"), r"lr is swept over, and has a value of its own beside"),
        (("--over", "l2=1,2", "--weight-decay", "0"), r"l2 is swept over, and has a value of its own beside"),
        (("--over", "lr=1", "--label", "y"), r"--label, .* are for CSV files"),
        (("--over", "lr=1", "--config", "none.toml"), r"none\.toml: no such file"),
    ],
)
def test_bad_words_are_one_sentence(refused: Refused, words: tuple[str, ...], match: str) -> None:
    refused(match, "sweep", *TINY, *words)


def test_a_section_that_is_none_is_refused(refused: Refused, here: Path) -> None:
    (here / "s.toml").write_text("[overr]\nlr = [1]\n")
    refused(r"s\.toml: \[overr\] is no section \(expected .*\[over\]\)", "sweep", *TINY, "--config", "s.toml")


def test_a_place_that_cannot_be_written_is_refused_before_anything_runs(refused: Refused, here: Path) -> None:
    (here / "file").touch()
    refused(r"file: cannot write here", "sweep", *TINY, "--over", "lr=1", "--out", "file")


def test_help_teaches_and_fits_80_columns(cli: Cli) -> None:
    said = cli("sweep", "--help")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    examples = [line.strip() for line in lines if line.strip().startswith("spurless sweep")]
    assert len(examples) == 8
    assert not any(line.split() and line.split()[0] in ("on", "the", "to") and len(line.split()) == 1 for line in lines)


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from spurless.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, "sweep", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, said.stderr) == (0, "")
