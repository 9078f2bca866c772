"""Splitting: from examples to three splits, and from values to numbered names; what all loaders of own data share."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from math import floor, isfinite
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_splits, checked
from spurless.data.grouped import Grouped, Splits

SHARES = (0.7, 0.15, 0.15)
"""Train, val, test, where the data names no splits."""

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
"""What the splits may be called, in lower or upper case."""

_MISSING = ("NAType", "NaTType")


def stratified(
    cells: Tensor, shares: Sequence[float] = SHARES, *, seeds: Seeds, classes: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Split at random, keeping the share of every cell; return the indices of train, val and test, in order.

    A cell with at least as many examples as there are splits is in all of them. Cells smaller than that are
    pooled by class, so that a class is in every split wherever it can be. A split of share 0 stays empty.

    Args:
        cells: the cell of every example: its class, or a number for class and attribute.
        shares: of train, val and test; they add up to 1.
        seeds: the same seed gives the same split.
        classes: the class of every example, where cells are finer than classes.

    Example:
        >>> train, val, test = stratified(torch.tensor([0] * 20 + [1] * 3), seeds=Seeds(0))
        >>> [int((part < 20).sum()) for part in (train, val, test)], [len(part) for part in (train, val, test)]
        ([14, 3, 3], [15, 4, 4])
    """
    if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise BadInput("the shares of train, val and test must add up to 1", got=tuple(shares))
    cells = _pooled(cells, cells if classes is None else classes, sum(share > 0 for share in shares))
    order = torch.randperm(len(cells), generator=seeds.generator("split"))
    order = order[torch.argsort(cells[order], stable=True)]
    counts = torch.unique(cells, return_counts=True)[1].tolist()
    pieces = [torch.split(cell, _apportion(len(cell), shares)) for cell in torch.split(order, counts)]
    train, val, test = (torch.cat([order[:0], *(piece[k] for piece in pieces)]).sort().values for k in range(3))
    return train, val, test


def assemble(
    whole: Grouped,
    split: Tensor | None,
    *,
    seeds: Seeds,
    name: str,
    options: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
) -> Splits:
    """Take all examples apart into checked splits; ``split`` numbers the split of each (train 0, val 1, test 2).

    A val or test split without examples is cut from train, 15 % for each, stratified by class and attribute.
    Without ``split``, all examples are train to begin with.
    """
    if len(whole) == 0:
        raise BadInput("there are no examples", where=name, expected="at least three of each class")
    checked(whole, name)  # before the split, so that an error counts examples as the user does
    where = torch.zeros_like(whole.y) if split is None else split
    parts = [(where == k).nonzero().flatten() for k in range(3)]
    missing = [k for k in (1, 2) if len(parts[k]) == 0]
    if missing:
        rest = parts[0]
        shares = [1 - sum(SHARES[k] for k in missing), *(SHARES[k] if k in missing else 0.0 for k in (1, 2))]
        pieces = stratified(_cells(whole.y, whole.a)[rest], shares, seeds=seeds, classes=whole.y[rest])
        for k in (0, *missing):
            parts[k] = rest[pieces[k]]
        if len(rest) and not all(len(parts[k]) for k in missing):
            raise BadInput(
                "no class has examples enough for every split",
                where=name,
                expected=f"at least {1 + len(missing)} of a class",
                got=f"{len(rest)} examples of {len(torch.unique(whole.y[rest]))} classes",
                do="See whether the label is the class, or name the split of every example.",
            )
    train, val, test = (whole.select(part) for part in parts)
    notes = (*notes, *_note_unlearnable(train))
    return check_splits(Splits(train, val, test, name, dict(options or {}), notes))


def name_values(values: Sequence[Hashable]) -> tuple[tuple[str, ...], Tensor]:
    """Number the different values; return their names in natural order, and the number of each.

    None, NaN, and what a table has for a missing value, get -1.

    Example:
        >>> name_values(["img 10", "img 9", None, "img 10"])
        (('img 9', 'img 10'), tensor([ 1,  0, -1,  1]))
    """
    try:
        known = {value: str(value) for value in set(values) if not _lacking(value)}
    except TypeError:
        got = next(repr(value) for value in values if not isinstance(value, Hashable))
        raise BadInput("a class or an attribute must be a word or a number", got=got) from None
    names = sort_naturally(set(known.values()))
    number = {name: i for i, name in enumerate(names)}
    code: dict[Hashable, int] = {value: number[name] for value, name in known.items()}
    return names, torch.tensor([code.get(value, -1) for value in values], dtype=torch.long)


