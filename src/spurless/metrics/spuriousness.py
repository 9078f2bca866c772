r"""Spuriousness: how much more a feature is active where a model is wrong than where it is right.

Zheng, Ye and Zhang, "NeuronTune: Towards Self-Guided Spurious Bias Mitigation", 2025, arXiv:2505.24048, equations
5 and 6 and section 4.2.2. Of the examples of label :math:`y`, feature :math:`i` has the score

.. math:: \delta_i^y = \operatorname{median}_{\hat y \ne y} |v_i| - \operatorname{median}_{\hat y = y} |v_i| .

A feature is *biased* where a label gives it a score above a threshold. The sum of all :math:`|\delta_i^y|` is the
spuriousness fitness, SFit: how well the features tell mistakes from hits. The median of an even number of values is
the mean of the two in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from spurless.core.errors import BadInput

CHUNK = 256  # features that are sorted together


@dataclass(frozen=True)
class Scores:
    """The score of every feature by every label; NaN for a label without mistakes or without hits."""

    delta: Tensor
    """``(n_classes, d)``, float32"""
    mistakes: Tensor
    """How many examples of each label are wrong, ``(n_classes,)``."""
    hits: Tensor
    """How many are right."""

    @property
    def skipped(self) -> tuple[int, ...]:
        """The labels that have no score."""
        none = (self.mistakes == 0) | (self.hits == 0)
        return tuple(none.nonzero().flatten().tolist())


@dataclass(frozen=True)
class Neurons:
    """What NeuronTune found: the features that tell mistakes from hits, at the epoch that was kept."""

    scores: Scores
    """Of the model that was tuned in that epoch, before it."""
    suppressed: Tensor
    """True for the features that the model no longer reads, ``(d,)``."""
    labels: tuple[str, ...]
    epoch: int
    """The epoch that was kept, from 1."""
    fitness: tuple[float, ...]
    """SFit after every epoch."""
    activations: str = "absolute"

    @property
    def order(self) -> Tensor:
        """The features of each label, most biased first, ``(n_classes, d)``; of a label without scores as numbered."""
        return self.scores.delta.nan_to_num(nan=0.0).argsort(dim=1, descending=True, stable=True)

    def most_biased(self, label: int, count: int = 3) -> list[int]:
        """Return the features with the highest scores of a label, highest first."""
        return cast(list[int], self.order[label, :count].tolist())

    def least_biased(self, label: int, count: int = 3) -> list[int]:
        """Return the features with the lowest scores of a label, lowest first."""
        return cast(list[int], self.order[label].flip(0)[:count].tolist())

    def strength(self, features: Tensor) -> Tensor:
        """Return the activations as they were scored: their size, unless signed ones were asked for."""
        return features.abs() if self.activations == "absolute" else features

    def top_examples(self, features: Tensor, dim: int, count: int = 8, within: Tensor | None = None) -> list[int]:
        """Return the examples that activate a feature most, strongest first.

        Args:
            features: those of a split, ``(N, d)``.
            dim: the feature.
            count: how many at most.
            within: True for the examples to choose among, ``(N,)``; all by default.
        """
        strength = self.strength(features[:, dim])
        if within is not None:
            count = min(count, int(within.sum()))
            strength = torch.where(within, strength, -torch.inf)
        return cast(list[int], strength.argsort(descending=True, stable=True)[:count].tolist())

    def summary(self) -> dict[str, object]:
        """Return the few numbers that a record keeps; of each label three features and their scores."""
        return {
            "epoch": self.epoch,
            "suppressed": int(self.suppressed.sum()),
            "features": len(self.suppressed),
            "most_biased": {
                name: [[dim, float(self.scores.delta[c, dim])] for dim in self.most_biased(c)]
                for c, name in enumerate(self.labels)
                if c not in self.scores.skipped
            },
        }


class Ranked:
    """Features that are scored again and again, each time by other predictions; their order is worked out once.

    Where a label has ``m`` mistakes, their ranks are sorted and the medians of both parts are read off them, so that
    a call costs as much as the smaller part. Held are a sorted copy and the ranks: 8 bytes per number, 330 MB for
    20,000 x 2,048.

    Example:
        >>> ranked = Ranked(torch.tensor([[1.0], [2.0], [-4.0], [5.0]]), torch.zeros(4, dtype=torch.long), 1)
        >>> ranked.scores(torch.tensor([0, 0, 1, 1])).delta  # 4.5 - 1.5
        tensor([[3.]])
    """

    # Measured with 20,000 x 2,048 numbers, two labels, a tenth of them wrong, two busy cores: 3.4 s once and 0.26 s a
    # call; kthvalue on a transposed copy, half of the memory, takes 1.5 s a call. With 40 calls: 14 s against 60 s.

    def __init__(self, features: Tensor, y: Tensor, n_classes: int, *, absolute: bool = True) -> None:
        if features.dim() != 2 or len(features) != len(y):
            raise BadInput("features must be one row per label", expected=f"({len(y)}, d)", got=tuple(features.shape))
        y = y.to(features.device)
        self._y, self._d = y, features.shape[1]
        self._members = [(y == label).nonzero().flatten() for label in range(n_classes)]
        self._parts = [_ranked(features[rows].abs() if absolute else features[rows]) for rows in self._members]

    def scores(self, pred: Tensor) -> Scores:
        """Return the scores of every feature, by predicted labels ``(N,)``."""
        if pred.shape != self._y.shape:
            raise BadInput(
                "there must be one prediction per example", expected=tuple(self._y.shape), got=tuple(pred.shape)
            )
        wrong = pred.to(self._y.device) != self._y
        delta = torch.full((len(self._members), self._d), torch.nan)
        mistakes, sizes = (torch.zeros(len(self._members), dtype=torch.long) for _ in range(2))
        for label, (rows, (values, ranks)) in enumerate(zip(self._members, self._parts, strict=True)):
            here = wrong[rows]
            mistakes[label], sizes[label] = int(here.sum()), len(rows)
            if 0 < mistakes[label] < sizes[label]:
                delta[label] = _difference(values, ranks, here).cpu()
        return Scores(delta, mistakes, sizes - mistakes)


def spuriousness(features: Tensor, y: Tensor, pred: Tensor, n_classes: int, *, absolute: bool = True) -> Scores:
    """Return the score of every feature by every label.

    Args:
        features: what the head reads, ``(N, d)``.
        y: labels, ``(N,)``.
        pred: predicted labels, ``(N,)``.
        n_classes: how many labels there are, whether or not they all occur.
        absolute: whether it is the size of an activation that counts.

    Example:
        >>> features = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 2.0], [1.0, 1.0]])
        >>> found = spuriousness(features, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), 2)
        >>> found.delta  # nobody is wrong about label 1
        tensor([[5., 0.],
                [nan, nan]])
        >>> biased(found), sfit(found)
        (tensor([ True, False]), 5.0)
    """
    return Ranked(features, y, n_classes, absolute=absolute).scores(pred)


def biased(scores: Scores, threshold: float = 0.0) -> Tensor:
    """Return which features are biased: above the threshold by at least one label, equation 6; a mask ``(d,)``."""
    return (scores.delta > threshold).any(dim=0)


def sfit(scores: Scores) -> float:
    """Return the spuriousness fitness: the sum of the scores' sizes, over the labels that have any."""
    return float(scores.delta.double().abs().nansum())


