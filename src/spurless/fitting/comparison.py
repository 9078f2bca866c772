"""Compare a repaired model with the model it started from, and warn if the repair made it worse on validation.

The protocol does this after training, so the method does not see the labels and attributes that are used here. A model
that was trained on validation is evaluated on its own training examples: if that is the fitted model, only large losses
are noticed; if it is the starting model, losses are overestimated.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from spurless.core.errors import SpurlessWarning
from spurless.core.groups import Groups
from spurless.data.split import Split
from spurless.models.classifier import Classifier
from spurless.models.features import compute_logits
from spurless.train.embed import backbone_hash, compute_features
from spurless.train.evaluate import logits
from spurless.train.run import Run

MAX_LOSS = 0.01  # accepted loss of accuracy: one point, as in ``fix``; other seeds often differ by as much
LEVEL = 0.05  # of the sign test, divided by the number of groups among which the worst is chosen
ROUNDING_TOLERANCE = 1e-9  # 0.90 - 0.89 is slightly above 0.01
HINT = "Keep the starting model, or run `spurless fix`, which keeps it unless a repair helps."


def warn_if_worse(fitted: Classifier, start: Classifier, val: Split, run: Run) -> None:
    """Warn if the fitted model is worse on validation than its starting point.

    Only the main process compares them. Both models may be moved to another device; their weights and the global random
    generators are not changed.
    """
    if not run.is_main:
        return
    with run.seeds.seed_global_rng("compare", device=run.device):  # restores the generators
        before, after = _predict_both(start, fitted, val, run)
    message = describe_loss(before, after, val)
    if message:
        warnings.warn(message, SpurlessWarning, stacklevel=2)


def describe_loss(before: Tensor, after: Tensor, val: Split) -> str:
    """Return a warning if the predictions ``after`` a repair are worse than those ``before`` it, else "".

    A loss is a fall of more than ``MAX_LOSS`` that is significant by :func:`sign_test`: of the worst group, or of the
    average. A lower average is the usual cost of a better worst group: there is no warning if the worst group rises by
    at least as much as the average falls. Examples with unknown attributes only count for the average; if all are
    unknown, the groups are the classes.
    """
    y, a, groups = val.y.cpu(), val.a.cpu(), val.groups
    was_correct, is_correct = before == y, after == y
    if not bool(groups.count(y, a).any()):
        groups = Groups(groups.labels)
    parts = _count_correct(was_correct, is_correct, y, a, groups)
    old, new = min(parts, key=lambda part: part.before), min(parts, key=lambda part: part.after)
    if _is_large(old.before - new.after) and new.p_value <= LEVEL / len(parts):
        kind = "group" if groups.attributes else "class"
        numbers = f"from {old.before:.1%} ({old.name!r}) to {new.after:.1%} ({new.name!r}, {new.n} examples)"
        return f"The worst-{kind} accuracy on validation fell {numbers}. {HINT}"
    everyone = torch.zeros_like(y)
    [whole] = _count_correct(was_correct, is_correct, everyone, everyone, Groups(("all",)))
    fall, rise = whole.before - whole.after, new.after - old.before
    if _is_large(fall) and rise < fall - ROUNDING_TOLERANCE and whole.p_value <= LEVEL:
        numbers = f"from {whole.before:.1%} to {whole.after:.1%} ({whole.n} examples)"
        return f"The average accuracy on validation fell {numbers}. {HINT}"
    return ""


def sign_test(n_lost: int, n_gained: int) -> float:
    """Return the probability of at least ``n_lost`` losses if every change is a loss or a gain with equal probability.

    This is the exact one-sided McNemar test of two models on the same examples: a loss is an example that only the
    first model predicts correctly, a gain one that only the second does.

    Example:
        >>> sign_test(3, 1)  # (4 + 1) / 2 ** 4
        0.3125
    """
    from scipy.stats import binom

    return float(binom.sf(n_lost - 1, n_lost + n_gained, 0.5))


class _Correct(NamedTuple):
    """Correct predictions of two models on the same examples."""

    name: str
    n: int
    n_before: int
    n_after: int
    n_lost: int  # examples that only the first model predicts correctly

    @property
    def before(self) -> float:
        return self.n_before / self.n

    @property
    def after(self) -> float:
        return self.n_after / self.n

    @property
    def p_value(self) -> float:
        return sign_test(self.n_lost, self.n_after - self.n_before + self.n_lost)


def _count_correct(was_correct: Tensor, is_correct: Tensor, y: Tensor, a: Tensor, groups: Groups) -> list[_Correct]:
    """Return the correct predictions in every group that is not empty."""
    selections = torch.ones_like(was_correct), was_correct, is_correct, was_correct & ~is_correct
    columns = (groups.count(y[rows], a[rows]).tolist() for rows in selections)
    return [_Correct(*row) for row in zip(groups.names, *columns, strict=True) if row[1]]


def _is_large(loss: float) -> bool:
    return loss > MAX_LOSS + ROUNDING_TOLERANCE


def _predict_both(start: Classifier, fitted: Classifier, val: Split, run: Run) -> tuple[Tensor, Tensor]:
    """Return the labels that both models predict; if only the head was changed, the features are computed once."""
    models = start, fitted
    if backbone_hash(start) == backbone_hash(fitted):
        features = compute_features(start, val, run)  # cached if the method used them
        before, after = (compute_logits(model.to("cpu"), features) for model in models)
    else:
        before, after = (logits(model.to(run.device), val, run.device, run.workers) for model in models)
    return before.argmax(dim=1), after.argmax(dim=1)
