"""Tensors: own data that is already in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Input, Splits, Transform
from spurless.data.splitting import assemble, name_groups, number_split

Names: TypeAlias = "Sequence[str] | Mapping[str, Sequence[str]]"
"""The values of one attribute, the names of overlapping ones, or the values of each crossed column by its name."""


def from_tensors(  # noqa: PLR0913 - a loader's options are its arguments
    x: Any,
    y: Any,
    a: Any = None,
    *,
    split: Any = None,
    labels: Sequence[str] | None = None,
    attributes: Names | None = None,
    overlapping: bool = False,
    seed: int = 0,
    name: str = "tensors",
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Make splits of tensors, arrays or lists.

    Without ``split``, examples are split at random, stratified, 70/15/15 by ``seed``. Where ``split`` names no
    val or no test example, 15 % of train are cut off for each that is missing.

    Args:
        x: inputs, shape ``(N, ...)``, or a dict of them. Images are uint8, channels first. Fractions become
            float32; whole numbers stay as they are (token ids).
        y: labels, whole numbers from 0.
        a: attributes, whole numbers from 0, or -1 where unknown; several columns are crossed.
        split: 0, 1, 2 or train, val, test for each example.
        labels: the names of the classes; by default their numbers.
        attributes: the names of the attribute values; for several columns, a mapping from column to names.
        overlapping: the columns of ``a`` are 0/1, and an example may have several attributes or none.
        seed: of the split.
        name: what to call the data.
        transform: from a batch to what the model takes.
        augment: before ``transform``, in training only.

    Example:
        >>> data = from_tensors(torch.rand(40, 2), [0, 1] * 20, labels=("cat", "dog"))
        >>> len(data.train), data.train.class_counts.tolist(), data.groups.labels
        (28, [14, 14], ('cat', 'dog'))
    """
    y, a, groups = numbered(y, a, labels, attributes, overlapping)
    return assemble(
        Grouped(_input(x), y, a, groups, transform, augment),
        None if split is None else _split(split, len(y)),
        seeds=Seeds(seed),
        name=name,
        options={"seed": seed, "name": name, "overlapping": overlapping},
    )


def numbered(
    y: Any, a: Any, labels: Sequence[str] | None, attributes: Names | None, overlapping: bool = False
) -> tuple[Tensor, Tensor, Groups]:
    """Return labels and attributes as whole numbers, and the groups that name them."""
    y = whole(y, "labels")
    y = y[:, 0] if y.dim() == 2 and y.shape[1] == 1 else y
    if y.dim() != 1:
        raise BadInput("labels must be one number per example", got=f"shape {tuple(y.shape)}")
    names = _names(labels, y, "class")
    if a is None:
        if attributes is not None:
            raise BadInput("attribute names were given without attributes", do="Pass a= as well.")
        return y, torch.full_like(y, -1), Groups(names)
    a = whole(a, "attributes")
    if a.dim() not in (1, 2):
        raise BadInput("attributes must be one number or one row per example", got=f"shape {tuple(a.shape)}")
    if bool((a < 0).all()) and attributes is None:
        return y, torch.full_like(y, -1), Groups(names)
    if overlapping:
        a = a.reshape(len(a), -1)
        columns = tuple(map(str, range(a.shape[1]))) if attributes is None else tuple(attributes)
        return y, a, Groups.overlapping(names, columns)
    a = a[:, 0] if a.dim() == 2 and a.shape[1] == 1 else a
    return y, a, _attribute_groups(names, a, attributes)


def tensor(values: Any, what: str) -> Tensor:
    """Return a tensor of tensors, arrays or lists; arrays share their memory where they can."""
    import numpy as np

    if hasattr(values, "toarray") or (isinstance(values, Tensor) and values.layout is not torch.strided):
        raise BadInput(f"the {what} are sparse", do="Make them dense: x.toarray(), of a tensor x.to_dense().")
    if isinstance(values, Tensor):
        return values.detach()
    if isinstance(values, Sequence) and values and all(isinstance(value, Tensor) for value in values):
        return torch.stack([value.detach() for value in values])
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise BadInput(f"the {what} must be numbers", got=f"{array.dtype} values", do=_numbering(array, what))
        plain = np.require(array.astype(array.dtype.newbyteorder("="), copy=False), requirements=["C", "W"])
        return torch.from_numpy(plain)
    except (TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the {what} cannot be made a tensor: {error}") from None


def whole(values: Any, what: str) -> Tensor:
    """Return whole numbers as int64; refuse fractions and names."""
    numbers = tensor(values, what)
    if numbers.is_floating_point():
        broken = (numbers != numbers.round()) | ~numbers.isfinite()
        if bool(broken.any()):
            lacking = "attributes" in what and bool(numbers.isnan().any())
            do = "An unknown attribute is -1." if lacking else ""
            raise BadInput(f"the {what} must be whole numbers", got=float(numbers[broken][0]), do=do)
    return numbers.long()


def _numbering(array: Any, what: str) -> str:
    """Say what to do about values that are no numbers."""
    if what not in ("labels", "attributes"):
        return "Leave columns of words out, or number them." if array.ndim > 1 else ""
    return f"Number them, and pass their names: names, numbers = np.unique(values, return_inverse=True); {what}=names."


def _input(x: Any) -> Input:
    if isinstance(x, Mapping):
        parts = {str(key): _input(value) for key, value in x.items()}
        if not parts:
            raise BadInput("the inputs are an empty dict")
        if len({len(value) for value in parts.values()}) > 1:
            raise BadInput("the inputs differ in number", got={key: len(value) for key, value in parts.items()})
        return {key: value for key, value in parts.items() if isinstance(value, Tensor)}
    values = tensor(x, "inputs")
    if values.dim() == 0:
        raise BadInput("the inputs must have one row per example", got="one number")
    return values.float() if values.is_floating_point() or values.dtype == torch.bool else values


def _names(names: Names | None, codes: Tensor, kind: str) -> tuple[str, ...]:
    """Return the given names, or the numbers themselves."""
    if names is None:
        return tuple(map(str, range(int(codes.max()) + 1 if len(codes) else 0)))
    if isinstance(names, str | Mapping) or len(set(names)) != len(names):
        raise BadInput(f"the {kind} names must be a list of different names", got=repr(names))
    return tuple(map(str, names))


def _attribute_groups(labels: tuple[str, ...], a: Tensor, attributes: Names | None) -> Groups:
    if a.dim() == 1:
        return name_groups(labels, {"attribute": _names(attributes, a, "attribute")})
    if attributes is None:
        attributes = {str(k): tuple(map(str, range(int(a[:, k].max()) + 1))) for k in range(a.shape[1])}
    if not isinstance(attributes, Mapping):
        raise BadInput(
            "several attribute columns need a mapping from column to names",
            got=repr(attributes),
            do="Pass overlapping=True if each column says whether an example has the attribute.",
        )
    return name_groups(labels, {str(key): _names(value, a, "attribute") for key, value in attributes.items()})


def _split(split: Any, n: int) -> Tensor:
    values = split.tolist() if hasattr(split, "tolist") else list(split)
    if len(values) != n:
        raise BadInput("the split must have one value per example", expected=n, got=len(values))
    return torch.tensor([number_split(value, f"split of example {i}") for i, value in enumerate(values)])
