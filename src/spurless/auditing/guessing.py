r"""Guessing: has the model learnt anything that a shortcut could explain?

A shortcut is learnt because it pays in training. A model that says the same of every example follows nothing that it
sees, and one that does no better than guessing, neither where it is asked nor where it was trained, has been paid for
nothing. Features foresee the mistakes of such a model all the same: they hold what it has not learnt. So questions
about what mistakes share show no use there, and the audit says why.

To guess is to answer without regard to the example. However often each label is then said, accuracy with every one of
the :math:`K` labels counted alike is :math:`1 / K` on average; plain accuracy would not do, since a model that treats
rare labels fairly may be right less often than one that never says them. With :math:`n_k` examples of label :math:`k`,
:math:`m_k` of which the model says it, and :math:`h_k` where both are so, the statistic and its mean over all ways to
deal the same answers out anew are

.. math:: S = \sum_k h_k / n_k ,\qquad \operatorname{E} S = \frac1N \sum_k m_k ,

and its variance is that of Hoeffding's combinatorial sum. A model gains where :math:`S` is more than 1.64 deviations
above: chance does so in 5 %.

A model that lives by its shortcut alone may be no better than guessing on held-out examples that are balanced on
purpose, and yet leans: it is better on train, which is looked at before anything is said. Where no training examples
are at hand, only a model that says the same of nearly every example is said to guess.

It cannot tell a model that was stopped too early from one that learnt a shortcut, once it is better than guessing; and
an untrained net may be so by luck.

Hoeffding, "A Combinatorial Central Limit Theorem", Annals of Mathematical Statistics 22, 1951.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from spurless.auditing.subject import Subject
from spurless.data.grouped import Grouped
from spurless.train.evaluate import predict
from spurless.train.run import Run

LEVEL = 0.05
"""How often a model that gains nothing may pass for one that does; not that of the audit, which a user may lower."""
NEARLY = 0.95
"""Share of one answer from which on a model says the same of nearly every example."""
SEEN = 2000
"""Training examples that are looked at, at least."""
TINY = 1e-9


def no_better(subject: Subject, run: Run) -> str | None:
    """Say in which way a model is no better than guessing, as half a sentence; None where it is, or nobody can tell."""
    said, y = subject.predicted, subject.y
    if len(torch.unique(y)) < 2:
        return None  # every answer is a guess there
    most = int(torch.bincount(said).argmax())
    share = float((said == most).double().mean())
    if share == 1:
        return f"the model says {subject.split.groups.labels[most]!r} of every example"
    if gains(said, y):
        return None
    if subject.train is not None:
        return _on_train(subject, subject.train, run)
    return _compared(said, y, "these") if share >= NEARLY else None


def gains(said: Tensor, y: Tensor) -> bool:
    """Return whether answers are right more often than guesses, with every label counted alike.

    Example:
        >>> y = torch.arange(20) % 2
        >>> gains(y, y), gains(torch.ones(20).long(), y), gains(1 - y, y)
        (True, False, False)
    """
    classes = 1 + int(max(said.max(), y.max()))
    n, m, both = (torch.bincount(part, minlength=classes).double() for part in (y, said, y[said == y]))
    there, total = n > 0, len(y)
    worth = torch.where(there, 1 / n.clamp(min=1), 0.0)
    mean = float(m[there].sum()) / total**2
    apart = torch.diag(worth) - (worth * m / total)[:, None] - there.double()[None] / total + mean
    variance = float((n[:, None] * m[None] * apart**2).sum()) / max(1, total - 1)
    gain = float((worth * both).sum()) - mean * total
    return gain > NormalDist().inv_cdf(1 - LEVEL) * sqrt(variance) + TINY


def _on_train(subject: Subject, train: Grouped, run: Run) -> str | None:
    some = train.select(torch.arange(0, len(train), max(1, len(train) // SEEN)))
    said, y = predict(subject.model.to(run.device), some, run.device, run.workers), some.y.cpu()
    return None if len(torch.unique(y)) < 2 or gains(said, y) else _compared(said, y, "training")


def _compared(said: Tensor, y: Tensor, which: str) -> str:
    labels = torch.unique(y)
    right = sum(float((said[y == label] == label).double().mean()) for label in labels) / len(labels)
    return (
        f"the model is no better than guessing, as far as {len(y):,} {which} examples tell: with every label counted "
        f"alike it is right in {100 * right:.1f} %, and who guesses in {100 / len(labels):.1f} %"
    )
