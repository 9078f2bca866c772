r"""Decide whether a repair is better than the old model beyond chance, on the same held-out examples.

A target is an accuracy over strata: the lowest of them, or their mean (groups, classes or inferred groups weighted
alike). Its change is estimated by a stratified bootstrap over examples: in a stratum of :math:`n` examples with joint
outcomes :math:`(o, o')` of the old and the new model, which have counts :math:`n_{oo'}`, the counts of a resample are
multinomial with

.. math:: p_{oo'} = \frac{n_{oo'} + \frac12 [o \ne o']}{n + 1} .

The half example of each kind of change keeps a stratum with few examples uncertain: without it, a change in all of 3
examples would be certain. A repair is accepted if the lower bound of the 95 % interval of a target is above 0, where
the level is divided by the number of targets and of methods that are compared, and if the accuracy with groups or
their substitutes weighted alike falls by at most the tolerance. The average of all examples may fall: most of them
agree with the shortcut, and the old model profits from it.

Targets, in this order:

1. Groups, if attributes are known: the worst group, where groups with fewer than 20 examples count as one. If these
   have fewer than 20 examples together, they cannot decide: then the mean over groups or the target of 2.
2. The accuracy under transplants, if the audit flags properties.
3. The worst class, the worst inferred group or the balanced accuracy, which must also rise by more than the average
   falls. Wrong labels can form an inferred group, so the worst class must not fall by more than the tolerance then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spurless.core.repairs import (
    BALANCED_ACCURACY,
    GROUP_MEAN,
    INFERRED_GROUP,
    ROUNDING_TOLERANCE,
    SMALL_GROUP,
    TRANSPLANTS,
    WORST_CLASS,
    WORST_GROUP,
    Accuracy,
    Change,
    Outcome,
    RepairScore,
)
from spurless.data.split import Split
from spurless.fixing.scores import SUSPECTED_VALUES, HeldOutExamples, Outputs, pool_small_groups
from spurless.train.transplant_accuracy import TransplantedExamples

DRAWS = 2000  # resamples of the bootstrap
SEED = 0
LEVEL = 0.05
INFERRED_MEAN = "the mean over inferred groups"

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Target:
    """An accuracy over strata of the held-out examples."""

    name: str
    stratum: Tensor  # number of the stratum of every row, ``(R,)``
    values: Callable[[Outputs], Tensor]  # correctness of every row, ``(R, variants)`` in [0, 1]
    lowest: bool = False  # whether the lowest stratum counts, or the mean over strata; of variants, the lowest

    def compute(self, values: Array) -> float:
        """Return the target from the correctness of every row."""
        stratum = self.stratum.numpy()
        means = np.stack([values[stratum == number].mean(axis=0) for number in np.unique(stratum)])
        return float(self.summarize(means))

    def summarize(self, means: Array) -> Array:
        """Return the target from means of strata, ``(..., strata, variants)``."""
        strata = means.min(axis=-2) if self.lowest else means.mean(axis=-2)
        lowest: Array = strata.min(axis=-1)
        return lowest


@dataclass(frozen=True)
class Judgement:
    """The outcome of an attempt, and the changes that decide it."""

    outcome: Outcome
    change: Change
    cost: Change


def judge_repair(
    examples: HeldOutExamples, old: Outputs, new: Outputs, tolerance: float, comparisons: int = 1
) -> Judgement:
    """Compare two models on the held-out examples.

    Args:
        examples: the held-out examples.
        old: outputs of the old model.
        new: outputs of the new model.
        tolerance: largest accepted fall of the accuracy with groups or their substitutes weighted alike.
        comparisons: number of methods that are compared.
    """
    targets = list_targets(examples)
    scores = examples.score(old), examples.score(new)
    n = comparisons * len(targets)
    changes = {}
    for target in targets:
        before, after = (score.targets[target.name] for score in scores)
        changes[target.name] = measure_change(target, old, new, n, (before, after))
    cost = measure_change(make_cost_target(examples), old, new)
    eligible = [name for name, change in changes.items() if change.is_improvement]
    if scores[0].evidence == "validation":
        minimum = _find_minimum_gains(*scores, tolerance)
        eligible = [name for name in eligible if changes[name].difference > minimum[name]]
    best = max(eligible or changes, key=lambda name: changes[name].difference)
    outcome: Outcome = "passed over" if eligible else "no better"
    if cost.difference < -tolerance - ROUNDING_TOLERANCE:
        outcome = "too costly"
    return Judgement(outcome, changes[best], cost)


def measure_change(
    target: Target,
    old: Outputs,
    new: Outputs,
    comparisons: int = 1,
    accuracies: tuple[Accuracy, Accuracy] | None = None,
) -> Change:
    """Return the change of a target with its interval; ``accuracies``: the target of both models, if they are known."""
    values = [target.values(part).double().numpy() for part in (old, new)]
    means = resample_means(values[0], values[1], target.stratum.numpy())
    draws = [target.summarize(part) for part in means]
    low, high = _find_interval(draws[1] - draws[0], comparisons)
    if accuracies is None:
        before, after = (
            Accuracy(target.compute(part), *_find_interval(drawn), len(target.stratum))
            for part, drawn in zip(values, draws, strict=True)
        )
        accuracies = before, after
    return Change(target.name, *accuracies, low, high)


def resample_means(old: Array, new: Array, stratum: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the means of every stratum in bootstrap resamples, ``(draws, strata, variants)`` of both models."""
    generator, variants = np.random.default_rng(SEED), old.shape[1]
    changes = np.concatenate([np.repeat([[1.0, 0.0]], variants, axis=1), np.repeat([[0.0, 1.0]], variants, axis=1)])
    parts = []
    for number in np.unique(stratum):
        rows = stratum == number
        outcomes, counts = np.unique(np.concatenate([old[rows], new[rows]], axis=1), axis=0, return_counts=True)
        n = int(counts.sum())
        p = np.concatenate([counts, [0.5, 0.5]]) / (n + 1)
        drawn = generator.multinomial(n, p / p.sum(), size=DRAWS)
        parts.append(drawn @ np.concatenate([outcomes, changes]) / n)
    means = np.stack(parts, axis=1)
    return means[..., :variants], means[..., variants:]


