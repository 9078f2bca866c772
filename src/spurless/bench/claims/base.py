"""Claims: a published or derived number, how it is measured here, and the bar that decides whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import nan
from statistics import median
from typing import Literal, TypeAlias

from spurless.bench.executors.task import Extra
from spurless.bench.experiment import Experiment
from spurless.bench.stopping import is_complete
from spurless.core.errors import InputError
from spurless.core.records import Record

Measurement: TypeAlias = Callable[[Mapping[str, Record]], float]
"""Computes one number from the records of one seed, by the names of the claim's experiments."""


@dataclass(frozen=True)
class Bar:
    """The range in which our number must be: at least ``low``, at most ``high``.

    Example:
        >>> print(Bar(98.0), Bar(82.1, 86.1), Bar(high=1.5))
        >= 98 82.1 to 86.1 <= 1.5
    """

    low: float | None = None
    high: float | None = None

    def holds(self, ours: float) -> bool:
        """Return whether our number is within the bar; NaN is not."""
        return (self.low is None or ours >= self.low) and (self.high is None or ours <= self.high) and ours == ours

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return f">= {self.low:g}" if self.low is not None else f"<= {self.high:g}"


@dataclass(frozen=True)
class Claim:
    """A number of a paper, and how it is measured here."""

    id: str
    source: str  # table and row of the paper, or the formula from which the number is derived
    quantity: str  # description of the number, with its unit
    experiments: Mapping[str, Experiment]  # the runs of one seed, by name
    measure: Measurement
    bar: Bar
    seeds: int
    minutes: float
    paper: float | None = None  # the published number; None if there is none and the bar is ours
    spread: float | None = None  # the published standard deviation, if there is one
    cost: Literal["cpu", "gpu"] = "cpu"
    over: Literal["mean", "median", "min", "max"] = "mean"
    """How seeds are aggregated: ``min`` for "on every seed at least", ``median`` if there may be outliers."""
    needs: tuple[str, ...] = ()  # files that the data folder must contain
    extra: Extra | None = None
    """Measures further metrics for every record, so that records suffice to check the claim."""


@dataclass(frozen=True)
class ClaimResult:
    """Our numbers for a claim."""

    claim: Claim
    values: tuple[float, ...]
    cut_off: tuple[str, ...] = ()  # the runs whose training was cut off before its stopping rule

    @property
    def ours(self) -> float:
        """Our number over the seeds; NaN if one of them has none."""
        if any(value != value for value in self.values):  # min and max would skip it
            return nan
        if self.claim.over == "mean":
            return sum(self.values) / len(self.values)
        if self.claim.over == "median":
            return median(self.values)
        return min(self.values) if self.claim.over == "min" else max(self.values)

    @property
    def holds(self) -> bool:
        """Whether our number is within the bar."""
        return self.claim.bar.holds(self.ours)

    def line(self) -> str:
        """Return the result as one line: ``ID  ours  paper  bar  HOLDS|FALLS SHORT``."""
        claim = self.claim
        number = "none" if claim.paper is None else f"{claim.paper:.2f}"
        paper = number + (f" +- {claim.spread:g}" if claim.spread is not None else "")
        verdict = "HOLDS" if self.holds else "FALLS SHORT"
        return f"{claim.id}  {format_value(self.ours)}  {paper}  {claim.bar}  {verdict}"

    def by_seed(self) -> str:
        """Return the number of every seed: ``11.57, none, 10.20``."""
        return ", ".join(map(format_value, self.values))


def format_value(value: float) -> str:
    """Format a number with two decimals; NaN is ``none``.

    Example:
        >>> print(format_value(11.567), format_value(float("nan")))
        11.57 none
    """
    return f"{value:.2f}" if value == value else "none"


def check_claim(claim: Claim, records: Iterable[Record]) -> ClaimResult:
    """Check a claim with its records.

    Raises:
        InputError: there is no record, or an experiment is missing for one of the seeds.
    """
    by_seed: dict[int, dict[str, Record]] = {}
    for record in records:
        owner, _, name = record.cell.partition(" ")
        if owner == claim.id:
            by_seed.setdefault(record.seed, {})[name] = record
    missing = [
        f"{name} of seed {seed}" for seed, row in by_seed.items() for name in claim.experiments if name not in row
    ]
    if missing or not by_seed:
        raise InputError(
            f"the records of {claim.id} are incomplete",
            got=f"no record of {', '.join(missing)}" if missing else "no record",
            hint=f"Run: spurless reproduce {claim.id}",
        )
    seeds = sorted(by_seed.items())
    cut_off = [
        f"{name} of seed {seed}" for seed, row in seeds for name in claim.experiments if not is_complete(row[name])
    ]
    return ClaimResult(claim, tuple(claim.measure(row) for _, row in seeds), tuple(cut_off))


def percent(name: str, metric: str) -> Measurement:
    """Measure a metric of one experiment, in percent."""
    return lambda records: 100 * _metric(records[name], metric)


def gain(name: str, baseline: str, metric: str) -> Measurement:
    """Measure the gain of one experiment over another in a metric, in points."""
    return lambda records: 100 * (_metric(records[name], metric) - _metric(records[baseline], metric))


def _metric(record: Record, metric: str) -> float:
    value = record.metrics[metric]
    return nan if value is None else value
