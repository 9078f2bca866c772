"""Assessment: every number of a model on the test split, and what a record says of data and circumstances."""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.provenance import commit, hardware, versions
from spurless.data.grouped import Grouped, Splits
from spurless.metrics.calibration import calibration_by_group, expected_calibration_error
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.models.classifier import Classifier
from spurless.models.counting import size
from spurless.train.evaluate import logits, predict
from spurless.train.run import Run


def assess(model: nn.Module, data: Splits, run: Run) -> tuple[dict[str, float | None], GroupTable]:
    """Return every metric on the test split (None where it does not exist), and the group table."""
    model.to(run.device)
    split = data.test
    outputs = logits(model, split, run.device, run.workers)
    bad = int((~outputs.isfinite()).any(dim=1).sum())
    if bad:
        raise BadInput(
            f"the logits of {bad} of {len(outputs)} test examples are not finite",
            do="The weights have diverged, or batch norms have seen too few batches: train longer, or lower the rate.",
        )
    pred, y, a = outputs.argmax(dim=1), split.y.cpu(), split.a.cpu()
    if len(torch.unique(pred)) == 1 and len(torch.unique(y)) > 1:
        warnings.warn(
            f"The model predicts {data.groups.labels[int(pred[0])]!r} for every test example. "
            "Train longer, lower the learning rate, or look at the labels.",
            SpurlessWarning,
            stacklevel=2,
        )
    table = group_table(pred, y, a, split.groups)
    probabilities = outputs.softmax(dim=1)
    by_group = calibration_by_group(probabilities, y, a, split.groups)
    metrics = {
        **table.summary(data.train.counts),
        "ece": expected_calibration_error(probabilities, y),
        "worst_group_ece": max((value for value in by_group.tolist() if value == value), default=math.nan),
        "loss": float(nn.functional.cross_entropy(outputs, y)),
    }
    return {name: value if value == value else None for name, value in metrics.items()}, table


def validation_average(model: nn.Module, data: Splits, run: Run) -> float:
    """Return the accuracy on the validation split as it is, for a choice between runs; its labels are used for that."""
    pred = predict(model.to(run.device), data.val, run.device, run.workers)
    model.to("cpu")
    return float((pred == data.val.y.cpu()).double().mean())


def thinned(history: Sequence[dict[str, Any]], most: int = 500) -> tuple[dict[str, Any], ...]:
    """Return at most about ``most`` rows of every stage, evenly spaced, its last among them: thousands are not read.

    Example:
        >>> rows = [{"stage": "train", "epoch": epoch} for epoch in range(1, 8)]
        >>> [row["epoch"] for row in thinned(rows, most=3)]
        [1, 4, 7]
    """
    sizes = Counter(row.get("stage") for row in history)
    seen: Counter[Any] = Counter()
    kept = []
    for row in history:
        stage = row.get("stage")
        step, number = -(-sizes[stage] // most), seen[stage]
        if number % step == 0 or number == sizes[stage] - 1:
            kept.append(row)
        seen[stage] += 1
    return tuple(kept)


def describe_data(data: Splits, fingerprint: str) -> dict[str, Any]:
    """Return what a record says of the data."""
    return {
        "name": data.name,
        "options": dict(data.options),
        "fingerprint": fingerprint,
        "labels": list(data.groups.labels),
        "attributes": list(data.groups.attributes),
        "sizes": {name: len(getattr(data, name)) for name in ("train", "val", "test")},
        "counts": {name: getattr(data, name).counts.tolist() for name in ("train", "val", "test")},
    }


def describe_model(model: Classifier, split: Grouped | None = None) -> dict[str, Any]:
    """Return what a record says of the model; with a split, also how large it is for one example of that."""
    told = {"name": model.name, "options": model.options, "parameters": model.parameters_count}
    return told if split is None else told | asdict(size(model, split.example(1)))


def command() -> str:
    """Return the words by which this process was started."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def circumstances(device: torch.device) -> dict[str, Any]:
    """Return when, where, by which code and by which command a record was made."""
    return {
        "command": command(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "hardware": hardware(device),
    }
