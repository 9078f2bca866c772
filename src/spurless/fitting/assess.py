"""Evaluate a model on the test split, and assemble the record of a run."""

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

from spurless.core.errors import SpurlessWarning
from spurless.core.provenance import git_commit, hardware, versions
from spurless.core.records import GroupRow, Record
from spurless.data.split import Split, Splits
from spurless.metrics.calibration import calibration_by_group, expected_calibration_error
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.models.classifier import Classifier
from spurless.models.pruning.size import measure_size
from spurless.train.evaluate import check_logits, logits, predict
from spurless.train.run import Run


def assess(model: nn.Module, data: Splits, run: Run) -> tuple[dict[str, float | None], GroupTable]:
    """Return all metrics on the test split (None if undefined), and the group table.

    Raises:
        NonFiniteError: a logit is not finite.
    """
    model.to(run.device)
    split = data.test
    outputs = logits(model, split, run.device, run.workers)
    check_logits(outputs)
    pred, y, a = outputs.argmax(dim=1), split.y.cpu(), split.a.cpu()
    if len(torch.unique(pred)) == 1 and len(torch.unique(y)) > 1:
        warnings.warn(
            f"The model predicts {data.groups.labels[int(pred[0])]!r} for every test example. "
            "Train longer, lower the learning rate, or check the labels.",
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
    """Return the accuracy on the validation split, to choose between runs; uses its labels."""
    pred = predict(model.to(run.device), data.val, run.device, run.workers)
    model.to("cpu")
    return float((pred == data.val.y.cpu()).double().mean())


def make_record(  # the sources of a record
    method: str,
    model: Classifier,
    data: Splits,
    run: Run,
    *,
    table: GroupTable | None = None,
    fingerprint: str | None = None,
    **fields: Any,
) -> Record:
    """Assemble a record: descriptions of data, model and environment are added to the given fields.

    ``table`` is None if the run diverged and has no results. ``fields`` are other fields of
    :class:`~spurless.core.records.Record`; ``metrics`` is required. The notes of the data are added to ``warnings``. By
    default the record is that of a given model without method settings.
    """
    defaults: dict[str, Any] = {"config": {}, "train": {}, "supervision": {}, "selection": "given"}
    groups = _groups_without_results(data) if table is None else table.rows(data.train.counts)
    return Record(
        method=method,
        seed=run.seeds.seed,
        data=describe_data(data, fingerprint or data.fingerprint()),
        model=describe_model(model, None if table is None else data.test),
        groups=tuple(groups),
        warnings=(*data.notes, *fields.pop("warnings", ())),
        **{**defaults, "seconds": run.seconds, **describe_environment(run.device, run.threads), **fields},
    )


def _groups_without_results(data: Splits) -> list[GroupRow]:
    counts = zip(data.groups.names, data.test.counts.tolist(), data.train.counts.tolist(), strict=True)
    return [GroupRow(name, count, None, None, None, train_count) for name, count, train_count in counts]


def thin_history(history: Sequence[dict[str, Any]], max_rows: int = 500) -> tuple[dict[str, Any], ...]:
    """Return about ``max_rows`` evenly spaced rows of every stage at most, including its last row.

    Example:
        >>> rows = [{"stage": "train", "epoch": epoch} for epoch in range(1, 8)]
        >>> [row["epoch"] for row in thin_history(rows, max_rows=3)]
        [1, 4, 7]
    """
    sizes = Counter(row.get("stage") for row in history)
    seen: Counter[Any] = Counter()
    selected = []
    for row in history:
        stage = row.get("stage")
        step, number = -(-sizes[stage] // max_rows), seen[stage]
        if number % step == 0 or number == sizes[stage] - 1:
            selected.append(row)
        seen[stage] += 1
    return tuple(selected)


def describe_data(data: Splits, fingerprint: str) -> dict[str, Any]:
    """Return the description of the data in a record."""
    return {
        "name": data.name,
        "options": dict(data.options),
        "fingerprint": fingerprint,
        "labels": list(data.groups.labels),
        "attributes": list(data.groups.attributes),
        "sizes": {name: len(getattr(data, name)) for name in ("train", "val", "test")},
        "counts": {name: getattr(data, name).counts.tolist() for name in ("train", "val", "test")},
    }


def describe_model(model: Classifier, split: Split | None = None) -> dict[str, Any]:
    """Return the description of the model in a record; with a split, also its size for one example of it."""
    description = {"name": model.name, "options": model.options, "parameters": model.parameters_count}
    return description if split is None else description | asdict(measure_size(model, split.example(1)))


def command_line() -> str:
    """Return the command line of this process."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def describe_environment(device: torch.device, threads: int | None = None) -> dict[str, Any]:
    """Return command, time, versions, commit and hardware of this process."""
    return {
        "command": command_line(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": git_commit(),
        "hardware": hardware(device, threads),
    }
