"""The fleet: K at once, data shared, the records of one after another."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from spurless.bench.executors import Resources, Task
from spurless.bench.executors.in_process import build_tasks, open_concurrent
from spurless.bench.stopping import has_diverged
from spurless.core.records import Record
from spurless.train.run import Compute

CPU = Resources(Compute("cpu"), together=3)


def test_a_fleet_gives_the_records_of_one_after_another(
    tasks: list[Task], alone: dict[str, Record], facts: Callable[..., Any]
) -> None:
    with open_concurrent(CPU) as run:
        found = [(task.key, outcome) for task, outcome in run(tasks)]
    assert [key for key, _ in found] == [task.key for task in tasks]
    assert facts(dict(found)) == facts(alone)


def test_the_device_is_asked_for_all_its_queues_unless_the_user_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4")
    with open_concurrent(CPU):
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "4"
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    with open_concurrent(CPU):
        assert os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_one_that_diverges_sinks_alone(tasks: list[Task], alone: dict[str, Record]) -> None:
    bad = replace(tasks[0], key="bad", experiment=replace(tasks[0].experiment, train={"steps": 60, "lr": 1e30}))
    with open_concurrent(CPU) as run:
        (_, sunk), (_, swims) = run([bad, tasks[1]])
    assert isinstance(sunk, Record)
    assert isinstance(swims, Record)
    assert has_diverged(sunk)
    assert swims.metrics == alone[tasks[1].key].metrics


def test_as_many_at_once_as_asked_for(tasks: list[Task], monkeypatch: pytest.MonkeyPatch) -> None:
    fleets = []

    def fit_together(requests: list[Any], at_once: int) -> Iterator[tuple[int, Exception]]:
        fleets.append((len(requests), at_once))
        yield from enumerate([ValueError("not today")] * len(requests))

    monkeypatch.setattr("spurless.fitting.concurrent.fit_concurrently", fit_together)
    with open_concurrent(CPU) as run:
        outcomes = [outcome for _, outcome in run(tasks)]
    assert fleets == [(3, 3), (3, 3), (2, 3)]
    assert all(isinstance(outcome, ValueError) for outcome in outcomes)


def test_runs_that_differ_in_training_alone_share_their_data(tasks: list[Task]) -> None:
    asked, loaded = build_tasks(tasks, CPU, {})
    assert [each.seed for each in asked] == [task.seed for task in tasks]
    assert len({id(each.data) for each in asked}) == 2  # two seeds
    assert len({id(each.model) for each in asked}) == 8
    again, _ = build_tasks(tasks[-1:], CPU, loaded)
    assert again[0].data is asked[-1].data  # the next batch too