def _ranked(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of every feature in ascending order, ``(d, n)``, and at which place each example lies."""
    columns = rows.T.contiguous()
    ranks = torch.empty_like(columns, dtype=torch.int32)
    places = torch.arange(columns.shape[1], dtype=torch.int32, device=rows.device)
    for part, rank in zip(torch.split(columns, CHUNK), torch.split(ranks, CHUNK), strict=True):
        values, order = part.sort(dim=1)  # the order takes twice the room of the values: some features at a time
        part.copy_(values)
        rank.scatter_(1, order, places.expand_as(order))
    return columns, ranks


def _difference(values: Tensor, ranks: Tensor, wrong: Tensor) -> Tensor:
    """Return the median of the mistakes minus that of the hits, of every feature."""
    few_are_wrong = 2 * int(wrong.sum()) <= len(wrong)
    few = (wrong if few_are_wrong else ~wrong).nonzero().flatten()
    places = ranks.index_select(1, few).sort(dim=1).values
    m, rest = len(few), len(wrong) - len(few)
    median_few = _mean_at(values, places[:, [(m - 1) // 2, m // 2]])
    # Number k of the rest lies at place k + j, where j of the few lie before it: those whose place, less their own
    # number, is at most k.
    ahead = places - torch.arange(m, dtype=torch.int32, device=places.device)
    k = torch.tensor([(rest - 1) // 2, rest // 2], dtype=torch.int32, device=places.device)
    k = k.expand(len(places), 2).contiguous()
    median_rest = _mean_at(values, k + torch.searchsorted(ahead, k, right=True))
    return median_few - median_rest if few_are_wrong else median_rest - median_few


def _mean_at(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places.long()).mean(dim=1)
