"""Signing: a record says which sweep it is of, and what another sweep made is taken over once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spurless.bench.executors import Resources, Task
from spurless.bench.experiment import Experiment
from spurless.bench.runner import CUT_OFF, copy_records, mark_record
from spurless.bench.sweep import Sweep, run_sweep
from spurless.core.records import Record, read_records
from spurless.reporting.sweeps import find_sweeps
from spurless.train.run import Compute

SMALL = {"n_train": 200, "n_val": 60, "n_test": 60}
CPU = Resources(Compute("cpu"))


def record(**changes: object) -> Record:
    usual = Record("erm", 0, {}, {}, {}, {}, {"val_labels": False}, "last", (), {"val_average": 0.9}, {})
    return Record(**{**vars(usual), **changes})


def cell(**train: float) -> Experiment:
    return Experiment("planted", "mlp", "erm", SMALL, {"width": 8}, train={"steps": 12, **train})


def test_a_run_that_was_cut_off_says_so_and_one_that_was_judged_too() -> None:
    short = record(train={"stop_loss": 0.1}, history=({"loss": 0.5},), warnings=("before",))
    assert mark_record(record(), "sweep-1 lr=1", has_rule=False).warnings == ()
    made = mark_record(short, "sweep-1 lr=1", has_rule=True)
    assert (made.cell, made.warnings) == ("sweep-1 lr=1", ("before", CUT_OFF))
    assert made.supervision == {"val_labels": True}
    assert not mark_record(record(), "sweep-1 lr=1", has_rule=False).supervision["val_labels"]


def test_only_what_another_sweep_made_is_taken_over_and_its_own_words_stay() -> None:
    tasks = [Task(f"lr={key}", Experiment("planted", "mlp", "erm"), 0, key) for key in ("1", "2", "3")]
    known = {"1": record(cell="sweep-b lr=1"), "2": record(cell="sweep-a momentum=0", command="first", warnings=("x",))}
    (other,) = copy_records(tasks, known, "sweep-b", has_rule=True)
    assert (other.cell, other.command, other.warnings) == ("sweep-b lr=2", "first", ("x",))
    assert other.supervision["val_labels"]


def test_a_run_of_two_sweeps_in_one_file_is_made_once_and_is_a_point_of_both(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run_sweep(Sweep(cell(), {"lr": [0.01, 0.1]}, seeds=1), out=out, resources=CPU)
    second = Sweep(cell(lr=0.1), {"momentum": [0, 0.9]}, seeds=1)
    for _ in range(3):  # the second and third time there is nothing left to do or to say
        run_sweep(second, out=out, resources=CPU)
    found = read_records(out)
    assert [r.cell.split()[1] for r in found] == ["lr=0.01", "lr=0.1", "momentum=0", "momentum=0.9"]
    assert found[1].key == found[3].key
    assert found[1].metrics == found[3].metrics
    assert [walked.values for walked in find_sweeps(found)] == [("0.01", "0.1"), ("0", "0.9")]


def test_what_the_rule_leaves_is_not_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run_sweep(Sweep(cell(momentum=0.0), {"lr": [1e30, 2e30]}, seeds=1, drop=None), out=out, resources=CPU)
    swept = run_sweep(Sweep(cell(), {"lr": [1e30, 2e30], "momentum": [0.0]}, seeds=1), out=out, resources=CPU)
    assert swept.stops[0].not_run == ("lr=2e+30, momentum=0",)
    assert [r.cell.split(" ", 1)[1] for r in read_records(out)] == ["lr=1e+30", "lr=2e+30", "lr=1e+30, momentum=0"]


def test_values_are_written_so_that_a_page_finds_them(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    over: dict[str, list[Any]] = {"batch-size": [32, 64], "clip": [None, 1.0], "decay_at": [(4,), (4, 8), ()]}
    for name, values in over.items():
        run_sweep(Sweep(cell(), {name: values}, seeds=1, drop=None), out=out, resources=CPU)
    found = {walked.parameter: walked.values for walked in find_sweeps(read_records(out))}
    assert found == {"batch_size": ("32", "64"), "clip": ("none", "1"), "decay_at": ("4", "4 and 8", "none")}
    again = Sweep(cell(), {"batch_size": [32, 64]}, seeds=1)
    assert again.name == Sweep(cell(), {"batch-size": [32, 64]}, seeds=1).name
