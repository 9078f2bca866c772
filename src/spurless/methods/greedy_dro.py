r"""Greedy DRO: give the worst groups, up to a fraction alpha of the data, the largest allowed weight.

Oren, Sagawa, Hashimoto and Liang, "Distributionally Robust Language Modeling", EMNLP 2019, arXiv:1909.02060, as Zhou,
Ma, Michel and Neubig run it, ICML 2021, arXiv:2106.07171: the conditional value at risk over groups,

.. math:: \min_\theta \max_q \sum_g q_g \, E[\ell(\theta; x, y) \mid g], \qquad q_g \le p_g / \alpha, \quad
    \sum_g q_g = 1,

with :math:`p_g` the fraction of group g. The maximum is found by sorting: groups, by decreasing running average of
their losses, get :math:`1 / \alpha` until the mass :math:`\alpha` is used; the group at the boundary gets the
remainder. Every other group has the authors' floor of 0.1, so that no group is ignored; the mean weight of an example
is then between 1 and 1.1.

The data are not resampled: the authors resample for Group DRO, but not for this method.

Deviations:
    * The weights of a step use the losses of that step, as in the authors' code for texts. Their code for images uses
      those of the step before.
    * The running counts start at the expected counts of the training data, the authors' at 1. Groups that are absent
      from a batch are counted as 0, as in their code for images.
    * The group at the boundary has a weight of at least 0.1 too, as in their code for images.
    * Losses are not compared with baselines (the authors' ``--baselines``, unused in their scripts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, Fraction, PositiveFraction
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.group_dro import group_means
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class GreedyDROConfig(CheckedConfig):
    """The worst fraction of the data, and the moving averages."""

    alpha: PositiveFraction = 0.2  # --alpha; --dro-alpha
    ema: PositiveFraction = 0.1  # weight of a batch in the running losses; --ema
    count_ema: Fraction = 0.1  # and in the running counts; 0: the counts of the training data
    floor: Fraction = 0.1  # weight of every group that is not among the worst


class GreedyDRO(ConfiguredMethod[GreedyDROConfig]):
    """Give the worst groups the largest weight that their size allows."""

    info = Info(
        "greedy-dro",
        "Oren et al. 2019",
        "minimise the loss of the worst groups that make up a fraction of the data",
        train_attributes=True,
        title="Greedy DRO",
    )
    presets: ClassVar[Mapping[str, GreedyDROConfig]] = {
        "celeba": GreedyDROConfig(),
        "multinli": GreedyDROConfig(count_ema=0.05),
        # The authors have no script for FDCL18: these are the values of MultiNLI.
        "fdcl18": GreedyDROConfig(count_ema=0.05),
        "planted": GreedyDROConfig(alpha=0.05),  # alpha is the fraction of conflicting examples
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches, weighted by group."""
        train = data.train
        g = train.g.to(run.device)
        worst = WorstGroups.of(train, self.config, run)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            losses = cross_entropy(model(batch.x), batch.y, reduction="none")
            return worst.weighted_mean(losses, g[batch.index])

        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("train")))
        minimise(model, loader, objective, run, Stage("train", memory=worst.memory, static=True))
        return model


@dataclass(frozen=True)
class WorstGroups:
    """Running losses and counts of the groups, and the weights that follow from them."""

    losses: Tensor  # running average of each group's mean loss; initially 0
    counts: Tensor  # running average of each group's examples in a batch
    config: GreedyDROConfig
    run: Run

    @classmethod
    def of(cls, train: Split, config: GreedyDROConfig, run: Run) -> WorstGroups:
        """Return the initial state for a split."""
        counts = (train.counts * (run.train.batch_size / len(train))).float().to(run.device)
        return cls(torch.zeros_like(counts), counts, config, run)

    @property
    def memory(self) -> dict[str, Tensor]:
        """The state that a checkpoint must contain."""
        return {"losses": self.losses, "counts": self.counts}

    def weighted_mean(self, losses: Tensor, g: Tensor) -> Tensor:
        """Update the running losses by a batch, in place, and return the mean weighted by group."""
        n, values = len(self.losses), losses.detach().float()
        now = self.run.sum(group_means(values, g, n, self.run)) / self.run.world
        count = self.run.sum(torch.zeros(n, device=g.device).index_add(0, g, torch.ones_like(values)))
        self.losses.copy_(torch.where(count > 0, self.losses.lerp(now, self.config.ema), self.losses))
        self.counts.lerp_(count, self.config.count_ema)
        weights = greedy_weights(self.losses, self.counts / self.counts.sum(), self.config.alpha, self.config.floor)
        return (weights[g] * losses).mean()


def greedy_weights(losses: Tensor, fractions: Tensor, alpha: float, floor: float = 0.0) -> Tensor:
    r"""Return the weight of an example of each group.

    With groups sorted by loss, worst first,

    .. math:: w_g = \max\left( \frac{\min(p_g, (\alpha - \sum_{h < g} p_h)_+)}{\alpha \, p_g}, floor \right).

    So :math:`\sum_g p_g w_g` is 1 if the floor is 0; otherwise it is 1 + floor times the mass of the groups beyond
    alpha, if the weight of the group at the boundary is above the floor.

    Example:
        >>> losses, fractions = torch.tensor([0.2, 0.9, 0.5, 0.1]), torch.tensor([0.4, 0.1, 0.2, 0.3])
        >>> greedy_weights(losses, fractions, alpha=0.2, floor=0.1)  # all of the second, half of the third
        tensor([0.1000, 5.0000, 2.5000, 0.1000])
    """
    order = losses.argsort(descending=True)
    mass = fractions[order]
    used = (alpha - (mass.cumsum(0) - mass)).clamp(min=0).minimum(mass)
    weights = (used / (alpha * mass.clamp(min=torch.finfo(mass.dtype).tiny))).clamp(min=floor)
    return torch.zeros_like(weights).scatter(0, order, weights)
