"""Abstaining under the protocol: the numbers of a model that may refuse an example, and what a record keeps of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from spurless.data.grouped import Grouped, Splits
from spurless.metrics.groupwise import group_table
from spurless.metrics.selective import Kept, Selective, selective_table, thresholds_for
from spurless.models.classifier import Classifier
from spurless.train.abstain import JOINT, Abstainer, Response
from spurless.train.run import Run

POINTS = 50
"""Of the curve that a record keeps: enough to draw it, and little to carry."""


def assess_abstaining(
    model: Classifier, start: Classifier | None, data: Splits, run: Run, score: str, coverages: Sequence[float]
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return the numbers of a model that may abstain, and what a record keeps; nothing where no coverage is asked.

    Thresholds are chosen on the scores of validation, errors are counted on test.

    Args:
        model: the fitted model.
        start: the model that it was made from, for the scores of two models.
        data: the splits.
        run: device and workers.
        score: a name in ``train.abstain.SCORES``.
        coverages: target coverages.
    """
    if not coverages:
        return {}, {}
    if score not in JOINT or start is None:
        return _assess(Abstainer((model,), score), data, run, coverages)
    numbers, found = _assess(Abstainer((start, model), score), data, run, coverages)
    found["start"] = _assess(Abstainer((start,), "softmax"), data, run, coverages)[1]  # the same network, alone
    return numbers, found


def _assess(
    abstainer: Abstainer, data: Splits, run: Run, coverages: Sequence[float]
) -> tuple[dict[str, float | None], dict[str, Any]]:
    for model in abstainer.models:
        model.to(run.device)
    thresholds = thresholds_for(abstainer.respond(data.val, run.workers).scores, coverages)
    said, test = abstainer.respond(data.test, run.workers), data.test.to("cpu")
    table = selective_table(said.scores, said.pred, test.y, test.a, test.groups, thresholds)
    numbers = {name: _known(value) for name, value in table.summary().items()}
    rows = [_row(kept) for kept in table.rows]
    return numbers, {"score": abstainer.score, "rows": rows, "curve": _curve(table, said, test)}


def _row(kept: Kept) -> dict[str, Any]:
    error, worst = kept.worst
    groups = kept.whole.groups
    return {
        "target": kept.target,
        "threshold": kept.threshold,
        "coverage": _known(kept.coverage),
        "error": _known(kept.error),
        "worst_group_error": _known(error),
        "worst_group": worst,
        "groups": [
            {
                "name": groups.name(g),
                "count": int(kept.whole.count[g]),
                "kept": int(kept.count[g]),
                "error": _known(float(kept.group_error[g])),
            }
            for g in range(len(groups))
        ],
    }


def _curve(table: Selective, said: Response, test: Grouped) -> list[dict[str, float | None]]:
    """Return error and worst-group error at evenly spaced coverages of the test split itself."""
    curve = table.curve
    n = len(curve.threshold)
    points = []
    for k in sorted({max(1, round(n * part / POINTS)) for part in range(1, POINTS + 1)} if n else ()):
        kept = said.scores >= curve.threshold[k - 1].to(said.scores.device)
        among = group_table(said.pred[kept], test.y[kept], test.a[kept], test.groups)
        points.append(
            {
                "coverage": float(curve.coverage[k - 1]),
                "error": _known(float(curve.risk[k - 1])),
                "worst_group_error": _known(1 - among.worst[0]),
            }
        )
    return points


def _known(value: float | Tensor) -> float | None:
    number = float(value)
    return number if number == number else None
