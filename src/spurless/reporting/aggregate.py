"""Aggregate records: the runs of each method on a dataset over seeds, and the differences between methods."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import stdev
from typing import Any

from spurless.core.records import GroupRow, Record
from spurless.core.stats import intervals_overlap, student_interval, wilson_interval

SIZE_FIELDS = ("parameters", "kept_parameters", "sparsity", "flops", "kept_flops")
"""fields of a record's model that were measured; the others are settings"""

MIN_SHARED_SEEDS = 3  # seeds that two methods must share for a paired comparison


@dataclass(frozen=True)
class Estimate:
    """A quantity of a method: its mean over runs, its 95 % interval, and the values of single runs.

    The interval is the wider of two: for the sample of test examples (``sampling``, the mean of the runs' intervals)
    and for the seeds (Student's t).
    """

    mean: float | None
    low: float | None = None
    high: float | None = None
    runs: tuple[float, ...] = ()
    sampling: tuple[float | None, float | None] = (None, None)

    @property
    def spread(self) -> float | None:
        """Return the standard deviation over runs; one run has none."""
        return stdev(self.runs) if len(self.runs) > 1 else None


@dataclass(frozen=True)
class MethodRuns:
    """One method with one configuration: one record per seed."""

    name: str
    records: tuple[Record, ...]

    @property
    def method(self) -> str:
        """Return the method's name in the records."""
        return self.records[0].method

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds that were run, in order."""
        return tuple(sorted({record.seed for record in self.records}))

    @property
    def supervision(self) -> tuple[str, ...]:
        """Return the labels that any of the runs used beyond the training labels."""
        return tuple(dict.fromkeys(k for record in self.records for k, used in record.supervision.items() if used))

    @cached_property
    def average(self) -> Estimate:
        """Return the accuracy on the test split, with a Wilson interval."""
        return _estimate(
            [(value := average_accuracy(r), *wilson_interval(value, count_test_examples(r))) for r in self.records]
        )

    @cached_property
    def worst(self) -> Estimate:
        """Return the mean over runs of the worst-group accuracy."""
        return _estimate([_accuracy_interval(row) for row in self.worst_rows])

    @cached_property
    def worst_rows(self) -> tuple[GroupRow, ...]:
        """Return the worst group of each run that has groups; the largest if several are equally bad."""
        by_run = (evaluated_groups(record) for record in self.records)
        return tuple(min(groups, key=lambda r: (r.accuracy or 0.0, -r.count)) for groups in by_run if groups)

    @property
    def worst_names(self) -> tuple[str, ...]:
        """Return the worst groups of the runs, without duplicates."""
        return tuple(dict.fromkeys(row.name for row in self.worst_rows))

    def metric(self, name: str) -> Estimate:
        """Return a metric of the records, without an interval."""
        return average_values([finite_number(record.metrics.get(name)) for record in self.records])

    def model_size(self, name: str) -> Estimate:
        """Return a size of the model, such as its sparsity; older records may not have it."""
        return average_values([finite_number(record.model.get(name)) for record in self.records])

    def group(self, name: str) -> Estimate:
        """Return the accuracy of one group, with an interval for its size."""
        return self._groups.get(name, Estimate(None))

    @cached_property
    def _groups(self) -> dict[str, Estimate]:
        rows: dict[str, list[GroupRow]] = {}
        for row in (row for record in self.records for row in evaluated_groups(record)):
            rows.setdefault(row.name, []).append(row)
        return {name: _estimate([_accuracy_interval(row) for row in part]) for name, part in rows.items()}


@dataclass(frozen=True)
class Change:
    """The change of one quantity from the baseline to another method."""

    before: Estimate
    after: Estimate
    floor: float = 0.0  # the contribution of a single test example; a smaller change does not count
    pairs: tuple[tuple[float, float], ...] = ()  # values before and after of the seeds that both methods share

    @property
    def points(self) -> float | None:
        """Return the difference of the printed numbers, so that a reader can check it."""
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
        """Return whether the two intervals overlap; an unknown interval always does.

        If the paired differences of shared seeds are significant, seeds cannot explain the difference, and only the
        intervals for the sample of test examples count.
        """
        a, b = self.before, self.after
        return intervals_overlap(*((a.sampling, b.sampling) if self.paired else ((a.low, a.high), (b.low, b.high))))

    @property
    def paired(self) -> bool:
        """Return whether the mean difference of shared seeds is not 0, by Student's t."""
        if len(self.pairs) < MIN_SHARED_SEEDS:
            return False
        low, high = student_interval([after - before for before, after in self.pairs])
        return low > 0 or high < 0

    @property
    def against(self) -> int:
        """Count the seeds whose difference does not have the sign of the mean difference."""
        sign = 1 if (self.points or 0) > 0 else -1
        return sum((after - before) * sign <= 0 for before, after in self.pairs)

    @property
    def clear(self) -> bool:
        """Return whether both intervals and seeds support a difference."""
        return self.direction in ("better", "worse") and not self.overlap and not self.against


