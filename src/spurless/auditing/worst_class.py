r"""Worst class: is the model worse on one class than on the others?

Of :math:`N` examples :math:`w` are wrong; of the :math:`n_c` of class :math:`c`, :math:`k_c` are. If mistakes had
nothing to do with the class, :math:`k_c` would be hypergeometric, so with :math:`p = w / N` every class deviates by

.. math:: z_c = \frac{k_c - n_c p}{\sqrt{n_c p (1 - p) (N - n_c) / (N - 1)}} .

The statistic is the largest one. The null hypothesis is that right and wrong are spread over classes by chance: they
are permuted over all examples. The severity is the gap of the class with the largest :math:`z`: the accuracy of all
other examples less that of the class, at least 0, with Newcombe's interval of two independent shares. The floor is
there because classes differ in how hard they are.

This is no shortcut by itself: a class may be hard, rare or badly labelled. But a model that leans on a cue of one class
gives others away to it, and where no attribute is known this is the number that worst-class selection looks at.

Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17, 1998,
method 10.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from spurless.auditing.chance import p_value, permutations
from spurless.auditing.excess import chunks, label_name
from spurless.auditing.subject import Subject, rows_first
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.metrics.intervals import newcombe, wilson

NAME = "worst-class"
QUESTION = "Is the model worse on one class than on the others?"
FLOOR = 0.15
"""Gap in accuracy below which nothing is flagged."""
SHOWN = 20
"""Classes of the figure, the worst ones."""


def audit_worst_class(subject: Subject) -> Finding:
    """Return the class whose accuracy falls most clearly below that of the others."""
    count = torch.bincount(subject.y, minlength=subject.logits.shape[1])
    wrong = torch.bincount(subject.y[subject.wrong], minlength=len(count))
    why = _unanswerable(subject, count)
    if why is not None:
        remedy = "Pass held-out examples of every class."
        return Finding(
            NAME, "This could not be asked of these examples", 0.0, False, None, why, remedy, shows_use=False
        )
    z = _deviations(wrong[None], count)[0]
    label = int(z.argmax())
    p = p_value(float(z[label]), _chance(subject, count))
    worse = int(count[label] - wrong[label]), int(count[label])
    better = int((count - wrong).sum()) - worse[0], len(subject) - worse[1]
    gap = better[0] / better[1] - worse[0] / worse[1]
    low, high = newcombe(better, worse)
    flagged = p <= subject.level and gap >= FLOOR
    name = label_name(subject, label)
    return Finding(
        NAME,
        f"The model is worse on “{name}” than on other classes" if flagged else "No class fares much worse than others",
        max(0.0, gap),
        flagged,
        p,
        f"“{name}” is right in {_share(worse)}, the other classes in {_share(better)}: a gap of {100 * gap:.1f} points "
        f"(95 % interval {100 * low:.1f} to {100 * high:.1f}); p = {p:.3g} by {subject.permutations} permutations; "
        f"flagged from {100 * FLOOR:g} points.{_instead(subject, label)} A class may be hard without any shortcut.",
        f"See what “{name}” is taken for, and whether those examples share something (error-slices); more examples of "
        "the class, or training that balances classes, help where it is merely rare."
        if flagged
        else "Nothing to do here.",
        shows_use=False,
        numbers={
            "gap": gap,
            "low": low,
            "high": high,
            "worst_class": worse[0] / worse[1],
            "others": better[0] / better[1],
            "class": float(label),
            "examples": float(worse[1]),
        },
        rows=rows_first(subject.margin, subject.wrong & (subject.y == label)) if flagged else (),
        items=(_figure(subject, count, wrong),),
    )


def _unanswerable(subject: Subject, count: Tensor) -> str | None:
    wrong = int(subject.wrong.sum())
    if int((count > 0).sum()) < 2:
        return "All examples are of one class, so there is none to compare it with."
    if wrong == 0:
        return f"The model is right about all {len(subject):,} examples."
    if wrong == len(subject):
        return f"The model is wrong about all {len(subject):,} examples."
    return None


def _deviations(wrong: Tensor, count: Tensor) -> Tensor:
    """Return z of every class that has so many wrong, ``(k, classes)``; no class that is empty stands out."""
    n, total = count.double(), count.sum().double()
    p = wrong.sum(dim=1, keepdim=True) / total
    spread = (n * p * (1 - p) * (total - n) / (total - 1)).sqrt()
    return torch.where(n > 0, (wrong - n * p) / spread, -torch.inf)


def _chance(subject: Subject, count: Tensor) -> Tensor:
    """Return the largest z of every permutation."""
    of = one_hot(subject.y, len(count)).float()  # counts are exact up to 16 million
    generator, everyone = subject.seeds.generator(NAME, "permutations"), torch.zeros_like(subject.y)
    found = []
    for part in chunks(subject.permutations, len(subject)):
        order = permutations(everyone, len(range(subject.permutations)[part]), generator)
        found.append(_deviations((subject.wrong[order].float() @ of).double(), count).amax(dim=1))
    return torch.cat(found)


def _share(side: tuple[int, int]) -> str:
    low, high = (100 * float(bound) for bound in wilson(*side))
    return f"{100 * side[0] / side[1]:.1f} % of {side[1]:,} ({low:.0f} to {high:.0f} %)"


def _instead(subject: Subject, label: int) -> str:
    """Say what the class is taken for most often."""
    said = subject.predicted[subject.wrong & (subject.y == label)]
    if not len(said):
        return ""
    counts = torch.bincount(said)
    most = int(counts.argmax())
    return f" It is taken for “{label_name(subject, most)}” in {int(counts[most])} of {len(said)} mistakes."


def _figure(subject: Subject, count: Tensor, wrong: Tensor) -> Figure:
    """Draw the accuracy of every class with its interval, the worst first."""
    low, high = wilson(count - wrong, count)
    accuracy = (count - wrong).double() / count
    shown = [y for y in accuracy.argsort(stable=True).tolist() if count[y]][:SHOWN]
    names = [label_name(subject, y) for y in shown]
    error = {
        "type": "data",
        "array": [100 * float(high[y] - accuracy[y]) for y in shown],
        "arrayminus": [100 * float(accuracy[y] - low[y]) for y in shown],
    }
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [100 * float(accuracy[y]) for y in shown],
    }
    trace |= {"marker": {"color": "@arm1"}, "error_x": error, "name": "right"}
    layout = {"xaxis": {"title": {"text": "% right"}, "range": [0, 100]}, "yaxis": {"autorange": "reversed"}}
    told = "; ".join(
        f"{name} {100 * float(accuracy[y]):.0f} % of {int(count[y])}" for y, name in zip(shown, names, strict=True)
    )
    caption = "Accuracy of each class with its 95 % interval" + (
        f"; the {SHOWN} worst." if len(shown) == SHOWN else "."
    )
    return Figure("Classes", caption, {"data": [trace], "layout": layout}, f"Bars. {told}.", 120 + 26 * len(shown))