def list_targets(examples: HeldOutExamples) -> list[Target]:
    """Return the targets of which a repair must improve one."""
    moved = [] if examples.transplanted is None else [_make_transplant_target(examples.transplanted)]
    if examples.has_groups:
        groups = make_group_target(examples.split)
        return [groups] if groups.lowest else [*moved, groups]
    if moved:
        return moved
    y, inferred = examples.split.y.cpu(), _make_inferred_target(examples, INFERRED_GROUP, lowest=True)
    classes = Target(WORST_CLASS, y, _make_values(y), lowest=True)
    return [classes, *([] if inferred is None else [inferred]), replace(classes, name=BALANCED_ACCURACY, lowest=False)]


def make_group_target(split: Split, *, mean: bool = False) -> Target:
    """Return the worst group as the target, with small groups counted as one; the mean over groups if it is wanted.

    It is also the mean if small groups are too few even together. An example of several overlapping groups counts in
    each of them.
    """
    y, a = split.y.cpu(), split.a.cpu()
    row, group = split.groups.membership(y, a).nonzero(as_tuple=True)
    small, is_enough = pool_small_groups(torch.bincount(group, minlength=len(split.groups)))
    if mean or not is_enough:
        return Target(GROUP_MEAN, group, _make_values(y, row))
    pooled = torch.where(small[group], len(split.groups), group)
    return Target(WORST_GROUP, pooled, _make_values(y, row), lowest=True)


def make_cost_target(examples: HeldOutExamples) -> Target:
    """Return the accuracy that must not fall: groups, transplants, inferred groups or classes, weighted alike."""
    if examples.has_groups:
        return make_group_target(examples.split, mean=True)
    if examples.transplanted is not None:
        return _make_transplant_target(examples.transplanted)
    inferred = _make_inferred_target(examples, INFERRED_MEAN)
    y = examples.split.y.cpu()
    return Target(BALANCED_ACCURACY, y, _make_values(y)) if inferred is None else inferred


def _make_transplant_target(examples: TransplantedExamples) -> Target:
    def values(outputs: Outputs) -> Tensor:
        return torch.stack([outputs.transplanted[name].double().mean(dim=0) for name in examples.splits], dim=1)

    return Target(TRANSPLANTS, examples.y, values)


def _make_inferred_target(examples: HeldOutExamples, name: str, *, lowest: bool = False) -> Target | None:
    """Return the inferred groups that are large enough, or suspected examples and the others; None if those are few."""
    y, suspected = examples.split.y.cpu(), examples.suspected.long()
    group = y * len(SUSPECTED_VALUES) + suspected
    count = torch.bincount(group, minlength=len(examples.inferred_groups))
    if bool((count[1::2] >= SMALL_GROUP).any()):
        row = (count[group] >= SMALL_GROUP).nonzero().flatten()
        return Target(name, group[row], _make_values(y, row), lowest)
    return Target(name, suspected, _make_values(y), lowest) if int(suspected.sum()) >= SMALL_GROUP else None


def _make_values(y: Tensor, row: Tensor | None = None) -> Callable[[Outputs], Tensor]:
    """Return a function from outputs to the correctness of the examples ``row``, ``(R, 1)``; by default of all."""

    def values(outputs: Outputs) -> Tensor:
        correct = (outputs.predicted == y).double()
        return (correct if row is None else correct[row])[:, None]

    return values


def _find_interval(draws: Array, comparisons: int = 1) -> tuple[float, float]:
    tail = LEVEL / 2 / comparisons
    low, high = np.quantile(draws, tail, method="lower"), np.quantile(draws, 1 - tail, method="higher")
    return float(low), float(high)


def _find_minimum_gains(old: RepairScore, new: RepairScore, tolerance: float) -> Mapping[str, float]:
    """Return what a target must gain if groups are unknown: more than the average falls, so that noise is not learned.

    For the balanced accuracy it is also more than the worst class falls. An inferred group may consist of wrong labels,
    so it counts only if the worst class falls by at most the tolerance.
    """
    fall = max(0.0, old.average.value - new.average.value)
    class_fall = old.worst_class.value - new.worst_class.value
    return {
        WORST_CLASS: fall,
        INFERRED_GROUP: fall if class_fall <= tolerance + ROUNDING_TOLERANCE else inf,
        BALANCED_ACCURACY: max(fall, class_fall),
    }
