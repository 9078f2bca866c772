"""Arms: the runs of one method on one dataset, taken together over seeds, and how two arms differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spurless.core.records import GroupRow, Record
from spurless.reporting.intervals import meet, student, wilson

ENOUGH = 3
"""seeds that two arms must share before their differences are judged pair by pair"""


@dataclass(frozen=True)
class Estimate:
    """One quantity of an arm: its mean over runs, its 95 % interval, and the single runs.

    The interval allows for both kinds of luck, whichever is wider: the test examples that were drawn
    (``sampling``, the mean of the runs' own intervals) and the seeds that were run (Student's t).
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    runs: tuple[float, ...] = ()
    sampling: tuple[float | None, float | None] = (None, None)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over runs; one run has none."""
        if len(self.runs) < 2:
            return None
        centre = sum(self.runs) / len(self.runs)
        return math.sqrt(sum((value - centre) ** 2 for value in self.runs) / (len(self.runs) - 1))


@dataclass(frozen=True)
class Arm:
    """One method with one configuration: one record per seed."""

    name: str
    records: tuple[Record, ...]

    @property
    def method(self) -> str:
        """Return the method's name as the records write it."""
        return self.records[0].method

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that were run, in order."""
        return tuple(sorted({record.seed for record in self.records}))

    @property
    def supervision(self) -> tuple[str, ...]:
        """Return the labels that any run of this arm used beyond the training labels."""
        return tuple(dict.fromkeys(k for record in self.records for k, used in record.supervision.items() if used))

    @cached_property
    def average(self) -> Estimate:
        """Return the accuracy over all test examples, with a Wilson interval for the size of the split."""
        return _estimate([(value := average_of(r), *wilson(value, size_of(r))) for r in self.records])

    @cached_property
    def worst(self) -> Estimate:
        """Return the mean over runs of each run's own worst group."""
        return _estimate([_numbers(row) for row in self.worst_rows])

    @cached_property
    def worst_rows(self) -> tuple[GroupRow, ...]:
        """Return the worst group of each run that has one; of several as bad, the largest: it is the surest."""
        every = (seen_groups(record) for record in self.records)
        return tuple(min(seen, key=lambda r: (r.accuracy or 0.0, -r.count)) for seen in every if seen)

    @property
    def worst_names(self) -> tuple[str, ...]:
        """Return the groups that are the worst of some run; one name where all runs agree."""
        return tuple(dict.fromkeys(row.name for row in self.worst_rows))

    def metric(self, name: str) -> Estimate:
        """Return a number of the records' metrics; its interval is not known."""
        return _estimate([(number(record.metrics.get(name)), None, None) for record in self.records])

    def counted(self, name: str) -> Estimate:
        """Return a number of what the records say of the model, such as its sparsity; older records may lack it."""
        return _estimate([(number(record.model.get(name)), None, None) for record in self.records])

    def group(self, name: str) -> Estimate:
        """Return the accuracy of one group, with the interval of its size."""
        return self._groups.get(name, Estimate(None))

    @cached_property
    def _groups(self) -> dict[str, Estimate]:
        rows: dict[str, list[GroupRow]] = {}
        for row in (row for record in self.records for row in seen_groups(record)):
            rows.setdefault(row.name, []).append(row)
        return {name: _estimate([_numbers(row) for row in found]) for name, found in rows.items()}


@dataclass(frozen=True)
class Change:
    """What an arm changes in one quantity, seen from the baseline."""

    before: Estimate
    after: Estimate
    floor: float = 0.0
    """what a single test example is worth; a smaller change is no change"""
    pairs: tuple[tuple[float, float], ...] = ()
    """before and after of the seeds that both arms ran"""

    @property
    def points(self) -> float | None:
        """Return the difference of the numbers as they are printed, so that a reader can subtract them."""
        if self.before.mean is None or self.after.mean is None:
            return None
        return round(round(100 * self.after.mean, 1) - round(100 * self.before.mean, 1), 1)

    @property
    def direction(self) -> str:
        """Return ``better``, ``worse``, ``same`` or ``unknown``."""
        if self.points is None or self.before.mean is None or self.after.mean is None:
            return "unknown"
        if self.points == 0 or abs(self.after.mean - self.before.mean) < self.floor - 1e-9:
            return "same"
        return "better" if self.points > 0 else "worse"

    @property
    def overlap(self) -> bool:
        """Say whether the two intervals share a value; an unknown interval rules nothing out.

        Where the seeds that both arms ran agree on a difference, pair by pair, the luck of the seeds is out of
        the question, and only the luck of the test examples counts.
        """
        a, b = self.before, self.after
        if self.paired:
            return meet(a.sampling, b.sampling)
        return meet((a.low, a.high), (b.low, b.high))

    @property
    def paired(self) -> bool:
        """Say whether the differences of the shared seeds are, by Student's t, not 0."""
        if len(self.pairs) < ENOUGH:
            return False
        low, high = student([after - before for before, after in self.pairs])
        return low > 0 or high < 0

    @property
    def against(self) -> int:
        """Count the seeds whose own difference does not have the sign of the mean difference."""
        sign = 1 if (self.points or 0) > 0 else -1
        return sum((after - before) * sign <= 0 for before, after in self.pairs)

    @property
    def clear(self) -> bool:
        """Say whether intervals and seeds both speak for a difference."""
        return self.direction in ("better", "worse") and not self.overlap and not self.against


