"""Abstaining: the errors of a model that may refuse an example, as a chart, a table, and a warning where it hurts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spurless.core.records import Record
from spurless.reporting.arms import Arm, Estimate, Study, average_of, number, worst_of
from spurless.reporting.charts import Chart, blank, look, safe
from spurless.reporting.tables import Cell
from spurless.reporting.words import listed, name, percent, plural, quoted

FEW = 30
"""predicted examples; an error of fewer is told with their number"""
DIGITS, CLOSE = 9, 1e-8
"""coverages that are closer are the same"""
TICKS = (0, 20, 40, 60, 80, 100)


@dataclass(frozen=True)
class Kept:
    """One arm at one target coverage: means over its runs."""

    target: float
    coverage: Estimate
    error: Estimate
    worst: Estimate
    groups: tuple[str, ...]
    """The worst group of each run, each name once."""
    sizes: tuple[int, ...]
    """How many examples of it are predicted, fewest first."""


def abstaining(study: Study) -> list[tuple[int, Arm]]:
    """Return the arms that may abstain, each with its number in the study."""
    return [(i, arm) for i, arm in enumerate(study.arms) if kept(arm) or curve(arm)[0]]


def kept(arm: Arm) -> list[Kept]:
    """Return what an arm keeps at each target coverage, the highest first."""
    runs = [_dicts(record, "rows") for record in arm.records]
    by_target: dict[float, list[Mapping[str, Any]]] = {}
    for row in (row for rows in runs for row in rows):
        if (target := number(row.get("target"))) is not None:
            by_target.setdefault(target, []).append(row)
    return [_kept(target, by_target[target]) for target in sorted(by_target, reverse=True)]


def curve(arm: Arm) -> tuple[list[float], list[float | None], list[float | None]]:
    """Return coverages, errors and worst-group errors, each the mean over runs.

    Runs have points at coverages of their own, where scores are tied or splits differ in size: a point of one run is
    interpolated in the others, and left out where some run does not reach.
    """
    curves = [found for record in arm.records if (found := _points(record))]
    if not curves:
        return [], [], []
    low, high = max(one[0][0] for one in curves), min(one[-1][0] for one in curves)
    known = {round(point[0], DIGITS) for one in curves for point in one}
    grid = sorted(at for at in known if low - CLOSE <= at <= high + CLOSE)
    error, worst = ([_mean([_at(one, column, at) for one in curves]) for at in grid] for column in (1, 2))
    return grid, error, worst


def risk_coverage(study: Study) -> Chart | None:
    """Draw error against coverage: a solid line for all that is predicted, a dashed one for the worst group."""
    traces: list[dict[str, Any]] = []
    for i, arm in abstaining(study):
        colour, symbol = look(i)
        grid, *lines = curve(arm)
        rows, who = kept(arm), safe(name(arm.name, 30)).replace("%{", "% {")
        dots = ([row.error.mean for row in rows], [row.worst.mean for row in rows])
        for y, marks, dash, word in zip(lines, dots, ("solid", "dash"), ("all", "worst group"), strict=True):
            hover = f"{who}, {word}<br>coverage %{{x:.1f}} %, error %{{y:.1f}} %<extra></extra>"
            line = {"color": colour, "width": 2, "dash": dash}
            traces.append({"x": _hundred(grid), "y": _hundred(y), "mode": "lines", "line": line})
            mark = {"color": colour, "size": 9, "symbol": symbol.removesuffix("-open") + "-open" * (dash == "dash")}
            at = _hundred([row.coverage.mean for row in rows])
            traces.append({"x": at, "y": _hundred(marks), "mode": "markers", "marker": mark, "cliponaxis": False})
            traces[-1]["hovertemplate"] = traces[-2]["hovertemplate"] = hover
    if not traces:
        return None
    layout = blank()
    percents = {"tickvals": list(TICKS), "ticktext": [f"{tick} %" for tick in TICKS]}
    layout["xaxis"] |= percents | {"range": [0, 102], "title": {"text": "coverage", "standoff": 8}}
    layout["yaxis"] |= {"rangemode": "tozero", "automargin": True, "nticks": 6, "ticksuffix": " %"}
    layout["yaxis"] |= {"title": {"text": "error", "standoff": 8}}
    layout["margin"] = {"l": 8, "r": 22, "t": 12, "b": 44}
    return Chart({"data": traces, "layout": layout}, 340, f"Error against coverage. {_told(study)}")


def kept_rows(study: Study) -> list[dict[str, Any]]:
    """Return one row per arm and target coverage."""
    return [
        {
            "name": name(arm.name),
            "cells": [
                Cell(percent(row.target), value=row.target),
                *(_cell(estimate) for estimate in (row.coverage, row.error, row.worst)),
                Cell(listed([name(group) for group in row.groups]) or "n/a", _count(row.sizes)),
            ],
        }
        for _, arm in abstaining(study)
        for row in kept(arm)
    ]


def scores(study: Study) -> str:
    """Say by which score each arm abstains.

    A score of somebody else's making is a name like any other.
    """
    found: dict[str, list[str]] = {}
    for _, arm in abstaining(study):
        known = [record.selective.get("score") for record in arm.records if isinstance(record.selective, dict)]
        for score in dict.fromkeys(str(word) for word in known if word):
            found.setdefault(score, []).append(name(arm.name))
    return "; ".join(f"{quoted(score)} ({listed(arms)})" for score, arms in found.items())


def hurts(study: Study) -> list[str]:
    """Say where abstaining raises the error of the worst group the most; of enough examples, where there are such."""
    return [sentence for _, arm in abstaining(study) if (sentence := _hurt(arm))]


def _hurt(arm: Arm) -> str:
    runs = [(_everything(record), _dicts(record, "rows")) for record in arm.records if _dicts(record, "rows")]
    error, worst = (_mean([full[i] for full, _ in runs]) for i in (0, 1))
    worse = [row for row in kept(arm) if worst is not None and _above(row.worst.mean, worst)]
    if worst is None or not worse:
        return ""
    at = max(worse, key=lambda row: (_fewest(row) >= FEW, row.worst.mean or 0.0))
    group = quoted(at.groups[0]) if len(at.groups) == 1 else "its worst group"
    text = [
        f"Abstaining hurts the worst group of {name(arm.name)}: at a target coverage of {percent(at.target)} the error "
        f"of {group} is {percent(at.worst.mean)}; where every example is predicted, no group's is above "
        f"{percent(worst)}."
    ]
    so = sum(_worse(full[1], rows, at.target) for full, rows in runs)
    text += [f"That is so in {so} of {plural(len(runs), 'run')}."] if so < len(runs) else []
    if error is not None and at.error.mean is not None and at.error.mean < error:
        text.append(f"The error over all falls from {percent(error)} to {percent(at.error.mean)} meanwhile.")
    few, verb = _fewest(at), "is" if _fewest(at) == 1 else "are"
    text += [f"Only {plural(few, 'example')} of that group {verb} predicted there."] if few < FEW else []
    return " ".join(text)


def _worse(full: float | None, rows: Sequence[Mapping[str, Any]], target: float) -> bool:
    """Say whether one run has a worse worst group at a target coverage."""
    errors = [number(row.get("worst_group_error")) for row in rows if row.get("target") == target]
    return full is not None and any(_above(error, full) for error in errors)


def _above(value: float | None, limit: float) -> bool:
    """Say whether a reader of the printed numbers sees a difference."""
    return value is not None and round(100 * value, 1) > round(100 * limit, 1)


def _fewest(row: Kept) -> int:
    return row.sizes[0] if row.sizes else FEW  # not known: nothing to say of it


def _kept(target: float, rows: Sequence[Mapping[str, Any]]) -> Kept:
    names = dict.fromkeys(str(row["worst_group"]) for row in rows if row.get("worst_group"))
    sizes = {size for row in rows if (size := _size(row)) is not None}
    coverage, error, worst = (
        _estimate([number(row.get(key)) for row in rows]) for key in ("coverage", "error", "worst_group_error")
    )
    return Kept(target, coverage, error, worst, tuple(names), tuple(sorted(sizes)))


def _size(row: Mapping[str, Any]) -> int | None:
    """Return how many examples of its worst group a row predicts."""
    groups = row.get("groups")
    found = [g for g in groups if isinstance(g, dict)] if isinstance(groups, list | tuple) else []
    size = next((number(g.get("kept")) for g in found if g.get("name") == row.get("worst_group")), None)
    return None if size is None else int(size)


def _everything(record: Record) -> tuple[float | None, float | None]:
    """Return error and worst-group error of a run that predicts every example."""
    full = record.selective.get("full") if isinstance(record.selective, dict) else None
    if isinstance(full, dict):
        return number(full.get("error")), number(full.get("worst_group_error"))
    points = _points(record)
    if points and points[-1][0] > 1 - CLOSE:
        return points[-1][1], points[-1][2]
    average, worst = average_of(record), worst_of(record)
    return None if average is None else 1 - average, None if worst is None else 1 - worst


def _points(record: Record) -> list[tuple[float, float | None, float | None]]:
    """Return coverage, error and worst-group error along the curve of one run, from low to high coverage."""
    rows = _dicts(record, "curve")
    found = [(number(r.get("coverage")), number(r.get("error")), number(r.get("worst_group_error"))) for r in rows]
    return sorted(((at, *rest) for at, *rest in found if at is not None), key=lambda point: point[0])  # type: ignore[misc]


def _at(points: Sequence[tuple[float, float | None, float | None]], column: int, coverage: float) -> float | None:
    """Return a value of a curve at a coverage, on the line between its neighbours."""
    i = bisect_left(points, coverage - CLOSE, key=lambda point: point[0])
    if i < len(points) and points[i][0] <= coverage + CLOSE:
        return points[i][column]
    if i in (0, len(points)):
        return None
    (x0, x1), y0, y1 = (points[i - 1][0], points[i][0]), points[i - 1][column], points[i][column]
    return None if y0 is None or y1 is None else y0 + (y1 - y0) * (coverage - x0) / (x1 - x0)


def _dicts(record: Record, key: str) -> list[dict[str, Any]]:
    """Return a list of a record, whoever wrote it."""
    found = record.selective.get(key) if isinstance(record.selective, dict) else None
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list | tuple) else []


def _told(study: Study) -> str:
    parts = []
    for _, arm in abstaining(study):
        said = [f"{percent(r.error.mean)} and {percent(r.worst.mean)} at {percent(r.target)}" for r in kept(arm)]
        parts.append(f"{name(arm.name)}, error and worst-group error: {listed(said) or 'see the chart'}.")
    return " ".join(parts)


def _cell(estimate: Estimate) -> Cell:
    spread = estimate.spread
    return Cell(percent(estimate.mean), "" if spread is None else f"± {100 * spread:.1f}", estimate.mean)


def _count(sizes: Sequence[int]) -> str:
    return "" if not sizes else f"n = {sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")


def _estimate(values: Sequence[float | None]) -> Estimate:
    known = tuple(value for value in values if value is not None)
    return Estimate(sum(known) / len(known), runs=known) if known else Estimate(None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _hundred(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]
