"""Claims: a published or derived number, how to measure it here, and the bar that decides whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypeAlias

from spurless.bench.cell import Cell
from spurless.bench.fitting import Fitted
from spurless.bench.stopping import reached
from spurless.core.errors import BadInput
from spurless.core.records import Record

Measure: TypeAlias = Callable[[Mapping[str, Record]], float]
"""From the records of one seed, by the names of the claim's cells, to one number."""

Extra: TypeAlias = Callable[[Fitted], Mapping[str, float]]
"""From a fitted model to numbers that its record does not hold, such as one of its weights."""


@dataclass(frozen=True)
class Bar:
    """What our number must reach: at least ``low``, at most ``high``.

    Example:
        >>> print(Bar(98.0), Bar(82.1, 86.1), Bar(high=1.5))
        >= 98 82.1 to 86.1 <= 1.5
    """

    low: float | None = None
    high: float | None = None

    def holds(self, ours: float) -> bool:
        """Return whether our number is within the bar; NaN never is."""
        return (self.low is None or ours >= self.low) and (self.high is None or ours <= self.high) and ours == ours

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        return f">= {self.low:g}" if self.low is not None else f"<= {self.high:g}"


@dataclass(frozen=True)
class Claim:
    """One number of one table, and how it is measured here."""

    id: str
    place: str
    """Paper, table and row; or the formula it is derived from."""
    quantity: str
    """What the number is, in words, with its unit."""
    cells: Mapping[str, Cell]
    """The runs of one seed."""
    measure: Measure
    paper: float | None
    """The published number; None where the bar is our own."""
    spread: float | None
    """The published spread, where there is one."""
    bar: Bar
    seeds: int
    cost: Literal["cpu", "gpu"]
    minutes: float
    over: Literal["mean", "median", "min", "max"] = "mean"
    """How the seeds are put together: ``min`` for "on every seed at least", ``median`` where one may be far out."""
    needs: tuple[str, ...] = ()
    """Files that the data folder must hold."""
    extra: Extra | None = None
    """Adds to the metrics of every record, so that a claim is still judged by its records alone."""


@dataclass(frozen=True)
class Verdict:
    """Our number beside the claim's."""

    claim: Claim
    values: tuple[float, ...]
    cut_off: tuple[str, ...] = ()
    """The runs whose training was cut off before the end that the claim sets."""

    @property
    def ours(self) -> float:
        """Our number over the seeds; NaN where one of them has none."""
        if any(value != value for value in self.values):  # min and max would pass it over
            return float("nan")
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
        """Return the verdict as one line: ``ID  ours  paper  bar  HOLDS|FALLS SHORT``."""
        claim = self.claim
        number = "none" if claim.paper is None else f"{claim.paper:.2f}"
        paper = number + (f" +- {claim.spread:g}" if claim.spread is not None else "")
        word = "HOLDS" if self.holds else "FALLS SHORT"
        return f"{claim.id}  {told(self.ours)}  {paper}  {claim.bar}  {word}"

    def by_seed(self) -> str:
        """Return the number of every seed: ``11.57, none, 10.20``."""
        return ", ".join(map(told, self.values))


def told(value: float) -> str:
    """Return a number as verdicts tell it.

    Example:
        >>> print(told(11.567), told(float("nan")))
        11.57 none
    """
    return f"{value:.2f}" if value == value else "none"


def judge(claim: Claim, records: Iterable[Record]) -> Verdict:
    """Judge a claim by its records alone.

    Raises:
        BadInput: a cell of the claim is missing for one of the seeds, or there is no record at all.
    """
    by_seed: dict[int, dict[str, Record]] = {}
    for record in records:
        owner, _, name = record.cell.partition(" ")
        if owner == claim.id:
            by_seed.setdefault(record.seed, {})[name] = record
    missing = [f"{name} of seed {seed}" for seed, row in by_seed.items() for name in claim.cells if name not in row]
    if missing or not by_seed:
        raise BadInput(
            f"the records of {claim.id} are not complete",
            got=f"none of {', '.join(missing)}" if missing else "no record",
            do=f"Run: spurless reproduce {claim.id}",
        )
    seeds = sorted(by_seed.items())
    cut_off = [f"{name} of seed {seed}" for seed, row in seeds for name in claim.cells if not reached(row[name])]
    return Verdict(claim, tuple(claim.measure(row) for _, row in seeds), tuple(cut_off))


def percent(cell: str, metric: str) -> Measure:
    """Measure a metric of one cell, in percent."""

    def measure(records: Mapping[str, Record]) -> float:
        value = records[cell].metrics[metric]
        return float("nan") if value is None else 100 * value

    return measure


def summarise(verdicts: Sequence[Verdict]) -> str:
    """Return one line per verdict."""
    return "\n".join(verdict.line() for verdict in verdicts)
