"""Names: where each example came from and what it reads, for whoever wants to find it again; no part of its content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Names:
    """The file, or the place in a file, of every example, and its text where it is one.

    What all examples are called is held once; a choice of them holds only which. Names are in no fingerprint and in no
    key: images that are moved stay the same data.

    Example:
        >>> names = Names.of_files(["cow/1.png", "cow/2.png", "camel/1.png"]).select(torch.tensor([2, 0]))
        >>> names[0], len(names)
        ('camel/1.png', 2)
        >>> Names(torch.arange(2), place="own.csv, row", rows=torch.tensor([2, 4]))[1]
        'own.csv, row 4'
    """

    index: Tensor
    """which of all examples these are"""
    files: Sequence[str] | None = None
    """of all examples, where each came in a file of its own"""
    place: str = ""
    """else what stands before a number, such as "own.csv, row" """
    rows: Tensor | None = None
    """the numbers; None where an example is known by its own"""
    texts: Sequence[str] | None = None
    """what all examples read, where they are texts and were given as such"""

    @classmethod
    def of_files(cls, files: Iterable[str | Path]) -> Names:
        """Name every example by its file."""
        found = [str(file) for file in files]  # a path takes three times the room
        return cls(torch.arange(len(found)), found)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> str | None:
        number = int(self.index[i])
        if self.files is not None:
            return str(self.files[number])
        return f"{self.place} {number if self.rows is None else int(self.rows[number])}" if self.place else None

    def text(self, i: int) -> str | None:
        """Return what an example reads."""
        return None if self.texts is None else self.texts[int(self.index[i])]

    def select(self, index: Tensor) -> Names:
        """Return the names of the examples at ``index``."""
        return Names(self.index[index.to(self.index.device)], self.files, self.place, self.rows, self.texts)
