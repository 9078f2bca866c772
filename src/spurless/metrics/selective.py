r"""Selective classification: coverage and error of a model that abstains on some examples.

A model gives every example a score, and accepts (predicts) those whose score is at least a threshold. The threshold is
chosen on val from the scores alone; coverage and error are then measured on test, overall and per group:

.. math:: \text{coverage}(t) = \frac{\#\{s_i \ge t\}}{n}, \qquad
    \text{error}(t) = \frac{\#\{s_i \ge t, \hat y_i \ne y_i\}}{\#\{s_i \ge t\}}.

Abstaining usually lowers the average error, but may raise that of a group on which the model is bad (Jones, Sagawa,
Koh, Kumar and Liang, ICLR 2021, arXiv:2010.14134), so every error is reported with that of the worst group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.metric_info import COVERAGES
from spurless.metrics.groupwise import GroupTable, group_table


@dataclass(frozen=True, eq=False)
class CoverageRow:
    """Coverage and error at one target coverage.

    An error is 1 minus the accuracy on accepted examples. A group without accepted examples has error NaN and is never
    the worst. Rows of parts of a split, at the same threshold, add up to the row of the split.
    """

    target: float
    threshold: float
    table: GroupTable  # the group table of the accepted examples
    whole: GroupTable  # the group table of all examples

    def __add__(self, other: CoverageRow) -> CoverageRow:
        if not isinstance(other, CoverageRow):
            return NotImplemented
        if (self.target, self.threshold) != (other.target, other.threshold):
            what = "tables at different thresholds cannot be added"
            raise InputError(what, expected=self.threshold, got=other.threshold)
        return CoverageRow(self.target, self.threshold, self.table + other.table, self.whole + other.whole)

    @property
    def coverage(self) -> float:
        """The fraction of examples that is accepted."""
        return self.table.n / self.whole.n if self.whole.n else math.nan

    @property
    def error(self) -> float:
        """The error on accepted examples; NaN if there are none."""
        return 1 - self.table.average

    @property
    def count(self) -> Tensor:
        """The number of accepted examples of every group."""
        return self.table.count

    @property
    def group_coverage(self) -> Tensor:
        """The fraction of every group that is accepted; NaN for an empty group."""
        return self.table.count.double() / self.whole.count

    @property
    def group_error(self) -> Tensor:
        """The error on every group's accepted examples; NaN if there are none."""
        return 1 - self.table.accuracy

    @property
    def low(self) -> Tensor:
        """The lower end of the 95 % Wilson interval of every group's error."""
        return 1 - self.table.high

    @property
    def high(self) -> Tensor:
        """The upper end of the 95 % Wilson interval of every group's error."""
        return 1 - self.table.low

    @property
    def worst(self) -> tuple[float, str]:
        """The highest error of a group and its name (the first, in a tie); NaN and "" if nothing is accepted."""
        accuracy, name = self.table.worst
        return 1 - accuracy, name


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error of the ``k`` examples of highest score, for every ``k`` from 1 to ``n``.

    The order of tied examples is arbitrary, so ``risk`` is the expectation over all their orders. ``threshold`` is the
    score that accepts ``k`` examples, or more if it is tied.
    """

    coverage: Tensor
    risk: Tensor
    threshold: Tensor

    @property
    def area(self) -> float:
        r"""AURC, the mean of the risks (Geifman, Uziel and El-Yaniv, ICLR 2019): :math:`\frac1n \sum_k r_k`.

        A random score has the error over all examples; lower is better. NaN if there are no examples.
        """
        return float(self.risk.mean()) if len(self.risk) else math.nan

    @property
    def oracle_area(self) -> float:
        r"""The area of the same predictions under the best possible score, which ranks all errors last.

        With :math:`e` errors it is :math:`\frac1n \sum_{k > n - e} \frac{k - (n - e)}{k}`.
        """
        n = len(self.risk)
        if not n:
            return math.nan
        k = torch.arange(1, n + 1, dtype=torch.float64, device=self.risk.device)
        n_correct = n - round(float(self.risk[-1]) * n)
        return float(((k - n_correct).clamp(min=0) / k).mean())

    @property
    def excess_area(self) -> float:
        """Area minus oracle area: the part that a better score could remove."""
        return self.area - self.oracle_area


@dataclass(frozen=True, eq=False)
class Selective:
    """Results of selective classification: a row per target coverage, and areas that do not need a threshold."""

    rows: tuple[CoverageRow, ...]
    curve: RiskCoverage
    group_area: Tensor  # AURC within every group, in group order; NaN for an empty one
    group_excess_area: Tensor

    def at(self, coverage: float) -> CoverageRow:
        """Return the row of a target coverage."""
        for row in self.rows:
            if math.isclose(row.target, coverage):
                return row
        known = ", ".join(f"{row.target:g}" for row in self.rows)
        raise InputError(f"the table has no row for the coverage {coverage:g}", expected=known)

    @property
    def worst_area(self) -> tuple[float, str]:
        """The highest AURC within a group and its name; NaN and "" if all are empty."""
        if bool(self.group_area.isnan().all()):
            return math.nan, ""
        g = int(self.group_area.nan_to_num(nan=-1.0).argmax())
        return float(self.group_area[g]), self.rows[0].whole.groups.name(g)

    def summary(self) -> dict[str, float]:
        """Return every number by its name in ``METRICS``; NaN if it is undefined."""
        numbers = {"aurc": self.curve.area, "excess_aurc": self.curve.excess_area}
        numbers["worst_group_aurc"] = self.worst_area[0]
        for row in self.rows:
            percent = f"{100 * row.target:g}"
            numbers[f"coverage_at_{percent}"] = row.coverage
            numbers[f"error_at_{percent}"] = row.error
            numbers[f"worst_group_error_at_{percent}"] = row.worst[0]
        return numbers


def threshold_for(scores: Tensor, coverage: float) -> float:
    """Return the threshold at which a fraction ``coverage`` of the examples has ``score >= threshold``.

    It is the score of rank ``round(coverage * n)`` (halves up, at least 1) from the highest. Examples tied with it are
    accepted or rejected together, depending on what is closer to the target (accepted in a tie; never all rejected).
    At coverage 1 it is the lowest score: an example of another split with a still lower score is rejected, which is why
    papers report 99.99 % there.

    Example:
        >>> scores = torch.tensor([0.9, 0.5, 0.7, 0.7])
        >>> threshold_for(scores, 0.25), threshold_for(scores, 1.0)
        (0.8999999761581421, 0.5)
        >>> int((scores >= threshold_for(scores, 0.5)).sum())  # the target is 2 of 4; the second is tied
        3
    """
    check_arguments(threshold_for, locals())
    if not 0 < coverage <= 1:
        raise InputError("the coverage must be a fraction", expected="above 0 and at most 1", got=coverage)
    _check_scores(scores)
    if not len(scores):
        raise InputError("scores is empty, so there is no threshold", hint="Use a validation split with examples.")
    target = max(1, math.floor(coverage * len(scores) + 0.5 + 1e-9))  # 0.7 * 45 is slightly less than 31.5
    threshold = scores.kthvalue(len(scores) - target + 1).values
    above = scores[scores > threshold]
    surplus, deficit = int((scores >= threshold).sum()) - target, target - len(above)
    return float(above.min() if len(above) and deficit < surplus else threshold)


def thresholds_for(scores: Tensor, coverages: Sequence[float] = COVERAGES) -> dict[float, float]:
    """Return the threshold of every target coverage; see :func:`threshold_for`."""
    check_arguments(thresholds_for, locals())
    return {coverage: threshold_for(scores, coverage) for coverage in coverages}


def risk_coverage(scores: Tensor, incorrect: Tensor) -> RiskCoverage:
    """Return the risk at every coverage, from scores (higher is more confident) and errors, both ``(N,)``.

    Example:
        >>> curve = risk_coverage(torch.tensor([0.9, 0.8, 0.3, 0.3]), torch.tensor([False, True, True, False]))
        >>> curve.risk  # the last two are tied, so the third counts half an error
        tensor([0.0000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
        >>> curve.area, round(curve.excess_area, 4)  # the oracle has 0, 0, 1/3, 1/2
        (0.375, 0.1667)
    """
    check_arguments(risk_coverage, locals())
    _check_scores(scores)
    if incorrect.shape != scores.shape:
        raise InputError("scores and incorrect differ in shape", got=f"{len(scores)} and {tuple(incorrect.shape)}")
    n, device = len(scores), scores.device
    threshold, order = scores.sort(descending=True)
    errors = incorrect.to(device)[order].double()
    # each example of a tie counts as the mean of the tie: the expectation over its orders
    _, tie, size = torch.unique_consecutive(threshold, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=torch.float64, device=device).index_add(0, tie, errors)
    k = torch.arange(1, n + 1, dtype=torch.float64, device=device)
    return RiskCoverage(k / max(n, 1), (total / size)[tie].cumsum(0) / k, threshold)


def selective_table(
    scores: Tensor, pred: Tensor, y: Tensor, a: Tensor, groups: Groups, thresholds: Mapping[float, float]
) -> Selective:
    """Measure coverage and error at every target coverage, overall and per group.

    Scores (higher is more confident), predicted labels, labels and attributes are of the test split, as for
    :func:`~spurless.metrics.groupwise.group_table`; the thresholds are from validation, see :func:`thresholds_for`.

    Example:
        >>> groups = Groups(labels=("no", "yes"), attributes=("left", "right"))
        >>> y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])
        >>> scores, pred = torch.tensor([0.9, 0.6, 0.8, 0.7]), torch.tensor([0, 1, 1, 0])
        >>> table = selective_table(scores, pred, y, a, groups, {1.0: 0.5, 0.75: 0.65})
        >>> [(row.target, row.coverage, round(row.error, 4), row.worst) for row in table.rows]
        [(1.0, 1.0, 0.5, (0.5, 'no, left')), (0.75, 0.75, 0.3333, (0.5, 'yes, right'))]
    """
    check_arguments(selective_table, locals())
    if not thresholds:
        raise InputError("thresholds is empty", hint="Pass thresholds_for(validation scores).")
    _check_scores(scores)
    if scores.shape != y.shape:
        raise InputError("scores and labels differ in shape", got=f"{tuple(scores.shape)} and {tuple(y.shape)}")
    scores, pred = scores.to(y.device), pred.to(y.device)
    whole = group_table(pred, y, a, groups)
    rows = []
    for target, threshold in thresholds.items():
        accepted = scores >= threshold
        table = group_table(pred[accepted], y[accepted], a.to(y.device)[accepted], groups)
        rows.append(CoverageRow(target, threshold, table, whole))
    incorrect = pred != y
    curves = [risk_coverage(scores[m], incorrect[m]) for m in groups.membership(y, a.to(y.device)).unbind(dim=1)]
    area, excess = torch.tensor([(c.area, c.excess_area) for c in curves], dtype=torch.float64).reshape(-1, 2).unbind(1)
    return Selective(tuple(rows), risk_coverage(scores, incorrect), area, excess)


def _check_scores(scores: Tensor) -> None:
    if scores.dim() != 1 or not scores.is_floating_point():
        raise InputError("scores must be one float per example", got=f"{scores.dtype} of shape {tuple(scores.shape)}")
    if bool(scores.isnan().any()):
        row = int(scores.isnan().nonzero()[0])
        raise InputError(f"the score of example {row} is NaN", hint="Check whether the logits are finite.")
