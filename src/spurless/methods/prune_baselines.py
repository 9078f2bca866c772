"""Random and magnitude pruning: the loop of AVP with another score, as baselines of AVP.

Random pruning is the baseline of Malik and Fern, "Frequency based pruning improves latent identification and
generalization", section 4.1. Magnitude pruning is the standard score (Han, Pool, Tran and Dally, "Learning both
Weights and Connections for Efficient Neural Networks", NeurIPS 2015, arXiv:1506.02626), here a few weights at a time.

Deviations:
    * The authors' random choice may select a weight that is pruned already; here it is among the others.
    * For its Table 1 the paper removes "a fixed percentage of features each epoch", and gives no percentage. ``celeba``
      prunes weights, towards the target of AVP and on its schedule, which prunes most at first; ``schedule="linear"``
      prunes the same number in every epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from spurless.data.split import Splits
from spurless.methods._learn_mask import check_prunable_model
from spurless.methods._prune_loop import PruningConfig, prune_and_train
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import named_weight_layers
from spurless.train.run import Run

PRUNE_GAUSSIANS = PruningConfig()
PRUNE_CELEBA = PruningConfig(
    overfitted=False, epochs=50, start_epoch=10, target_sparsity=0.9, probability=1.0, floor=0.05
)
"""As AVP's, so that only the score differs."""


class _Pruning(ConfiguredMethod[PruningConfig]):
    presets: ClassVar[Mapping[str, PruningConfig]] = {"gaussians": PRUNE_GAUSSIANS, "celeba": PRUNE_CELEBA}
    check = staticmethod(check_prunable_model)


class RandomPrune(_Pruning):
    """Prune random weights."""

    info = Info(
        "random-prune",
        "Malik and Fern 2024",
        "prune weights at random, and keep training",
        val_labels=True,
        start="trained",
        title="Random pruning",
        fix="never",
    )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Alternate random pruning and training."""

        def score(network: Classifier, epoch: int) -> Mapping[str, Tensor]:
            generator = run.seeds.generator("random", epoch)
            return {
                name: torch.rand(layer.weight.shape, generator=generator, dtype=torch.double).to(run.device)
                for name, layer in named_weight_layers(network)
            }

        return prune_and_train(model, data, run, self.config, score)


class MagnitudePrune(_Pruning):
    """Prune the smallest weights."""

    info = Info(
        "magnitude-prune",
        "Han et al. 2015",
        "prune the smallest weights of all layers together, and keep training",
        val_labels=True,
        start="trained",
        title="Magnitude pruning",
        fix="never",
    )

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Alternate pruning of the smallest weights and training."""

        def score(network: Classifier, _: int) -> Mapping[str, Tensor]:
            return {name: layer.weight.detach().abs() for name, layer in named_weight_layers(network)}

        return prune_and_train(model, data, run, self.config, score)
