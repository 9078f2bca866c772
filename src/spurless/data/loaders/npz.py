"""Load data from NumPy ``.npz`` archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.data.loaders.images import channels_first
from spurless.data.loaders.pack import read_arrays
from spurless.data.loaders.tensors import from_tensors, to_integers, to_tensor
from spurless.data.split import Splits, Transform
from spurless.data.splitting import concat_attributes, parse_split


def from_npz(
    path: str | Path,
    *,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load an archive with the keys ``x, y[, a][, split]``, or ``x_train, y_train[, a_train]`` and so on.

    A missing val or test split is taken from train at random, stratified, 15 % for each. Other keys are ignored.
    Arrays of Python objects are rejected, because reading them would run code.

    uint8 images are ``(N, C, H, W)``, ``(N, H, W)``, or channels last: a last dimension of 1, 3 or 4 is that of the
    channels, and a fourth channel (alpha) is dropped.

    Args:
        path: the file.
        seed: seed of the split.
        labels: names of the classes; by default their numbers.
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch to model input.
        augment: transform that is applied first, in training only.
    """
    check_arguments(from_npz, locals())
    path = Path(path)
    arrays = read_arrays(path, keys="split|[xya](_.+)?")  # never a pickle
    if not arrays:
        with ZipFile(path) as archive:
            names = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
        raise InputError("the archive has neither 'x' nor 'x_train'", where=path, got=names or "no key")
    try:
        x, y, a, split = _read_whole(arrays) if "x" in arrays else _read_splits(arrays, held_out)
        transforms: dict[str, Any] = {"transform": transform, "augment": augment}
        name = f"archive {path.name}"
        splits = from_tensors(
            x, y, a, split=split, labels=labels, seed=seed, name=name, held_out=held_out, **transforms
        )
    except InputError as error:
        raise error if path.name in str(error) else InputError(str(error).removesuffix("."), where=path) from None
    options = {"path": str(path), "seed": seed, "labels": None if labels is None else [*labels]}
    return replace(splits, options=options | ({"held_out": True} if "held_out" in splits.options else {}))


def _read_whole(arrays: dict[str, Any]) -> tuple[Tensor, Any, Any, Any]:
    if any(key.startswith("x_") for key in arrays):
        raise InputError("the archive has both 'x' and keys of splits", got=", ".join(arrays), expected="one of them")
    x = channels_first(to_tensor(arrays["x"], "inputs"))
    return x, _array(arrays, "y"), arrays.get("a"), arrays.get("split")


def _read_splits(arrays: dict[str, Any], held_out: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    names = {parse_split(key[2:], f"key {key!r}"): key[2:] for key in arrays if key.startswith("x_")}
    if not names or (0 not in names and not held_out):
        raise InputError("the archive has neither 'x' nor 'x_train'", got=", ".join(arrays))
    inputs = [channels_first(to_tensor(arrays[f"x_{name}"], "inputs")) for name in names.values()]
    kinds = {name: f"{x.dtype} {tuple(x.shape[1:])}" for name, x in zip(names.values(), inputs, strict=True)}
    if len(set(kinds.values())) > 1:
        raise InputError("the splits differ in the shape or type of an example", got=kinds)
    labels = [to_integers(_array(arrays, f"y_{name}"), "labels").flatten() for name in names.values()]
    known = [arrays.get(f"a_{name}") for name in names.values()]
    attributes = [None if a is None else to_integers(a, "attributes") for a in known]
    for name, x, y in zip(names.values(), inputs, labels, strict=True):
        if len(x) != len(y):
            raise InputError(f"x_{name} and y_{name} differ in number", got=f"{len(x)} and {len(y)}")
    split = torch.cat([torch.full((len(y),), k) for k, y in zip(names, labels, strict=True)])
    return torch.cat(inputs), torch.cat(labels), concat_attributes(attributes, [len(y) for y in labels]), split


def _array(arrays: dict[str, Any], key: str) -> Any:
    if key not in arrays:
        raise InputError(f"the archive has no key {key!r}", got=", ".join(arrays))
    return arrays[key]
