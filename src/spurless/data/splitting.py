"""Split examples into train, val and test, and encode values as numbers; shared by the loaders."""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import floor, isfinite
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_split, check_splits
from spurless.data.split import Split, Splits

SPLIT_FRACTIONS = (0.7, 0.15, 0.15)  # fractions of train, val and test if the data have no splits

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}
"""Accepted names of the splits, in lower case."""

_MISSING = ("NAType", "NaTType")


def split_stratified(
    cells: Tensor, fractions: Sequence[float] = SPLIT_FRACTIONS, *, seeds: Seeds, classes: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Split at random, stratified by cell; return the sorted indices of train, val and test.

    A cell is a class, or a combination of class and attribute; then ``classes`` is needed. A cell with at least as many
    examples as there are splits is in all of them. Smaller cells are pooled by class, so that every split has examples
    of a class if possible. A split of fraction 0 stays empty.

    Example:
        >>> train, val, test = split_stratified(torch.tensor([0] * 20 + [1] * 3), seeds=Seeds(0))
        >>> [int((part < 20).sum()) for part in (train, val, test)], [len(part) for part in (train, val, test)]
        ([14, 3, 3], [15, 4, 4])
    """
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise InputError("the fractions of train, val and test must add up to 1", got=tuple(fractions))
    cells = _pool_small(cells, cells if classes is None else classes, sum(fraction > 0 for fraction in fractions))
    order = torch.randperm(len(cells), generator=seeds.generator("split"))
    order = order[torch.argsort(cells[order], stable=True)]
    counts = torch.unique(cells, return_counts=True)[1].tolist()
    pieces = [torch.split(cell, _apportion(len(cell), fractions)) for cell in torch.split(order, counts)]
    train, val, test = (torch.cat([order[:0], *(piece[k] for piece in pieces)]).sort().values for k in range(3))
    return train, val, test


def make_splits(  # noqa: PLR0913 - one parameter per option
    examples: Split,
    split: Tensor | None,
    *,
    seeds: Seeds,
    name: str,
    options: Mapping[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    held_out: bool = False,
    classes: Sequence[str] | None = None,
) -> Splits:
    """Return checked splits; ``split`` contains the split of each example (train 0, val 1, test 2).

    A missing val or test split is taken from train, 15 % for each, stratified by class and attribute. Without
    ``split``, both are missing. If ``held_out``, nothing is taken from data without a train split: train stays empty,
    and without ``split`` all examples are test. ``classes`` is the order of the classes.
    """
    if len(examples) == 0:
        raise InputError("the data contain no examples", where=name, expected="at least three of each class")
    check_split(examples, name)  # before splitting, so that errors contain the example numbers of the user
    split = torch.full_like(examples.y, 2 if held_out else 0) if split is None else split
    parts = [(split == k).nonzero().flatten() for k in range(3)]
    missing = [k for k in (1, 2) if len(parts[k]) == 0]
    held_out = held_out and not len(parts[0])
    if missing and not held_out:
        rest, cells = parts[0], _number_cells(examples.y, examples.a)
        fractions = [SPLIT_FRACTIONS[k] if k in missing else 0.0 for k in (1, 2)]
        pieces = split_stratified(cells[rest], [1 - sum(fractions), *fractions], seeds=seeds, classes=examples.y[rest])
        for k in (0, *missing):
            parts[k] = rest[pieces[k]]
        if len(rest) and not all(len(parts[k]) for k in missing):
            what = "no class has enough examples for every split"
            got = f"{len(rest)} examples of {len(torch.unique(examples.y[rest]))} classes"
            hint = "Check that the label is the class, or pass the split of every example."
            raise InputError(what, where=name, expected=f"at least {1 + len(missing)} of a class", got=got, hint=hint)
    train, val, test = (examples.select(part) for part in parts)
    options = dict(options or {}) | ({"held_out": True} if held_out else {})
    if not held_out:
        notes = (*notes, *_warn_missing_classes(train))
    splits = check_splits(Splits(train, val, test, name, options, notes), held_out=held_out)
    if classes is None:
        return splits
    if missing_names := [name for name in classes if name not in splits.groups.labels]:
        what, known = f"no example has the class {missing_names[0]!r}", ", ".join(splits.groups.labels)
        raise InputError(what, where=name, expected=known, got=", ".join(classes))
    return order_classes(replace(splits, options={**options, "classes": list(classes)}), classes)


def order_classes(splits: Splits, classes: Sequence[str]) -> Splits:
    """Number the classes in the order of ``classes``, which may contain more than those of the data.

    Example:
        >>> y = torch.tensor([0, 1] * 10)
        >>> data = make_splits(
        ...     Split(torch.rand(20, 1), y, -torch.ones_like(y), Groups(("cat", "dog"))), None, seeds=Seeds(0), name=""
        ... )
        >>> data = order_classes(data, ("dog", "ant", "cat"))
        >>> data.groups.labels, data.train.class_counts.tolist()
        (('dog', 'ant', 'cat'), [7, 0, 7])

    Raises:
        InputError: a class is missing in ``classes``, or is repeated.
    """
    labels, order = splits.groups.labels, tuple(classes)
    if len(set(order)) < len(order):
        raise InputError("a class is listed twice", where=splits.name, got=", ".join(order))
    if unknown := [label for label in labels if label not in order]:
        what = f"the class {unknown[0]!r} is not in the list of classes"
        raise InputError(what, where=splits.name, expected=", ".join(labels), got=", ".join(order))
    numbers = torch.tensor([order.index(label) for label in labels])
    groups = replace(splits.groups, labels=order)

    def renumber(split: Split) -> Split:
        y = torch.where(split.y < 0, split.y, numbers[split.y.clamp(min=0)])
        return replace(split, y=y, groups=groups)

    return replace(splits, train=renumber(splits.train), val=renumber(splits.val), test=renumber(splits.test))


def encode_values(values: Sequence[Hashable]) -> tuple[tuple[str, ...], Tensor]:
    """Encode values as integers; return their names in natural order, and the code of each value.

    Missing values (None, NaN, and those of pandas) get -1.

    Example:
        >>> encode_values(["img 10", "img 9", None, "img 10"])
        (('img 9', 'img 10'), tensor([ 1,  0, -1,  1]))
    """
    try:
        known = {value: str(value) for value in set(values) if not _is_missing(value)}
    except TypeError:
        got = next(repr(value) for value in values if not isinstance(value, Hashable))
        raise InputError("a class or an attribute must be a string or a number", got=got) from None
    names = sort_naturally(set(known.values()))
    number = {name: i for i, name in enumerate(names)}
    code: dict[Hashable, int] = {value: number[name] for value, name in known.items()}
    return names, torch.tensor([code.get(value, -1) for value in values], dtype=torch.long)


def sort_naturally(names: set[str]) -> tuple[str, ...]:
    """Sort names in natural order: numbers, also inside a name, by value."""
    numbers = [_parse_number(name) for name in names]
    if all(number is not None for number in numbers):
        return tuple(name for _, name in sorted(zip(numbers, names, strict=True)))
    return tuple(sorted(names, key=_natural))


def name_groups(labels: tuple[str, ...], columns: Mapping[str, tuple[str, ...]]) -> Groups:
    """Return the groups of labels and of zero, one or several crossed attributes."""
    for column, names in columns.items():
        if not names:
            raise InputError(f"the attribute {column!r} is always empty", hint="Leave it out, or fill it in.")
    if len(columns) > 1:
        return Groups.crossed(labels, columns)
    return Groups(labels, next(iter(columns.values()), ()))


def stack_codes(columns: Iterable[Tensor], y: Tensor) -> Tensor:
    """Return the codes of one attribute, or a column for each of several; -1 for every label if there are none."""
    codes = list(columns) or [torch.full_like(y, -1)]
    return codes[0] if len(codes) == 1 else torch.stack(codes, dim=1)


def prefix_numbers(column: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Put the name of the column before values that are all numbers.

    Example:
        >>> prefix_numbers("place", ("0", "1")), prefix_numbers("place", ("land", "1"))
        (('place 0', 'place 1'), ('land', '1'))
    """
    if any(_parse_number(name) is None for name in names):
        return names
    return tuple(f"{column} {name}" for name in names)


def concat_attributes(parts: Sequence[Tensor | None], counts: Sequence[int]) -> Tensor | None:
    """Concatenate the attributes of several splits; a split without attributes gets -1."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    shapes = {tuple(part.shape[1:]) for part in known}
    if len(shapes) > 1:
        raise InputError("the splits differ in the number of attributes", got=sorted(shapes))
    unknown = (torch.full((n, *known[0].shape[1:]), -1) for n in counts)
    return torch.cat([blank if part is None else part for part, blank in zip(parts, unknown, strict=True)])


def parse_split(value: object, where: object) -> int:
    """Return 0, 1 or 2 for the number or name of a split; see ``SPLIT_NAMES``."""
    word = str(value).strip().lower()
    number = int(word) if word in ("0", "1", "2") else SPLIT_NAMES.get(word)
    if number is None:
        raise InputError(f"the split {str(value)!r} is unknown", where=where, expected="0, 1, 2 or train, val, test")
    return number


def _warn_missing_classes(train: Split) -> tuple[str, ...]:
    """Warn if classes are missing in train: labels that start at 1, or a name with two spellings."""
    missing = [f"'{name}'" for name, n in zip(train.groups.labels, train.class_counts.tolist(), strict=True) if n == 0]
    if not missing or len(missing) + 1 >= len(train.groups.labels):  # fewer than two classes are an error later
        return ()
    listed = f"the class {missing[0]}"
    if len(missing) > 1:
        listed = f"{len(missing)} classes ({', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''})"
    note = f"Train has no examples of {listed}, which cannot be learned."
    note += " Check that labels start at 0 and have the same spelling in every split."
    warnings.warn(note, SpurlessWarning, stacklevel=4)
    return (note,)


def _number_cells(y: Tensor, a: Tensor) -> Tensor:
    """Number the distinct combinations of label and attributes; an unknown attribute counts as a value."""
    rows = torch.cat([y[:, None], a.reshape(len(a), -1)], dim=1)
    number: Tensor = torch.unique(rows, dim=0, return_inverse=True)[1]
    return number


def _pool_small(cells: Tensor, classes: Tensor, min_size: int) -> Tensor:
    """Renumber the cells; those with fewer than ``min_size`` examples become one cell per class."""
    codes, counts = torch.unique(cells, return_inverse=True, return_counts=True)[1:]
    small = counts[codes] < min_size
    return torch.where(small, len(counts) + torch.unique(classes, return_inverse=True)[1], codes)


def _apportion(n: int, fractions: Sequence[float]) -> list[int]:
    """Divide ``n`` by largest remainder; every positive fraction gets at least 1 if ``n`` is large enough."""
    counts = [floor(n * fraction) for fraction in fractions]
    by_remainder = sorted(range(len(fractions)), key=lambda k: counts[k] - n * fractions[k])
    for k in by_remainder[: n - sum(counts)]:
        counts[k] += 1
    positive = [k for k, fraction in enumerate(fractions) if fraction > 0]
    for k in positive:
        if counts[k] == 0 and n >= len(positive):
            counts[max(positive, key=counts.__getitem__)] -= 1
            counts[k] += 1
    return counts


def _is_missing(value: object) -> bool:
    """Return whether a value is missing; those of pandas are recognized by name, to avoid importing pandas."""
    return value is None or (isinstance(value, float) and value != value) or type(value).__name__ in _MISSING


def _parse_number(name: str) -> float | None:
    try:
        value = float(name)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """Return the sort key of a name: its runs of digits by value, other runs ignoring case."""
    key = []
    for run in re.findall(r"\d+|\D+", name):
        digits = run.lstrip("0") if run.isdigit() else ""
        key.append((0, len(digits), digits) if run.isdigit() else (1, 0, run.casefold()))
    return key, name
