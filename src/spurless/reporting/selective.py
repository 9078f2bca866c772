"""Selective prediction: errors of a model that may abstain, as a chart, a table and a warning for the worst group."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spurless.core.records import Record
from spurless.reporting.aggregate import (
    Comparison,
    Estimate,
    MethodRuns,
    average_accuracy,
    average_values,
    finite_number,
    mean_if_known,
    worst_group_accuracy,
)
from spurless.reporting.charts import PERCENT_TICKS, Chart, base_layout, escape_markup, marker_style
from spurless.reporting.format import clean_name, format_count, format_percent, join_words, quote
from spurless.reporting.tables import TableCell, fraction_cell

MIN_EXAMPLES = 30  # predicted examples; an error of fewer is shown with their number
DIGITS, COVERAGE_TOLERANCE = 9, 1e-8  # decimals, and the tolerance within which two coverages are equal


@dataclass(frozen=True)
class MethodCoverage:
    """A method at one target coverage: means over its runs."""

    target: float
    coverage: Estimate
    error: Estimate
    worst: Estimate
    groups: tuple[str, ...]  # names of the worst groups of the runs, without duplicates
    sizes: tuple[int, ...]  # numbers of predicted examples of the worst group, smallest first


def selective_methods(comparison: Comparison) -> list[tuple[int, MethodRuns]]:
    """Return the methods that may abstain, each with its index in the comparison."""
    return [(i, runs) for i, runs in enumerate(comparison.methods) if coverage_rows(runs) or mean_curve(runs)[0]]


def coverage_rows(runs: MethodRuns) -> list[MethodCoverage]:
    """Return coverage and errors of a method at each target coverage, the highest first."""
    by_target: dict[float, list[Mapping[str, Any]]] = {}
    for row in (row for record in runs.records for row in _selective_rows(record, "rows")):
        if (target := finite_number(row.get("target"))) is not None:
            by_target.setdefault(target, []).append(row)
    return [_coverage_row(target, by_target[target]) for target in sorted(by_target, reverse=True)]


def mean_curve(runs: MethodRuns) -> tuple[list[float], list[float | None], list[float | None]]:
    """Return coverages, errors and worst-group errors, each the mean over runs.

    Runs have points at different coverages if scores are tied or splits differ in size: a point of one run is
    interpolated in the others, and left out if a run does not reach it.
    """
    curves = [points for record in runs.records if (points := _curve_points(record))]
    if not curves:
        return [], [], []
    low, high = max(points[0][0] for points in curves), min(points[-1][0] for points in curves)
    known = {round(point[0], DIGITS) for points in curves for point in points}
    grid = sorted(at for at in known if low - COVERAGE_TOLERANCE <= at <= high + COVERAGE_TOLERANCE)
    error, worst = (
        [mean_if_known([_interpolate(one, column, at) for one in curves]) for at in grid] for column in (1, 2)
    )
    return grid, error, worst


def draw_risk_coverage(comparison: Comparison) -> Chart | None:
    """Draw error against coverage: a solid line for all predicted examples, a dashed one for the worst group."""
    traces: list[dict[str, Any]] = []
    for i, runs in selective_methods(comparison):
        colour, symbol = marker_style(i)
        grid, *lines = mean_curve(runs)
        rows, who = coverage_rows(runs), escape_markup(clean_name(runs.name, 30)).replace("%{", "% {")
        dots = ([row.error.mean for row in rows], [row.worst.mean for row in rows])
        for y, marks, dash, word in zip(lines, dots, ("solid", "dash"), ("all", "worst group"), strict=True):
            hover = f"{who}, {word}<br>coverage %{{x:.1f}} %, error %{{y:.1f}} %<extra></extra>"
            line = {"color": colour, "width": 2, "dash": dash}
            traces.append({"x": _percents(grid), "y": _percents(y), "mode": "lines", "line": line})
            mark = {"color": colour, "size": 9, "symbol": symbol.removesuffix("-open") + "-open" * (dash == "dash")}
            at = _percents([row.coverage.mean for row in rows])
            traces.append({"x": at, "y": _percents(marks), "mode": "markers", "marker": mark, "cliponaxis": False})
            traces[-1]["hovertemplate"] = traces[-2]["hovertemplate"] = hover
    if not traces:
        return None
    layout = base_layout()
    layout["xaxis"] |= PERCENT_TICKS | {"range": [0, 102], "title": {"text": "coverage", "standoff": 8}}
    layout["yaxis"] |= {"rangemode": "tozero", "automargin": True, "nticks": 6, "ticksuffix": " %"}
    layout["yaxis"] |= {"title": {"text": "error", "standoff": 8}}
    layout["margin"] = {"l": 8, "r": 22, "t": 12, "b": 44}
    return Chart({"data": traces, "layout": layout}, 340, f"Error against coverage. {_describe_chart(comparison)}")


def coverage_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one row per method and target coverage."""
    return [
        {
            "name": clean_name(runs.name),
            "cells": [
                TableCell(format_percent(row.target), value=row.target),
                *(fraction_cell(estimate) for estimate in (row.coverage, row.error, row.worst)),
                TableCell(join_words([clean_name(group) for group in row.groups]) or "n/a", _format_sizes(row.sizes)),
            ],
        }
        for _, runs in selective_methods(comparison)
        for row in coverage_rows(runs)
    ]


