"""Stopping: which runs of a sweep count, and where it goes no further.

The rule is that of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748, section 4.2), which walks learning
rates "up to the point of divergence or drastic performance loss (>25% in test accuracy) among any one of the seeds".

Deviations:
    The loss is looked for in the validation accuracy, since the test split decides nothing here.
    25 % is read as a share of the best accuracy so far, not as points: of the two it stops earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from spurless.bench.engines.base import DIVERGED, VALIDATION, Task
from spurless.core.records import Record, cut_off

HAIR = 1e-9
"""What rounding may do to an accuracy: three quarters of 80 % are 60 %."""


@dataclass(frozen=True)
class Stop:
    """Where a line of a sweep ended, why, and what was not run for it."""

    at: str
    why: str
    left: tuple[str, ...]
    line: int = 0
    rank: int = 0


def diverged(record: Record) -> bool:
    """Return whether the run ended without numbers, because its loss was none."""
    return any(warning.startswith(DIVERGED) for warning in record.warnings)


def reached(record: Record) -> bool:
    """Return whether the run came to the end it was given: ``stop_accuracy`` or ``stop_loss``, where one is set.

    A run that was cut off by its epochs or steps did not. The last stage counts that was under the rule.
    """
    return not diverged(record) and not cut_off(record)


def validation_of(record: Record) -> float | None:
    """Return the validation accuracy of a run; None where it diverged."""
    return record.metrics.get(VALIDATION)


def stop_of(line: Sequence[Task], records: Mapping[str, Record], drop: float) -> Stop | None:
    """Return where a line ends by the rule, as far as its records say.

    Args:
        line: the tasks of one line, in any order.
        records: by key, of those that are done.
        drop: the share of a seed's best validation accuracy that it may lose.
    """
    best: dict[int, tuple[float, str]] = {}
    ranks = [list(part) for _, part in groupby(sorted(line, key=_place), key=lambda task: task.rank)]
    for number, tasks in enumerate(ranks):
        done = [(task, records[task.key]) for task in tasks if task.key in records]
        why = next((words for task, record in done if (words := _why(task, record, best, drop))), None)
        if why is not None:
            return Stop(tasks[0].name, why, tuple(_names(ranks[number + 1 :])), tasks[0].line, tasks[0].rank)
        for task, record in done:
            value = validation_of(record)
            if value is not None and value > best.get(task.seed, (-1.0, ""))[0]:
                best[task.seed] = value, task.name
    return None


def next_wave(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> list[Task]:
    """Return what may run now: of every line the lowest value that is not done, with all its missing seeds.

    A line that stopped still ends the value it stopped at, so that a sweep that was killed there ends as any other.
    """
    missing = [task for task in walked(tasks, stops_of(tasks, records, drop)) if task.key not in records]
    lowest = {task.line: task.rank for task in sorted(missing, key=lambda task: -task.rank)}  # the last one stays
    wave = {task.key: task for task in missing if task.rank == lowest[task.line]}
    return list(wave.values())


def stops_of(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> Iterator[Stop]:
    """Yield where each line of a sweep ends by the rule, as far as its records say."""
    if drop is None:
        return
    for _, line in groupby(tasks, key=lambda task: task.line):
        stop = stop_of(list(line), records, drop)
        if stop is not None:
            yield stop


def walked(tasks: Sequence[Task], stops: Iterable[Stop]) -> list[Task]:
    """Return the tasks that were not left by the rule."""
    ends = {stop.line: stop.rank for stop in stops}
    return [task for task in tasks if task.rank <= ends.get(task.line, task.rank)]


def _why(task: Task, record: Record, best: Mapping[int, tuple[float, str]], drop: float) -> str | None:
    if diverged(record):
        return f"seed {task.seed} diverged"
    value, (high, name) = validation_of(record), best.get(task.seed, (0.0, ""))
    if value is None or value >= (1 - drop) * high - HAIR:
        return None
    return f"the validation accuracy of seed {task.seed} fell from {high:.1%} at {name} to {value:.1%}"


def _place(task: Task) -> tuple[int, int]:
    return task.rank, task.seed


def _names(ranks: Iterable[Sequence[Task]]) -> list[str]:
    return [tasks[0].name for tasks in ranks]
