"""Archives: own data in a NumPy ``.npz`` file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.data.grouped import Splits, Transform
from spurless.data.images import channels_first
from spurless.data.pack import from_pack, is_pack
from spurless.data.splitting import join_attributes, number_split
from spurless.data.tensors import from_tensors, tensor, whole


def from_npz(
    path: str | Path,
    *,
    seed: int = 0,
    labels: Sequence[str] | None = None,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load an archive with the keys ``x, y[, a][, split]``, or ``x_train, y_train[, a_train]`` and so on.

    Where val or test is missing, it is cut from train at random, stratified, 15 % of it for each. Other keys are
    ignored. Arrays of Python objects are refused, since reading them would run code.

    An archive with the keys ``img`` and ``off`` is a pack of image files, see :func:`~spurless.data.pack.from_pack`.

    Images of uint8 come channels first, or else ``(N, H, W)``, or channels last: a last dimension of 1, 3 or 4 is
    taken for the channels, and a fourth channel (alpha) is dropped.

    Args:
        path: the file.
        seed: of the split.
        labels: the names of the classes; by default their numbers.
        transform: from a batch to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        BadInput: the file or an array cannot be used.
    """
    path = Path(path)
    if is_pack(path):
        if labels is not None:
            raise BadInput("a pack names its classes itself", where=path, do="Leave labels out, or pack them.")
        return from_pack(path, seed=seed, transform=transform, augment=augment)
    arrays = _arrays(path)
    try:
        x, y, a, split = _whole(arrays) if "x" in arrays else _joined(arrays)
        splits = from_tensors(
            x,
            y,
            a,
            split=split,
            labels=labels,
            seed=seed,
            name=f"archive {path.name}",
            transform=transform,
            augment=augment,
        )
    except BadInput as error:
        raise error if path.name in str(error) else BadInput(str(error).removesuffix("."), where=path) from None
    return replace(splits, options={"path": str(path), "seed": seed, "labels": None if labels is None else [*labels]})


def _arrays(path: Path) -> dict[str, Any]:
    """Read the arrays whose keys are known; never a pickle."""
    import numpy as np

    if not path.is_file():
        raise BadInput("no such file", where=path, expected="an npz archive")
    found: dict[str, Any] = {}
    with path.open("rb") as file:  # NumPy would leave a broken file open
        try:
            archive = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError, BadZipFile):
            raise BadInput("the file is not an npz archive", where=path) from None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise BadInput("the file holds one array, not an archive", where=path, do="Use np.savez(path, x=x, y=y).")
        for key in archive.files:
            if re.fullmatch(r"split|[xya](_.+)?", key):
                found[key] = _read(archive, key, path)
        if not found:
            raise BadInput("there is neither 'x' nor 'x_train'", where=path, got=", ".join(archive.files) or "no key")
    return found


def _read(archive: Any, key: str, path: Path) -> Any:
    try:
        return archive[key]
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        pickled = "allow_pickle" in str(error)
        what = "holds Python objects, which are never loaded" if pickled else f"cannot be read: {error}"
        raise BadInput(f"the array {key!r} {what}", where=path, expected="numbers") from None


def _whole(arrays: dict[str, Any]) -> tuple[Tensor, Any, Any, Any]:
    if any(key.startswith("x_") for key in arrays):
        raise BadInput("there is 'x' beside keys for splits", got=", ".join(arrays), expected="one or the other")
    x = channels_first(tensor(arrays["x"], "inputs"))
    return x, _array(arrays, "y"), arrays.get("a"), arrays.get("split")


def _joined(arrays: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Put the arrays of the splits one after another."""
    names = {number_split(key[2:], f"key {key!r}"): key[2:] for key in arrays if key.startswith("x_")}
    if 0 not in names:
        raise BadInput("there is neither 'x' nor 'x_train'", got=", ".join(arrays))
    inputs = [channels_first(tensor(arrays[f"x_{name}"], "inputs")) for name in names.values()]
    kinds = {name: f"{x.dtype} {tuple(x.shape[1:])}" for name, x in zip(names.values(), inputs, strict=True)}
    if len(set(kinds.values())) > 1:
        raise BadInput("the splits differ in the shape or type of an example", got=kinds)
    labels = [whole(_array(arrays, f"y_{name}"), "labels").flatten() for name in names.values()]
    known = [arrays.get(f"a_{name}") for name in names.values()]
    attributes = [None if a is None else whole(a, "attributes") for a in known]
    for name, x, y in zip(names.values(), inputs, labels, strict=True):
        if len(x) != len(y):
            raise BadInput(f"x_{name} and y_{name} differ in number", got=f"{len(x)} and {len(y)}")
    split = torch.cat([torch.full((len(y),), k) for k, y in zip(names, labels, strict=True)])
    return torch.cat(inputs), torch.cat(labels), join_attributes(attributes, [len(y) for y in labels]), split


def _array(arrays: dict[str, Any], key: str) -> Any:
    if key not in arrays:
        raise BadInput(f"there is no key {key!r}", got=", ".join(arrays))
    return arrays[key]
