"""General health of a model and its data: accuracy per class, calibration, duplicates and a map of the examples.

These numbers describe; they test nothing and change no verdict. The map is the projection of the features on their
first two principal components.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, label_name
from spurless.auditing._residuals import principal_components
from spurless.core.hashing import content_hash
from spurless.data.split import Split
from spurless.metrics.calibration import expected_calibration_error
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson_intervals

BINS = 10  # bins of confidence
MAX_POINTS = 1000  # examples on the map
MAX_CLASSES = 100  # classes up to which the confusion matrix is complete
MAX_PAIRS = 20  # most frequent confusions that are listed
MAX_HASHED = 20_000  # examples per split that are compared for duplicates
MAX_STREAMED = 1_000  # the same for examples that are read from files, which takes longer
MAX_DUPLICATES = 24  # duplicates that are listed


def assess_health(context: AuditContext, suspected: Tensor) -> dict[str, Any]:
    """Return accuracy, classes, confusions, calibration, duplicates and the map, as values for JSON."""
    return {
        "accuracy": _accuracy(int((~context.incorrect).sum()), len(context)),
        "worst_group": _find_worst_group(context),
        "classes": _score_classes(context),
        **_count_confusions(context),
        "calibration": _calibrate(context),
        "duplicates": _find_duplicates(context),
        "map": _map_examples(context, suspected),
    }


def _accuracy(correct: int, count: int) -> dict[str, Any]:
    """Return a fraction with its 95 % interval; null if there is nothing to count."""
    if not count:
        return {"value": None, "low": None, "high": None, "count": 0}
    low, high = wilson_intervals(correct, count)
    return {"value": correct / count, "low": float(low), "high": float(high), "count": count}


def _find_worst_group(context: AuditContext) -> dict[str, Any] | None:
    """Return the accuracy of the worst group of label and attribute; None if no attribute is known."""
    split = context.split
    if not split.groups.attributes:
        return None
    known = split.groups.known(split.a).cpu()
    if not bool(known.any()):
        return None
    table = group_table(context.predicted[known], context.y[known], split.a.cpu()[known], split.groups)
    accuracy = torch.where(table.count > 0, table.accuracy, torch.inf)
    worst = int(accuracy.argmin())
    return {"name": split.groups.name(worst), **_accuracy(int(table.correct[worst]), int(table.count[worst]))}


def _score_classes(context: AuditContext) -> list[dict[str, Any]]:
    """Return precision, recall and F1 of every class, with the recall's interval."""
    rows = []
    for label in range(context.logits.shape[1]):
        true, predicted = context.y == label, context.predicted == label
        correct = int((true & predicted).sum())
        n_true, n_predicted = int(true.sum()), int(predicted.sum())
        recall = _accuracy(correct, n_true)
        rows.append(
            {
                "label": label_name(context, label),
                "count": n_true,
                "predicted": n_predicted,
                "precision": correct / n_predicted if n_predicted else None,
                "recall": recall["value"],
                "recall_low": recall["low"],
                "recall_high": recall["high"],
                "f1": 2 * correct / (n_true + n_predicted) if n_true + n_predicted else None,
            }
        )
    return rows


def _count_confusions(context: AuditContext) -> dict[str, Any]:
    """Return the confusion matrix (rows: labels, columns: predictions), and the most frequent errors."""
    n = context.logits.shape[1]
    counts = torch.bincount(context.y * n + context.predicted, minlength=n * n)
    errors = counts.clone()
    errors[:: n + 1] = 0
    first = [int(i) for i in errors.argsort(descending=True, stable=True)[:MAX_PAIRS] if errors[i]]
    pairs = [
        {"label": label_name(context, i // n), "predicted": label_name(context, i % n), "count": int(errors[i])}
        for i in first
    ]
    return {"confusion": counts.reshape(n, n).tolist() if n <= MAX_CLASSES else None, "confused": pairs}


def _calibrate(context: AuditContext) -> dict[str, Any]:
    """Return the calibration error, and mean confidence and accuracy per bin of confidence that has examples."""
    confidence, correct = context.probabilities.amax(dim=1), (~context.incorrect).double()
    number = torch.bucketize(confidence, torch.arange(1, BINS, dtype=confidence.dtype) / BINS)
    parts = [number == b for b in range(BINS) if bool((number == b).any())]
    return {
        "error": expected_calibration_error(context.probabilities, context.y, BINS),
        "bins": [
            {"confidence": float(confidence[part].mean()), **_accuracy(int(correct[part].sum()), int(part.sum()))}
            for part in parts
        ],
    }


def _find_duplicates(context: AuditContext) -> dict[str, Any]:
    """Return audited examples with the same content as an earlier one, or as one of train."""
    first_row: dict[str, int] = {}
    repeated: list[list[int]] = []
    hashes = list(_hash_examples(context.split))
    for row, value in enumerate(hashes):
        first = first_row.setdefault(value, row)
        repeated += [[row, first]] if first != row else []
    across: list[list[int]] = []
    n_train = 0
    if context.train is not None and context.train.x is not context.split.x:
        train: dict[str, int] = {}
        for row, value in enumerate(_hash_examples(context.train)):
            train.setdefault(value, row)
            n_train = row + 1
        across = [[row, train[value]] for row, value in enumerate(hashes) if value in train]
    return {
        "compared": len(hashes),
        "compared_train": n_train,
        "within": len(repeated),
        "in_train": len(across),
        "within_rows": repeated[:MAX_DUPLICATES],
        "train_rows": across[:MAX_DUPLICATES],
    }


def _hash_examples(split: Split) -> Iterator[str]:
    """Yield the content hash of the inputs of the first examples."""
    x: Any = split.x
    for row in range(min(len(split), MAX_STREAMED if split.streamed else MAX_HASHED)):
        if isinstance(x, dict):
            yield content_hash(*(part for key in sorted(x) for part in (key, x[key][row])))
        else:
            yield content_hash(x[row])


def _map_examples(context: AuditContext, suspected: Tensor) -> dict[str, Any]:
    """Return two coordinates of at most ``MAX_POINTS`` examples, which are sampled if there are more."""
    rows = torch.arange(len(context))
    if len(rows) > MAX_POINTS:
        rows = torch.randperm(len(rows), generator=context.seeds.generator("health", "map"))[:MAX_POINTS].sort().values
    components = principal_components(context.features[rows], 2)
    if components.shape[1] < 2:  # the features vary in fewer than two directions
        components = torch.nn.functional.pad(components, (0, 2 - components.shape[1]))
    x, y = ([round(float(value), 4) for value in column] for column in components.T)
    return {
        "rows": rows.tolist(),
        "x": x,
        "y": y,
        "label": context.y[rows].tolist(),
        "predicted": context.predicted[rows].tolist(),
        "suspected": suspected[rows].tolist(),
    }
