"""Groupwise accuracy: hits and counts per group, then the summaries that papers report."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.records import GroupRow
from spurless.metrics.intervals import wilson


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Hits and counts of every group, in group order; an empty group is NaN, never dropped and never the worst.

    ``hits`` and ``n`` are over all examples: groups may overlap, and an example with an unknown
    attribute is in none, so the groups do not add up to the split. Tables of parts of a split add up
    to the table of the split.

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
    hits: int
    n: int
    class_correct: Tensor
    class_count: Tensor

    def __add__(self, other: GroupTable) -> GroupTable:
        if not isinstance(other, GroupTable):
            return NotImplemented
        if self.groups != other.groups:
            raise BadInput("tables of different groups cannot be added", expected=self.groups, got=other.groups)
        return GroupTable(
            self.groups,
            self.correct + other.correct,
            self.count + other.count,
            self.hits + other.hits,
            self.n + other.n,
            self.class_correct + other.class_correct,
            self.class_count + other.class_count,
        )

    @property
    def accuracy(self) -> Tensor:
        """The accuracy of every group; NaN for an empty one."""
        return self.correct.double() / self.count

    @property
    def low(self) -> Tensor:
        """The lower end of the 95 % Wilson interval of every group."""
        return wilson(self.correct, self.count)[0]

    @property
    def high(self) -> Tensor:
        """The upper end of the 95 % Wilson interval of every group."""
        return wilson(self.correct, self.count)[1]

    @property
    def worst(self) -> tuple[float, str]:
        """The lowest accuracy and the name of its group (the first, in a tie); NaN and "" if all are empty."""
        g = self._worst
        return (float(self.accuracy[g]), self.groups.name(g)) if g is not None else (math.nan, "")

    @property
    def best(self) -> tuple[float, str]:
        """The highest accuracy and the name of its group (the first, in a tie); NaN and "" if all are empty."""
        if self._worst is None:
            return math.nan, ""
        g = int(self.accuracy.nan_to_num(nan=-1.0).argmax())
        return float(self.accuracy[g]), self.groups.name(g)

    @property
    def average(self) -> float:
        """The share of all examples that are right: the accuracy over the split as it is."""
        return self.hits / self.n if self.n else math.nan

    @property
    def balanced(self) -> float:
        """The mean accuracy of the groups that are not empty, each counting alike."""
        return float(self.accuracy.nanmean())

    def adjusted(self, train_counts: Tensor) -> float:
        """Return the mean accuracy of the groups, each weighing as much as it does in training.

        This is the average that Waterbirds papers report, whose test split is balanced by hand. A group
        that is empty here is left out, and the weights of the others are scaled up to a sum of 1.
        """
        weight = self._per_group(train_counts).double()[self.count > 0]
        return float((self.accuracy[self.count > 0] * weight).sum() / weight.sum())

    @property
    def gap(self) -> float:
        """How much better the average is than the worst group."""
        return self.average - self.worst[0]

    @property
    def resolution(self) -> float:
        """What one example of the worst group is worth: a smaller step in its accuracy cannot be seen."""
        g = self._worst
        return 1 / int(self.count[g]) if g is not None else math.nan

    @property
    def worst_class(self) -> tuple[float, str]:
        """The lowest recall of a class and its label; what can be said where no attribute is known."""
        if not bool((self.class_count > 0).any()):
            return math.nan, ""
        recall = self._recall
        y = int(recall.nan_to_num(nan=torch.inf).argmin())
        return float(recall[y]), self.groups.labels[y]

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that are not empty."""
        return float(self._recall.nanmean())

    @property
    def unbiased(self) -> float:
        """The accuracy to expect where the attribute says nothing about the label.

        The mean over the groups that are not empty, as in Nam et al. 2020: the accuracy on a split
        where every pair of label and attribute is as frequent. It equals :attr:`balanced` where each
        label has an attribute of the same number (digits and their colours), and is NaN elsewhere:
        there, no attribute value is the biased one of a label, and ``balanced`` is the number to read.
        """
        return self.balanced if self._square else math.nan

    @property
    def aligned(self) -> float:
        """The mean accuracy of the groups whose attribute has the number of their label; NaN as for ``unbiased``.

        The shortcut is right in these groups. With ``k`` labels and no group empty,
        ``unbiased == (aligned + (k - 1) * conflicting) / k``.
        """
        return self._mean_where(aligned=True)

    @property
    def conflicting(self) -> float:
        """The mean accuracy of the groups where the shortcut is wrong: all but the aligned ones."""
        return self._mean_where(aligned=False)

    def rows(self, train_counts: Tensor | None = None) -> list[GroupRow]:
        """Return the table as the rows of a record."""
        trained = [0] * len(self.groups) if train_counts is None else self._per_group(train_counts).tolist()
        columns = zip(self.count.tolist(), self.accuracy.tolist(), self.low.tolist(), self.high.tolist(), strict=True)
        return [
            GroupRow(name, n, accuracy, low, high, int(seen)) if n else GroupRow(name, 0, None, None, None, int(seen))
            for name, (n, accuracy, low, high), seen in zip(self.groups.names, columns, trained, strict=True)
        ]

    def summary(self, train_counts: Tensor | None = None) -> dict[str, float]:
        """Return every summary under the name it has in ``METRICS``; a number that does not exist is NaN.

        Values of own data are numbered by their names. Where training shows that label and attribute of one number do
        not go together, none is called aligned.
        """
        paired = train_counts is None or self._paired(train_counts)
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
        if not bool((self.count > 0).any()):
            return None
        return int(self.accuracy.nan_to_num(nan=torch.inf).argmin())

    @property
    def _recall(self) -> Tensor:
        return self.class_correct.double() / self.class_count

    @property
    def _square(self) -> bool:
        # a crossed attribute has as many values as labels only by accident
        groups = self.groups
        paired = not groups.overlap and not groups.mixed and len(groups.sizes) < 2
        return paired and len(groups.attributes) == len(groups.labels)

    def _paired(self, train_counts: Tensor) -> bool:
        """Say whether label and attribute of one number meet in training at least as often as by chance."""
        if not self._square:
            return False
        cells = self._per_group(train_counts).double().reshape(len(self.groups.labels), -1)
        by_chance = cells.sum(dim=0) @ cells.sum(dim=1)
        return bool(cells.trace() * cells.sum() >= by_chance)

    def _mean_where(self, aligned: bool) -> float:
        if not self._square:
            return math.nan
        y, a = self.groups.decode(torch.arange(len(self.groups)))
        return float(self.accuracy[(y == a) == aligned].nanmean())

    def _per_group(self, train_counts: Tensor) -> Tensor:
        if train_counts.shape != self.count.shape:
            raise BadInput(
                "the training counts must hold one number per group",
                expected=f"shape {tuple(self.count.shape)}",
                got=tuple(train_counts.shape),
            )
        return train_counts.cpu()