@dataclass(frozen=True)
class Study:
    """All arms of one dataset; the baseline comes first."""

    name: str
    arms: tuple[Arm, ...]

    @property
    def baseline(self) -> Arm:
        """Return the arm that the others are compared with: ERM, or else the first."""
        return self.arms[0]

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups, in the order of the records."""
        return tuple(self._counts)

    @property
    def data(self) -> dict[str, Any]:
        """Return what the records say of the dataset."""
        return self.baseline.records[0].data

    def counts(self, group: str) -> tuple[int, int]:
        """Return how many test and train examples a group has."""
        return self._counts[group]

    @cached_property
    def _counts(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for row in (row for arm in self.arms for record in arm.records for row in record.groups):
            found.setdefault(row.name, (row.count, row.train_count))
        return found

    def change(self, arm: Arm) -> Change:
        """Compare the worst group of an arm with the baseline's."""
        sizes = [row.count for row in (*arm.worst_rows, *self.baseline.worst_rows)]
        floor = 1 / min(sizes) if sizes else 0.0
        return Change(self.baseline.worst, arm.worst, floor, _pairs(self.baseline, arm, worst_of))

    def average_change(self, arm: Arm) -> Change:
        """Compare the average of an arm with the baseline's."""
        return Change(self.baseline.average, arm.average, 0.0, _pairs(self.baseline, arm, average_of))

    @property
    def best(self) -> tuple[Arm, ...]:
        """Return the arm beside the baseline with the best worst group; several where the printed numbers tie."""
        rated = [(round(100 * arm.worst.mean, 1), arm) for arm in self.arms[1:] if arm.worst.mean is not None]
        top = max((score for score, _ in rated), default=None)
        tied = [arm for score, arm in rated if score == top]
        return tuple(sorted(tied, key=lambda arm: -(arm.average.mean or 0)))


def seen_groups(record: Record) -> list[GroupRow]:
    """Return the groups with test examples and an accuracy."""
    return [row for row in record.groups if row.count > 0 and number(row.accuracy) is not None]


def average_of(record: Record) -> float | None:
    """Return the plain accuracy of a run; where the metrics have none, the mean of the groups by their counts."""
    value, rows = number(record.metrics.get("average")), seen_groups(record)
    if value is not None or not rows:
        return value
    return sum((row.accuracy or 0.0) * row.count for row in rows) / sum(row.count for row in rows)


def worst_of(record: Record) -> float | None:
    """Return the accuracy of a run's own worst group."""
    return min((row.accuracy or 0.0 for row in seen_groups(record)), default=None)


def size_of(record: Record) -> int:
    """Return the number of test examples: the dataset's own count, or else the sum of the groups."""
    sizes, counts = record.data.get("sizes"), record.data.get("counts")
    if isinstance(sizes, dict) and isinstance(sizes.get("test"), int):
        return int(sizes["test"])
    test = counts.get("test") if isinstance(counts, dict) else None
    if isinstance(test, int) and not isinstance(test, bool):
        return test
    parts = list(test.values()) if isinstance(test, dict) else test
    if isinstance(parts, list | tuple) and parts and all(isinstance(n, int) for n in parts):
        return sum(parts)
    return sum(row.count for row in record.groups)


def number(value: object) -> float | None:
    """Return a finite number, or None.

    Example:
        >>> number(1), number(float("nan")), number("1")
        (1.0, None, None)
    """
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fine else None  # type: ignore[arg-type]  # fine holds only for numbers


def _estimate(runs: Sequence[tuple[float | None, float | None, float | None]]) -> Estimate:
    """Average over runs; seeds may share a test split, so they never narrow the interval of one run."""
    known = [run for run in runs if run[0] is not None]
    if not known:
        return Estimate(None)
    mean, low, high = (_mean(column) for column in zip(*known, strict=True))
    values = tuple(value for value, _, _ in known if value is not None)
    sampling = (low, high)
    if low is not None and high is not None and len(values) > 1:
        seeds = student(values)
        low, high = max(0.0, min(low, seeds[0])), min(1.0, max(high, seeds[1]))
    return Estimate(mean, low, high, values, sampling)


def _numbers(row: GroupRow) -> tuple[float | None, float | None, float | None]:
    return number(row.accuracy), number(row.low), number(row.high)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if None in known or not known else sum(v for v in known if v is not None) / len(known)


def _pairs(before: Arm, after: Arm, of: Callable[[Record], float | None]) -> tuple[tuple[float, float], ...]:
    first, second = (
        {record.seed: value for record in arm.records if (value := of(record)) is not None} for arm in (before, after)
    )
    return tuple((first[seed], second[seed]) for seed in sorted(first.keys() & second.keys()))
