"""Checks: what cannot be trained on is refused in one sentence, before anything is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.data.grouped import Grouped, Input, Source, Splits

CHUNK = 4096  # examples that are looked through together


def checked(split: Grouped, where: str) -> Grouped:
    """Return the split if it can be trained on; say what is wrong otherwise."""
    n, labels = len(split.y), split.groups.labels
    size = len(next(iter(split.x.values()))) if isinstance(split.x, dict) else len(split.x)
    if n == 0:
        raise BadInput("the split is empty", where=where, do="Give it at least one example of each class.")
    if not n == size == len(split.a):
        raise BadInput(
            "inputs, labels and attributes differ in number", where=where, got=f"{size}, {n} and {len(split.a)}"
        )
    if split.y.dim() != 1 or split.y.dtype != torch.long:
        raise BadInput("labels must be whole numbers, one per example", where=where, got=_kind(split.y))
    bad = ((split.y < 0) | (split.y >= len(labels))).nonzero().flatten()
    if len(bad):
        raise BadInput(
            f"the label of example {int(bad[0])} is out of range",
            where=where,
            expected=f"0 to {len(labels) - 1}",
            got=int(split.y[bad[0]]),
            do="Labels count from 0." if int(split.y.min()) < 0 else "",
        )
    _check_attributes(split, where)
    _check_inputs(split, where)
    return split


def check_splits(splits: Splits) -> Splits:
    """Return the splits if a classifier can be trained and tested on them; say what is wrong otherwise."""
    for name in ("train", "val", "test"):
        checked(getattr(splits, name), f"{splits.name}, {name} split")
    shapes = {name: _shape(getattr(splits, name).x) for name in ("train", "val", "test")}
    if len(set(shapes.values())) > 1:
        raise BadInput("the splits differ in the shape of an example", where=splits.name, got=shapes)
    if len(splits.groups.labels) < 2 or int((splits.train.class_counts > 0).sum()) < 2:
        raise BadInput(
            "there is one class only, so there is nothing to tell apart",
            where=f"{splits.name}, train split",
            expected="at least two classes",
        )
    return splits


def kind_of(x: Input | Source) -> str:
    """Say what examples are, for a sentence that refuses them.

    Example:
        >>> kind_of({"num": torch.zeros(2, 3), "kind": torch.zeros(2)}), kind_of({"input_ids": torch.zeros(2, 3)})
        ('a dict of num and kind, without input_ids', 'texts')
    """
    if isinstance(x, dict):
        return "texts" if "input_ids" in x else f"a dict of {' and '.join(x)}, without input_ids"
    return f"of shape {tuple(x[0].shape)}"


def _check_inputs(split: Grouped, where: str) -> None:
    if isinstance(split.x, Tensor) and split.x.is_floating_point():
        if split.x.dim() < 2:
            raise BadInput(
                "the inputs have no features",
                where=where,
                expected="a row, an image or the like per example",
                got=f"a tensor of shape {tuple(split.x.shape)}",
                do="Make one number per example a row of one: x[:, None].",
            )
        fine = [part.flatten(1).isfinite().all(dim=1) for part in torch.split(split.x, CHUNK)]  # copies come in parts
        broken = (~torch.cat(fine)).nonzero().flatten()
        if len(broken):
            raise BadInput(
                f"{len(broken)} examples hold NaN or infinite features, the first is example {int(broken[0])}",
                where=where,
                do="Drop these rows or fill the values in.",
            )


def _check_attributes(split: Grouped, where: str) -> None:
    columns = 1 if split.a.dim() == 1 else split.a.shape[1]
    if split.groups.overlap:
        expected, limit = len(split.groups.attributes), 2
    elif split.groups.sizes:
        expected, limit = len(split.groups.sizes), 0
    else:
        expected, limit = 1, len(split.groups.attributes)
    if columns != expected:
        raise BadInput("the attributes have the wrong number of columns", where=where, expected=expected, got=columns)
    sizes = torch.tensor(split.groups.sizes if limit == 0 and split.groups.sizes else [limit] * columns)
    a = split.a.reshape(len(split.a), -1)
    bad = (a >= sizes) if split.groups.attributes else (a > 0)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        raise BadInput(f"the attribute of example {row} is out of range", where=where, got=a[row].tolist())


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"


def _shape(x: Input | Source) -> tuple[int, ...] | None:
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else None
