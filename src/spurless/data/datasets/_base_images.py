"""Base images of the synthetic datasets: images, labels and split indices before a shortcut is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loaders.pack import read_arrays
from spurless.data.split import Split, Transform

LabelledImages: TypeAlias = "tuple[Tensor, Tensor]"  # images and their labels, in file order


@dataclass(frozen=True)
class BaseImages:
    """Images ``x`` with labels ``y``, and the indices of the train, val and test examples."""

    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def indices(self) -> dict[str, Tensor]:
        """The indices by split name."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def to_splits(self, groups: Groups, augment: Transform | None = None) -> list[Split]:
        """Return the images as splits without an attribute."""
        no_attribute = torch.full_like(self.y, -1)
        split = Split(self.x, self.y, no_attribute, groups, augment=augment)
        return [split.select(index) for index in self.indices.values()]


def stratified_split(y: Tensor, sizes: Sequence[int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Split examples at random into parts of exact sizes with equal class proportions; return their indices.

    A class's count in a part differs from proportional by less than one example.

    Example:
        >>> small, large = stratified_split(torch.tensor([0] * 4 + [1] * 8), (3, 9), torch.Generator().manual_seed(0))
        >>> int((small < 4).sum()), int((large < 4).sum())
        (1, 3)
    """
    if sum(sizes) != len(y) or min(sizes) < 1:
        raise InputError("the sizes of the splits must be positive and add up", expected=len(y), got=tuple(sizes))
    rank = torch.empty(len(y), dtype=torch.double)
    for label in torch.unique(y):
        members = (y == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        rank[shuffled] = (torch.arange(len(members)) + 0.5).double() / len(members)
    # ranks are relative to the class, so one threshold cuts every class at the same fraction
    order = torch.argsort(rank, stable=True)
    return tuple(part.sort().values for part in torch.split(order, list(sizes)))


def hold_out_val(name: str, train: LabelledImages, test: LabelledImages, n_val: int, seeds: Seeds) -> BaseImages:
    """Split ``n_val`` validation examples off the official train split; keep the test split."""
    n = len(train[1])
    if not 1 <= n_val < n:
        raise InputError(
            "the val split must be smaller than the official train split",
            where=name,
            expected=f"1 to {n - 1}",
            got=n_val,
        )
    rest, val = stratified_split(train[1], (n - n_val, n_val), seeds.generator("split"))
    x, y = (torch.cat([first, last]) for first, last in zip(train, test, strict=True))
    return BaseImages(x, y, rest, val, torch.arange(n, len(y)))


def read_npz(path: Path, keys: Sequence[str]) -> list[Any]:
    """Read arrays from an npz archive without unpickling anything."""
    arrays = read_arrays(path, "|".join(keys))
    if missing := [key for key in keys if key not in arrays]:
        raise InputError(f"the archive has no key {missing[0]!r}", where=path, got=", ".join(arrays) or "other keys")
    return [arrays[key] for key in keys]


def check_image_labels(x: Tensor, y: Tensor, n_classes: int, where: object) -> LabelledImages:
    """Return the images and their labels as int64; raise if their numbers differ or a label is out of range."""
    if y.dim() != 1 or len(x) != len(y) or len(y) == 0:
        got = f"{len(x)} images, labels of shape {tuple(y.shape)}"
        raise InputError("images and labels must have the same length, at least 1", where=where, got=got)
    y = y.long()
    if int(y.min()) < 0 or int(y.max()) >= n_classes:
        row = int(((y < 0) | (y >= n_classes)).nonzero()[0])
        raise InputError(
            f"the label of image {row} is out of range", where=where, expected=f"0 to {n_classes - 1}", got=int(y[row])
        )
    return x, y
