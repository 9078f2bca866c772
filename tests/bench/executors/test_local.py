"""One after another: the numbers of ``fit``, whatever the threads were; and what every executor does with a bad run."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from spurless.bench.executors import EXECUTORS, Resources, Task, choose_executor
from spurless.bench.executors.in_process import open_local
from spurless.bench.executors.task import VALIDATION, WorkerDiedError, run_settings, run_task
from spurless.bench.experiment import load_dataset, run_experiment
from spurless.bench.stopping import has_diverged
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.core.records import Record
from spurless.train.evaluate import predict
from spurless.train.run import Compute

CPU = Resources(Compute("cpu"))


def test_a_record_is_that_of_fit_with_the_validation_accuracy(tasks: list[Task], alone: dict[str, Record]) -> None:
    task = tasks[-1]
    fitted, record = run_experiment(task.experiment, task.seed, Compute("cpu")), alone[task.key]
    assert (fitted.record.key, fitted.record.groups) == (record.key, record.groups)
    val = load_dataset("planted", task.experiment.data_options, task.seed).val
    right = float((predict(fitted.model, val) == val.y).double().mean())
    assert record.metrics == {**fitted.record.metrics, VALIDATION: right}
    assert 0 < right < 1


def test_tasks_come_back_in_their_order(tasks: list[Task], alone: dict[str, Record]) -> None:
    assert list(alone) == [task.key for task in tasks]
    assert len({record.metrics["loss"] for record in alone.values()}) == 8  # eight different runs


def test_threads_are_those_asked_for_and_put_back(tasks: list[Task]) -> None:
    seen = []

    def load(*words: Any) -> Any:
        seen.append(torch.get_num_threads())
        return load_dataset(*words)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_task(replace(tasks[0], load=load), CPU)
        run_task(replace(tasks[0], load=load), Resources(Compute("cpu", threads=3)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 3]


def test_a_run_that_diverges_is_a_record_without_numbers(tasks: list[Task]) -> None:
    task = replace(tasks[0], experiment=replace(tasks[0].experiment, train={"steps": 60, "lr": 1e30}))
    record = run_task(task, CPU)
    assert isinstance(record, Record)
    assert has_diverged(record)
    assert record.metrics == {VALIDATION: None}
    assert "diverged: the loss was not finite" in record.warnings[-1]
    assert {row.accuracy for row in record.groups} == {None}
    assert sum(row.count for row in record.groups) == 60
    assert sum(row.train_count for row in record.groups) == 200
    assert (record.key, record.train["lr"], record.seed) == (task.key, 1e30, 0)
    assert Record.from_json(record.to_json()).to_json() == record.to_json()


def test_warnings_stay_in_the_record(tasks: list[Task]) -> None:
    task = replace(tasks[0], experiment=replace(tasks[0].experiment, train={"steps": 1, "lr": 1e4}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = run_task(task, CPU)
    assert isinstance(record, Record)
    assert any("for every test example" in warning for warning in record.warnings)
    with run_settings(replace(CPU, quiet=False)), pytest.warns(SpurlessWarning):
        warnings.warn("heard", SpurlessWarning, stacklevel=1)


class _StrangeError(Exception):
    """Cannot be made again from its words."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def test_an_error_is_given_back_and_can_travel(tasks: list[Task]) -> None:
    bad = run_task(
        replace(tasks[0], experiment=replace(tasks[0].experiment, method="group-dro", select="nothing")), CPU
    )
    assert isinstance(bad, UnknownNameError)
    assert "No selection criterion is called 'nothing'" in str(pickle.loads(pickle.dumps(bad)))

    def load(*_: Any) -> Any:
        raise _StrangeError(1, 2)

    strange = run_task(replace(tasks[0], load=load), CPU)
    assert str(pickle.loads(pickle.dumps(strange))) == "_StrangeError: 1 and 2"
    (note,) = strange.__notes__  # type: ignore[union-attr]  # Record has none, and this is no record
    assert note.startswith("in the run lr=0.001, seed 0")
    assert "raise _StrangeError(1, 2)" in note  # where it came from


def test_a_lost_run_is_named(tasks: list[Task]) -> None:
    said = str(pickle.loads(pickle.dumps(WorkerDiedError(tasks[:2], "it died"))))
    assert said.startswith("No result of lr=0.001, seed 0; lr=0.001, seed 1: it died.")


@pytest.mark.parametrize(
    ("asked", "more", "cuda", "chosen"),
    [
        ("auto", {}, False, "local"),
        ("auto", {}, True, "concurrent"),
        ("auto", {"compute": Compute("cpu")}, True, "local"),
        ("auto", {"compute": Compute("cuda:1")}, True, "concurrent"),
        ("auto", {"jobs": 2}, True, "processes"),
        ("local", {}, True, "local"),
        ("ray", {"jobs": 2, "address": "auto"}, False, "ray"),
    ],
)
def test_auto_takes_what_is_there(
    asked: str, more: Mapping[str, Any], cuda: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert choose_executor(asked, Resources(**more)) is EXECUTORS[chosen]


@pytest.mark.parametrize(
    ("asked", "more", "match"),
    [
        (
            "rya",
            {},
            r"No executor is called 'rya'\. Did you mean 'ray'\? Known: auto, concurrent, local, processes, ray\.",
        ),
        (
            "auto",
            {"address": "auto"},
            r"--address needs the executor ray \(got --executor auto\)\. Add --executor ray\.",
        ),
        ("local", {"jobs": 2}, r"the executor local uses one process \(got --jobs 2\)\. Use --executor processes\."),
    ],
)
def test_what_is_for_another_engine_is_refused(asked: str, more: Mapping[str, Any], match: str) -> None:
    with pytest.raises((InputError, UnknownNameError), match=match):
        choose_executor(asked, Resources(**more))


@pytest.mark.parametrize("more", [{"jobs": 0}, {"together": 0}, {"gpus_per_run": -0.5}])
def test_less_than_nothing_is_refused(more: Mapping[str, Any]) -> None:
    with pytest.raises(InputError, match=r"must be at least 1|must not be negative"):
        Resources(**more)


def test_nothing_is_open_that_must_be_closed(
    tasks: list[Task], alone: dict[str, Record], facts: Callable[..., Any]
) -> None:
    with open_local(CPU) as run:
        first = next(iter(run(tasks)))  # a sweep may leave in the middle
    assert facts({"": first[1]}) == facts({"": alone[tasks[0].key]})


def test_tasks_in_a_row_that_share_their_data_load_them_once(tasks: list[Task]) -> None:
    loaded = []

    def load(dataset: str, options: Any, seed: int) -> Any:
        loaded.append(seed)
        return load_dataset(dataset, options, seed)

    by_seed = sorted((replace(task, load=load) for task in tasks), key=lambda task: task.seed)
    with open_local(CPU) as run:
        assert all(isinstance(outcome, Record) for _, outcome in run(by_seed))
    assert loaded == [0, 1]
