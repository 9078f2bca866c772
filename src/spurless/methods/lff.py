r"""LfF: upweight the examples that a biased network gets wrong.

Nam, Cha, Ahn, Lee and Shin, "Learning from Failure: Training Debiased Classifier from Biased Classifier",
NeurIPS 2020, arXiv:2007.02561.

A biased network :math:`f_b` is trained with the generalised cross-entropy, which amplifies easy examples; a debiased
network :math:`f_d` is trained on the same batches, with more weight on examples that are hard for the first:

.. math:: \min \; \frac1m \sum_i \mathrm{GCE}_q(f_b(x_i), y_i) + \frac1m \sum_i W_i \, \ell(f_d(x_i), y_i),
    \qquad W_i = \frac{L_b(i)}{L_b(i) + L_d(i) + 10^{-8}},

with :math:`L_b(i)` and :math:`L_d(i)` the moving averages of the cross-entropy of example i under the two networks,
each divided by the largest average of its class. No attribute is used.

Deviations:
    * Both networks start from the weights of the given model; the authors initialise them separately.
    * If every average of a class is 0, so is its weight; the authors divide by that 0, and stop.
    * The authors' network for Colored MNIST divides images in [0, 1] by 255 again, as ``mlp`` does with
      ``divisor=255``.
    * The authors use the accuracy on the split that they report; here the epoch is selected on validation, by the
      debiased network.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import CheckedConfig, FractionBelowOne, PositiveFraction
from spurless.core.modules import Input
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.checks import check_trainable
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class LfFConfig(CheckedConfig):
    """The biased network's loss, and the moving averages."""

    q: PositiveFraction = 0.7  # of the generalised cross-entropy; near 0: the cross-entropy
    decay: FractionBelowOne = 0.7  # alpha of the moving averages


class LfF(ConfiguredMethod[LfFConfig]):
    """Upweight examples that a biased network gets wrong; no attributes."""

    info = Info("lff", "Nam et al. 2020", "upweight examples that a biased network gets wrong", title="LfF")
    presets: ClassVar[Mapping[str, LfFConfig]] = {
        "colored-mnist": LfFConfig(),
        "corrupted-cifar10": LfFConfig(),
        "celeba": LfFConfig(),
        "bffhq": LfFConfig(),  # as DCWP runs it: arXiv:2210.05247, appendix E.2, has q = 0.7 in every experiment
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train both networks on the same batches and return the debiased one."""
        train, config = data.train, self.config
        losses_so_far = LossHistory.of(train, config.decay, run)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            pair = cast(Pair, model)
            features, biased_features = pair.features(batch.x).chunk(2, dim=1)
            debiased, biased = pair.debiased.head(features), pair.biased.head(biased_features)
            losses = cross_entropy(debiased, batch.y, reduction="none")
            weights = losses_so_far.update(batch, losses, cross_entropy(biased, batch.y, reduction="none"))
            return (weights * losses).mean() + generalised_cross_entropy(biased, batch.y, config.q).mean()

        pair = Pair(model, deepcopy(model))
        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("train")))
        minimise(pair, loader, objective, run, Stage("train", memory=losses_so_far.memory, static=True))
        return model


class Pair(nn.Module):
    """Two networks that are trained together; the pair predicts, and is evaluated, as the debiased one."""

    def __init__(self, debiased: Classifier, biased: Classifier) -> None:
        super().__init__()
        check_trainable(debiased)  # the loop checks the pair, of which the biased network is always trainable
        self.debiased, self.biased = debiased, biased

    def features(self, x: Input) -> Tensor:
        """Return the concatenated features of both."""
        return torch.cat([self.debiased.features(x), self.biased.features(x)], dim=1)

    def forward(self, x: Input) -> Tensor:
        """Return the logits of the debiased network."""
        logits: Tensor = self.debiased(x)
        return logits


@dataclass(frozen=True)
class LossHistory:
    """Moving averages of two networks' losses on every training example, and the weights that follow from them."""

    debiased: Tensor  # moving average of the loss of every example
    biased: Tensor
    seen: Tensor  # 1 if the example has an average
    y: Tensor
    n_classes: int
    decay: float
    run: Run

    @classmethod
    def of(cls, train: Split, decay: float, run: Run) -> LossHistory:
        """Return the initial state for a split."""
        debiased, biased, seen = (torch.zeros(len(train), device=run.device) for _ in range(3))
        return cls(debiased, biased, seen, train.y.to(run.device), len(train.groups.labels), decay, run)

    @property
    def memory(self) -> dict[str, Tensor]:
        """The state that a checkpoint must contain."""
        return {"debiased": self.debiased, "biased": self.biased, "seen": self.seen}

    def update(self, batch: Batch, debiased: Tensor, biased: Tensor) -> Tensor:
        """Update the averages by the losses of a batch, in place, and return the weight of each of its examples."""
        decay = self.decay * self.seen[batch.index]  # 0 at the first loss of an example
        for average, losses in ((self.debiased, debiased), (self.biased, biased)):
            updated = decay * average[batch.index] + (1 - decay) * losses.detach().float()
            self._write(average, batch.index, updated)
        self._write(self.seen, batch.index, torch.ones_like(decay))
        return relative_difficulty(self.normalised(self.debiased, batch), self.normalised(self.biased, batch))

    def normalised(self, average: Tensor, batch: Batch) -> Tensor:
        """Return the averages of a batch, divided by the largest of their class in the whole split."""
        largest = torch.zeros(self.n_classes, device=average.device).scatter_reduce(0, self.y, average, "amax")
        return average[batch.index] / largest.clamp(min=torch.finfo(average.dtype).tiny)[batch.y]

    def _write(self, table: Tensor, index: Tensor, values: Tensor) -> None:
        """Write values in place; with several processes, those of all processes."""
        if self.run.world == 1:
            table.index_copy_(0, index, values)
        else:
            table.add_(self.run.sum(torch.zeros_like(table).index_copy(0, index, values - table[index])))


def relative_difficulty(debiased: Tensor, biased: Tensor) -> Tensor:
    """Return the weights of examples: 1 if hard only for the biased network, 0 if easy for it.

    Example:
        >>> relative_difficulty(torch.tensor([0.1, 0.5, 1.0]), torch.tensor([0.9, 0.5, 0.0]))
        tensor([0.9000, 0.5000, 0.0000])
    """
    return biased / (biased + debiased + 1e-8)