def describe_scores(comparison: Comparison) -> str:
    """Return the score by which each method abstains."""
    by_score: dict[str, list[str]] = {}
    for _, runs in selective_methods(comparison):
        known = [record.selective.get("score") for record in runs.records if isinstance(record.selective, dict)]
        for score in dict.fromkeys(str(score) for score in known if score):
            by_score.setdefault(score, []).append(clean_name(runs.name))
    return "; ".join(f"{quote(score)} ({join_words(methods)})" for score, methods in by_score.items())


def selective_warnings(comparison: Comparison) -> list[str]:
    """Describe where abstaining increases the error of the worst group most; preferably with enough examples."""
    return [sentence for _, runs in selective_methods(comparison) if (sentence := _selective_warning(runs))]


def _selective_warning(runs: MethodRuns) -> str:
    full = [(_full_errors(record), rows) for record in runs.records if (rows := _selective_rows(record, "rows"))]
    error, worst = (mean_if_known([errors[i] for errors, _ in full]) for i in (0, 1))
    worse = [row for row in coverage_rows(runs) if worst is not None and _is_above(row.worst.mean, worst)]
    if worst is None or not worse:
        return ""
    at = max(worse, key=lambda row: (_smallest_group(row) >= MIN_EXAMPLES, row.worst.mean or 0.0))
    group = quote(at.groups[0]) if len(at.groups) == 1 else "its worst group"
    text = [
        f"Abstaining increases the worst-group error of {clean_name(runs.name)}: at a target coverage of "
        f"{format_percent(at.target)} the error of {group} is {format_percent(at.worst.mean)}; if every example is "
        f"predicted, no group has an error above {format_percent(worst)}."
    ]
    n_worse = sum(_is_worse(errors[1], rows, at.target) for errors, rows in full)
    text += [f"This is so in {n_worse} of {format_count(len(full), 'run')}."] if n_worse < len(full) else []
    if error is not None and at.error.mean is not None and at.error.mean < error:
        text.append(
            f"The error over all groups falls from {format_percent(error)} to {format_percent(at.error.mean)} at the "
            "same time."
        )
    few, verb = _smallest_group(at), "is" if _smallest_group(at) == 1 else "are"
    text += [f"Only {format_count(few, 'example')} of that group {verb} predicted there."] if few < MIN_EXAMPLES else []
    return " ".join(text)


def _is_worse(full: float | None, rows: Sequence[Mapping[str, Any]], target: float) -> bool:
    """Return whether the worst-group error of one run is higher at a target coverage."""
    errors = [finite_number(row.get("worst_group_error")) for row in rows if row.get("target") == target]
    return full is not None and any(_is_above(error, full) for error in errors)


