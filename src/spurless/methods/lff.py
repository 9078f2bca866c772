r"""LfF: a network that may fail shows another one what to learn.

Nam, Cha, Ahn, Lee and Shin, "Learning from Failure: Training Debiased Classifier from Biased Classifier",
NeurIPS 2020, arXiv:2007.02561.

A biased network :math:`f_b` is trained with the generalised cross-entropy, which amplifies what is easy; a debiased
one :math:`f_d` is trained beside it, on the same batches, with more weight on what the first finds hard:

.. math:: \min \; \frac1m \sum_i \mathrm{GCE}_q(f_b(x_i), y_i) + \frac1m \sum_i W_i \, \ell(f_d(x_i), y_i),
    \qquad W_i = \frac{L_b(i)}{L_b(i) + L_d(i) + 10^{-8}},

with :math:`L_b(i)` and :math:`L_d(i)` the moving averages of the cross-entropy of example i under the two networks,
each divided by the largest average of its class. No attribute is needed: what fails stands in for what conflicts.

Deviations:
    * Both networks start from the weights of the given model; the authors draw them apart.
    * Where every average of a class is 0, so is its weight; the authors divide by that 0, and stop.
    * The authors watch the accuracy on the split that they report; which epoch is kept is decided on validation here,
      by the debiased network.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput
from spurless.data.grouped import Batch, Grouped, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier, Input
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.refusing import check_trainable
from spurless.train.run import Run
from spurless.train.step import Stage


def check_biased(who: str, q: float, decay: float) -> None:
    """Refuse settings of a biased network and of its memory that make no sense."""
    if not 0 < q <= 1:
        raise BadInput(f"{who}'s q is a share", expected="above 0 and at most 1", got=q)
    if not 0 <= decay < 1:
        raise BadInput(f"{who}'s decay is a share", expected="at least 0 and under 1", got=decay)


@dataclass(frozen=True)
class LfFConfig:
    """How much the biased network likes what is easy, and how slowly its losses are forgotten."""

    q: float = 0.7  # of the generalised cross-entropy; near 0 it is the cross-entropy
    decay: float = 0.7  # alpha of the moving averages

    def __post_init__(self) -> None:
        check_biased("LfF", self.q, self.decay)


LFF_COLORED_MNIST = LfFConfig()
LFF_CORRUPTED_CIFAR10 = LfFConfig()
LFF_CELEBA = LfFConfig()
LFF_BFFHQ = LfFConfig()
"""As DCWP runs it: arXiv:2210.05247, appendix E.2, has q = 0.7 in every experiment."""


class LfF:
    """Ask for no attribute: what a biased network fails on counts more."""

    info: ClassVar[Info] = Info("lff", "Nam et al. 2020", "weigh up what a network that loves shortcuts fails on")
    presets: ClassVar[Mapping[str, LfFConfig]] = {
        "colored-mnist": LFF_COLORED_MNIST,
        "corrupted-cifar10": LFF_CORRUPTED_CIFAR10,
        "celeba": LFF_CELEBA,
        "bffhq": LFF_BFFHQ,
    }

    def __init__(self, config: LfFConfig = LFF_COLORED_MNIST) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train both networks side by side and return the debiased one."""
        train, config = data.train, self.config
        failures = Failures.of(train, config.decay, run)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            pair = cast(Pair, model)
            own, other = pair.features(batch.x).chunk(2, dim=1)
            debiased, biased = pair.debiased.head(own), pair.biased.head(other)
            losses = cross_entropy(debiased, batch.y, reduction="none")
            weights = failures.weigh(batch, losses, cross_entropy(biased, batch.y, reduction="none"))
            return (weights * losses).mean() + generalised_cross_entropy(biased, batch.y, config.q).mean()

        pair = Pair(model, deepcopy(model))
        loader = run.loader(train, shuffled(len(train), run.seeds.child("train")))
        minimise(pair, loader, objective, run, Stage("train", memory=failures.memory, static=True))
        return model


class Pair(nn.Module):
    """Two networks that are trained together; the pair predicts as the debiased one, and so it is judged."""

    def __init__(self, debiased: Classifier, biased: Classifier) -> None:
        super().__init__()
        check_trainable(debiased)  # the other learns anyway, and the loop would not notice
        self.debiased, self.biased = debiased, biased

    def features(self, x: Input) -> Tensor:
        """Return the features of both, side by side."""
        return torch.cat([self.debiased.features(x), self.biased.features(x)], dim=1)

    def forward(self, x: Input) -> Tensor:
        """Return the logits of the debiased network."""
        logits: Tensor = self.debiased(x)
        return logits


@dataclass(frozen=True)
class Failures:
    """A memory of how two networks fared on every training example, and the weights that follow from it."""

    debiased: Tensor  # moving average of the loss of every example
    biased: Tensor
    seen: Tensor  # 1 where there is an average, 0 before
    y: Tensor
    n_classes: int
    decay: float
    run: Run

    @classmethod
    def of(cls, train: Grouped, decay: float, run: Run) -> Failures:
        """Return an empty memory of a split."""
        debiased, biased, seen = (torch.zeros(len(train), device=run.device) for _ in range(3))
        return cls(debiased, biased, seen, train.y.to(run.device), len(train.groups.labels), decay, run)

    @property
    def memory(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        return {"debiased": self.debiased, "biased": self.biased, "seen": self.seen}

    def weigh(self, batch: Batch, debiased: Tensor, biased: Tensor) -> Tensor:
        """Take the losses of a batch down, in place, and return the weight of each of its examples."""
        kept = self.decay * self.seen[batch.index]  # the first loss is taken as it is
        for average, losses in ((self.debiased, debiased), (self.biased, biased)):
            now = kept * average[batch.index] + (1 - kept) * losses.detach().float()
            self._put(average, batch.index, now)
        self._put(self.seen, batch.index, torch.ones_like(kept))
        return relative_difficulty(self.share(self.debiased, batch), self.share(self.biased, batch))

    def share(self, average: Tensor, batch: Batch) -> Tensor:
        """Return the averages of a batch, as shares of the largest of their class in the whole split."""
        largest = torch.zeros(self.n_classes, device=average.device).scatter_reduce(0, self.y, average, "amax")
        return average[batch.index] / largest.clamp(min=torch.finfo(average.dtype).tiny)[batch.y]

    def _put(self, table: Tensor, index: Tensor, values: Tensor) -> None:
        """Write values in place; with several processes, everybody's."""
        if self.run.world == 1:
            table.index_copy_(0, index, values)
        else:
            table.add_(self.run.sum(torch.zeros_like(table).index_copy(0, index, values - table[index])))


def relative_difficulty(debiased: Tensor, biased: Tensor) -> Tensor:
    """Return the share of the biased network in the difficulty: 1 for what only it finds hard, 0 for what it knows.

    Example:
        >>> relative_difficulty(torch.tensor([0.1, 0.5, 1.0]), torch.tensor([0.9, 0.5, 0.0]))
        tensor([0.9000, 0.5000, 0.0000])
    """
    return biased / (biased + debiased + 1e-8)
