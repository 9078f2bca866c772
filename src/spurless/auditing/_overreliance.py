r"""Over-reliance: find the property of examples that the model relies on more than the labels justify.

A property sorts the examples into bins: the brightness of a corner, the presence of a word. The calibrated probability
of label :math:`k` is :math:`p_i = \operatorname{softmax}(t f(x_i) + c)`, with one scale :math:`t \ge 1/4` and one
offset :math:`c_k` per label, fitted to the audited examples by maximum likelihood. With the mean probability
:math:`p_{bk}` in bin :math:`b`, and :math:`p_k` over all examples, the property supports label :math:`k` by the log
lift :math:`s_{bk} = \log (p_{bk} / p_k)`, where each bin is smoothed by one average example per label. The statistic,

.. math:: z = \frac{\sum_i \big( \sum_k s_{b_i k}\, p_{ik} - s_{b_i y_i} \big)}
    {\sqrt{\sum_i \operatorname{Var}_{k \sim p_i} s_{b_i k}}} ,

measures how much more the property supports the model's probabilities than the labels. (Predictions do not serve: an
uncertain model predicts the most likely label more often than it is correct.) The search is for the largest :math:`z`.

Null hypothesis: labels are sampled from the calibrated probabilities. Permuting labels among equally confident
predictions, as in :mod:`spurless.auditing._permutation`, cannot detect a property that always occurs with the same
prediction. The scale is at least 1/4: a model whose confidence must be reduced further is not overconfident but wrong.

The effect size is :math:`g = V(\text{property}, \hat y) - V(\text{property}, y)`, the association of the property with
predictions minus that with labels (bias-corrected Cramér's V).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import p_value
from spurless.core.figures import Figure
from spurless.metrics.association import cramers_v
from spurless.metrics.intervals import wilson_intervals

MIN_ERRORS = 10  # errors that a search needs
MIN_ASSOCIATION = 0.1  # cramér's V of property and prediction from which a property is searched
TIE_FRACTION = 0.95  # of the largest statistic, from which properties are ties; the first of them is named
MIN_SCALE = 0.25
RIDGE = 1e-3  # penalty on the offsets, so that the offset of a label without examples is finite
MAX_ELEMENTS = 2**22  # sampled labels in memory at once: 32 MB
MAX_RANKED = 8  # properties in the ranking


@dataclass(frozen=True, eq=False)
class OverReliance:
    """The property with the largest over-reliance, among all that are associated with predictions."""

    best: int  # its column
    p: float
    association_with_prediction: float
    association_with_label: float
    label: int  # the label that the model predicts too often
    bin: int  # the bin in which it does
    support: Tensor  # log lift of the predicted label minus that of the true label, ``(N,)``
    searched: Tensor  # the columns that are associated with predictions
    z: Tensor  # their statistics

    @property
    def gap(self) -> float:
        """Association with predictions minus association with labels."""
        return self.association_with_prediction - self.association_with_label

    def describe(self, context: AuditContext, codes: Tensor, where: str) -> str:
        """Return sentences that compare predictions with labels inside and outside the bin."""
        label = context.split.groups.labels[self.label]
        parts, starts = [], (f"{where}, the model predicts {label} for", "otherwise for")
        for inside, start in zip((codes == self.bin, codes != self.bin), starts, strict=True):
            predicted, true = (
                _format_percent(values[inside] == self.label) for values in (context.predicted, context.y)
            )
            parts.append(f"{start} {predicted}, and the label is {label} for {true}")
        return (
            f"{'; '.join(parts)} (95 % intervals). Cramér's V of the property is "
            f"{self.association_with_prediction:.2f} with predictions and {self.association_with_label:.2f} with "
            f"labels, p = {self.p:.3g}."
        )

    def numbers(self, count: int) -> dict[str, float]:
        """Return the numbers of a finding; ``count`` is the number of properties."""
        return {
            "z": float(self.z.max()), "gap": self.gap,
            "association_with_prediction": self.association_with_prediction,
            "association_with_label": self.association_with_label,
            "properties": float(count), "searched": float(len(self.z)),
        }  # fmt: skip

    def find_errors(self, context: AuditContext) -> tuple[int, ...]:
        """Return errors that the property supports: the most supported first, then those with a large margin."""
        score = self.support + 1e-6 * context.margin / (1 + context.margin)
        return top_rows(score, context.incorrect & (self.support > 0))


def why_not_testable(context: AuditContext) -> str | None:
    """Return why over-reliance cannot be tested, as a clause; None if it can."""
    n_errors = int(context.incorrect.sum())
    if n_errors < MIN_ERRORS:
        return (
            f"the model makes {n_errors} error{'s' * (n_errors != 1)} in {len(context)} predictions, which is too few"
        )
    if len(torch.unique(context.predicted)) < 2:
        return "the model predicts the same label for every example"
    return "all examples have the same label" if len(torch.unique(context.y)) < 2 else None


def find_overreliance(context: AuditContext, codes: Tensor, purpose: str) -> OverReliance | None:
    """Search for the property with the largest over-reliance; None if none is associated with predictions.

    ``codes`` are the bins of every example by every property, ``(N, P)``; ``purpose`` names the random generator.
    """
    predicted, y = context.predicted, context.y
    associations = [compute_association(column, predicted) for column in codes.T]
    searched = torch.tensor([j for j, v in enumerate(associations) if v >= MIN_ASSOCIATION]).long()
    if not len(searched):
        return None
    p = calibrate_probabilities(context.logits, y)
    lifts = [compute_log_lift(codes[:, j], p) for j in searched.tolist()]
    z, null = _compute_statistics(context, [codes[:, j] for j in searched.tolist()], lifts, p, purpose)
    top = float(z.max())
    index = int((z >= TIE_FRACTION * top).nonzero()[0]) if top > 0 else int(z.argmax())
    best, lift = int(searched[index]), lifts[index]
    bins, n_classes = codes[:, best], lift.shape[1]
    surplus = count_by_bin(bins, predicted, n_classes) - count_by_bin(bins, y, n_classes)
    worst = int(surplus.where(lift > 0, -torch.inf).argmax())
    return OverReliance(
        best,
        p_value(top, null),
        compute_association(bins, predicted),
        compute_association(bins, y),
        worst % n_classes,
        worst // n_classes,
        lift[bins, predicted] - lift[bins, y],
        searched,
        z,
    )


def calibrate_probabilities(logits: Tensor, y: Tensor) -> Tensor:
    """Return probabilities with the scale and the offset of each label fitted to these examples.

    Example:
        >>> logits, y = torch.tensor([[9.0, 0.0]] * 4 + [[0.0, 9.0]] * 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> calibrate_probabilities(logits / 9, y)[0].round(decimals=2).tolist()
        [0.75, 0.25]
    """
    from scipy.optimize import minimize

    z, n = logits.double(), len(y)
    targets = torch.nn.functional.one_hot(y, z.shape[1]).double()

    def loss(values: object) -> tuple[float, object]:
        params = torch.as_tensor(values, dtype=torch.double)
        log_p = (z * params[0].exp() + params[1:]).log_softmax(dim=1)
        error = log_p.exp() - targets
        grad = torch.cat([(error * z).sum()[None] * params[0].exp() / n, error.mean(dim=0) + 2 * RIDGE * params[1:]])
        return float(-(log_p * targets).sum() / n + RIDGE * params[1:].square().sum()), grad.numpy()

    bounds = [(log(MIN_SCALE), log(100.0))] + [(None, None)] * z.shape[1]
    fit = minimize(loss, [0.0] * (1 + z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    params = torch.as_tensor(fit.x, dtype=torch.double)
    return (z * params[0].exp() + params[1:]).softmax(dim=1)


def compute_log_lift(codes: Tensor, p: Tensor) -> Tensor:
    """Return the log lift of each label in each bin of a property, ``(bins, labels)``.

    Example:
        >>> p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> compute_log_lift(torch.tensor([0, 0, 1, 1]), p).exp().round(decimals=3).tolist()  # of 3/4 and 1/4
        [[1.167, 0.5], [0.833, 1.5]]
    """
    p = p.double()
    n_classes, prior = p.shape[1], p.mean(dim=0)
    total = torch.zeros(int(codes.max()) + 1, n_classes, dtype=torch.double).index_add(0, codes, p)
    given = (total + n_classes * prior) / (total.sum(dim=1, keepdim=True) + n_classes)
    return (given.clamp(min=1e-12) / prior.clamp(min=1e-12)).log()


def compute_association(codes: Tensor, labels: Tensor) -> float:
    """Return the bias-corrected Cramér's V of a property and labels."""
    return cramers_v(count_by_bin(codes, labels, int(labels.max()) + 1), corrected=True)


def count_by_bin(codes: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the number of examples per bin and label, ``(bins, classes)``."""
    n_bins = int(codes.max()) + 1
    return torch.bincount(codes * n_classes + labels, minlength=n_bins * n_classes).view(n_bins, n_classes).double()


def plot_bins(context: AuditContext, result: OverReliance, codes: Tensor, bins: Sequence[str], name: str) -> Figure:
    """Draw how often a label is predicted, and how often it is true, in each bin of a property."""
    label = context.split.groups.labels[result.label]
    n = torch.bincount(codes, minlength=len(bins))
    series = []
    for title, values, colour in (("predicted", context.predicted, "@bad"), ("true", context.y, "@series1")):
        k = torch.bincount(codes[values == result.label], minlength=len(bins))
        percent, low, high = (100 * v for v in (k.double() / n, *wilson_intervals(k, n)))
        series.append(Series(title, percent.tolist(), colour, low.tolist(), high.tolist()))
    caption = f"How often the model predicts {label}, and how often it is the label, with 95 % intervals."
    text = f"{label}, by {name}", caption
    return bars(text, list(bins), series, values=Axis(f"% {label}", "tozero"), category_title=name)


def plot_ranking(result: OverReliance, names: Sequence[str], kind: str) -> Figure:
    """Draw the largest statistics; ``kind`` is the plural noun for what is ranked."""
    order = result.z.argsort(descending=True, stable=True)[:MAX_RANKED]
    ranked, z = [names[int(result.searched[j])] for j in order], result.z[order].tolist()
    caption = "z: how much more they support the predicted probabilities than the labels, in standard deviations."
    text = f"The {kind} that the model relies on most", caption
    return bars(text, ranked, [Series("z", z, "@series1")], values=Axis("z"), horizontal=True)


def _compute_statistics(
    context: AuditContext, codes: list[Tensor], lifts: list[Tensor], p: Tensor, purpose: str
) -> tuple[Tensor, Tensor]:
    """Return the statistic of each property, and the largest one for each sample of the labels."""
    generator = context.seeds.generator(purpose, "labels")

    def support(k: int) -> Tensor:  # log lift of label k for each example and property, (N, P)
        return torch.stack([lift[bins, k] for bins, lift in zip(codes, lifts, strict=True)], dim=1)

    mean = square = torch.zeros(())
    for k in range(p.shape[1]):
        mean, square = mean + support(k) * p[:, k, None], square + support(k).square() * p[:, k, None]
    scale = (square - mean.square()).sum(dim=0).clamp(min=1e-12).sqrt()

    def statistics(labels: Tensor) -> Tensor:
        # one matrix product per label is ten times as fast as indexing
        true = sum((labels == k).double() @ support(k) for k in range(p.shape[1]))
        return (mean.sum(dim=0) - true) / scale

    null, step = [], max(1, MAX_ELEMENTS // len(context))
    for start in range(0, context.permutations, step):
        count = min(step, context.permutations - start)
        samples = torch.multinomial(p, count, replacement=True, generator=generator).T
        null.append(statistics(samples).amax(dim=1))
    return statistics(context.y[None])[0], torch.cat(null)


def _format_percent(values: Tensor) -> str:
    k, n = int(values.sum()), len(values)
    low, high = wilson_intervals(k, n)
    return f"{100 * k / n:.0f} % ({100 * float(low):.0f} to {100 * float(high):.0f})" if n else "none"
