"""Groups of examples by label and attribute: names, numbers and membership."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.limits import check_groups

CHUNK_ROWS = 1 << 16  # examples whose membership in overlapping groups is computed at once


@dataclass(frozen=True)
class Groups:
    """The groups of a dataset, numbered ``g = y * n_attributes + a``; no other code computes this.

    Without attributes the groups are the classes. Several attributes are crossed into one (:meth:`crossed`), or overlap
    (:meth:`overlapping`): then an example is in one group for each attribute that it has, or in none.

    Example:
        >>> birds = Groups(labels=("landbird", "waterbird"), attributes=("land", "water"))
        >>> birds.encode(torch.tensor([0, 1]), torch.tensor([1, 1]))
        tensor([1, 3])
        >>> birds.name(1)
        'landbird, water'
    """

    labels: tuple[str, ...]
    attributes: tuple[str, ...] = ()
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Name and values of each crossed column; empty for a single attribute. Fingerprints do not include them."""
    overlap: bool = False
    mixed: bool = False  # whether groups are domains: attribute values that mix labels

    def __post_init__(self) -> None:
        check_arguments(Groups, vars(self))
        check_groups([len(self)], "groups")

    @classmethod
    def crossed(cls, labels: tuple[str, ...], columns: Mapping[str, tuple[str, ...]]) -> Groups:
        """Return groups of several crossed attributes: every combination of values is one attribute value.

        Example:
            >>> faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
            >>> faces.encode(torch.tensor([1]), torch.tensor([[1, 0]]))  # yes, m & young
            tensor([6])
            >>> faces.name(6)
            'yes, m & young'
        """
        check_groups([len(labels), *map(len, columns.values())], "groups (combinations of classes and attributes)")
        values = tuple(" & ".join(combination) for combination in product(*columns.values()))
        return cls(labels, values, tuple(columns.items()))

    @classmethod
    def overlapping(cls, labels: tuple[str, ...], attributes: tuple[str, ...]) -> Groups:
        """Return groups of attributes of which an example may have several or none (a 0/1 column of ``a`` each)."""
        return cls(labels, attributes, overlap=True)

    @classmethod
    def domains(cls, labels: tuple[str, ...], names: tuple[str, ...]) -> Groups:
        """Return groups that are domains, which mix labels.

        Example:
            >>> tweets = Groups.domains(("normal", "hateful"), ("dialect A", "dialect B"))
            >>> tweets.encode(torch.tensor([0, 1]), torch.tensor([1, 1])), tweets.names
            (tensor([1, 1]), ('dialect A', 'dialect B'))
        """
        return cls(labels, names, mixed=True)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of values of each crossed column; empty for a single attribute."""
        return tuple(len(values) for _, values in self.columns)

    def __len__(self) -> int:
        return len(self.attributes) if self.mixed else len(self.labels) * max(len(self.attributes), 1)

    def known(self, a: Tensor) -> Tensor:
        """Return which rows of ``a`` have a known attribute; all rows if the groups have no attributes."""
        if not self.attributes:
            return torch.ones(len(a), dtype=torch.bool, device=a.device)
        return a >= 0 if a.dim() == 1 else (a >= 0).all(dim=1)

    def encode(self, y: Tensor, a: Tensor) -> Tensor:
        """Return the group number of each ``(y, a)`` pair.

        Raises:
            MissingAttributesError: an attribute is hidden or unknown.
            InputError: the groups overlap, so that an example has no single group; see :meth:`membership`.
        """
        if self.overlap:
            hint = "Use data.column(NAME) to work with one attribute, or membership() to count every group."
            raise InputError("these groups overlap, so an example has no single group", hint=hint)
        if not self.attributes:
            return y
        if not bool(self.known(a).all()):
            raise MissingAttributesError("A group", "given")
        return self._attribute_index(a) if self.mixed else y * len(self.attributes) + self._attribute_index(a)

    def decode(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ``(y, a)`` pair of each group number; the inverse of :meth:`encode` for one attribute."""
        if self.mixed:
            raise InputError("these groups mix labels, so a group has no label", got=", ".join(self.names))
        n = max(len(self.attributes), 1)
        return torch.div(g, n, rounding_mode="floor"), g % n

    def membership(self, y: Tensor, a: Tensor) -> Tensor:
        """Return an ``(N, groups)`` mask of group membership; examples with an unknown attribute are in no group.

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
            attribute = torch.where(known, self._attribute_index(a), 0)
            has = torch.nn.functional.one_hot(attribute, len(self.attributes)).bool() & known[:, None]
        return has if self.mixed else (is_label[:, :, None] & has[:, None, :]).flatten(1)

    def count(self, y: Tensor, a: Tensor) -> Tensor:
        """Return the number of examples in every group; examples with an unknown attribute are not counted.

        Example:
            >>> Groups(("no", "yes"), ("left", "right")).count(torch.tensor([0, 1, 1]), torch.tensor([0, 1, -1]))
            tensor([1, 0, 0, 1])
        """
        if self.overlap:  # in chunks, because the mask has N x groups elements
            counts = torch.zeros(len(self), dtype=torch.long, device=y.device)
            for part in zip(torch.split(y, CHUNK_ROWS), torch.split(a, CHUNK_ROWS), strict=True):
                counts += self.membership(*part).sum(dim=0)
            return counts
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
        """Return the groups of one overlapping attribute: with it, and without it."""
        if attribute not in self.attributes or not self.overlap:
            raise InputError(f"unknown overlapping attribute {attribute!r}", expected=", ".join(self.attributes))
        return Groups(self.labels, (f"not {attribute}", attribute))

    def cross(self, a: Tensor) -> tuple[Groups, Tensor]:
        """Return the same groups with the crossed columns as one attribute, and its value for each example.

        Example:
            >>> faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
            >>> groups, a = faces.cross(torch.tensor([[1, 0], [1, -1]]))
            >>> groups.columns, a
            ((), tensor([ 2, -1]))
        """
        return replace(self, columns=()), torch.where(self.known(a), self._attribute_index(a), -1)

    def split_columns(self, a: Tensor) -> Tensor:
        """Return the value of every crossed column, ``(N, columns)``, also if ``a`` is crossed already."""
        if a.dim() == 2 and a.shape[1] == len(self.columns):
            return a
        known, values = self.known(a), []
        index = self._attribute_index(a)
        for size in reversed(self.sizes):  # the last column varies fastest
            values.append(torch.where(known, index % size, -1))
            index = torch.div(index, size, rounding_mode="floor")
        return torch.stack(values[::-1], dim=1)

    def _attribute_index(self, a: Tensor) -> Tensor:
        """Return the number of the attribute value; crossed columns are combined, the last one varies fastest."""
        if a.dim() == 1 or a.shape[1] == 1:
            return a.reshape(len(a)).long()
        weight = torch.tensor([prod(self.sizes[i + 1 :]) for i in range(len(self.sizes))], device=a.device)
        return (a * weight).sum(dim=1)
