"""Abstaining under the protocol: the numbers of a model that may refuse an example, and what a record keeps of them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from spurless.core.errors import SpurlessWarning
from spurless.core.records import Record
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
    models = (model,) if score not in JOINT or start is None else (start, model)
    abstainer = Abstainer(tuple(part.to(run.device) for part in models), score)
    return assess_abstainer(abstainer, data, coverages, run.workers)


def assess_abstainer(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int = 0
) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Return the numbers and what a record keeps of them; warn where abstaining harms a group.

    Of a score of two models, the record also keeps what the first of them reaches alone.
    """
    numbers, found = _assess(abstainer, data, coverages, workers)
    if abstainer.score in JOINT:
        found["start"] = _assess(Abstainer(abstainer.models[:1], "softmax"), data, coverages, workers)[1]
    if sentence := harm(found):
        warnings.warn(sentence, SpurlessWarning, stacklevel=2)
    return numbers, found


def add_abstaining(
    record: Record, abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int = 0
) -> Record:
    """Return the record of a given model with what it reaches if it may abstain."""
    numbers, found = assess_abstainer(abstainer, data, coverages, workers)
    said = (*record.warnings, *filter(None, [harm(found)]))
    return replace(record, metrics={**record.metrics, **numbers}, selective=found, warnings=said)


def harm(found: Mapping[str, Any]) -> str:
    """Return a sentence where the worst group has more errors at the lowest coverage than if nothing is refused.

    Jones et al. 2021 (arXiv:2010.14134): a model that is sure of its mistakes in a group refuses the others first.

    Args:
        found: what a record keeps, as :func:`assess_abstainer` returns it.
    """
    lowest, full = min(found["rows"], key=lambda row: row["target"]), found["full"]
    error, before = lowest["worst_group_error"], full["worst_group_error"]
    if lowest["target"] >= 1 or error is None or before is None or error <= before:
        return ""
    return (
        f"Abstaining harms a group here: at a coverage of {100 * lowest['target']:g} % the error of "
        f"{lowest['worst_group']!r} is {100 * error:.1f} %, and no group's is above {100 * before:.1f} % where nothing "
        "is refused; "
        "look at the groups before this model may abstain."
    )


def _assess(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float], workers: int
) -> tuple[dict[str, float | None], dict[str, Any]]:
    thresholds = thresholds_for(abstainer.respond(data.val, workers).scores, coverages)
    said, test = abstainer.respond(data.test, workers), data.test.to("cpu")
    table = selective_table(said.scores, said.pred, test.y, test.a, test.groups, thresholds)
    numbers = {name: _known(value) for name, value in table.summary().items()}
    return numbers, {
        "score": abstainer.score,
        "full": _full(table),
        "rows": [_row(kept) for kept in table.rows],
        "curve": _curve(table, said, test),
    }


def _full(table: Selective) -> dict[str, Any]:
    """Return the errors where nothing is refused; at a target of 1, the odd example of test may be."""
    whole = table.rows[0].whole
    accuracy, worst = whole.worst
    return {"error": _known(1 - whole.average), "worst_group_error": _known(1 - accuracy), "worst_group": worst}


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
    """Return error and worst-group error at evenly spaced coverages of the test split itself.

    Examples of the same score are kept together, so that every point is one that a threshold reaches.
    """
    curve = table.curve
    n = len(curve.threshold)
    asked = {max(1, round(n * part / POINTS)) for part in range(1, POINTS + 1)} if n else set()
    points = []
    for k in sorted({int((said.scores >= curve.threshold[k - 1]).sum()) for k in asked}):
        kept = said.scores >= curve.threshold[k - 1]
        among = group_table(said.pred[kept], test.y[kept], test.a[kept], test.groups)
        points.append(
            {
                "coverage": float(curve.coverage[k - 1]),
                "error": _known(curve.risk[k - 1]),
                "worst_group_error": _known(1 - among.worst[0]),
            }
        )
    return points


def _known(value: float | Tensor) -> float | None:
    number = float(value)
    return number if number == number else None
