r"""MRM: learn which weights of a trained model to keep, reset them to their initial values, and train them again.

Zhang, Ahuja, Xu, Wang and Courville, "Can Subnetwork Structure be the Key to Out-of-Distribution Generalization?",
ICML 2021, arXiv:2106.02890. With the weights :math:`W` of ERM fixed, a mask is learned by the cross-entropy of the data
as they are, and a penalty (DCWP, Park et al., arXiv:2210.05247, equation 12):

.. math:: \min_\Theta \; \ell(m \odot W) + \lambda_1 \textstyle\sum \Theta, \qquad m \sim \mathrm{Bernoulli}(\Theta).

The subnetwork is then trained by ERM from its initial weights. Nothing in the method separates the shortcut from other
features, so the mask may keep it: MRM is the baseline of DCWP.

The subnetwork is trained for as long as the whole network was, with the same settings, unless ``steps`` is set: it
starts from initial weights, so the 1,000 steps of DCWP's retraining, which continues from trained weights, would be too
few. The authors of DCWP train it for 10,000 steps on Colored MNIST, as their ERM, and for 20,000 on Corrupted CIFAR-10.

Deviations:
    * The mask is learned as in DCWP, whose authors ran MRM in this way; we found no code of MRM's own authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from spurless.core.config import Count
from spurless.data.loader import shuffled_order, weighted_order
from spurless.data.split import Splits
from spurless.methods._learn_mask import (
    MaskTraining,
    check_prunable_model,
    check_resettable,
    copy_pruned,
    examples_per_snapshot,
    finish_pruning,
    learn_mask,
    reset,
)
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class MRMConfig(MaskTraining):
    """How the mask is learned, and how long the subnetwork is trained."""

    reset: bool = True  # train from the initial weights; False: continue from those of ERM
    steps: Count | None = None  # of training the subnetwork; None: as for the whole network


class MRM(ConfiguredMethod[MRMConfig]):
    """Learn a mask with the plain loss, and train the subnetwork from its initial weights."""

    info = Info(
        "mrm",
        "Zhang et al. 2021",
        "learn which weights to keep with the plain loss, then train those from their initial values",
        start="trained",
        title="MRM",
    )
    presets: ClassVar[Mapping[str, MRMConfig]] = {
        "colored-mnist": MRMConfig(),
        "corrupted-cifar10": MRMConfig(sparsity=1e-9, steps=20_000),  # twice as long as ERM
        "bffhq": MRMConfig(sparsity=1e-9, batch_size=64),
        "digits": MRMConfig(prune_steps=200, prune_lr=0.03, batch_size=64),
    }

    def check(self, model: Classifier, data: Splits) -> None:
        """Raise if weights cannot be pruned or, for ``reset``, if the initial weights are unknown."""
        check_prunable_model(model, data)
        if self.config.reset:
            check_resettable(model)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Learn a mask, prune, reset and train."""
        config, train = self.config, data.train
        length = examples_per_snapshot(config.prune_steps, config.batch_size)
        order = weighted_order(torch.ones(len(train)), run.seeds.child("prune"), length)
        snapshots = learn_mask(model, run.loader(train, order, config.batch_size), mean_loss, config, run)
        pruned = copy_pruned(model)
        model = reset(model, run) if config.reset else model
        train_config = run.train if config.steps is None else replace(run.train, steps=config.steps)
        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("retrain")))
        minimise(model, loader, mean_loss, run, Stage("retrain", train_config, static=True))
        return finish_pruning(model, None, snapshots, run, pruned)
