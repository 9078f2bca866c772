r"""NeuronTune's spuriousness score: how much more a feature is active on incorrect than on correct predictions.

Zheng, Ye and Zhang, "NeuronTune: Towards Self-Guided Spurious Bias Mitigation", 2025, arXiv:2505.24048, equations
5 and 6 and section 4.2.2. Of the examples of label :math:`y`, feature :math:`i` has the score

.. math:: \delta_i^y = \operatorname{median}_{\hat y \ne y} |v_i| - \operatorname{median}_{\hat y = y} |v_i| .

A feature is *biased* if its score for at least one label is above a threshold. The sum of all :math:`|\delta_i^y|` is
the spuriousness fitness, SFit: how well the features separate incorrect from correct predictions. The median of an even
number of values is the mean of the two in the middle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from spurless.core.errors import InputError

FEATURES_PER_BATCH = 256  # features sorted together


@dataclass(frozen=True)
class Scores:
    """The score of every feature for every label; NaN if all predictions of a label are correct or incorrect."""

    delta: Tensor  # ``(n_classes, d)``, float32
    incorrect: Tensor  # number of incorrect predictions for each label, ``(n_classes,)``
    correct: Tensor  # number of correct predictions for each label, ``(n_classes,)``

    @property
    def skipped(self) -> tuple[int, ...]:
        """The labels without scores."""
        undefined = (self.incorrect == 0) | (self.correct == 0)
        return tuple(undefined.nonzero().flatten().tolist())


@dataclass(frozen=True)
class Neurons:
    """Result of NeuronTune at the selected epoch: the scores of the features, and which of them were suppressed."""

    scores: Scores  # scores before that epoch
    suppressed: Tensor  # true for the features that the model no longer uses, ``(d,)``
    labels: tuple[str, ...]
    epoch: int  # the selected epoch, from 1
    fitness: tuple[float, ...]  # SFit after every epoch
    activations: str = "absolute"

    @property
    def order(self) -> Tensor:
        """The features of each label, most biased first, ``(n_classes, d)``; in order for a label without scores."""
        return self.scores.delta.nan_to_num(nan=0.0).argsort(dim=1, descending=True, stable=True)

    def most_biased(self, label: int, count: int = 3) -> list[int]:
        """Return the features with the highest scores of a label, highest first."""
        return cast(list[int], self.order[label, :count].tolist())

    def least_biased(self, label: int, count: int = 3) -> list[int]:
        """Return the features with the lowest scores of a label, lowest first."""
        return cast(list[int], self.order[label].flip(0)[:count].tolist())

    def strength(self, features: Tensor) -> Tensor:
        """Return the activations that were scored: absolute values, unless ``activations`` is signed."""
        return features.abs() if self.activations == "absolute" else features

    def top_examples(self, features: Tensor, dim: int, count: int = 8, mask: Tensor | None = None) -> list[int]:
        """Return the indices of the examples in ``mask`` that activate feature ``dim`` most, strongest first."""
        strength = self.strength(features[:, dim])
        if mask is not None:
            count = min(count, int(mask.sum()))
            strength = torch.where(mask, strength, -torch.inf)
        return cast(list[int], strength.argsort(descending=True, stable=True)[:count].tolist())

    def summary(self) -> dict[str, object]:
        """Return the numbers for a record, among them three features of each label with their scores."""
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


class RankedFeatures:
    """Features that are sorted once, and can then be scored quickly for many sets of predictions.

    For a label with ``m`` incorrect predictions only their ranks are sorted, and the medians of both parts are read
    from them, so that a call costs as much as the smaller part. Memory: a sorted copy and the ranks, 8 bytes per value,
    330 MB for 20,000 x 2,048.

    Example:
        >>> ranked = RankedFeatures(torch.tensor([[1.0], [2.0], [-4.0], [5.0]]), torch.zeros(4, dtype=torch.long), 1)
        >>> ranked.scores(torch.tensor([0, 0, 1, 1])).delta  # 4.5 - 1.5
        tensor([[3.]])
    """

    def __init__(self, features: Tensor, y: Tensor, n_classes: int, *, absolute: bool = True) -> None:
        if features.dim() != 2 or len(features) != len(y):
            expected = f"({len(y)}, d)"
            raise InputError("features must have one row per label", expected=expected, got=tuple(features.shape))
        y = y.to(features.device)
        self._y, self._d = y, features.shape[1]
        self._members = [(y == label).nonzero().flatten() for label in range(n_classes)]
        self._parts = [_sort_features(features[rows].abs() if absolute else features[rows]) for rows in self._members]

    def scores(self, pred: Tensor) -> Scores:
        """Return the scores of every feature for predicted labels ``(N,)``."""
        if pred.shape != self._y.shape:
            expected, got = tuple(self._y.shape), tuple(pred.shape)
            raise InputError("there must be one prediction per example", expected=expected, got=got)
        incorrect = pred.to(self._y.device) != self._y
        delta = torch.full((len(self._members), self._d), torch.nan)
        n_incorrect, sizes = (torch.zeros(len(self._members), dtype=torch.long) for _ in range(2))
        for label, (rows, (values, ranks)) in enumerate(zip(self._members, self._parts, strict=True)):
            incorrect_rows = incorrect[rows]
            n_incorrect[label], sizes[label] = int(incorrect_rows.sum()), len(rows)
            if 0 < n_incorrect[label] < sizes[label]:
                delta[label] = _median_difference(values, ranks, incorrect_rows).cpu()
        return Scores(delta, n_incorrect, sizes - n_incorrect)


def spuriousness(features: Tensor, y: Tensor, pred: Tensor, n_classes: int, *, absolute: bool = True) -> Scores:
    """Return the score of every feature for every label.

    ``features`` are the inputs of the classification head, ``(N, d)``; ``n_classes`` counts labels that do not occur.

    Example:
        >>> features = torch.tensor([[0.0, 1.0], [0.0, 3.0], [5.0, 2.0], [1.0, 1.0]])
        >>> scores = spuriousness(features, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1]), 2)
        >>> scores.delta  # all predictions for label 1 are correct
        tensor([[5., 0.],
                [nan, nan]])
        >>> biased_features(scores), sfit(scores)
        (tensor([ True, False]), 5.0)
    """
    return RankedFeatures(features, y, n_classes, absolute=absolute).scores(pred)


def biased_features(scores: Scores, threshold: float = 0.0) -> Tensor:
    """Return the mask ``(d,)`` of features with a score above the threshold for at least one label, equation 6."""
    return (scores.delta > threshold).any(dim=0)


def sfit(scores: Scores) -> float:
    """Return the spuriousness fitness: the sum of the absolute scores over the labels that have scores."""
    return float(scores.delta.double().abs().nansum())


def _sort_features(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of every feature in ascending order, ``(d, n)``, and the rank of each example."""
    columns = rows.T.contiguous()
    ranks = torch.empty_like(columns, dtype=torch.int32)
    positions = torch.arange(columns.shape[1], dtype=torch.int32, device=rows.device)
    # the order takes twice the memory of the values, so only some features at a time
    batches = (torch.split(whole, FEATURES_PER_BATCH) for whole in (columns, ranks))
    for part, rank in zip(*batches, strict=True):
        values, order = part.sort(dim=1)
        part.copy_(values)
        rank.scatter_(1, order, positions.expand_as(order))
    return columns, ranks


