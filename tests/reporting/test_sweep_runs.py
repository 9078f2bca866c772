"""Swept runs: which parameter is walked, which runs count, and in which order they stand."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from spurless.core.records import Record
from spurless.reporting.sweeps import CUT_OFF, DIVERGED, SweepRun, SweepRuns, find_sweeps

Make = Callable[..., Record]


def one(records: list[Record]) -> SweepRuns:
    (found,) = find_sweeps(records)
    return found


def test_numbers_are_walked_upwards_and_seeds_stand_together(make: Make) -> None:
    rows = [
        make(cell=f"sweep-1 lr={lr}", seed=seed, key=f"{lr} {seed}") for lr in ("0.5", "1e-3", "10") for seed in (0, 1)
    ]
    found = one(rows)
    assert (found.parameter, found.values) == ("lr", ("1e-3", "0.5", "10"))
    assert [found.position(value) for value in found.values] == [0.001, 0.5, 10.0]
    assert {words: len(runs) for words, runs in found.runs_by_value().items()} == {
        "lr 1e-3": 2,
        "lr 0.5": 2,
        "lr 10": 2,
    }
    assert list(found.lines()) == [""]
    assert list(found.lines()[""]) == ["1e-3", "0.5", "10"]


def test_the_first_numbers_are_walked_and_the_other_parameters_make_lines(make: Make) -> None:
    cells = [f"sweep-1 optimiser={o}, lr={lr}, l2={l2}" for o in ("sgd", "adam") for lr in (0.1, 1) for l2 in (0, 1)]
    found = one([make(cell=cell) for cell in cells])
    assert found.parameter == "lr"
    assert list(found.lines()) == [f"optimiser {o}, l2 {l2}" for o in ("sgd", "adam") for l2 in (0, 1)]
    assert all(list(line) == ["0.1", "1"] for line in found.lines().values())


def test_words_stay_in_their_order(make: Make) -> None:
    found = one([make(cell=f"sweep-1 optimiser={o}") for o in ("sgd", "adam")])
    assert (found.numeric, found.values, found.position("adam")) == (False, ("sgd", "adam"), 1.0)


@pytest.mark.parametrize("cell", ["", "claim/x erm", "claim/x p 0.6", "no-owner=1", "a b=1, c", "sweep-1 lr=0.1"])
def test_other_cells_and_a_single_value_are_no_sweep(make: Make, cell: str) -> None:
    assert find_sweeps([make(cell=cell), make(cell=cell, seed=1)]) == []


def test_each_owner_is_a_sweep_of_its_own_and_a_run_counts_once(make: Make) -> None:
    rows = [make(cell=f"{owner} lr={lr}", key=f"{owner}{lr}") for owner in ("a", "b") for lr in (1, 2)]
    found = find_sweeps([*rows, rows[0]])
    assert [len(walked.runs) for walked in found] == [2, 2]
    without_keys = one([make(cell="a lr=1"), make(cell="a lr=1", seed=1), make(cell="a lr=2")])
    assert len(without_keys.runs) == 3


def test_runs_that_did_not_come_to_their_end_do_not_count(make: Make) -> None:
    fine = make(
        cell="s lr=1", train={"stop_accuracy": 1.0}, history=({"epoch": 1, "loss": 0.1, "train_accuracy": 1.0},)
    )
    late = replace(fine, cell="s lr=2", history=({"epoch": 1, "loss": 0.1, "train_accuracy": 0.999},))
    by_loss = replace(late, cell="s lr=3", train={"stop_accuracy": 1.0, "stop_loss": 0.2})
    above = replace(late, cell="s lr=4", train={"stop_loss": 0.05})
    gone = replace(fine, cell="s lr=5", metrics={"val_average": None})
    free = replace(late, cell="s lr=6", train={})
    found = one([fine, late, by_loss, above, gone, free])
    assert [run.label for run in found.runs] == ["lr 1", "lr 3", "lr 6"]
    assert [(run.label, run.exclusion) for run in found.excluded] == [
        ("lr 2", CUT_OFF),
        ("lr 4", CUT_OFF),
        ("lr 5", DIVERGED),
    ]
    assert found.values == ("1", "2", "3", "4", "5", "6")


def test_accuracy_is_the_unbiased_one_where_there_is_one(make: Make) -> None:
    assert SweepRun({}, make(average=0.5)).accuracy == 50.0
    assert SweepRun({}, make(metrics={"average": 0.5, "unbiased": 0.25})).accuracy == 25.0
    assert SweepRun({}, make(metrics={"csi": 0.5})).metric("csi") == 0.5
    assert SweepRun({}, make(metrics={"csi": "much"})).metric("csi") is None
