r"""MRM: learn which weights of a trained model to keep, go back to the initial ones, and train what is left.

Zhang, Ahuja, Xu, Wang and Courville, "Can Subnetwork Structure be the Key to Out-of-Distribution Generalization?",
ICML 2021, arXiv:2106.02890. With the weights :math:`W` of ERM fixed, a mask is learned by the cross-entropy of the data
as they are, and a penalty (DCWP, Park et al., arXiv:2210.05247, equation 12):

.. math:: \min_\Theta \; \ell(m \odot W) + \lambda_1 \textstyle\sum \Theta, \qquad m \sim \mathrm{Bernoulli}(\Theta).

The subnetwork then begins anew from the initial weights, by ERM. Nothing in it knows of the shortcut, which the mask
keeps as gladly as anything else that fits: it is the twin that DCWP must beat.

The subnetwork is trained for as long as the whole net was, with the same settings, unless ``steps`` says otherwise: it
begins anew, so that the 1,000 steps of DCWP's retraining, which goes on from trained weights, would be too few. The
authors of DCWP train it for 10,000 on Colored MNIST, as their ERM, and for 20,000 on Corrupted CIFAR-10.

Deviations:
    * The mask is learned as DCWP learns it, and as its authors ran MRM; we found no code of MRM's own authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from spurless.core.errors import BadInput
from spurless.data.grouped import Splits
from spurless.data.loader import shuffled, weighted
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.methods.subnetwork import (
    Penalty,
    as_pruned,
    check_learning,
    finished,
    learn_mask,
    per_look,
    prunable,
    reset,
    resettable,
)
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class MRMConfig:
    """How the mask is learned, and how long the subnetwork is trained."""

    squashed: bool = True
    init: float = 1.5  # of every logit
    tau: float = 1.0  # of the soft sample
    penalty: Penalty = "signed"
    sparsity: float = 1e-8  # lambda_1, what the penalty counts
    prune_steps: int = 2000
    prune_lr: float = 1e-2  # of Adam
    batch_size: int = 256  # while the mask is learned
    reset: bool = True  # go back to the initial weights; False: go on from those of ERM
    steps: int | None = None  # of training the subnetwork; None: as the whole net was trained

    def __post_init__(self) -> None:
        check_learning(self, "MRM")
        if self.steps is not None and self.steps < 1:
            raise BadInput("MRM's steps must be at least 1", got=self.steps)


MRM_COLORED_MNIST = MRMConfig()
MRM_CORRUPTED_CIFAR10 = MRMConfig(sparsity=1e-9, steps=20_000)
"""Twice as long as ERM."""
MRM_BFFHQ = MRMConfig(sparsity=1e-9, batch_size=64)
MRM_DIGITS = MRMConfig(prune_steps=200, prune_lr=0.03, batch_size=64)


class MRM:
    """Prune by the loss that made the shortcut, and train again from the start."""

    info: ClassVar[Info] = Info(
        "mrm",
        "Zhang et al. 2021",
        "learn which weights to keep by the plain loss, then train those from their initial values",
        start="trained",
    )
    presets: ClassVar[Mapping[str, MRMConfig]] = {
        "colored-mnist": MRM_COLORED_MNIST,
        "corrupted-cifar10": MRM_CORRUPTED_CIFAR10,
        "bffhq": MRM_BFFHQ,
        "digits": MRM_DIGITS,
    }

    def __init__(self, config: MRMConfig = MRM_COLORED_MNIST) -> None:
        self.config = config

    def check(self, model: Classifier, data: Splits) -> None:
        """Refuse weights that cannot be pruned, and a way back that is not known."""
        prunable(model, data)
        if self.config.reset:
            resettable(model)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Prune, go back, train."""
        config, train = self.config, data.train
        order = weighted(
            torch.ones(len(train)), run.seeds.child("prune"), per_look(config.prune_steps, config.batch_size)
        )
        looks = learn_mask(model, train, order, mean_loss, config, run)
        pruned = as_pruned(model)
        model = reset(model, run) if config.reset else model
        settings = run.train if config.steps is None else replace(run.train, steps=config.steps)
        loader = run.loader(train, shuffled(len(train), run.seeds.child("retrain")))
        minimise(model, loader, mean_loss, run, Stage("retrain", settings, static=True))
        return finished(model, None, looks, run, pruned)
