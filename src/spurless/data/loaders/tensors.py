"""Load data that are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments, describe_value
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.limits import check_groups
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits, Transform
from spurless.data.splitting import make_splits, name_groups, parse_split

Names: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of attribute values, of overlapping attributes, or of the values of each crossed column."""


def from_tensors(  # noqa: PLR0913 - one parameter per option
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
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Make splits of tensors, arrays or lists.

    A missing val or test split is taken from train at random, stratified, 15 % for each.

    Args:
        x: inputs, shape ``(N, ...)``, or a dict of them. Images are uint8, channels first. Floating-point numbers
            become float32; integers are kept (token ids).
        y: labels, integers from 0.
        a: attributes, integers from 0, or -1 if unknown; several columns are crossed.
        split: 0, 1, 2 or train, val, test for each example.
        labels: names of the classes; by default their numbers.
        attributes: names of the attribute values; for several columns, a mapping from column to names.
        overlapping: the columns of ``a`` are 0/1, and an example may have several attributes or none.
        seed: seed of the split.
        name: name of the data.
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch to model input.
        augment: transform that is applied first, in training only.

    Example:
        >>> data = from_tensors(torch.rand(40, 2), [0, 1] * 20, labels=("cat", "dog"))
        >>> len(data.train), data.train.class_counts.tolist(), data.groups.labels
        (28, [14, 14], ('cat', 'dog'))
    """
    # the other arguments have errors of their own
    check_arguments(from_tensors, {"overlapping": overlapping, "seed": seed, "name": name, "held_out": held_out})
    y, a, groups = encode_labels(y, a, labels, attributes, overlapping)
    return make_splits(
        Split(_to_input(x), y, a, groups, transform, augment),
        None if split is None else _parse_splits(split, len(y)),
        seeds=Seeds(seed),
        name=name,
        options={"seed": seed, "name": name, "overlapping": overlapping},
        held_out=held_out,
    )


def encode_labels(
    y: Any, a: Any, labels: Sequence[str] | None, attributes: Names | None, overlapping: bool = False
) -> tuple[Tensor, Tensor, Groups]:
    """Return labels and attributes as integers, and their groups."""
    y = to_integers(y, "labels")
    y = y[:, 0] if y.dim() == 2 and y.shape[1] == 1 else y
    if y.dim() != 1:
        raise InputError("labels must be one number per example", got=f"shape {tuple(y.shape)}")
    names = _resolve_names(labels, y, "class")
    if a is None:
        if attributes is not None:
            raise InputError("attribute names need attributes", hint="Pass a= as well.")
        return y, torch.full_like(y, -1), Groups(names)
    a = to_integers(a, "attributes")
    if a.dim() not in (1, 2):
        raise InputError("attributes must be one number or one row per example", got=f"shape {tuple(a.shape)}")
    if bool((a < 0).all()) and attributes is None:
        return y, torch.full_like(y, -1), Groups(names)
    if overlapping:
        a = a.reshape(len(a), -1)
        columns = (
            tuple(map(str, range(a.shape[1]))) if attributes is None else _resolve_names(attributes, a, "attribute")
        )
        return y, a, Groups.overlapping(names, columns)
    a = a[:, 0] if a.dim() == 2 and a.shape[1] == 1 else a
    return y, a, _attribute_groups(names, a, attributes)


def to_list(values: Any, what: str) -> list[Any]:
    """Convert arrays, pandas columns and other iterables to a list: indexing a pandas column uses its labels."""
    if isinstance(values, Tensor):
        values = to_tensor(values, what)
    values = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"the {what} must be a list or an array", got=describe_value(values))
    return list(values)


def to_tensor(values: Any, what: str) -> Tensor:
    """Convert tensors, arrays or lists to a tensor; arrays share their memory if possible."""
    import numpy as np

    if hasattr(values, "toarray") or (isinstance(values, Tensor) and values.layout is not torch.strided):
        raise InputError(f"the {what} are sparse", hint="Convert them: x.toarray(), or x.to_dense() for a tensor.")
    if isinstance(values, Tensor):
        if values.is_meta:
            raise InputError(f"the {what} are on the device 'meta', which stores no values", hint="Pass a CPU tensor.")
        return values.detach()
    if isinstance(values, Sequence) and values and all(isinstance(value, Tensor) for value in values):
        return torch.stack([value.detach() for value in values])
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            got = f"{array.dtype} values"
            raise InputError(f"the {what} must be numbers", got=got, hint=_encoding_hint(array, what))
        plain = np.require(array.astype(array.dtype.newbyteorder("="), copy=False), requirements=["C", "W"])
        return torch.from_numpy(plain)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the {what} cannot be converted to a tensor: {error}") from None


def to_integers(values: Any, what: str) -> Tensor:
    """Convert values to int64; raise if one is not an integer."""
    numbers = to_tensor(values, what)
    if numbers.is_floating_point():
        broken = (numbers != numbers.round()) | ~numbers.isfinite()
        if bool(broken.any()):
            has_unknown = "attributes" in what and bool(numbers.isnan().any())
            hint = "Use -1 for an unknown attribute." if has_unknown else ""
            raise InputError(f"the {what} must be integers", got=float(numbers[broken][0]), hint=hint)
    return numbers.long()


def _encoding_hint(array: Any, what: str) -> str:
    if what not in ("labels", "attributes"):
        return "Leave columns of text out, or encode them as numbers." if array.ndim > 1 else ""
    return f"Encode them, and pass their names: names, codes = np.unique(values, return_inverse=True); {what}=names."


def _to_input(x: Any) -> Input:
    if isinstance(x, Mapping):
        parts = {str(key): _to_input(value) for key, value in x.items()}
        if not parts:
            raise InputError("the inputs are an empty dict")
        if len({len(value) for value in parts.values()}) > 1:
            raise InputError("the inputs differ in number", got={key: len(value) for key, value in parts.items()})
        return {key: value for key, value in parts.items() if isinstance(value, Tensor)}
    values = to_tensor(x, "inputs")
    if values.dim() == 0:
        raise InputError("the inputs must have one row per example", got="one number")
    return values.float() if values.is_floating_point() or values.dtype == torch.bool else values


def _resolve_names(names: Names | None, codes: Tensor, kind: str) -> tuple[str, ...]:
    """Return the given names, or the numbers as text."""
    if names is None:
        n = int(codes.max()) + 1 if len(codes) else 0
        check_groups([n], f"{kind} values")
        return tuple(map(str, range(n)))
    is_list = isinstance(names, Iterable) and not isinstance(names, str | bytes | Mapping)
    unique = tuple(dict.fromkeys(map(str, names))) if is_list else ()
    if not is_list or len(unique) < len(names):
        raise InputError(f"the {kind} names must be a list of unique names", got=repr(names))
    return unique


def _attribute_groups(labels: tuple[str, ...], a: Tensor, attributes: Names | None) -> Groups:
    if a.dim() == 1:
        return name_groups(labels, {"attribute": _resolve_names(attributes, a, "attribute")})
    if attributes is None:
        attributes = {f"attribute {k}": _resolve_names(None, a[:, k], "attribute") for k in range(a.shape[1])}
    if not isinstance(attributes, Mapping):
        what = "several attribute columns need a mapping from column to names"
        raise InputError(what, got=repr(attributes), hint="Pass overlapping=True if each column is a 0/1 attribute.")
    return name_groups(labels, {str(key): _resolve_names(value, a, "attribute") for key, value in attributes.items()})


def _parse_splits(split: Any, n: int) -> Tensor:
    values = to_list(split, "split")
    if len(values) != n:
        raise InputError("the split must have one value per example", expected=n, got=len(values))
    return torch.tensor([parse_split(value, f"split of example {i}") for i, value in enumerate(values)])