@dataclass(frozen=True)
class Comparison:
    """The runs of all methods on one dataset, the baseline first."""

    name: str
    methods: tuple[MethodRuns, ...]

    @property
    def baseline(self) -> MethodRuns:
        """Return the runs that the others are compared with: those of ERM, or else the first."""
        return self.methods[0]

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the names of the groups, in the order of the records."""
        return tuple(self._counts)

    @property
    def data(self) -> dict[str, Any]:
        """Return the description of the dataset in the records."""
        return self.baseline.records[0].data

    def counts(self, group: str) -> tuple[int, int]:
        """Return the numbers of test and train examples of a group."""
        return self._counts[group]

    @cached_property
    def _counts(self) -> dict[str, tuple[int, int]]:
        counts: dict[str, tuple[int, int]] = {}
        for row in (row for runs in self.methods for record in runs.records for row in record.groups):
            counts.setdefault(row.name, (row.count, row.train_count))
        return counts

    def change(self, runs: MethodRuns) -> Change:
        """Compare the worst group of a method with the baseline's."""
        sizes = [row.count for row in (*runs.worst_rows, *self.baseline.worst_rows)]
        floor = 1 / min(sizes) if sizes else 0.0
        return Change(self.baseline.worst, runs.worst, floor, _pairs(self.baseline, runs, worst_group_accuracy))

    def average_change(self, runs: MethodRuns) -> Change:
        """Compare the average accuracy of a method with the baseline's."""
        return Change(self.baseline.average, runs.average, 0.0, _pairs(self.baseline, runs, average_accuracy))

    @property
    def best(self) -> tuple[MethodRuns, ...]:
        """Return the methods, without the baseline, with the best worst group; several if printed numbers are equal."""
        rated = [(round(100 * runs.worst.mean, 1), runs) for runs in self.methods[1:] if runs.worst.mean is not None]
        top = max((score for score, _ in rated), default=None)
        tied = [runs for score, runs in rated if score == top]
        return tuple(sorted(tied, key=lambda runs: -(runs.average.mean or 0)))


def evaluated_groups(record: Record) -> list[GroupRow]:
    """Return the groups with test examples and an accuracy."""
    return [row for row in record.groups if row.count > 0 and finite_number(row.accuracy) is not None]


def average_accuracy(record: Record) -> float | None:
    """Return the accuracy of a run; if the metrics have none, the mean of the groups weighted by size."""
    value, rows = finite_number(record.metrics.get("average")), evaluated_groups(record)
    if value is not None or not rows:
        return value
    return sum((row.accuracy or 0.0) * row.count for row in rows) / sum(row.count for row in rows)


def worst_group_accuracy(record: Record) -> float | None:
    """Return the accuracy of a run's worst group."""
    return min((row.accuracy or 0.0 for row in evaluated_groups(record)), default=None)


def count_test_examples(record: Record) -> int:
    """Return the number of test examples: the dataset's count, or else the sum of the groups."""
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


def finite_number(value: object) -> float | None:
    """Return a finite number, or None.

    Example:
        >>> finite_number(1), finite_number(float("nan")), finite_number("1")
        (1.0, None, None)
    """
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_finite else None  # type: ignore[arg-type]  # it is a number if is_finite


def average_values(values: Sequence[float | None]) -> Estimate:
    """Average the known values, without an interval."""
    known = tuple(value for value in values if value is not None)
    return Estimate(sum(known) / len(known), runs=known) if known else Estimate(None)


def mean_if_known(values: Iterable[float | None]) -> float | None:
    """Return the mean; None if there is no value, or one is unknown."""
    known = list(values)
    return None if None in known or not known else sum(v for v in known if v is not None) / len(known)


def _estimate(runs: Sequence[tuple[float | None, float | None, float | None]]) -> Estimate:
    """Average over runs; seeds may share a test split, so they never make the interval of one run narrower."""
    known = [run for run in runs if run[0] is not None]
    if not known:
        return Estimate(None)
    mean, low, high = (mean_if_known(column) for column in zip(*known, strict=True))
    values = tuple(value for value, _, _ in known if value is not None)
    sampling = (low, high)
    if low is not None and high is not None and len(values) > 1:
        seeds = student_interval(values)
        low, high = max(0.0, min(low, seeds[0])), min(1.0, max(high, seeds[1]))
    return Estimate(mean, low, high, values, sampling)


def _accuracy_interval(row: GroupRow) -> tuple[float | None, float | None, float | None]:
    return finite_number(row.accuracy), finite_number(row.low), finite_number(row.high)


