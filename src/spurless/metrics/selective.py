r"""Selective classification: what is wrong among the examples that a model does not refuse to predict.

A model gives every example a score, and predicts those whose score is at least a threshold. The threshold is
chosen on validation, from scores alone; coverage and error are then counted on test, over all and in every group:

.. math:: \text{coverage}(t) = \frac{\#\{s_i \ge t\}}{n}, \qquad
    \text{error}(t) = \frac{\#\{s_i \ge t, \hat y_i \ne y_i\}}{\#\{s_i \ge t\}}.

Abstaining lowers the error of most examples and may raise that of a group that the model serves badly (Jones,
Sagawa, Koh, Kumar and Liang, ICLR 2021, arXiv:2010.14134), so an error at a coverage comes with its worst group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.metrics.groupwise import GroupTable, group_table

COVERAGES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""The target coverages of MaskTune, table 7."""


@dataclass(frozen=True, eq=False)
class Kept:
    """What was predicted at one target coverage, and how much of it is wrong.

    An error is 1 minus the accuracy of the kept examples. A group of which nothing was kept has no error: NaN,
    never the worst. Tables of parts of a split, at the same threshold, add up to the table of the split.
    """

    target: float
    threshold: float
    table: GroupTable
    """Hits and counts of the examples that were predicted."""
    whole: GroupTable
    """Hits and counts of all examples."""

    def __add__(self, other: Kept) -> Kept:
        if not isinstance(other, Kept):
            return NotImplemented
        if (self.target, self.threshold) != (other.target, other.threshold):
            raise BadInput(
                "tables at different thresholds cannot be added", expected=self.threshold, got=other.threshold
            )
        return Kept(self.target, self.threshold, self.table + other.table, self.whole + other.whole)

    @property
    def coverage(self) -> float:
        """The share of all examples that was predicted."""
        return self.table.n / self.whole.n if self.whole.n else math.nan

    @property
    def error(self) -> float:
        """The share of the predicted examples that is wrong; NaN where none was predicted."""
        return 1 - self.table.average

    @property
    def count(self) -> Tensor:
        """The number of predicted examples of every group."""
        return self.table.count

    @property
    def group_coverage(self) -> Tensor:
        """The share of every group that was predicted; NaN for an empty group."""
        return self.table.count.double() / self.whole.count

    @property
    def group_error(self) -> Tensor:
        """The share of every group's predicted examples that is wrong; NaN where none was predicted."""
        return 1 - self.table.accuracy

    @property
    def low(self) -> Tensor:
        """The lower end of the 95 % Wilson interval of every group's error, on the number that was predicted."""
        return 1 - self.table.high

    @property
    def high(self) -> Tensor:
        """The upper end of the 95 % Wilson interval of every group's error."""
        return 1 - self.table.low

    @property
    def worst(self) -> tuple[float, str]:
        """The highest error of a group and its name (the first, in a tie); NaN and "" if nothing was predicted."""
        accuracy, name = self.table.worst
        return 1 - accuracy, name


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error of the ``k`` examples of highest score, for every ``k`` from 1 to ``n``.

    Examples of the same score come in no order, so ``risk`` is its expectation over all orders of them.
    ``threshold`` is the score that keeps ``k`` examples; more than ``k`` where it is tied.
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor

    @property
    def area(self) -> float:
        r"""AURC, the mean of the risks (Geifman, Uziel and El-Yaniv, ICLR 2019): :math:`\frac1n \sum_k r_k`.

        A score that knows nothing has the error of all examples; lower is better. NaN where there is no example.
        """
        return float(self.risk.mean()) if len(self.risk) else math.nan

    @property
    def oracle_area(self) -> float:
        r"""The area of the same predictions under the best score there is, which puts all mistakes last.

        With :math:`e` mistakes it is :math:`\frac1n \sum_{k > n - e} \frac{k - (n - e)}{k}`.
        """
        n = len(self.risk)
        if not n:
            return math.nan
        k = torch.arange(1, n + 1, dtype=torch.float64, device=self.risk.device)
        right = n - round(float(self.risk[-1]) * n)
        return float(((k - right).clamp(min=0) / k).mean())

    @property
    def excess_area(self) -> float:
        """What the score could still gain, whatever the accuracy of the model: area minus oracle area."""
        return self.area - self.oracle_area


