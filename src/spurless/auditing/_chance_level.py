r"""Test whether the model is better than chance; if it is not, its errors do not show a shortcut.

A model at chance level has learned no shortcut, but features still predict its errors, because they contain what it has
not learned. So the audits that compare errors are skipped. Chance level means predictions that are independent of the
example. With :math:`n_k` examples of label :math:`k`, :math:`m_k` predictions of it, and :math:`h_k` correct ones, the
statistic (the balanced accuracy, times the number of labels) and its mean over all permutations of the predictions are

.. math:: S = \sum_k h_k / n_k ,\qquad \operatorname{E} S = \frac1N \sum_k m_k ,

and its variance is that of Hoeffding's combinatorial sum. A model is better than chance if :math:`S` is more than 1.64
standard deviations above the mean (a false-positive rate of 5 %). A model that relies on its shortcut alone may be at
chance level on balanced held-out examples, so training examples are tested too. Without them, only a model that
predicts the same label for nearly every example is reported.

Hoeffding, "A Combinatorial Central Limit Theorem", Annals of Mathematical Statistics 22, 1951.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import torch
from torch import Tensor

from spurless.auditing._context import AuditContext
from spurless.data.split import Split
from spurless.train.evaluate import predict
from spurless.train.run import Run

LEVEL = 0.05  # false-positive rate of this test; independent of the level of the audit
MIN_CONSTANT_FRACTION = 0.95  # of equal predictions, from which a model may be at chance level without a test on train
N_TRAIN_EXAMPLES = 2000  # training examples to test, at least
EPSILON = 1e-9


def find_chance_level_reason(context: AuditContext, run: Run) -> str | None:
    """Return why the model is at chance level, as a clause; None if it is better or if this cannot be tested."""
    predicted, y = context.predicted, context.y
    if len(torch.unique(y)) < 2:
        return None
    mode = int(torch.bincount(predicted).argmax())
    fraction = float((predicted == mode).double().mean())
    if fraction == 1:
        return f"the model predicts {context.split.groups.labels[mode]!r} for every example"
    if beats_chance(predicted, y):
        return None
    if context.train is not None:
        return _test_on_train(context, context.train, run)
    return _describe(predicted, y, "these") if fraction >= MIN_CONSTANT_FRACTION else None


def beats_chance(predicted: Tensor, y: Tensor) -> bool:
    """Return whether the balanced accuracy is significantly above chance.

    Example:
        >>> y = torch.arange(20) % 2
        >>> beats_chance(y, y), beats_chance(torch.ones(20).long(), y), beats_chance(1 - y, y)
        (True, False, False)
    """
    n_classes = 1 + int(max(predicted.max(), y.max()))
    n, m, both = (torch.bincount(v, minlength=n_classes).double() for v in (y, predicted, y[predicted == y]))
    present, total = n > 0, len(y)
    weight = torch.where(present, 1 / n.clamp(min=1), 0.0)
    mean = float(m[present].sum()) / total**2
    centred = torch.diag(weight) - (weight * m / total)[:, None] - present.double()[None] / total + mean
    variance = float((n[:, None] * m[None] * centred**2).sum()) / max(1, total - 1)
    gain = float((weight * both).sum()) - mean * total
    return gain > NormalDist().inv_cdf(1 - LEVEL) * sqrt(variance) + EPSILON


def _test_on_train(context: AuditContext, train: Split, run: Run) -> str | None:
    sample = train.select(torch.arange(0, len(train), max(1, len(train) // N_TRAIN_EXAMPLES)))
    predicted, y = predict(context.model.to(run.device), sample, run.device, run.workers), sample.y.cpu()
    return None if len(torch.unique(y)) < 2 or beats_chance(predicted, y) else _describe(predicted, y, "training")


def _describe(predicted: Tensor, y: Tensor, which: str) -> str:
    labels = torch.unique(y)
    balanced = sum(float((predicted[y == label] == label).double().mean()) for label in labels) / len(labels)
    return (
        f"the model is not better than guessing: its balanced accuracy on {len(y):,} {which} examples is "
        f"{100 * balanced:.1f} %, and chance level is {100 / len(labels):.1f} %"
    )
