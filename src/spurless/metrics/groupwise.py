"""Groupwise accuracy: correct predictions and counts per group, and the summaries that papers report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.records import GroupRow
from spurless.metrics.intervals import wilson_intervals


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Correct predictions and counts of every group, in group order.

    An empty group has accuracy NaN; it is not dropped and never the worst. ``n_correct`` and ``n`` are over all
    examples: groups may overlap, and an example with an unknown attribute is in none, so the groups do not add up to
    the split. Tables of parts of a split add up to the table of the split.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> first = group_table(torch.tensor([0]), torch.tensor([0]), torch.tensor([0]), groups)
        >>> second = group_table(torch.tensor([1, 1]), torch.tensor([0, 1]), torch.tensor([0, 1]), groups)
        >>> (first + second).accuracy
        tensor([0.5000,    nan,    nan, 1.0000], dtype=torch.float64)
    """

    groups: Groups
    correct: Tensor
    count: Tensor
    n_correct: int
    n: int
    class_correct: Tensor
    class_count: Tensor

    def __add__(self, other: GroupTable) -> GroupTable:
        if not isinstance(other, GroupTable):
            return NotImplemented
        if self.groups != other.groups:
            raise InputError("tables of different groups cannot be added", expected=self.groups, got=other.groups)
        names = ("correct", "count", "n_correct", "n", "class_correct", "class_count")
        return GroupTable(self.groups, **{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def accuracy(self) -> Tensor:
        """The accuracy of every group; NaN for an empty one."""
        return self.correct.double() / self.count

    @property
    def low(self) -> Tensor:
        """The lower end of the 95 % Wilson interval of every group."""
        return wilson_intervals(self.correct, self.count)[0]

    @property
    def high(self) -> Tensor:
        """The upper end of the 95 % Wilson interval of every group."""
        return wilson_intervals(self.correct, self.count)[1]

    @property
    def worst(self) -> tuple[float, str]:
        """The lowest accuracy and the name of its group (the first, in a tie); NaN and "" if all are empty."""
        return _at_index(self.accuracy, self._worst, self.groups.names)

    @property
    def best(self) -> tuple[float, str]:
        """The highest accuracy and the name of its group (the first, in a tie); NaN and "" if all are empty."""
        return _at_index(self.accuracy, _lowest(-self.accuracy), self.groups.names)

    @property
    def average(self) -> float:
        """The accuracy over all examples."""
        return self.n_correct / self.n if self.n else math.nan

    @property
    def balanced(self) -> float:
        """The unweighted mean accuracy of the groups that are not empty."""
        return float(self.accuracy.nanmean())

    def adjusted(self, train_counts: Tensor) -> float:
        """Return the mean accuracy of the groups, weighted by their size in training.

        This is the average that Waterbirds papers report, since its test split is balanced by hand. Empty groups are
        skipped, and the weights of the others are scaled to a sum of 1.
        """
        weight = self._per_group(train_counts).double()[self.count > 0]
        return float((self.accuracy[self.count > 0] * weight).sum() / weight.sum())

    @property
    def gap(self) -> float:
        """The average minus the accuracy of the worst group."""
        return self.average - self.worst[0]

    @property
    def resolution(self) -> float:
        """The change of the worst group's accuracy by one example: the smallest difference that can be measured."""
        g = self._worst
        return 1 / int(self.count[g]) if g is not None else math.nan

    @property
    def worst_class(self) -> tuple[float, str]:
        """The lowest recall of a class and its label; defined without attributes."""
        return _at_index(self._recall, _lowest(self._recall), self.groups.labels)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that are not empty."""
        return float(self._recall.nanmean())

    @property
    def unbiased(self) -> float:
        """The expected accuracy if attribute and label are independent.

        The mean over the groups that are not empty, as in Nam et al. 2020: the accuracy on a split in which all pairs
        of label and attribute are equally frequent. It equals :attr:`balanced` if each label has an attribute of the
        same number (digits and their colours), and is NaN otherwise, since no attribute value belongs to a label then;
        use ``balanced`` instead.
        """
        return self.balanced if self._has_paired_attributes else math.nan

    @property
    def aligned(self) -> float:
        """The mean accuracy of the groups whose attribute has the number of their label; NaN as for ``unbiased``.

        The shortcut is right in these groups. With ``k`` labels and no empty group,
        ``unbiased == (aligned + (k - 1) * conflicting) / k``.
        """
        return self._mean_where(aligned=True)

    @property
    def conflicting(self) -> float:
        """The mean accuracy of the groups in which the shortcut is wrong: all but the aligned ones."""
        return self._mean_where(aligned=False)

    def rows(self, train_counts: Tensor | None = None) -> list[GroupRow]:
        """Return the table as the rows of a record."""
        n_train = [0] * len(self.groups) if train_counts is None else self._per_group(train_counts).tolist()
        columns = zip(self.count.tolist(), self.accuracy.tolist(), self.low.tolist(), self.high.tolist(), strict=True)
        return [
            GroupRow(name, n, accuracy, low, high, int(train)) if n else GroupRow(name, 0, None, None, None, int(train))
            for name, (n, accuracy, low, high), train in zip(self.groups.names, columns, n_train, strict=True)
        ]

    def summary(self, train_counts: Tensor | None = None) -> dict[str, float]:
        """Return every summary by its name in ``METRICS``; NaN if it is undefined.

        The attribute values of user data are numbered in the order of their names. If training counts show that label
        and attribute of the same number do not occur together, ``aligned`` and ``conflicting`` are undefined.
        """
        paired = train_counts is None or self._co_occur(train_counts)
        return {
            "average": self.average,
            "adjusted_average": math.nan if train_counts is None else self.adjusted(train_counts),
            "balanced_average": self.balanced,
            "worst_group": self.worst[0],
            "gap": self.gap,
            "unbiased": self.unbiased,
            "aligned": self.aligned if paired else math.nan,
            "conflicting": self.conflicting if paired else math.nan,
            "worst_class": self.worst_class[0],
            "balanced_accuracy": self.balanced_accuracy,
            "resolution": self.resolution,
        }

    @property
    def _worst(self) -> int | None:
        return _lowest(self.accuracy)

    @property
    def _recall(self) -> Tensor:
        return self.class_correct.double() / self.class_count

    @property
    def _has_paired_attributes(self) -> bool:
        # crossed attributes do not belong to labels, even if their number is the same
        groups = self.groups
        paired = not groups.overlap and not groups.mixed and len(groups.sizes) < 2
        return paired and len(groups.attributes) == len(groups.labels)

    def _co_occur(self, train_counts: Tensor) -> bool:
        """Return whether label and attribute of the same number co-occur in training at least as often as by chance."""
        if not self._has_paired_attributes:
            return False
        cells = self._per_group(train_counts).double().reshape(len(self.groups.labels), -1)
        expected = cells.sum(dim=0) @ cells.sum(dim=1)
        return bool(cells.trace() * cells.sum() >= expected)

    def _mean_where(self, aligned: bool) -> float:
        if not self._has_paired_attributes:
            return math.nan
        y, a = self.groups.decode(torch.arange(len(self.groups)))
        return float(self.accuracy[(y == a) == aligned].nanmean())

    def _per_group(self, train_counts: Tensor) -> Tensor:
        if train_counts.shape != self.count.shape:
            expected, got = f"shape {tuple(self.count.shape)}", tuple(train_counts.shape)
            raise InputError("the training counts must have one number per group", expected=expected, got=got)
        return train_counts.cpu()


def _lowest(values: Tensor) -> int | None:
    """Return the index of the lowest value, the first in a tie; None if all are NaN."""
    return None if bool(values.isnan().all()) else int(values.nan_to_num(nan=torch.inf).argmin())


def _at_index(values: Tensor, index: int | None, names: Sequence[str]) -> tuple[float, str]:
    return (math.nan, "") if index is None else (float(values[index]), names[index])


def group_table(pred: Tensor, y: Tensor, a: Tensor, groups: Groups) -> GroupTable:
    r"""Count :math:`\hat y = y` in every group.

    Predicted labels and labels have shape ``(N,)``; so have attributes, or ``(N, columns)`` for crossed or overlapping
    groups. An attribute of -1 is unknown.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, -1])  # the last is in no group
        >>> table = group_table(torch.tensor([0, 1, 1, 1]), y, a, groups)
        >>> table.count, table.average, table.worst
        (tensor([2, 0, 0, 1]), 0.75, (0.5, 'no, left'))
    """
    check_arguments(group_table, locals())
    check_labels_and_attributes(y, a, groups)
    if pred.shape != y.shape or pred.is_floating_point():
        got, hint = f"{pred.dtype} of shape {tuple(pred.shape)}", "Pass predicted labels, such as logits.argmax(dim=1)."
        expected = f"shape {tuple(y.shape)}"
        raise InputError("predictions must be integers, one per example", expected=expected, got=got, hint=hint)
    is_correct = pred.to(y.device) == y
    a = a.to(y.device)
    count, correct = groups.count(y, a), groups.count(y[is_correct], a[is_correct])
    n_labels = len(groups.labels)
    class_correct, class_count = (torch.bincount(v, minlength=n_labels).cpu() for v in (y[is_correct], y))
    return GroupTable(groups, correct.cpu(), count.cpu(), int(is_correct.sum()), len(y), class_correct, class_count)


def check_labels_and_attributes(y: Tensor, a: Tensor, groups: Groups) -> None:
    """Raise an InputError if labels or attributes do not fit the groups in shape, dtype or range."""
    if y.dim() != 1 or y.dtype != torch.long:
        raise InputError("labels must be int64, one per example", got=f"{y.dtype} of shape {tuple(y.shape)}")
    if a.dim() == 0 or len(a) != len(y):
        raise InputError("labels and attributes differ in length", got=f"{len(y)} and {len(a) if a.dim() else 1}")
    if bool(((y < 0) | (y >= len(groups.labels))).any()):
        worst = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise InputError("a label is out of range", expected=f"0 to {len(groups.labels) - 1}", got=worst)
    if groups.attributes:
        _check_attributes(a, groups)


def _check_attributes(a: Tensor, groups: Groups) -> None:
    if groups.overlap:
        limits = [2] * len(groups.attributes)
    elif a.dim() == 2 and groups.sizes:
        limits = list(groups.sizes)
    else:
        limits = [len(groups.attributes)]
    if a.is_floating_point() or a.dim() > 2 or a.numel() != len(a) * len(limits):
        expected = f"{len(limits)} column{'s' if len(limits) > 1 else ''}"
        got = f"{a.dtype} of shape {tuple(a.shape)}"
        raise InputError("attributes must be integers, one row per example", expected=expected, got=got)
    over = a.reshape(len(a), len(limits)) >= torch.tensor(limits, device=a.device)
    if bool(over.any()):
        row = int(over.any(dim=1).nonzero()[0])
        raise InputError(f"the attribute of example {row} is out of range", got=a[row].tolist())