def _pairs(
    before: MethodRuns, after: MethodRuns, of: Callable[[Record], float | None]
) -> tuple[tuple[float, float], ...]:
    first, second = (
        {record.seed: value for record in runs.records if (value := of(record)) is not None} for runs in (before, after)
    )
    return tuple((first[seed], second[seed]) for seed in sorted(first.keys() & second.keys()))


MAX_NAME_SETTINGS = 3  # settings in a name


def comparisons(records: Sequence[Record]) -> tuple[Comparison, ...]:
    """Return a comparison for each dataset, with the runs of each method and configuration over seeds.

    Records with the same key are the same run and count once.
    """
    distinct = list({record.key or f"#{n}": record for n, record in enumerate(records)}.values())
    by_data = [runs for family in _gather(distinct, lambda r: [_name(r), _options(r)]) for runs in _datasets(family)]
    families = [json.dumps([_name(runs[0]), _options(runs[0])], sort_keys=True, default=str) for runs in by_data]
    contents = [
        # the fingerprint, if no option distinguishes two datasets
        _options(runs[0]) | ({"fingerprint": runs[0].data.get("fingerprint")} if families.count(family) > 1 else {})
        for runs, family in zip(by_data, families, strict=True)
    ]
    names = _make_distinct([_name(runs[0]) for runs in by_data], contents)
    return tuple(Comparison(name, _group_by_method(runs)) for name, runs in zip(names, by_data, strict=True))


def _gather(records: Sequence[Record], key: Callable[[Record], Any]) -> list[list[Record]]:
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(json.dumps(key(record), sort_keys=True, default=str), []).append(record)
    return list(by_key.values())


def _group_by_method(records: list[Record]) -> tuple[MethodRuns, ...]:
    by_method = _gather(records, lambda r: [r.method, _settings(r)])
    titles = [next((record.title for record in part if record.title), part[0].method) for part in by_method]
    names = _make_distinct(titles, [_settings(part[0]) for part in by_method])
    methods = [
        MethodRuns(n, tuple(sorted(part, key=lambda r: r.seed))) for n, part in zip(names, by_method, strict=True)
    ]
    erm = [runs for runs in methods if runs.method == "erm"]
    plain = [runs for runs, title in zip(methods, titles, strict=True) if runs in erm and runs.name == title]
    baseline = next(iter(plain or erm or methods))  # plain: without the settings that other ERM runs vary
    return (baseline, *(runs for runs in methods if runs is not baseline))


def _settings(record: Record) -> dict[str, Any]:
    train = {k if k not in record.config else f"train.{k}": v for k, v in record.train.items() if k != "seed"}
    model = {k: v for k, v in record.model.items() if k not in SIZE_FIELDS}
    return {**record.config, **train, "model": model, "selection": record.selection}


def _options(record: Record) -> dict[str, Any]:
    options = record.data.get("options")
    return {key: value for key, value in options.items() if key != "seed"} if isinstance(options, dict) else {}


def _datasets(records: list[Record]) -> list[list[Record]]:
    """Return records with equal name and options as one dataset, which is sampled with each seed.

    If a seed has two fingerprints, or there is no seed, each fingerprint is a dataset.
    """
    seeds = [record.data.get("options", {}).get("seed") for record in records]
    samples = {(seed, record.data.get("fingerprint")) for seed, record in zip(seeds, records, strict=True)}
    if None not in seeds and len(samples) == len(set(seeds)):
        return [records]
    return _gather(records, lambda r: r.data.get("fingerprint"))


def _name(record: Record) -> str:
    return str(record.data.get("name", "data"))


def _make_distinct(names: list[str], settings: list[dict[str, Any]]) -> list[str]:
    """Add to equal names the settings in which they differ, and a number if even those are equal.

    The most common value of a setting is left out.
    """
    full = []
    for name, config in zip(names, settings, strict=True):
        same_name = [other for n, other in zip(names, settings, strict=True) if n == name]
        varied = {k: v for k, v in config.items() if not _is_most_common(v, [other.get(k) for other in same_name])}
        differing = [f"{k} {v.get('name', v) if isinstance(v, dict) else v}" for k, v in varied.items()]
        full.append(f"{name} ({', '.join(differing[:MAX_NAME_SETTINGS])})" if differing else name)
    return [n if full.count(n) == 1 else f"{n} #{full[: i + 1].count(n)}" for i, n in enumerate(full)]


def _is_most_common(value: Any, values: Sequence[Any]) -> bool:
    """Return whether this value is more frequent than any other."""
    (most_common, times), *others = Counter(json.dumps(other, default=str) for other in values).most_common(2)
    return most_common == json.dumps(value, default=str) and all(times > count for _, count in others)
