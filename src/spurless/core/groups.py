"""Groups: the (label, attribute) cells shared by data, methods, metrics and report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch import Tensor

from spurless.core.errors import BadInput, MissingAttributes

CHUNK = 1 << 16
"""Examples whose membership in overlapping groups is looked at together."""


@dataclass(frozen=True)
class Groups:
    """Names and numbers the cells of a dataset; the only home of ``g = y * n_attributes + a``.

    Without attributes the groups are the classes. Several attributes are crossed into one
    (:meth:`crossed`), or overlap (:meth:`overlapping`): then an example is in one group per
    attribute that it has, or in none.

    Example:
        >>> birds = Groups(labels=("landbird", "waterbird"), attributes=("land", "water"))
        >>> birds.encode(torch.tensor([0, 1]), torch.tensor([1, 1]))
        tensor([1, 3])
        >>> birds.name(1)
        'landbird, water'
    """

    labels: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    """Number of values of each crossed column; empty for a single attribute."""
    overlap: bool = False
    mixed: bool = False
    """Whether a group is an attribute value whatever the label: a domain."""

    @classmethod
    def crossed(cls, labels: tuple[str, ...], columns: Mapping[str, tuple[str, ...]]) -> Groups:
        """Cross several attributes: every combination of their values is one attribute value.

        Example:
            >>> faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
            >>> faces.encode(torch.tensor([1]), torch.tensor([[1, 0]]))  # yes, m & young
            tensor([6])
            >>> faces.name(6)
            'yes, m & young'
        """
        values = tuple(" & ".join(combination) for combination in product(*columns.values()))
        return cls(labels, values, tuple(len(v) for v in columns.values()))

    @classmethod
    def overlapping(cls, labels: tuple[str, ...], attributes: tuple[str, ...]) -> Groups:
        """Name attributes that an example may have several of, or none (``a`` holds a 0/1 column for each)."""
        return cls(labels, attributes, overlap=True)

    @classmethod
    def domains(cls, labels: tuple[str, ...], names: tuple[str, ...]) -> Groups:
        """Name domains: groups that mix labels, as a partition that somebody else made may do.

        Example:
            >>> tweets = Groups.domains(("normal", "hateful"), ("dialect A", "dialect B"))
            >>> tweets.encode(torch.tensor([0, 1]), torch.tensor([1, 1])), tweets.names
            (tensor([1, 1]), ('dialect A', 'dialect B'))
        """
        return cls(labels, names, mixed=True)

    def __len__(self) -> int:
        return len(self.attributes) if self.mixed else len(self.labels) * max(len(self.attributes), 1)

    def known(self, a: Tensor) -> Tensor:
        """Return which rows of ``a`` carry an attribute; every row does where there is none to carry."""
        if not self.attributes:
            return torch.ones(len(a), dtype=torch.bool, device=a.device)
        return a >= 0 if a.dim() == 1 else (a >= 0).all(dim=1)

    def encode(self, y: Tensor, a: Tensor) -> Tensor:
        """Return the group number of each ``(y, a)`` pair.

        Raises:
            MissingAttributes: an attribute is hidden or unknown, so that no group can be named.
            BadInput: the groups overlap, so that no single number exists; see :meth:`membership`.
        """
        if self.overlap:
            raise BadInput(
                "these groups overlap, so an example has no single group",
                do="Use data.column(NAME) to work with one attribute, or membership() to count every group.",
            )
        if not self.attributes:
            return y
        if not bool(self.known(a).all()):
            raise MissingAttributes("A group", "given")
        return self._single(a) if self.mixed else y * len(self.attributes) + self._single(a)

    def decode(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ``(y, a)`` pair of each group number; the inverse of :meth:`encode` for one attribute."""
        if self.mixed:
            raise BadInput("these groups mix labels, so a group has no label", got=", ".join(self.names))
        n = max(len(self.attributes), 1)
        return torch.div(g, n, rounding_mode="floor"), g % n

    def membership(self, y: Tensor, a: Tensor) -> Tensor:
        """Return an ``(N, groups)`` mask of who is in which group; an unknown attribute is in none.

        Example:
            >>> talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
            >>> talk.membership(torch.tensor([0, 1, 1]), torch.tensor([[1, 1], [0, 1], [0, 0]])).int()
            tensor([[1, 1, 0, 0],
                    [0, 0, 0, 1],
                    [0, 0, 0, 0]], dtype=torch.int32)
        """
        is_label = torch.nn.functional.one_hot(y, len(self.labels)).bool()
        if not self.attributes:
            return is_label
        if self.overlap:
            has = a.reshape(len(a), -1) == 1
        else:
            known = self.known(a)
            single = torch.where(known, self._single(a), 0)
            has = torch.nn.functional.one_hot(single, len(self.attributes)).bool() & known[:, None]
        return has if self.mixed else (is_label[:, :, None] & has[:, None, :]).flatten(1)

    def count(self, y: Tensor, a: Tensor) -> Tensor:
        """Return the number of examples in every group; an unknown attribute is in none.

        Example:
            >>> Groups(("no", "yes"), ("left", "right")).count(torch.tensor([0, 1, 1]), torch.tensor([0, 1, -1]))
            tensor([1, 0, 0, 1])
        """
        if self.overlap:  # the mask is as large as examples times groups: some at a time
            found = torch.zeros(len(self), dtype=torch.long, device=y.device)
            for part in zip(torch.split(y, CHUNK), torch.split(a, CHUNK), strict=True):
                found += self.membership(*part).sum(dim=0)
            return found
        known = self.known(a)
        return torch.bincount(self.encode(y[known], a[known]), minlength=len(self))

    def name(self, g: int) -> str:
        """Return the name of group ``g``."""
        if self.mixed:
            return self.attributes[g]
        y, a = divmod(g, max(len(self.attributes), 1))
        return f"{self.labels[y]}, {self.attributes[a]}" if self.attributes else self.labels[y]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all groups, in order."""
        return tuple(self.name(g) for g in range(len(self)))

    def column(self, attribute: str) -> Groups:
        """Return the groups of one overlapping attribute on its own: with it, and without it."""
        if attribute not in self.attributes or not self.overlap:
            raise BadInput(f"no overlapping attribute is called {attribute!r}", expected=", ".join(self.attributes))
        return Groups(self.labels, (f"not {attribute}", attribute))

    def _single(self, a: Tensor) -> Tensor:
        """Fold crossed columns into one number, the last column running fastest."""
        if a.dim() == 1 or a.shape[1] == 1:
            return a.reshape(len(a)).long()
        weight = torch.tensor([prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))], device=a.device)
        return (a * weight).sum(dim=1)
