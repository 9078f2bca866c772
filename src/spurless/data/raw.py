"""Raw: images with their labels and splits, before anything is drawn onto them; and the archives they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Transform

Three: TypeAlias = "tuple[Grouped, Grouped, Grouped]"
"""The train, val and test split."""
Labelled: TypeAlias = "tuple[Tensor, Tensor]"
"""Images and their labels, in the order of the files."""


@dataclass(frozen=True)
class Raw:
    """Images ``x`` with labels ``y``, and the places of those in train, val and test."""

    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def parts(self) -> dict[str, Tensor]:
        """The places by the name of the split."""
        return {"train": self.train, "val": self.val, "test": self.test}

    def plain(self, groups: Groups, augment: Transform | None = None) -> Three:
        """Return the splits as they are, without an attribute."""
        none = torch.full_like(self.y, -1)
        whole = Grouped(self.x, self.y, none, groups, augment=augment)
        return whole.select(self.train), whole.select(self.val), whole.select(self.test)


def share_out(y: Tensor, sizes: Sequence[int], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Deal the examples out at random: exact sizes, every class shared alike to within one; return their places.

    Example:
        >>> few, many = share_out(torch.tensor([0] * 4 + [1] * 8), (3, 9), torch.Generator().manual_seed(0))
        >>> int((few < 4).sum()), int((many < 4).sum())
        (1, 3)
    """
    if sum(sizes) != len(y) or min(sizes) < 1:
        raise BadInput("the sizes of the splits must be positive and add up", expected=len(y), got=tuple(sizes))
    rank = torch.empty(len(y), dtype=torch.double)
    for label in torch.unique(y):
        members = (y == label).nonzero().flatten()
        shuffled = members[torch.randperm(len(members), generator=generator)]
        rank[shuffled] = (torch.arange(len(members)) + 0.5).double() / len(members)
    # cutting the ranks of all classes at one place cuts every class at the same share
    order = torch.argsort(rank, stable=True)
    return tuple(part.sort().values for part in torch.split(order, list(sizes)))


def hold_out(name: str, train: Labelled, test: Labelled, n_val: int, seeds: Seeds) -> Raw:
    """Cut a val split of ``n_val`` examples from the official train split; the test split stays as it is."""
    n = len(train[1])
    if not 1 <= n_val < n:
        raise BadInput(
            "the val split must leave something of the train split", where=name, expected=f"1 to {n - 1}", got=n_val
        )
    rest, val = share_out(train[1], (n - n_val, n_val), seeds.generator("split"))
    x, y = (torch.cat([first, last]) for first, last in zip(train, test, strict=True))
    return Raw(x, y, rest, val, torch.arange(n, len(y)))


def read_arrays(path: Path, keys: Sequence[str]) -> list[Any]:
    """Read arrays of numbers from an npz archive; never a pickle."""
    import numpy as np

    with path.open("rb") as file:  # NumPy would leave a broken file open
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise BadInput("the file holds one array, not an archive", where=path)
            if missing := [key for key in keys if key not in archive.files]:
                raise BadInput(f"there is no key {missing[0]!r}", where=path, got=", ".join(archive.files))
            return [archive[key] for key in keys]
        except BadInput:
            raise
        except (ValueError, OSError, EOFError, BadZipFile) as error:
            raise BadInput(f"the archive cannot be read: {error}", where=path, do="Get the file again.") from None


def check_labelled(x: Tensor, y: Tensor, n_classes: int, where: object) -> Labelled:
    """Return images and labels that belong together, the labels as whole numbers; refuse others by file."""
    if y.dim() != 1 or len(x) != len(y) or len(y) == 0:
        raise BadInput(
            "images and labels differ in number, or there are none", where=where, got=f"{len(x)} and {tuple(y.shape)}"
        )
    y = y.long()
    if int(y.min()) < 0 or int(y.max()) >= n_classes:
        row = int(((y < 0) | (y >= n_classes)).nonzero()[0])
        raise BadInput(
            f"the label of image {row} is out of range",
            where=where,
            expected=f"0 to {n_classes - 1}",
            got=int(y[row]),
        )
    return x, y
