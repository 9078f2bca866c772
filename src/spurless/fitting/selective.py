"""Metrics of models that may abstain, and their part of a record."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from spurless.core.errors import SpurlessWarning
from spurless.core.records import Record
from spurless.data.split import Split, Splits
from spurless.metrics.groupwise import group_table
from spurless.metrics.selective import CoverageRow, Selective, selective_table, thresholds_for
from spurless.models.classifier import Classifier
from spurless.train.run import Run
from spurless.train.selective import JOINT_SCORES, Abstainer, Response

CURVE_POINTS = 50  # points of the risk-coverage curve in a record


def assess_selective_metrics(
    model: Classifier, start: Classifier | None, data: Splits, run: Run, score: str, coverages: Sequence[float]
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return metrics and the record's ``selective`` field of a model that may abstain; empty without coverages.

    Thresholds are chosen on validation scores; errors are counted on test. ``start`` is the starting point, for scores
    of two models.
    """
    if not coverages:
        return {}, {}
    models = (model,) if score not in JOINT_SCORES or start is None else (start, model)
    abstainer = Abstainer(tuple(part.to(run.device) for part in models), score)
    return assess_abstainer(abstainer, data, coverages, run.workers)


def assess_abstainer(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int = 0
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return metrics and the record's ``selective`` field; warn if abstaining harms a group.

    For a score of two models, the field also contains the results of the first model alone.
    """
    numbers, summary = _assess(abstainer, data, coverages, workers)
    if abstainer.score in JOINT_SCORES:
        summary["start"] = _assess(Abstainer(abstainer.models[:1], "softmax"), data, coverages, workers)[1]
    if message := describe_harm(summary):
        warnings.warn(message, SpurlessWarning, stacklevel=2)
    return numbers, summary


def add_selective_metrics(
    record: Record, abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int = 0
) -> Record:
    """Return the record of a given model, extended by the metrics of a model that may abstain."""
    numbers, summary = assess_abstainer(abstainer, data, coverages, workers)
    messages = (*record.warnings, *filter(None, [describe_harm(summary)]))
    return replace(record, metrics={**record.metrics, **numbers}, selective=summary, warnings=messages)


def describe_harm(summary: Mapping[str, Any]) -> str:
    """Return a warning if the worst-group error at the lowest coverage is above that at full coverage, else "".

    Jones et al. 2021 (arXiv:2010.14134): a model that is confident in its errors on a group abstains on the other
    groups first. ``summary`` is the record's ``selective`` field.
    """
    lowest, full = min(summary["rows"], key=lambda row: row["target"]), summary["full"]
    error, before = lowest["worst_group_error"], full["worst_group_error"]
    if lowest["target"] >= 1 or error is None or before is None or error <= before:
        return ""
    return (
        f"Abstaining harms a group: at a coverage of {100 * lowest['target']:g} % the error of "
        f"{lowest['worst_group']!r} is {100 * error:.1f} %; at full coverage the worst-group error is "
        f"{100 * before:.1f} %. Check the groups before you let this model abstain."
    )


def _assess(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int
) -> tuple[dict[str, float | None], dict[str, Any]]:
    thresholds = thresholds_for(abstainer.respond(data.val, workers).scores, coverages)
    response, test = abstainer.respond(data.test, workers), data.test.to("cpu")
    table = selective_table(response.scores, response.pred, test.y, test.a, test.groups, thresholds)
    numbers = {name: _none_if_nan(value) for name, value in table.summary().items()}
    return numbers, {
        "score": abstainer.score,
        "full": _full(table),
        "rows": [_row(point) for point in table.rows],
        "curve": _curve(table, response, test),
    }


def _full(table: Selective) -> dict[str, Any]:
    """Return the errors at full coverage; a target coverage of 1 may still exclude a few test examples."""
    whole = table.rows[0].whole
    accuracy, worst = whole.worst
    return {
        "error": _none_if_nan(1 - whole.average),
        "worst_group_error": _none_if_nan(1 - accuracy),
        "worst_group": worst,
    }


def _row(point: CoverageRow) -> dict[str, Any]:
    error, worst = point.worst
    groups = point.whole.groups
    return {
        "target": point.target,
        "threshold": point.threshold,
        "coverage": _none_if_nan(point.coverage),
        "error": _none_if_nan(point.error),
        "worst_group_error": _none_if_nan(error),
        "worst_group": worst,
        "groups": [
            {
                "name": groups.name(g),
                "count": int(point.whole.count[g]),
                "kept": int(point.count[g]),
                "error": _none_if_nan(float(point.group_error[g])),
            }
            for g in range(len(groups))
        ],
    }


def _curve(table: Selective, response: Response, test: Split) -> list[dict[str, float | None]]:
    """Return error and worst-group error at evenly spaced coverages of the test split.

    Examples with equal scores are accepted together, so that a threshold exists for every point.
    """
    curve = table.curve
    n = len(curve.threshold)
    counts = {max(1, round(n * part / CURVE_POINTS)) for part in range(1, CURVE_POINTS + 1)} if n else set()
    points = []
    for k in sorted({int((response.scores >= curve.threshold[k - 1]).sum()) for k in counts}):
        accepted = response.scores >= curve.threshold[k - 1]
        accepted_table = group_table(response.pred[accepted], test.y[accepted], test.a[accepted], test.groups)
        points.append(
            {
                "coverage": float(curve.coverage[k - 1]),
                "error": _none_if_nan(curve.risk[k - 1]),
                "worst_group_error": _none_if_nan(1 - accepted_table.worst[0]),
            }
        )
    return points


def _none_if_nan(value: float | Tensor) -> float | None:
    number = float(value)
    return number if number == number else None
