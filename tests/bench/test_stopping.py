"""Stopping: the rule by hand, on lines of made-up accuracies."""

from __future__ import annotations

from typing import Any

import pytest

from spurless.bench.executors.task import DIVERGED, Task
from spurless.bench.experiment import Experiment
from spurless.bench.stopping import Stop, find_stop, has_diverged, is_complete, validation_accuracy
from spurless.core.records import Record

CELL = Experiment("planted", "mlp", "erm")


def record(val: float | None, history: tuple[dict[str, Any], ...] = (), **train: Any) -> Record:
    notes = (f"{DIVERGED} Training 'train' diverged.",) if val is None else ("a warning of its own",)
    return Record(
        "erm", 0, {}, {}, {}, train, {}, "last", (), {"val_average": val}, {}, warnings=notes, history=history
    )


def line(*values: tuple[float | None, ...]) -> tuple[list[Task], dict[str, Record]]:
    """Return the tasks and records of a line: a tuple per value, an accuracy per seed, None where it diverged."""
    tasks = [
        Task(f"lr={rank}", CELL, seed, f"{rank}/{seed}", rank=rank)
        for rank, seeds in enumerate(values)
        for seed in range(len(seeds))
    ]
    found = {f"{rank}/{seed}": record(val) for rank, seeds in enumerate(values) for seed, val in enumerate(seeds)}
    return tasks, found


@pytest.mark.parametrize(
    ("values", "at"),
    [
        ([(0.5, 0.5), (0.8, 0.8), (0.6, 0.6), (0.1, 0.1)], "lr=3"),  # 0.6 is just three quarters of 0.8
        ([(0.8, 0.8), (0.8, 0.599), (0.8, 0.8)], "lr=1"),  # any one of the seeds
        ([(0.4, 0.9), (0.3, 0.8), (0.2, 0.9)], "lr=2"),  # its own best, not that of the others
        ([(0.8, 0.8), (0.7, 0.7), (0.61, 0.61), (0.599, 0.8)], "lr=3"),  # of the best so far, not of the last
        ([(0.2, 0.2), (0.9, None), (0.9, 0.9)], "lr=1"),
        ([(None, None), (0.9, 0.9)], "lr=0"),
        ([(0.1, 0.1), (0.5, 0.5), (0.9, 0.9)], None),
    ],
)
def test_a_line_ends_where_any_seed_loses_a_quarter_of_its_best(
    values: list[tuple[float | None, ...]], at: str | None
) -> None:
    tasks, records = line(*values)
    for order in (tasks, tasks[::-1]):
        stop = find_stop(order, records, drop=0.25)
        assert (stop.at if stop is not None else None) == at


def test_a_stop_says_why_and_what_is_left() -> None:
    tasks, records = line((0.5, 0.84), (0.5, 0.42), (0.5, 0.5), (0.5, 0.5))
    assert find_stop(tasks, records, 0.25) == Stop(
        "lr=1", "the validation accuracy of seed 1 fell from 84.0% at lr=0 to 42.0%", ("lr=2", "lr=3"), 0, 1
    )
    tasks, records = line((0.5, 0.84), (0.5, None))
    assert find_stop(tasks, records, 0.25) == Stop("lr=1", "seed 1 diverged", (), 0, 1)


def test_a_larger_drop_goes_further() -> None:
    tasks, records = line((0.8,), (0.41,), (0.39,), (0.8,))
    ends = [find_stop(tasks, records, drop) for drop in (0.25, 0.5, 0.9)]
    assert [stop and stop.at for stop in ends] == ["lr=1", "lr=2", None]


def test_what_is_not_done_yet_stops_nothing() -> None:
    tasks, records = line((0.8, 0.8), (0.1, 0.8), (0.8, 0.8))
    del records["1/0"]
    assert find_stop(tasks, records, 0.25) is None
    assert find_stop(tasks, {}, 0.25) is None


ROWS = ({"stage": "train", "epoch": 1, "loss": 0.5, "train_accuracy": 1.0}, {"stage": "train", "epoch": 2, "loss": 0.2})


@pytest.mark.parametrize(
    ("train", "last", "came"),
    [
        ({}, {"loss": 0.9}, True),
        ({"stop_accuracy": 1.0}, {"loss": 0.9, "train_accuracy": 1.0}, True),
        ({"stop_accuracy": 1.0}, {"loss": 0.9, "train_accuracy": 0.999}, False),
        ({"stop_loss": 0.1}, {"loss": 0.09}, True),
        ({"stop_loss": 0.1}, {"loss": 0.1}, False),
        (
            {"stop_accuracy": 1.0, "stop_loss": 0.1},
            {"loss": 0.05, "train_accuracy": 0.9},
            True,
        ),  # the loop ends at either
        ({"stop_accuracy": 1.0, "stop_loss": 0.1}, {"loss": 0.5, "train_accuracy": 0.9}, False),
        ({"stop_accuracy": None, "stop_loss": None}, {"loss": 0.9}, True),
    ],
)
def test_a_run_reached_its_rule_if_its_last_epoch_did(train: dict[str, Any], last: dict[str, Any], came: bool) -> None:
    assert is_complete(record(0.5, (*ROWS, {"stage": "train", "epoch": 3, **last}), **train)) is came


@pytest.mark.parametrize("came", [True, False])
def test_a_stage_after_the_rule_says_nothing_of_it(came: bool) -> None:
    trained = {"stage": "erm", "loss": 0.4, "train_accuracy": 1.0 if came else 0.9}
    tuned, pruned = {"stage": "tune", "loss": 0.8}, {"stage": "prune", "loss": 0.5, "sparsity": 0.2}
    for after in (tuned, {**pruned, "train_accuracy": 0.95 if came else 1.0}):
        assert is_complete(record(0.5, (trained, after), stop_accuracy=1.0)) is came
    assert is_complete(record(0.5, (tuned,), stop_accuracy=1.0))  # the model was trained elsewhere


def test_a_method_without_a_loop_has_no_rule_to_reach() -> None:
    assert is_complete(record(0.5, stop_accuracy=1.0))
    assert is_complete(record(0.5, ({"stage": "score", "sparsity": 0.5},), stop_accuracy=1.0))


def test_a_run_that_diverged_reached_nothing() -> None:
    assert has_diverged(record(None))
    assert not is_complete(record(None))
    assert not has_diverged(record(0.5))
    assert (validation_accuracy(record(None)), validation_accuracy(record(0.5))) == (None, 0.5)