def _is_above(value: float | None, limit: float) -> bool:
    """Return whether a value is above a limit with the digits that are printed."""
    return value is not None and round(100 * value, 1) > round(100 * limit, 1)


def _smallest_group(row: MethodCoverage) -> int:
    return row.sizes[0] if row.sizes else MIN_EXAMPLES  # unknown


def _coverage_row(target: float, rows: Sequence[Mapping[str, Any]]) -> MethodCoverage:
    names = dict.fromkeys(str(row["worst_group"]) for row in rows if row.get("worst_group"))
    sizes = {size for row in rows if (size := _size(row)) is not None}
    coverage, error, worst = (
        average_values([finite_number(row.get(key)) for row in rows])
        for key in ("coverage", "error", "worst_group_error")
    )
    return MethodCoverage(target, coverage, error, worst, tuple(names), tuple(sorted(sizes)))


def _size(row: Mapping[str, Any]) -> int | None:
    groups = row.get("groups")
    rows = [g for g in groups if isinstance(g, dict)] if isinstance(groups, list | tuple) else []
    size = next((finite_number(g.get("kept")) for g in rows if g.get("name") == row.get("worst_group")), None)
    return None if size is None else int(size)


def _full_errors(record: Record) -> tuple[float | None, float | None]:
    """Return error and worst-group error of a run if every example is predicted."""
    full = record.selective.get("full") if isinstance(record.selective, dict) else None
    if isinstance(full, dict):
        return finite_number(full.get("error")), finite_number(full.get("worst_group_error"))
    points = _curve_points(record)
    if points and points[-1][0] > 1 - COVERAGE_TOLERANCE:
        return points[-1][1], points[-1][2]
    average, worst = average_accuracy(record), worst_group_accuracy(record)
    return None if average is None else 1 - average, None if worst is None else 1 - worst


def _curve_points(record: Record) -> list[tuple[float, float | None, float | None]]:
    """Return coverage, error and worst-group error along the curve of one run, from low to high coverage."""
    rows = _selective_rows(record, "curve")
    points = [
        (finite_number(r.get("coverage")), finite_number(r.get("error")), finite_number(r.get("worst_group_error")))
        for r in rows
    ]
    return sorted(((at, *rest) for at, *rest in points if at is not None), key=lambda point: point[0])  # type: ignore[misc]


def _interpolate(
    points: Sequence[tuple[float, float | None, float | None]], column: int, coverage: float
) -> float | None:
    """Return a value of a curve at a coverage, on the line between its neighbours."""
    i = bisect_left(points, coverage - COVERAGE_TOLERANCE, key=lambda point: point[0])
    if i < len(points) and points[i][0] <= coverage + COVERAGE_TOLERANCE:
        return points[i][column]
    if i in (0, len(points)):
        return None
    (x0, x1), y0, y1 = (points[i - 1][0], points[i][0]), points[i - 1][column], points[i][column]
    return None if y0 is None or y1 is None else y0 + (y1 - y0) * (coverage - x0) / (x1 - x0)


def _selective_rows(record: Record, key: str) -> list[dict[str, Any]]:
    """Return a list of a record's ``selective`` field; empty if it is missing or malformed."""
    rows = record.selective.get(key) if isinstance(record.selective, dict) else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list | tuple) else []


def _describe_chart(comparison: Comparison) -> str:
    parts = []
    for _, runs in selective_methods(comparison):
        errors = [
            f"{format_percent(r.error.mean)} and {format_percent(r.worst.mean)} at {format_percent(r.target)}"
            for r in coverage_rows(runs)
        ]
        parts.append(f"{clean_name(runs.name)}, error and worst-group error: {join_words(errors) or 'see the chart'}.")
    return " ".join(parts)


def _format_sizes(sizes: Sequence[int]) -> str:
    return "" if not sizes else f"n = {sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")


def _percents(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else 100 * value for value in values]