@dataclass(frozen=True, eq=False)
class Selective:
    """The table of selective classification: a row per target coverage, and the areas that need no threshold."""

    rows: tuple[Kept, ...]
    curve: RiskCoverage
    group_area: Tensor
    """AURC within every group, in group order; NaN for an empty one."""
    group_excess_area: Tensor

    def at(self, coverage: float) -> Kept:
        """Return the row of a target coverage."""
        for row in self.rows:
            if math.isclose(row.target, coverage):
                return row
        raise BadInput(
            f"the table has no row for the coverage {coverage:g}",
            expected=", ".join(f"{row.target:g}" for row in self.rows),
        )

    @property
    def worst_area(self) -> tuple[float, str]:
        """The highest AURC within a group and its name; NaN and "" if all are empty."""
        if bool(self.group_area.isnan().all()):
            return math.nan, ""
        g = int(self.group_area.nan_to_num(nan=-1.0).argmax())
        return float(self.group_area[g]), self.rows[0].whole.groups.name(g)

    def summary(self) -> dict[str, float]:
        """Return every number under the name it has in ``METRICS``; a number that does not exist is NaN."""
        numbers = {
            "aurc": self.curve.area,
            "excess_aurc": self.curve.excess_area,
            "worst_group_aurc": self.worst_area[0],
        }
        for row in self.rows:
            percent = f"{100 * row.target:g}"
            numbers[f"coverage_at_{percent}"] = row.coverage
            numbers[f"error_at_{percent}"] = row.error
            numbers[f"worst_group_error_at_{percent}"] = row.worst[0]
        return numbers


def threshold_for(scores: Tensor, coverage: float) -> float:
    """Return the score from which on a share ``coverage`` of the examples is kept, with ``score >= threshold``.

    It is the score of rank ``round(coverage * n)``, halves up and at least 1, from the highest. Examples tied with
    it are kept or refused together, whichever comes closer to the share (kept if both do, and never none at all).
    At coverage 1 it is the lowest score: an example of another split that scores lower still is refused, which is
    how papers come to report 99.99 % there.

    Args:
        scores: of the validation split, shape ``(N,)``; higher is surer.
        coverage: the share to keep, above 0 and at most 1.

    Example:
        >>> scores = torch.tensor([0.9, 0.5, 0.7, 0.7])
        >>> threshold_for(scores, 0.25), threshold_for(scores, 1.0)
        (0.8999999761581421, 0.5)
        >>> int((scores >= threshold_for(scores, 0.5)).sum())  # 2 of 4 are asked for; the second is tied
        3
    """
    if not 0 < coverage <= 1:
        raise BadInput("the coverage must be a share", expected="above 0 and at most 1", got=coverage)
    _check_scores(scores)
    if not len(scores):
        raise BadInput("there is no score to choose a threshold from", do="Use a validation split with examples.")
    keep = max(1, math.floor(coverage * len(scores) + 0.5 + 1e-9))  # 0.7 * 45 is 31.5, less rounding
    threshold = scores.kthvalue(len(scores) - keep + 1).values
    above = scores[scores > threshold]
    over, under = int((scores >= threshold).sum()) - keep, keep - len(above)
    return float(above.min() if len(above) and under < over else threshold)


def thresholds_for(scores: Tensor, coverages: Sequence[float] = COVERAGES) -> dict[float, float]:
    """Return the threshold of every target coverage; see :func:`threshold_for`."""
    return {coverage: threshold_for(scores, coverage) for coverage in coverages}