def sort_naturally(names: set[str]) -> tuple[str, ...]:
    """Sort names as a person would: numbers by value, and runs of digits inside a name by value."""
    numbers = [_number(name) for name in names]
    if all(number is not None for number in numbers):
        return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))
    return tuple(sorted(names, key=_natural))


def name_groups(labels: tuple[str, ...], columns: Mapping[str, tuple[str, ...]]) -> Groups:
    """Return the groups of no attribute, of one, or of several crossed ones."""
    for column, names in columns.items():
        if not names:
            raise BadInput(f"the attribute {column!r} has no value at all", do="Leave it out, or fill it in.")
    if len(columns) > 1:
        return Groups.crossed(labels, columns)
    return Groups(labels, next(iter(columns.values()), ()))


def join_attributes(parts: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """Put the attributes of several splits one after another; a split without any gets -1."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    shapes = {tuple(part.shape[1:]) for part in known}
    if len(shapes) > 1:
        raise BadInput("the splits differ in the number of attributes", got=sorted(shapes))
    lacking = (torch.full((n, *known[0].shape[1:]), -1) for n in counts)
    return torch.cat([blank if part is None else part for part, blank in zip(parts, lacking, strict=True)])


def number_split(value: object, where: object) -> int:
    """Return the number of a split from its number or name (``val``, ``valid`` and ``validation`` are one)."""
    word = str(value).strip().lower()
    number = int(word) if word in ("0", "1", "2") else SPLIT_NAMES.get(word)
    if number is None:
        raise BadInput(f"the split {str(value)!r} is unknown", where=where, expected="0, 1, 2 or train, val, test")
    return number


def _note_unlearnable(train: Grouped) -> tuple[str, ...]:
    """Warn of classes that train lacks: mostly labels that count from 1, or a name that is spelt in two ways."""
    lacking = [f"'{name}'" for name, n in zip(train.groups.labels, train.class_counts.tolist(), strict=True) if n == 0]
    if not lacking or len(lacking) + 1 >= len(train.groups.labels):  # with one class or none it is refused
        return ()
    what = f"the class {lacking[0]}" if len(lacking) == 1 else f"{len(lacking)} classes"
    some = "" if len(lacking) == 1 else f" ({', '.join(lacking[:5])}{', ...' if len(lacking) > 5 else ''})"
    note = (
        f"Train has no example of {what}{some}, so nothing is learnt of {'it' if len(lacking) == 1 else 'them'}. "
        "See whether labels count from 0, and are spelt alike in every split."
    )
    warnings.warn(note, SpurlessWarning, stacklevel=4)
    return (note,)


def _cells(y: Tensor, a: Tensor) -> Tensor:
    """Number the distinct rows of label and attributes; an unknown attribute is a value like any other here."""
    rows = torch.cat([y[:, None], a.reshape(len(a), -1)], dim=1)
    number: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return number


def _pooled(cells: Tensor, classes: Tensor, least: int) -> Tensor:
    """Renumber the cells; those with fewer than ``least`` examples become one cell per class."""
    codes, counts = torch.unique(cells, return_inverse=True, return_counts=True)[1:]
    small = counts[codes] < least
    return torch.where(small, len(counts) + torch.unique(classes, return_inverse=True)[1], codes)


def _apportion(n: int, shares: Sequence[float]) -> list[int]:
    """Share ``n`` out by largest remainder; no positive share goes empty-handed where there is enough for all."""
    counts = [floor(n * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda k: counts[k] - n * shares[k])
    for k in by_remainder[: n - sum(counts)]:
        counts[k] += 1
    wanted = [k for k, share in enumerate(shares) if share > 0]
    for k in wanted:
        if counts[k] == 0 and n >= len(wanted):
            counts[max(wanted, key=counts.__getitem__)] -= 1
            counts[k] += 1
    return counts


def _lacking(value: object) -> bool:
    """Tell a missing value; those of pandas are known by their names, since nothing else needs pandas here."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in _MISSING


def _number(name: str) -> float | None:
    try:
        value = float(name)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Key a name by its runs of digits and of other characters; digits by length first, so that 9 < 10."""
    key = []
    for run in re.findall(r"\d+|\D+", name):
        digits = run.lstrip("0") if run.isdigit() else ""
        key.append((0, len(digits), digits) if run.isdigit() else (1, 0, run.casefold()))
    return key, name
