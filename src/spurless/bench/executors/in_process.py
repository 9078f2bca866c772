"""The executors of this process: ``local``, one run after another; ``concurrent``, many small trainings at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from spurless.bench.executors.task import (
    Resources,
    Runner,
    Task,
    TaskOutcome,
    build_task,
    finish_task,
    run_settings,
    run_task,
)
from spurless.core.progress import Progress
from spurless.data.split import Splits
from spurless.fitting.protocol import FitRequest


@contextmanager
def open_local(resources: Resources) -> Iterator[Runner]:
    """Run tasks in their order, in this process; tasks in a row that share their data load them once."""

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, TaskOutcome]]:
        loaded: dict[str, Splits] = {}
        for task in tasks:
            loaded = {name: splits for name, splits in loaded.items() if name == task.data_id}
            yield task, run_task(task, resources, loaded)

    yield run


@contextmanager
def open_concurrent(resources: Resources) -> Iterator[Runner]:
    """Run ``resources.together`` tasks at a time on one device; see :mod:`spurless.fitting.concurrent`.

    Errors of a batch of tasks are yielded after its records.
    """
    from spurless.fitting.concurrent import fit_concurrently
    from spurless.train.concurrent import allow_concurrent_streams

    allow_concurrent_streams(resources.together)

    def run(tasks: Sequence[Task]) -> Iterator[tuple[Task, TaskOutcome]]:
        loaded: dict[str, Splits] = {}
        for first in range(0, len(tasks), resources.together):
            batch = share_progress(tasks[first : first + resources.together])
            with run_settings(resources):
                requests, loaded = build_tasks(batch, resources, loaded)
            results = fit_concurrently(requests, resources.together)
            errors: list[tuple[Task, Exception]] = []
            while True:
                with run_settings(resources):
                    result = next(results, None)
                    if result is None:
                        break
                    number, fitted = result
                    outcome = finish_task(batch[number], requests[number], fitted)
                if isinstance(outcome, Exception):
                    errors.append((tasks[first + number], outcome))
                else:
                    yield tasks[first + number], outcome
            yield from errors

    yield run


def build_tasks(
    tasks: Sequence[Task], resources: Resources, loaded: dict[str, Splits]
) -> tuple[list[FitRequest], dict[str, Splits]]:
    """Return the runs of a batch and its data; data of the batch before are loaded once for both."""
    loaded = {name: splits for name, splits in loaded.items() if name in {task.data_id for task in tasks}}
    return [build_task(task, resources, loaded) for task in tasks], loaded


def share_progress(tasks: Sequence[Task]) -> list[Task]:
    """Return tasks that report the progress of all of them together, if they report progress at all."""
    steps: dict[int, tuple[int, int]] = {}

    def joint(number: int, progress: Progress) -> Progress:
        def report(_stage: str, step: int, total: int, _message: str) -> None:
            steps[number] = step, total
            done, whole = (sum(part) for part in zip(*steps.values(), strict=True))
            progress("together", done, whole, f"{len(tasks)} runs")

        return report

    return [replace(task, progress=task.progress and joint(number, task.progress)) for number, task in enumerate(tasks)]