def group_table(pred: Tensor, y: Tensor, a: Tensor, groups: Groups) -> GroupTable:
    r"""Count :math:`\hat y = y` in every group.

    Args:
        pred: predicted labels, shape ``(N,)``.
        y: labels, shape ``(N,)``.
        a: attributes, shape ``(N,)``, or ``(N, columns)`` for crossed or overlapping groups; -1 is unknown.
        groups: the numbering of the cells.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, -1])  # the last is in no group
        >>> table = group_table(torch.tensor([0, 1, 1, 1]), y, a, groups)
        >>> table.count, table.average, table.worst
        (tensor([2, 0, 0, 1]), 0.75, (0.5, 'no, left'))
    """
    check_cells(y, a, groups)
    if pred.shape != y.shape or pred.is_floating_point():
        raise BadInput(
            "predictions must be whole numbers, one per example",
            expected=f"shape {tuple(y.shape)}",
            got=f"{pred.dtype} of shape {tuple(pred.shape)}",
            do="Pass predicted labels, such as logits.argmax(dim=1).",
        )
    right = pred.to(y.device) == y
    a = a.to(y.device)
    count, correct = groups.count(y, a), groups.count(y[right], a[right])
    n_labels = len(groups.labels)
    class_correct, class_count = (torch.bincount(v, minlength=n_labels).cpu() for v in (y[right], y))
    return GroupTable(groups, correct.cpu(), count.cpu(), int(right.sum()), len(y), class_correct, class_count)


def check_cells(y: Tensor, a: Tensor, groups: Groups) -> None:
    """Say what is wrong with labels and attributes that cannot be counted.

    Raises:
        BadInput: a shape, a type or a number does not fit the groups.
    """
    if y.dim() != 1 or y.dtype != torch.long:
        raise BadInput(
            "labels must be whole numbers (int64), one per example", got=f"{y.dtype} of shape {tuple(y.shape)}"
        )
    if a.dim() == 0 or len(a) != len(y):
        raise BadInput("labels and attributes differ in number", got=f"{len(y)} and {len(a) if a.dim() else 1}")
    if bool(((y < 0) | (y >= len(groups.labels))).any()):
        worst = int(y.min()) if int(y.min()) < 0 else int(y.max())
        raise BadInput("a label is out of range", expected=f"0 to {len(groups.labels) - 1}", got=worst)
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
        raise BadInput(
            "attributes must be whole numbers, one row per example",
            expected=f"{len(limits)} column{'s' if len(limits) > 1 else ''}",
            got=f"{a.dtype} of shape {tuple(a.shape)}",
        )
    over = a.reshape(len(a), len(limits)) >= torch.tensor(limits, device=a.device)
    if bool(over.any()):
        row = int(over.any(dim=1).nonzero()[0])
        raise BadInput(f"the attribute of example {row} is out of range", got=a[row].tolist())
