r"""Suspects: which examples seem to break a shortcut, and do they look alike?

Three views look for the minority that a shortcut gets wrong (:mod:`spurless.auditing.views`): a linear head by
generalised cross-entropy, one that is stopped early, and clusters of the model's own loss. Suspected is what at least
two of three find. The score of an example is :math:`(v + \bar u) / 4`, with its votes :math:`v` and the mean
:math:`\bar u` of its percentiles by the three losses; it is 1/2 or more exactly where suspected. The agreement is the
mean of Cohen's kappa over the pairs of views.

The statistic is how well features foresee the votes among equally sure predictions: the leave-one-out correlation of
:mod:`spurless.auditing.excess`. The null hypothesis is that the label depends on the example only through what the
model says: labels are permuted among equally sure predictions, and all three views are made again of each permutation
(at most 99). The number of suspects would be of no use: a permutation has as many mistakes as the truth. The severity
is that correlation less its median over permutations, at least 0: a head that reads few directions errs where features
say, whatever the labels. The floor is that of ``error-slices``, for the same reason.

What it cannot tell: suspects are examples whose *label* is unexpected, so mislabelled and merely hard ones are among
them. The accuracy of the worst inferred group (a label, suspected or not) is pessimistic, because suspects are chosen
for being wrong; where the minority is large, it is optimistic about the size of the problem, because those whom the
model gets right are not suspected. Both heads learn from the audited examples: where these break the shortcut as often
as not, they unlearn it and find few of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.auditing.chance import p_value
from spurless.auditing.excess import (
    Foresight,
    bootstrap,
    correlation,
    label_name,
    orders,
    principal,
    said,
    unanswerable,
)
from spurless.auditing.subject import Subject, rows_first
from spurless.auditing.views import FOLDS, VIEWS, kappa, look_at
from spurless.core.figures import Figure
from spurless.core.findings import Finding
from spurless.core.groups import Groups
from spurless.metrics.groupwise import group_table
from spurless.metrics.intervals import wilson

NAME = "suspects"
QUESTION = "Which examples seem to break a shortcut, and do they look alike?"
FLOOR = 0.25
"""Correlation below which nothing is flagged."""
PERMUTATIONS = 99
"""At most: every one fits two heads per fold."""
LEAST = 5
"""Examples of an inferred group whose accuracy is reported."""
SHOWN = 12


@dataclass(frozen=True, eq=False)
class Suspicion:
    """The suspected minority of a split."""

    score: Tensor
    """``(N,)`` in [0, 1], to rank by; 1/2 or more exactly where suspected"""
    suspected: Tensor
    """what at least two views find, ``(N,)``"""
    views: Mapping[str, Tensor]
    """what each finds"""
    agreement: float
    """the mean kappa of their pairs: 0 by chance, 1 where they are the same"""


def suspicion(subject: Subject) -> Suspicion:
    """Return who is suspected; nobody, where there are too few examples to hold some out."""
    if len(subject) < 2 * FOLDS:
        nobody = torch.zeros(len(subject), dtype=torch.bool)
        return Suspicion(nobody.double(), nobody, dict.fromkeys(VIEWS, nobody), 0.0)
    found, losses = look_at(subject, subject.y[None])
    votes = found[:, 0].sum(dim=0)
    percentile = losses[:, 0].argsort(dim=1, stable=True).argsort(dim=1).double() / len(subject)
    score = (votes + percentile.mean(dim=0)) / (1 + len(VIEWS))
    views = {name: found[i, 0] for i, name in enumerate(VIEWS)}
    return Suspicion(score, votes >= 2, views, float(kappa(found)[0]))


def audit_suspects(subject: Subject) -> Finding:
    """Return the suspected minority, and whether its examples have something in common."""
    why = unanswerable(subject)
    if why is not None:
        remedy = "Pass more held-out examples, among them those that the model gets wrong."
        return Finding(
            NAME, "This could not be asked of these examples", 0.0, False, None, why, remedy, shows_use=False
        )
    found = suspicion(subject)
    what = said(subject)
    foresight = Foresight(principal(subject.features), what)
    order = orders(what.within, _count(subject), subject.seeds.generator(NAME, "permutations"))
    views = look_at(subject, subject.y[order])[0]
    excess = what.excess(views.double().mean(dim=0).T)
    foreseen = foresight.of(excess)
    statistics, agreement = correlation(foreseen, excess), kappa(views)
    observed, p = float(statistics[0]), p_value(float(statistics[0]), statistics[1:])
    low, high = bootstrap(foreseen[:, 0], excess[:, 0], subject.seeds.generator(NAME, "bootstrap"))
    chance, count = float(statistics[1:].median()), int(found.suspected.sum())
    severity = min(1.0, max(0.0, observed - chance))
    flagged = p <= subject.level and severity >= FLOOR
    numbers, worst = _worst(subject, found.suspected)
    return Finding(
        NAME,
        f"{count:,} examples seem to break a shortcut: their labels are unexpected, and they look alike"
        if flagged
        else "Examples with unexpected labels hardly look alike",
        severity,
        flagged,
        p,
        f"Among equally sure predictions, features foresee who is suspected with a correlation of {observed:.2f} (95 % "
        f"interval {low:.2f} to {high:.2f}; {chance:.2f} by chance, p = {p:.3g} by {len(order) - 1} permutations; "
        f"flagged from {FLOOR:g} above chance). "
        f"{count:,} of {len(subject):,} are suspected by two of three views, which agree by kappa = "
        f"{found.agreement:.2f} ({float(agreement[1:].median()):.2f} by chance). {worst}",
        "Look through them: if they share something, neurontune or jtt need no attributes; once it is labelled, dfr or "
        "group-dro do more. If their labels are wrong, mend the labels."
        if flagged
        else "Nothing to do here.",
        shows_use=False,  # the evidence is that of error-slices, seen through labels
        numbers={
            "correlation": observed,
            "low": low,
            "high": high,
            "chance": chance,
            "suspected": float(count),
            "agreement": found.agreement,
            "agreement_chance": float(agreement[1:].median()),
            "agreement_p": p_value(float(agreement[0]), agreement[1:]),
            **numbers,
        },
        rows=rows_first(found.score, found.suspected),
        items=(_figure(subject, found.suspected),),
    )


def _count(subject: Subject) -> int:
    return min(PERMUTATIONS, subject.permutations)


def _worst(subject: Subject, suspected: Tensor) -> tuple[dict[str, float], str]:
    """Return the accuracy of the worst inferred group, as numbers and in words."""
    groups = Groups(subject.split.groups.labels, ("not suspected", "suspected"))
    table = group_table(subject.predicted, subject.y, suspected.long(), groups)
    accuracy = torch.where(table.count >= LEAST, table.accuracy, torch.inf)
    if not bool(accuracy.isfinite().any()):
        return {}, "No inferred group is large enough for an accuracy."
    g = int(accuracy.argmin())
    low, high = (float(bound) for bound in wilson(table.correct[g], table.count[g]))
    numbers = {"worst_inferred": float(accuracy[g]), "worst_low": low, "worst_high": high}
    return numbers, (
        f"Of the worst inferred group, “{groups.name(g)}”, {100 * float(accuracy[g]):.0f} % of {int(table.count[g]):,} "
        f"are right (95 % interval {100 * low:.0f} to {100 * high:.0f} %): pessimistic, because they are chosen for "
        "unexpected labels."
    )


def _figure(subject: Subject, suspected: Tensor) -> Figure:
    """Draw how many of each label are suspected, and how many of those the model has wrong."""
    n = subject.logits.shape[1]
    wrong, right = (torch.bincount(subject.y[suspected & of], minlength=n) for of in (subject.wrong, ~subject.wrong))
    shown = (wrong + right).argsort(descending=True, stable=True)[:SHOWN].tolist()
    names = [label_name(subject, y) for y in shown]
    traces = [
        {"type": "bar", "orientation": "h", "y": names, "x": part[shown].tolist(), "name": name}
        | {"marker": {"color": colour}}
        for name, part, colour in (("wrong", wrong, "@bad"), ("right", right, "@arm1"))
    ]
    layout = {"barmode": "stack", "xaxis": {"title": {"text": "suspected"}}, "yaxis": {"autorange": "reversed"}}
    told = "; ".join(
        f"{name}: {int(wrong[y])} wrong, {int(right[y])} right" for y, name in zip(shown, names, strict=True)
    )
    caption = "Suspected examples of each label, by whether the model has them wrong."
    return Figure("Suspects", caption, {"data": traces, "layout": layout}, f"Bars. {told}.", 120 + 26 * len(shown))
