"""Checks of splits and of dataset options before training, and of changes of the data by a method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import DataChangedError, InputError
from spurless.core.hashing import checksum
from spurless.core.modules import Input
from spurless.data.dataset import Card
from spurless.data.split import Source, Split, Splits

CHUNK = 4096  # examples that are checked together
CHECKED_BYTES = 2**30  # of a tensor; 0.2 seconds


def check_split(split: Split, where: str) -> Split:
    """Return the split, or raise if it cannot be used for training."""
    n, labels = len(split.y), split.groups.labels
    size = len(next(iter(split.x.values()))) if isinstance(split.x, dict) else len(split.x)
    if n == 0:
        raise InputError("the split is empty", where=where, hint="Add at least one example of each class.")
    if not n == size == len(split.a):
        what = "inputs, labels and attributes differ in number"
        raise InputError(what, where=where, got=f"{size}, {n} and {len(split.a)}")
    if split.y.dim() != 1 or split.y.dtype != torch.long:
        raise InputError(
            "labels must be integers, one per example",
            where=where,
            got=f"{split.y.dtype} of shape {tuple(split.y.shape)}",
        )
    bad = ((split.y < 0) | (split.y >= len(labels))).nonzero().flatten()
    if len(bad):
        what = f"the label of example {int(bad[0])} is out of range"
        hint = "Labels start at 0." if int(split.y.min()) < 0 else ""
        raise InputError(what, where=where, expected=f"0 to {len(labels) - 1}", got=int(split.y[bad[0]]), hint=hint)
    _check_attributes(split, where)
    _check_inputs(split, where)
    return split


def check_splits(splits: Splits, *, held_out: bool = False) -> Splits:
    """Return the splits, or raise if a classifier cannot be trained and tested on them.

    If ``held_out``, only tested: splits may be empty, but not all.
    """
    check_arguments(check_splits, locals())
    names = [name for name in ("train", "val", "test") if not held_out or len(getattr(splits, name))] or ["test"]
    for name in names:
        check_split(getattr(splits, name), f"{splits.name}, {name} split")
    shapes = {name: _shape(getattr(splits, name).x) for name in names}
    if len(set(shapes.values())) > 1:
        raise InputError("the splits differ in the shape of an example", where=splits.name, got=shapes)
    counts = sum(getattr(splits, name).class_counts for name in (names if held_out else ["train"]))
    if len(splits.groups.labels) < 2 or int((counts > 0).sum()) < 2:
        what = "the data have only one class"
        where = splits.name if held_out else f"{splits.name}, train split"
        raise InputError(what, where=where, expected="at least two classes")
    return splits


def describe_kind(x: Input | Source) -> str:
    """Describe examples, for error messages.

    Example:
        >>> describe_kind({"num": torch.zeros(2, 3), "kind": torch.zeros(2)})
        'a dict of num and kind, without input_ids'
        >>> describe_kind({"input_ids": torch.zeros(2, 3)})
        'texts'
    """
    if isinstance(x, dict):
        return "texts" if "input_ids" in x else f"a dict of {' and '.join(x)}, without input_ids"
    return f"of shape {tuple(x[0].shape)}"


class Snapshot:
    """The versions and checksums of the tensors of a dataset, to detect that a method changed one in place.

    A version does not count writes through NumPy or ``.data``, so checksums are compared too; those of tensors above
    1 GiB only cover evenly spaced rows.
    """

    def __init__(self, data: Splits) -> None:
        self._tensors = {
            (name, part): tensor for name in ("train", "val", "test") for part, tensor in _tensors(getattr(data, name))
        }
        self._states = {key: _state(tensor) for key, tensor in self._tensors.items()}

    def check(self, method: str) -> None:
        """Raise if a tensor was changed since.

        Raises:
            DataChangedError: with the name of the method, the split and the part.
        """
        for (name, part), tensor in self._tensors.items():
            if _state(tensor) != self._states[name, part]:
                raise DataChangedError(method, name, part)


def _tensors(split: Split) -> Iterator[tuple[str, Tensor]]:
    if isinstance(split.x, Tensor):
        yield "x", split.x
    elif isinstance(split.x, dict):
        yield from ((f"x[{key!r}]", part) for key, part in split.x.items())
    yield from (("y", split.y), ("a", split.a))
    if split.domain is not None:
        yield "domain", split.domain


def _state(tensor: Tensor) -> tuple[int, int]:
    """Return the version and the checksum of a tensor."""
    rows = tensor[:: 1 + tensor.numel() * tensor.element_size() // CHECKED_BYTES] if tensor.dim() else tensor
    return 0 if tensor.is_inference() else tensor._version, checksum(rows)


def _check_inputs(split: Split, where: str) -> None:
    if isinstance(split.x, Tensor) and split.x.is_floating_point():
        if split.x.dim() < 2:
            what = "the inputs have no features"
            expected = "a row or an image per example"
            got = f"a tensor of shape {tuple(split.x.shape)}"
            raise InputError(what, where=where, expected=expected, got=got, hint="Add a dimension: x[:, None].")
        # in parts, because flatten copies
        fine = [part.flatten(1).isfinite().all(dim=1) for part in torch.split(split.x, CHUNK)]
        broken = (~torch.cat(fine)).nonzero().flatten()
        if len(broken):
            what = f"{len(broken)} examples contain NaN or infinite features, the first is example {int(broken[0])}"
            raise InputError(what, where=where, hint="Drop these examples or fill the values in.")


def _check_attributes(split: Split, where: str) -> None:
    columns = 1 if split.a.dim() == 1 else split.a.shape[1]
    if split.groups.overlap:
        expected, limit = len(split.groups.attributes), 2
    elif split.groups.sizes:
        expected, limit = len(split.groups.sizes), 0
    else:
        expected, limit = 1, len(split.groups.attributes)
    if columns != expected:
        raise InputError("the attributes have the wrong number of columns", where=where, expected=expected, got=columns)
    sizes = torch.tensor(split.groups.sizes if limit == 0 and split.groups.sizes else [limit] * columns)
    a = split.a.reshape(len(split.a), -1)
    bad = (a >= sizes) if split.groups.attributes else (a > 0)
    if bool(bad.any()):
        row = int(bad.any(dim=1).nonzero()[0])
        raise InputError(f"the attribute of example {row} is out of range", where=where, got=a[row].tolist())


def _shape(x: Input | Source) -> tuple[int, ...] | None:
    return tuple(x.shape[1:]) if isinstance(x, Tensor) else None


def check_choice(card: Card, config: Any, option: str, choices: Sequence[str]) -> None:
    """Raise if an option is not one of its choices."""
    if getattr(config, option) not in choices:
        what = f"option {option!r} is unknown"
        raise InputError(what, where=card.name, expected=", ".join(choices), got=getattr(config, option))
