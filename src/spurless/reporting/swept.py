"""Swept: the runs of a sweep, from loose records to lines along one parameter; those that do not count apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spurless.core.records import Record, cut_off
from spurless.reporting.arms import number

CELL = re.compile(r"(\S+) (\w[\w.]*=[^,=]+(?:, \w[\w.]*=[^,=]+)*)")
"""which sweep or claim, and the values of its parameters"""
PERCENT = ("unbiased", "average", "worst_group", "pruned_accuracy")
DIVERGED, CUT_OFF = "diverged", "did not come to the end that was set"


@dataclass(frozen=True)
class Run:
    """One run of a sweep: the values of its parameters, and its record."""

    settings: Mapping[str, str]
    record: Record

    @property
    def words(self) -> str:
        """The values of all parameters, as a person says them."""
        return _said(self.settings)

    def metric(self, metric: str) -> float | None:
        """Return a number of the record; accuracies in percent."""
        value = number(self.record.metrics.get(metric))
        return value if value is None or metric not in PERCENT else 100 * value

    @property
    def accuracy(self) -> float | None:
        """The unbiased accuracy in percent, or the average where there is none."""
        unbiased = self.metric("unbiased")
        return self.metric("average") if unbiased is None else unbiased

    @property
    def left_out(self) -> str:
        """Why the run does not count: it has no numbers, or did not come to the end it was given; else nothing."""
        if self.accuracy is None:
            return DIVERGED
        return CUT_OFF if cut_off(self.record) else ""


@dataclass(frozen=True)
class Walked:
    """The runs of one sweep, along one of its parameters."""

    parameter: str
    values: tuple[str, ...]
    """In order: numbers upwards."""
    runs: tuple[Run, ...]
    """Those that count."""
    left_out: tuple[Run, ...]

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return _numeric(self.values)

    def place(self, value: str) -> float:
        """Return where a value lies on the axis."""
        return float(value) if self.numeric else float(self.values.index(value))

    def lines(self) -> dict[str, dict[str, list[Run]]]:
        """Return the runs by the values of all other parameters, and by that of this one."""
        found: dict[str, dict[str, list[Run]]] = {}
        for value in self.values:
            for run in (run for run in self.runs if run.settings[self.parameter] == value):
                others = _said({key: other for key, other in run.settings.items() if key != self.parameter})
                found.setdefault(others, {}).setdefault(value, []).append(run)
        return found

    def arms(self) -> dict[str, list[Run]]:
        """Return the runs by all their values."""
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: self.values.index(run.settings[self.parameter])):
            found.setdefault(run.words, []).append(run)
        return found


def walks(records: Iterable[Record]) -> list[Walked]:
    """Return every sweep among the records: runs whose cell says what varies, as in ``sweep-1a2b lr=0.1, l2=0``.

    Records with the same cell and key are the same run and count once.
    """
    found: dict[str, dict[str, Run]] = {}
    for n, record in enumerate(records):
        match = CELL.fullmatch(record.cell)
        if match is not None:
            settings = dict(part.split("=", 1) for part in match[2].split(", "))
            found.setdefault(match[1], {})[f"{match[2]} {record.key or n}"] = Run(settings, record)
    return [walked for runs in found.values() if (walked := _walked(list(runs.values()))) is not None]


def _walked(runs: Sequence[Run]) -> Walked | None:
    """Choose the parameter that goes along the axis: the first of several values, numbers before words."""
    keys = [key for key in runs[0].settings if all(key in run.settings for run in runs)]
    values = {key: list(dict.fromkeys(run.settings[key] for run in runs)) for key in keys}
    several = sorted((key for key in keys if len(values[key]) > 1), key=lambda key: not _numeric(values[key]))
    if not several:
        return None
    key = several[0]
    ordered = sorted(values[key], key=float) if _numeric(values[key]) else values[key]
    counted = tuple(run for run in runs if not run.left_out)
    return Walked(key, tuple(ordered), counted, tuple(run for run in runs if run.left_out))


def _said(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def _numeric(values: Iterable[str]) -> bool:
    try:
        return all(float(value) == float(value) for value in values)
    except ValueError:
        return False
