"""The stopping rule of sweeps, and which of their runs count.

The rule is that of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748, section 4.2), which increases
learning rates "up to the point of divergence or drastic performance loss (>25% in test accuracy) among any one of the
seeds".

Deviations:
    The loss is measured in validation accuracy, since the test split decides nothing here.
    25 % is a fraction of the best accuracy so far, not percentage points: of the two it stops earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from spurless.bench.executors.task import DIVERGED, VALIDATION, Task
from spurless.core.records import Record, is_cut_off

ROUNDING_TOLERANCE = 1e-9  # tolerance when accuracies are compared: three quarters of 80 % are 60 %


@dataclass(frozen=True)
class Stop:
    """Where a line of a sweep stopped, why, and the values that were not run."""

    at: str
    why: str
    not_run: tuple[str, ...]
    line: int = 0
    rank: int = 0


def has_diverged(record: Record) -> bool:
    """Return whether the run ended without numbers because its loss was not finite."""
    return any(warning.startswith(DIVERGED) for warning in record.warnings)


def is_complete(record: Record) -> bool:
    """Return whether the run reached ``stop_accuracy`` or ``stop_loss``, if one is set, and did not diverge.

    A run that was cut off by its epochs or steps did not. The last stage under the rule counts.
    """
    return not has_diverged(record) and not is_cut_off(record)


def validation_accuracy(record: Record) -> float | None:
    """Return the validation accuracy of a run; None if it diverged."""
    return record.metrics.get(VALIDATION)


def find_stop(line: Sequence[Task], records: Mapping[str, Record], drop: float) -> Stop | None:
    """Return where a line stops by the rule, as far as its records show.

    A seed may lose the fraction ``drop`` of its best validation accuracy.
    """
    best: dict[int, tuple[float, str]] = {}
    ordered = sorted(line, key=lambda task: (task.rank, task.seed))
    ranks = [list(part) for _, part in groupby(ordered, key=lambda task: task.rank)]
    for number, tasks in enumerate(ranks):
        done = [(task, records[task.key]) for task in tasks if task.key in records]
        why = next((reason for task, record in done if (reason := _reason(task, record, best, drop))), None)
        if why is not None:
            not_run = tuple(later[0].name for later in ranks[number + 1 :])
            return Stop(tasks[0].name, why, not_run, tasks[0].line, tasks[0].rank)
        for task, record in done:
            value = validation_accuracy(record)
            if value is not None and value > best.get(task.seed, (-1.0, ""))[0]:
                best[task.seed] = value, task.name
    return None


def next_wave(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> list[Task]:
    """Return the tasks that may run now: of every line the lowest incomplete value, with all its missing seeds.

    A line that stopped still completes the value it stopped at, so that an interrupted sweep has the same result.
    """
    allowed = tasks_within_limit(tasks, find_stops(tasks, records, drop))
    missing = [task for task in allowed if task.key not in records]
    lowest = {task.line: task.rank for task in sorted(missing, key=lambda task: -task.rank)}  # the last one stays
    wave = {task.key: task for task in missing if task.rank == lowest[task.line]}
    return list(wave.values())


def find_stops(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> Iterator[Stop]:
    """Yield where each line of a sweep stops by the rule, as far as its records show."""
    if drop is None:
        return
    for _, line in groupby(tasks, key=lambda task: task.line):
        stop = find_stop(list(line), records, drop)
        if stop is not None:
            yield stop


def tasks_within_limit(tasks: Sequence[Task], stops: Iterable[Stop]) -> list[Task]:
    """Return the tasks that the rule does not leave out."""
    limits = {stop.line: stop.rank for stop in stops}
    return [task for task in tasks if task.rank <= limits.get(task.line, task.rank)]


def _reason(task: Task, record: Record, best: Mapping[int, tuple[float, str]], drop: float) -> str | None:
    """Return why a line stops at this run, if it does."""
    if has_diverged(record):
        return f"seed {task.seed} diverged"
    value, (high, name) = validation_accuracy(record), best.get(task.seed, (0.0, ""))
    if value is None or value >= (1 - drop) * high - ROUNDING_TOLERANCE:
        return None
    return f"the validation accuracy of seed {task.seed} fell from {high:.1%} at {name} to {value:.1%}"
