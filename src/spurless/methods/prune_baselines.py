"""Random and magnitude pruning: the loop of AVP with another choice, the twins that it must beat.

Random pruning is the baseline of Malik and Fern, "Frequency based pruning improves latent identification and
generalization", section 4.1. Magnitude pruning is the oldest choice there is (Han, Pool, Tran and Dally, "Learning both
Weights and Connections for Efficient Neural Networks", NeurIPS 2015, arXiv:1506.02626), here a few at a time.

Deviations:
    * The authors' random choice may hit a weight that is pruned already; here it is among those that are left.
    * For its Table 1 the paper removes "a fixed percentage of features each epoch", and names no percentage. ``celeba``
      prunes weights, towards the target of AVP and on its schedule, which prunes most at first; ``schedule="linear"``
      prunes as many in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from spurless.data.grouped import Splits
from spurless.methods.base import Info
from spurless.methods.pruning_loop import PruningConfig, prune_and_train
from spurless.methods.subnetwork import prunable
from spurless.models.classifier import Classifier
from spurless.models.masks import weight_layers
from spurless.train.run import Run

PRUNE_GAUSSIANS = PruningConfig()
PRUNE_CELEBA = PruningConfig(
    overfitted=False, epochs=50, start_epoch=10, target_sparsity=0.9, probability=1.0, floor=0.05
)
"""As AVP's, so that the two are alike but for the choice."""


class RandomPrune:
    """Prune whatever the die says."""

    info: ClassVar[Info] = Info(
        "random-prune",
        "Malik and Fern 2024",
        "prune weights at random, and train on",
        val_labels=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, PruningConfig]] = {"gaussians": PRUNE_GAUSSIANS, "celeba": PRUNE_CELEBA}

    def __init__(self, config: PruningConfig = PRUNE_GAUSSIANS) -> None:
        self.config = config

    check = staticmethod(prunable)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Prune at random and train, by turns."""

        def score(network: Classifier, epoch: int) -> Mapping[str, Tensor]:
            die = run.seeds.generator("random", epoch)
            return {
                name: torch.rand(layer.weight.shape, generator=die, dtype=torch.double).to(run.device)
                for name, layer in weight_layers(network)
            }

        return prune_and_train(model, data, run, self.config, score)


class MagnitudePrune:
    """Prune what is small."""

    info: ClassVar[Info] = Info(
        "magnitude-prune",
        "Han et al. 2015",
        "prune the smallest weights of all layers together, and train on",
        val_labels=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, PruningConfig]] = {"gaussians": PRUNE_GAUSSIANS, "celeba": PRUNE_CELEBA}

    def __init__(self, config: PruningConfig = PRUNE_GAUSSIANS) -> None:
        self.config = config

    check = staticmethod(prunable)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Prune the smallest and train, by turns."""

        def score(network: Classifier, _: int) -> Mapping[str, Tensor]:
            return {name: layer.weight.detach().abs() for name, layer in weight_layers(network)}

        return prune_and_train(model, data, run, self.config, score)
