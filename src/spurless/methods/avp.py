r"""AVP: prune, a few at a time, the weights whose contribution varies least over the training data.

Malik and Fern, "Frequency based pruning improves latent identification and generalization", sections 3 and 4.1. The
activation variability of a weight is the variance of its contribution over the mean (definition 3.11),

.. math:: \kappa_{ij} = \frac{\sigma^2(w_{ij} x_j)}{|\overline{w_{ij} x_j}|},

and a low one is taken as the sign of a spurious feature. A network is overfitted, including wrong labels. Then pruning
and training alternate for 1,200 epochs: the weights with the lowest variability of all layers are pruned, with some
probability. The score does not use labels. Results are on the page "AVP" of the documentation.

Deviations:
    * The paper shows all epochs and selects none. Here the epoch with the highest validation accuracy is selected.
    * The absolute value of the mean is taken, and 1e-8 is added. In closed form the score is |w| var(x) / |mean(x)|:
      the magnitude of the weight, times a factor that all weights of the same input unit share.
    * Inputs that do not vary have the score 0, and their weights are never pruned, as in the authors' code
      (``skip_zeros``).
    * Convolutions, which neither paper nor code have: the input is a channel at a position of the kernel.
    * ``gaussians-authors`` follows the newest version of the authors' code: another score, ten candidates, all of them
      set to zero every ten epochs and free to grow again. They use AdamW while they prune; here the optimiser and the
      initial weights are the run's: theirs are scaled by the norm of each matrix, without biases.
    * The table of CelebA is empty in the paper, and learning rate and sparsity are not given: ``celeba`` prunes from
      epoch 10 of 50, as in the appendix; the target, its schedule and the floor are ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Splits
from spurless.methods._learn_mask import check_prunable_model
from spurless.methods._prune_loop import PruningConfig, prune_and_train
from spurless.methods.base import ConfiguredMethod, Info
from spurless.metrics.variability import Reading, variability
from spurless.models.classifier import Classifier
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.run import Run


@dataclass(frozen=True)
class AVPConfig(PruningConfig):
    """The variability score, and the settings of the pruning loop."""

    reading: Reading = "paper"
    """paper: variance over mean; minmax: standard deviation after scaling to 0..1, which ignores the magnitude"""
    skip_zeros: bool = True  # never prune a weight whose score is 0; authors' code


AVP_GAUSSIANS = AVPConfig()
AVP_GAUSSIANS_AUTHORS = AVPConfig(
    reading="minmax", candidates=10, probability=1.0, epochs=4010, epochs_between=10, regrow=True
)
AVP_CELEBA = AVPConfig(overfitted=False, epochs=50, start_epoch=10, target_sparsity=0.9, probability=1.0, floor=0.05)


class AVP(ConfiguredMethod[AVPConfig]):
    """Prune weights of low activation variability; no attributes."""

    info = Info(
        "avp",
        "Malik and Fern 2024",
        "prune the weights whose contribution varies least over the training data, and keep training",
        val_labels=True,
        start="trained",
        title="AVP",
    )
    presets: ClassVar[Mapping[str, AVPConfig]] = {
        "gaussians": AVP_GAUSSIANS,
        "gaussians-authors": AVP_GAUSSIANS_AUTHORS,
        "celeba": AVP_CELEBA,
    }

    check = staticmethod(check_prunable_model)

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Alternate pruning by variability and training."""
        train = data.train
        loader = Loader(train, sequential_order(len(train)), EVALUATION_BATCH, run.device, workers=run.workers)

        def score(network: Classifier, _: int) -> Mapping[str, Tensor]:
            with run.timed("variability"):
                scores = variability(network, (batch.x for batch in loader.batches()), self.config.reading)
            if not self.config.skip_zeros:
                return scores
            return {name: torch.where(values > 0, values, math.inf) for name, values in scores.items()}

        return prune_and_train(model, data, run, self.config, score)