def risk_coverage(scores: Tensor, wrong: Tensor) -> RiskCoverage:
    """Return the risk at every coverage.

    Args:
        scores: shape ``(N,)``; higher is surer.
        wrong: whether each prediction is wrong, shape ``(N,)``.

    Example:
        >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.3, 0.3]), torch.tensor([False, True, True, False]))
        >>> curve.risk  # the last two are tied, so the third has half a mistake
        tensor([0.0000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
        >>> curve.area, round(curve.excess_area, 4)  # the oracle has 0, 0, 1/3, 1/2
        (0.375, 0.1667)
    """
    _check_scores(scores)
    if wrong.shape != scores.shape:
        raise BadInput("scores and mistakes differ in number", got=f"{len(scores)} and {tuple(wrong.shape)}")
    n, device = len(scores), scores.device
    threshold, order = scores.sort(descending=True)
    mistakes = wrong.to(device)[order].double()
    # within a tie every example counts as the mean of the tie: the expectation over its orders
    _, tie, size = torch.unique_consecutive(threshold, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=torch.float64, device=device).index_add(0, tie, mistakes)
    k = torch.arange(1, n + 1, dtype=torch.float64, device=device)
    return RiskCoverage(k / max(n, 1), (total / size)[tie].cumsum(0) / k, threshold)


def selective_table(
    scores: Tensor, pred: Tensor, y: Tensor, a: Tensor, groups: Groups, thresholds: Mapping[float, float]
) -> Selective:
    """Count what is kept and what of it is wrong, over all and in every group, at every target coverage.

    Args:
        scores: of the test split, shape ``(N,)``; higher is surer.
        pred: predicted labels, shape ``(N,)``.
        y: labels, shape ``(N,)``.
        a: attributes, shape ``(N,)`` or ``(N, columns)``; -1 is unknown.
        groups: the numbering of the cells; overlapping groups are counted each.
        thresholds: the threshold of every target coverage, from validation; see :func:`thresholds_for`.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
        >>> scores, pred = torch.tensor([0.9, 0.6, 0.8, 0.7]), torch.tensor([0, 1, 1, 0])
        >>> table = selective_table(scores, pred, y, a, groups, {1.0: 0.5, 0.75: 0.65})
        >>> [(row.target, row.coverage, round(row.error, 4), row.worst) for row in table.rows]
        [(1.0, 1.0, 0.5, (0.5, 'no, left')), (0.75, 0.75, 0.3333, (0.5, 'yes, right'))]
    """
    if not thresholds:
        raise BadInput("there is no target coverage to count at", do="Pass thresholds_for(validation scores).")
    _check_scores(scores)
    if scores.shape != y.shape:
        raise BadInput("scores and labels differ in number", got=f"{tuple(scores.shape)} and {tuple(y.shape)}")
    scores, pred = scores.to(y.device), pred.to(y.device)
    whole = group_table(pred, y, a, groups)
    rows = []
    for target, threshold in thresholds.items():
        kept = scores >= threshold
        rows.append(Kept(target, threshold, group_table(pred[kept], y[kept], a.to(y.device)[kept], groups), whole))
    wrong = pred != y
    curves = [risk_coverage(scores[m], wrong[m]) for m in groups.membership(y, a.to(y.device)).unbind(dim=1)]
    area, excess = (
        torch.tensor([getattr(curve, name) for curve in curves], dtype=torch.float64)
        for name in ("area", "excess_area")
    )
    return Selective(tuple(rows), risk_coverage(scores, wrong), area, excess)


def _check_scores(scores: Tensor) -> None:
    if scores.dim() != 1 or not scores.is_floating_point():
        raise BadInput("scores must be one number per example", got=f"{scores.dtype} of shape {tuple(scores.shape)}")
    if bool(scores.isnan().any()):
        raise BadInput(
            f"the score of example {int(scores.isnan().nonzero()[0])} is not a number",
            do="Look for logits that are not finite.",
        )
