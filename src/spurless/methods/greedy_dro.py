r"""Greedy DRO: give the worst groups, up to a share alpha of the data, all the weight they may have.

Oren, Sagawa, Hashimoto and Liang, "Distributionally Robust Language Modeling", EMNLP 2019, arXiv:1909.02060, as Zhou,
Ma, Michel and Neubig run it, ICML 2021, arXiv:2106.07171: the conditional value at risk over groups,

.. math:: \min_\theta \max_q \sum_g q_g \, E[\ell(\theta; x, y) \mid g], \qquad q_g \le p_g / \alpha, \quad
    \sum_g q_g = 1,

with :math:`p_g` the share of group g. The maximum is found by sorting: groups in the order of a running average of
their losses get :math:`1 / \alpha` until the mass :math:`\alpha` is used; the group in which that happens gets what is
left. Every other group keeps the weight 0.1, which is the authors', so that no group is forgotten; the mean weight of
an example is then not 1 but between 1 and 1.1.

The data come as they are: the authors refuse to resample for this method, and resample for Group DRO.

Deviations:
    * The weights of a step are those after its own losses, as in the authors' code for texts. Their code for images
      uses those of the step before.
    * The running counts start at what the training data let expect, the authors' at 1. Groups that a batch lacks are
      counted, with 0, as in their code for images.
    * The group in which the mass ends gets at least 0.1 too, as in their code for images.
    * Losses are not compared with baselines (the authors' ``--baselines``, unused in their scripts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.methods.group_dro import group_means
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class GreedyDROConfig:
    """How much of the data is the worst case, and how fast the past is forgotten."""

    alpha: float = 0.2  # --alpha; --dro-alpha
    ema: float = 0.1  # what a batch counts in the running losses; --ema
    count_ema: float = 0.1  # and in the running counts; 0 keeps the shares of the training data
    floor: float = 0.1  # the weight of every group that is not among the worst

    def __post_init__(self) -> None:
        check_share("Greedy DRO's alpha", self.alpha)
        check_share("Greedy DRO's ema", self.ema)
        check_share("Greedy DRO's count_ema", self.count_ema, zero=True)
        check_share("Greedy DRO's floor", self.floor, zero=True)


def check_share(what: str, value: float, *, zero: bool = False) -> None:
    """Refuse what is no share."""
    if not (0 <= value <= 1 and (zero or value > 0)):
        raise BadInput(f"{what} is a share", expected="from 0 to 1" if zero else "above 0 and at most 1", got=value)


GREEDY_DRO_CELEBA = GreedyDROConfig()
GREEDY_DRO_MULTINLI = GreedyDROConfig(count_ema=0.05)
GREEDY_DRO_FDCL18 = GreedyDROConfig(count_ema=0.05)
"""No script of the authors runs it on FDCL18: these are the values of MultiNLI."""
GREEDY_DRO_PLANTED = GreedyDROConfig(alpha=0.05)
"""The share of the groups that conflict."""


class GreedyDRO:
    """Weigh the worst groups up, as far as their size allows."""

    info: ClassVar[Info] = Info(
        "greedy-dro",
        "Oren et al. 2019",
        "minimise the loss of the worst groups that make up a share of the data",
        train_attributes=True,
    )
    presets: ClassVar[Mapping[str, GreedyDROConfig]] = {
        "celeba": GREEDY_DRO_CELEBA,
        "multinli": GREEDY_DRO_MULTINLI,
        "fdcl18": GREEDY_DRO_FDCL18,
        "planted": GREEDY_DRO_PLANTED,
    }

    def __init__(self, config: GreedyDROConfig = GREEDY_DRO_CELEBA) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train on shuffled batches, weighed by group."""
        train = data.train
        g = train.g.to(run.device)
        worst = WorstGroups.of(train, self.config, run)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            losses = cross_entropy(model(batch.x), batch.y, reduction="none")
            return worst.mean(losses, g[batch.index])

        loader = run.loader(train, shuffled(len(train), run.seeds.child("train")))
        minimise(model, loader, objective, run, Stage("train", memory=worst.memory, static=True))
        return model


@dataclass(frozen=True)
class WorstGroups:
    """How every group fared of late, and the weights that follow from it."""

    losses: Tensor  # running average of each group's mean loss; 0 before the first
    counts: Tensor  # running average of each group's examples in a batch
    config: GreedyDROConfig
    run: Run

    @classmethod
    def of(cls, train: Grouped, config: GreedyDROConfig, run: Run) -> WorstGroups:
        """Return an empty memory of a split."""
        counts = (train.counts * (run.train.batch_size / len(train))).float().to(run.device)
        return cls(torch.zeros_like(counts), counts, config, run)

    @property
    def memory(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        return {"losses": self.losses, "counts": self.counts}

    def mean(self, losses: Tensor, g: Tensor) -> Tensor:
        """Take the losses of a batch down, in place, and return their mean, weighed by group."""
        n, known = len(self.losses), losses.detach().float()
        now = self.run.sum(group_means(known, g, n, self.run)) / self.run.world
        count = self.run.sum(torch.zeros(n, device=g.device).index_add(0, g, torch.ones_like(known)))
        self.losses.copy_(torch.where(count > 0, self.losses.lerp(now, self.config.ema), self.losses))
        self.counts.lerp_(count, self.config.count_ema)
        weights = greedy_weights(self.losses, self.counts / self.counts.sum(), self.config.alpha, self.config.floor)
        return (weights[g] * losses).mean()


def greedy_weights(losses: Tensor, shares: Tensor, alpha: float, floor: float = 0.0) -> Tensor:
    r"""Return what an example of each group weighs.

    With groups sorted by loss, worst first,

    .. math:: w_g = \max\left( \frac{\min(p_g, (\alpha - \sum_{h < g} p_h)_+)}{\alpha \, p_g}, floor \right).

    So :math:`\sum_g p_g w_g` is 1 where the floor is 0, and 1 + floor times the mass of the groups beyond alpha
    where the last of the worst is above the floor by itself.

    Example:
        >>> losses, shares = torch.tensor([0.2, 0.9, 0.5, 0.1]), torch.tensor([0.4, 0.1, 0.2, 0.3])
        >>> greedy_weights(losses, shares, alpha=0.2, floor=0.1)  # the second whole, half of the third
        tensor([0.1000, 5.0000, 2.5000, 0.1000])
    """
    order = losses.argsort(descending=True)
    mass = shares[order]
    used = (alpha - (mass.cumsum(0) - mass)).clamp(min=0).minimum(mass)
    weights = (used / (alpha * mass.clamp(min=torch.finfo(mass.dtype).tiny))).clamp(min=floor)
    return torch.zeros_like(weights).scatter(0, order, weights)
