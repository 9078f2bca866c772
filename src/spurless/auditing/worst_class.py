r"""Worst class: is the model worse on one class than on the others?

Of :math:`N` examples :math:`w` are predicted incorrectly; of the :math:`n_c` of class :math:`c`, :math:`k_c` are. With
:math:`p = w / N`, the statistic is the largest deviation of a class,

.. math:: z_c = \frac{k_c - n_c p}{\sqrt{n_c p (1 - p) (N - n_c) / (N - 1)}} .

Null hypothesis: errors are independent of the class; they are permuted over all examples. Severity: the accuracy of all
other examples minus that of the class with the largest :math:`z`, at least 0, with Newcombe's interval. This is not a
shortcut by itself: a class may be hard, rare or badly labelled.

Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17, 1998,
method 10.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spurless.auditing._context import AuditContext, format_fraction, label_name, make_finding, not_tested, top_rows
from spurless.auditing._figures import Axis, Series, bars
from spurless.auditing._permutation import iter_permutations, p_value
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.stats import newcombe_interval
from spurless.metrics.intervals import wilson_intervals

NAME = "worst-class"
QUESTION = "Is the model worse on one class than on the others?"
MIN_EFFECT = 0.15  # smallest gap in accuracy that is flagged
MAX_BARS = 20  # classes in the figure, the worst ones


def audit_worst_class(context: AuditContext) -> Finding:
    """Return the class whose accuracy is most clearly below that of the others."""
    count = torch.bincount(context.y, minlength=context.logits.shape[1])
    errors = torch.bincount(context.y[context.incorrect], minlength=len(count))
    why = _why_not_testable(context, count)
    if why is not None:
        return not_tested(NAME, why, "Pass held-out examples of every class.", shows_use=False)
    z = _compute_deviations(errors[None], count)[0]
    label = int(z.argmax())
    p = p_value(float(z[label]), _compute_null(context, count))
    worse = int(count[label] - errors[label]), int(count[label])
    better = int((count - errors).sum()) - worse[0], len(context) - worse[1]
    gap = better[0] / better[1] - worse[0] / worse[1]
    low, high = newcombe_interval(better, worse)
    flagged = p <= context.level and gap >= MIN_EFFECT
    name = label_name(context, label)
    numbers = {
        "gap": gap, "low": low, "high": high, "worst_class": worse[0] / worse[1], "others": better[0] / better[1],
        "class": float(label), "examples": float(worse[1]),
    }  # fmt: skip
    return make_finding(
        NAME,
        (p, gap, flagged),
        f"The model is worse on “{name}” than on other classes",
        "No class is much worse than others",
        f"The accuracy of “{name}” is {_format(worse)}, that of the other classes {_format(better)}: a gap of "
        f"{100 * gap:.1f} points (95 % interval {100 * low:.1f} to {100 * high:.1f}); p = {p:.3g} by "
        f"{context.permutations} permutations; flagged from {100 * MIN_EFFECT:g} points."
        f"{_describe_confusion(context, label)} A class may be hard without any shortcut.",
        f"Check which labels are predicted for “{name}”, and whether those examples have something in common "
        "(error-slices). More examples of the class, or training with balanced classes, help if it is only rare.",
        shows_use=False,
        numbers=numbers,
        rows=top_rows(context.margin, context.incorrect & (context.y == label)) if flagged else (),
        items=(_plot(context, count, errors),),
    )


def _why_not_testable(context: AuditContext, count: Tensor) -> str | None:
    n_errors = int(context.incorrect.sum())
    if int((count > 0).sum()) < 2:
        return "All examples have the same class."
    if n_errors == 0:
        return f"All {len(context):,} predictions are correct."
    if n_errors == len(context):
        return f"All {len(context):,} predictions are incorrect."
    return None


def _compute_deviations(errors: Tensor, count: Tensor) -> Tensor:
    """Return z of every class with the given number of errors, ``(k, classes)``; -inf for an empty class."""
    n, total = count.double(), count.sum().double()
    p = errors.sum(dim=1, keepdim=True) / total
    spread = (n * p * (1 - p) * (total - n) / (total - 1)).sqrt()
    return torch.where(n > 0, (errors - n * p) / spread, -torch.inf)


def _compute_null(context: AuditContext, count: Tensor) -> Tensor:
    labels = one_hot(context.y, len(count)).float()  # counts are exact up to 16 million
    generator, one_stratum = context.seeds.generator(NAME, "permutations"), torch.zeros_like(context.y)
    orders = iter_permutations(one_stratum, context.permutations, generator)
    errors = torch.cat([context.incorrect[order].float() @ labels for order in orders])
    return _compute_deviations(errors.double(), count).amax(dim=1)


def _format(side: tuple[int, int]) -> str:
    low, high = (float(bound) for bound in wilson_intervals(*side))
    return format_fraction(*side, (low, high))


def _describe_confusion(context: AuditContext, label: int) -> str:
    """Return a sentence on the most frequent incorrect prediction of a class."""
    predicted = context.predicted[context.incorrect & (context.y == label)]
    if not len(predicted):
        return ""
    counts = torch.bincount(predicted)
    top = int(counts.argmax())
    return f" It is predicted as “{label_name(context, top)}” in {int(counts[top])} of {len(predicted)} errors."


def _plot(context: AuditContext, count: Tensor, errors: Tensor) -> Figure:
    correct = count - errors
    accuracy, low, high = (100 * v for v in (correct.double() / count, *wilson_intervals(correct, count)))
    classes = [y for y in accuracy.argsort(stable=True).tolist() if count[y]][:MAX_BARS]
    names = [label_name(context, y) for y in classes]
    more = f"; the {MAX_BARS} worst." if len(classes) == MAX_BARS else "."
    text = "Classes", f"Accuracy of each class with its 95 % interval{more}"
    value, lower, upper = (column[classes].tolist() for column in (accuracy, low, high))
    series = [Series("accuracy", value, "@series1", lower, upper)]
    return bars(text, names, series, values=Axis("accuracy in %", (0, 100)), horizontal=True)