def _median_difference(values: Tensor, ranks: Tensor, incorrect: Tensor) -> Tensor:
    """Return the median of the incorrect minus that of the correct examples, for every feature."""
    few_incorrect = 2 * int(incorrect.sum()) <= len(incorrect)
    smaller = (incorrect if few_incorrect else ~incorrect).nonzero().flatten()
    smaller_ranks = ranks.index_select(1, smaller).sort(dim=1).values
    m, n_rest = len(smaller), len(incorrect) - len(smaller)
    smaller_median = _mean_at(values, smaller_ranks[:, [(m - 1) // 2, m // 2]])
    # The k-th of the rest has rank k + j if j of the smaller part come before it, which are those whose rank minus
    # their own number is at most k.
    n_before = smaller_ranks - torch.arange(m, dtype=torch.int32, device=ranks.device)
    k = torch.tensor([(n_rest - 1) // 2, n_rest // 2], dtype=torch.int32, device=ranks.device)
    k = k.expand(len(ranks), 2).contiguous()
    rest_median = _mean_at(values, k + torch.searchsorted(n_before, k, right=True))
    return smaller_median - rest_median if few_incorrect else rest_median - smaller_median


def _mean_at(values: Tensor, ranks: Tensor) -> Tensor:
    return values.gather(1, ranks.long()).mean(dim=1)
