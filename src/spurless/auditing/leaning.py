r"""Leaning: does the model trust a property of the examples more than is true?

A property is anything that sorts examples into bins: how bright a corner is, whether a word is there. The belief
:math:`p_{ik}` is the model's probability of label :math:`k`, with its confidence corrected on the examples at hand:

.. math:: p_i = \operatorname{softmax}(t f(x_i) + c),\qquad t \ge 1/4,

with one factor :math:`t` and one offset :math:`c_k` per label by maximum likelihood. With the mean belief
:math:`p_{bk}` in bin :math:`b`, and :math:`p_k` over all, the property speaks for label :math:`k` by
:math:`s_{bk} = \log (p_{bk} / p_k)`, each bin filled up with one example per label that follows no property. Then

.. math:: z = \frac{\sum_i \big( \sum_k s_{b_i k}\, p_{ik} - s_{b_i y_i} \big)}
    {\sqrt{\sum_i \operatorname{Var}_{k \sim p_i} s_{b_i k}}}

is how much more the property speaks for what the model believes than for what is true. The search is for the largest.
It has a sign: a property that the model neglects has :math:`z < 0`. Sharp predictions alone do not make it large,
as they would if predictions were compared with labels: a model that is unsure must choose, and so says the likelier
label more often than that is true.

Null hypothesis: labels are drawn as the model believes. That is the second one of :mod:`spurless.auditing.chance`
(the label depends on the example only through what the model says of it) in a narrower form. Permuting labels among
predictions that are equally sure cannot see a property that goes with a prediction without exception: it is then the
same in all that are exchanged. Here such predictions are compared with all others, by how sure the model is. A
confidence that must be divided by more than 4 is not corrected further: such a model is not too bold, it is wrong.

The size of an effect is told in what everybody can count:

.. math:: g = V(\text{property}, \hat y) - V(\text{property}, y),

the association of the property with predictions less that with labels (Cramér's V without its bias). It is 1 where
the property decides what the model says and has nothing to do with the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from spurless.auditing.chance import p_value
from spurless.auditing.subject import Subject
from spurless.core.figures import Figure
from spurless.metrics.association import cramers_v
from spurless.metrics.intervals import wilson

LEAST_MISTAKES = 10
"""With fewer, what they share is anecdote."""
ASSOCIATED = 0.1
"""V of property and prediction from which on a property is looked at: the model may use it."""
SAME = 0.95
"""Of the largest statistic: properties that reach it tell the same, and the first of them is named."""
LEAST_SCALE = 0.25
RIDGE = 1e-3
"""On the offsets, so that a label that never occurs has a finite one."""
ROOM = 2**22
"""Drawn labels that are held at once: 32 MB."""


@dataclass(frozen=True, eq=False)
class Leaning:
    """The property that the model trusts too much, among all that go with what it says."""

    best: int
    """its column"""
    p: float
    with_said: float
    """its association with what the model says"""
    with_label: float
    """its association with the label"""
    label: int
    """what the model says too often"""
    bin: int
    """in which bin of the property"""
    toward: Tensor
    """how much more the property speaks for each prediction than for the label, ``(N,)``; 0 where it is right"""
    searched: Tensor
    """the columns that go with what the model says"""
    z: Tensor
    """of each of them"""

    @property
    def gap(self) -> float:
        """How much more the property goes with predictions than with labels."""
        return self.with_said - self.with_label


def unanswerable(subject: Subject) -> str | None:
    """Say why mistakes tell nothing here; None where they do."""
    wrong = int(subject.wrong.sum())
    if wrong < LEAST_MISTAKES:
        return f"the model makes {wrong} mistake{'s' * (wrong != 1)} in {len(subject)}, too few to find what they share"
    if len(torch.unique(subject.predicted)) < 2:
        return "the model says the same of every example"
    return "all examples have the same label" if len(torch.unique(subject.y)) < 2 else None


def lean(subject: Subject, codes: Tensor, purpose: str) -> Leaning | None:
    """Search the properties for the one that the model trusts too much; None where none goes with what it says.

    Args:
        subject: what is audited.
        codes: the bin of every example by every property, ``(N, P)``, whole numbers from 0.
        purpose: of the random draws.
    """
    said, y = subject.predicted, subject.y
    searched = torch.tensor([j for j in range(codes.shape[1]) if going_with(codes[:, j], said) >= ASSOCIATED]).long()
    if not len(searched):
        return None
    p = belief(subject.logits, y)
    tables = [speaks_for(codes[:, j], p) for j in searched.tolist()]
    z, chance = _compared(subject, [codes[:, j] for j in searched.tolist()], tables, p, purpose)
    top = float(z.max())
    at = int((z >= SAME * top).nonzero()[0]) if top > 0 else int(z.argmax())
    best, table = int(searched[at]), tables[at]
    mine = codes[:, best]
    too_often = counted(mine, said, len(table.T)) - counted(mine, y, len(table.T))
    worst = int(too_often.where(table > 0, -torch.inf).argmax())
    return Leaning(
        best,
        p_value(top, chance),
        going_with(mine, said),
        going_with(mine, y),
        worst % len(table.T),
        worst // len(table.T),
        table[mine, said] - table[mine, y],
        searched,
        z,
    )


def belief(logits: Tensor, y: Tensor) -> Tensor:
    """Return the probabilities of a model whose confidence, and taste for each label, is corrected on these examples.

    Example:
        >>> logits, y = torch.tensor([[9.0, 0.0]] * 4 + [[0.0, 9.0]] * 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> belief(logits / 9, y)[0].round(decimals=2).tolist()
        [0.75, 0.25]
    """
    from scipy.optimize import minimize

    z, n = logits.double(), len(y)
    hot = torch.nn.functional.one_hot(y, z.shape[1]).double()

    def loss(values: object) -> tuple[float, object]:
        free = torch.as_tensor(values, dtype=torch.double)
        spread = (z * free[0].exp() + free[1:]).log_softmax(dim=1)
        off = spread.exp() - hot
        slope = torch.cat([(off * z).sum()[None] * free[0].exp() / n, off.mean(dim=0) + 2 * RIDGE * free[1:]])
        return float(-(spread * hot).sum() / n + RIDGE * free[1:].square().sum()), slope.numpy()

    bounds = [(log(LEAST_SCALE), log(100.0))] + [(None, None)] * z.shape[1]
    found = minimize(loss, [0.0] * (1 + z.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds)
    free = torch.as_tensor(found.x, dtype=torch.double)
    return (z * free[0].exp() + free[1:]).softmax(dim=1)


def speaks_for(codes: Tensor, p: Tensor) -> Tensor:
    """Return how much each bin of a property speaks for each label, ``(bins, labels)``, by what the model believes.

    Example:
        >>> p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> speaks_for(torch.tensor([0, 0, 1, 1]), p).exp().round(decimals=3).tolist()  # of 3/4 and 1/4
        [[1.167, 0.5], [0.833, 1.5]]
    """
    p = p.double()
    classes, share = p.shape[1], p.mean(dim=0)
    total = torch.zeros(int(codes.max()) + 1, classes, dtype=torch.double).index_add(0, codes, p)
    given = (total + classes * share) / (total.sum(dim=1, keepdim=True) + classes)
    return (given.clamp(min=1e-12) / share.clamp(min=1e-12)).log()


def going_with(codes: Tensor, labels: Tensor) -> float:
    """Return the association of a property and labels: Cramér's V without its bias."""
    return cramers_v(counted(codes, labels, int(labels.max()) + 1), corrected=True)


def counted(codes: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return how many examples of each label are in each bin, ``(bins, classes)``."""
    bins = int(codes.max()) + 1
    return torch.bincount(codes * classes + labels, minlength=bins * classes).view(bins, classes).double()


def told(subject: Subject, found: Leaning, codes: Tensor, where: str) -> str:
    """Say what the model says in a bin of a property, and what is true there; and everywhere else."""
    label = subject.split.groups.labels[found.label]
    parts = []
    for inside, word in (
        (codes == found.bin, f"{where}, the model says {label} of"),
        (codes != found.bin, "elsewhere of"),
    ):
        n = int(inside.sum())
        said, true = (int((v[inside] == found.label).sum()) for v in (subject.predicted, subject.y))
        parts.append(f"{word} {_share(said, n)}, and that is true of {_share(true, n)}")
    return (
        f"{'; '.join(parts)} (95 % intervals). Over all its values, the association with what the model says is "
        f"{found.with_said:.2f}, and with the label {found.with_label:.2f} (Cramér's V), p = {found.p:.3g}."
    )


def numbers(found: Leaning, count: int) -> dict[str, float]:
    """Return what was found, for machines; ``count`` is how many properties there were."""
    return {
        "z": float(found.z.max()), "gap": found.gap, "association_with_prediction": found.with_said,
        "association_with_label": found.with_label, "properties": float(count), "searched": float(len(found.z)),
    }  # fmt: skip


def clearest(subject: Subject, found: Leaning) -> Tensor:
    """Return a score by which the mistakes come first that a property speaks for most, the surest of equals first."""
    return found.toward + 1e-6 * subject.margin / (1 + subject.margin)


def by_bin(subject: Subject, found: Leaning, codes: Tensor, bins: Sequence[str], name: str) -> Figure:
    """Draw how often the model says a label in each bin of a property, and how often that is the label."""
    label = subject.split.groups.labels[found.label]
    n = torch.bincount(codes, minlength=len(bins))
    traces, lines = [], []
    for word, values, colour in (("says so", subject.predicted, "@bad"), ("is so", subject.y, "@arm1")):
        k = torch.bincount(codes[values == found.label], minlength=len(bins))
        share, (low, high) = k.double() / n, wilson(k, n)
        bars = {"array": (100 * (high - share)).tolist(), "arrayminus": (100 * (share - low)).tolist()}
        trace = {"type": "bar", "x": list(bins), "y": (100 * share).tolist(), "name": word, "marker": {"color": colour}}
        traces.append(trace | {"error_y": {"type": "data", "symmetric": False, "color": "@ink"} | bars})
        lines.append(f"{word} in " + ", ".join(f"{100 * float(v):.0f} %" for v in share))
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": name}, "type": "category"},
        "yaxis": {"title": {"text": f"% {label}"}, "rangemode": "tozero"},
    }
    said = f"From {' over '.join(bins)}: {'; '.join(lines)}"
    caption = "How often the model says so, and how often it is so, with 95 % intervals."
    alt = f"{label} by {name}. {said}."
    return Figure(f"{label}, by {name}", caption, {"data": traces, "layout": layout}, alt, 280)


def ranking(found: Leaning, names: Sequence[str], what: str, most: int = 8) -> Figure:
    """Draw the statistics of the properties that the model trusts most; ``what`` is what to call these."""
    order = found.z.argsort(descending=True, stable=True)[:most].flip(0)
    words, z = [names[int(found.searched[j])] for j in order], found.z[order].tolist()
    trace = {"type": "bar", "orientation": "h", "x": z, "y": words, "marker": {"color": "@arm1"}}
    layout = {"xaxis": {"title": {"text": "z"}}, "yaxis": {"automargin": True}}
    said = "; ".join(f"{word} {value:.1f}" for word, value in zip(reversed(words), reversed(z), strict=True))
    return Figure(
        f"The {what} that the model trusts most",
        "z: how much more they speak for what the model believes than for what is true, in deviations under chance.",
        {"data": [trace], "layout": layout},
        f"{what.capitalize()} by z: {said}.",
        80 + 28 * len(words),
    )


def _compared(
    subject: Subject, codes: list[Tensor], tables: list[Tensor], p: Tensor, purpose: str
) -> tuple[Tensor, Tensor]:
    """Return the statistic of each property, and the largest of each draw of the labels."""
    generator = subject.seeds.generator(purpose, "labels")

    def speaking(k: int) -> Tensor:
        """Return how much each property of each example speaks for a label, ``(N, P)``."""
        return torch.stack([table[mine, k] for mine, table in zip(codes, tables, strict=True)], dim=1)

    mean = square = torch.zeros(())
    for k in range(p.shape[1]):
        mean, square = mean + speaking(k) * p[:, k, None], square + speaking(k).square() * p[:, k, None]
    scale = (square - mean.square()).sum(dim=0).clamp(min=1e-12).sqrt()

    def statistics(labels: Tensor) -> Tensor:
        # a product per label: picking values one by one takes ten times as long
        true = sum((labels == k).double() @ speaking(k) for k in range(p.shape[1]))
        return (mean.sum(dim=0) - true) / scale

    chance, step = [], max(1, ROOM // len(subject))
    for start in range(0, subject.permutations, step):
        draws = min(step, subject.permutations - start)
        drawn = torch.multinomial(p, draws, replacement=True, generator=generator).T
        chance.append(statistics(drawn).amax(dim=1))
    return statistics(subject.y[None])[0], torch.cat(chance)


def _share(k: int, n: int) -> str:
    if not n:
        return "none"
    low, high = wilson(k, n)
    return f"{100 * k / n:.0f} % ({100 * float(low):.0f} to {100 * float(high):.0f})"
