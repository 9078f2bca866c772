r"""Deep Gamblers: an extra output lets the network abstain instead of betting on a class.

Liu, Wang, Liang, Salakhutdinov, Morency and Ueda, "Deep Gamblers: Learning to Abstain with Portfolio Theory",
NeurIPS 2019, arXiv:1907.00208. The softmax has one more output than there are classes, the reservation. A bet on the
correct class pays :math:`o`, and what is reserved pays 1:

.. math:: \min_\theta -\frac1N \sum_i \log\big( p_{y_i}(x_i) + p_{m+1}(x_i) / o \big)

At first the network is trained by cross-entropy, without the reservation, so that learning can start. The model
abstains from examples with a high reservation. The payoff must lie between 1 (everything is reserved) and the number of
classes (a bet spread over all classes is as good as the reservation).

Deviations:
    * The reservation is a separate linear layer, the submodule ``selector`` of the model, so that the model still has
      one logit per class. The function is the same as that of one layer with m + 1 outputs.
    * The score is the log odds of betting, :math:`\log((1 - p_{m+1}) / p_{m+1})`. It has the order of the
      reservation, and does not round to one value if the reservation is near 0.
    * The authors pretrain for 100 of 300 epochs; here it is that fraction of the training, whatever its length.
    * The authors choose o per coverage on validation; here one run has one o.

Sources:
    Loss and constants were taken from knowledge of the released code (Z-T-WANG/NIPS2019DeepGamblers) and compared with
    it. The full text of the paper could not be read: the bounds of o and how the authors choose it were not compared.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import MAX_NUMBER, CheckedConfig, FractionBelowOne, Range
from spurless.core.errors import SpurlessWarning
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class DeepGamblersConfig(CheckedConfig):
    """The payoff, and the fraction of training before betting."""

    payoff: Annotated[float, Range(1, MAX_NUMBER, above=True)] = 2.2  # o; --rewards
    pretrain: FractionBelowOne = 1 / 3  # fraction of the steps with cross-entropy; --pretrain 100 of --epochs 300


class DeepGamblers(ConfiguredMethod[DeepGamblersConfig]):
    """Train an extra output that abstains."""

    info = Info(
        "deep-gamblers",
        "Liu et al. 2019",
        "train an extra output that abstains if a bet on a class does not pay",
        score="selector",
        title="Deep Gamblers",
        fix="never",
    )
    presets: ClassVar[Mapping[str, DeepGamblersConfig]] = {
        "cifar10": DeepGamblersConfig(2.2, 1 / 3),
        "svhn": DeepGamblersConfig(2.2, 0.0),  # the authors' code pretrains on CIFAR-10 alone
        "two-classes": DeepGamblersConfig(1.5, 1 / 3),  # ours: half-way between the two bounds for two classes
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train by cross-entropy, then by the gamblers' loss; the returned model has a ``selector``."""
        payoff = self.config.payoff
        if payoff >= model.n_classes:
            warnings.warn(
                f"With {model.n_classes} classes and a payoff of {payoff:g} it never pays to abstain, so the "
                f"reservation learns little. Use a payoff between 1 and {model.n_classes}, or the preset two-classes.",
                SpurlessWarning,
                stacklevel=2,
            )
        with run.seeds.seed_global_rng("selector"):
            attach_reservation(model)
        loader = run.loader(data.train, shuffled_order(len(data.train), run.seeds.child("train")))
        total = run.train.steps or run.train.epochs * loader.steps()
        step = torch.zeros((), device=run.device)
        first = int(self.config.pretrain * total)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            logits: Tensor = network.head(features)
            reservation = cast(Reservation, network.selector).layer(features)
            bet = gamblers_loss(torch.cat([logits, reservation], dim=1), batch.y, payoff)
            loss = torch.where(step < first, cross_entropy(logits, batch.y), bet)
            step.add_(1)
            return loss

        minimise(model, loader, objective, run, Stage("train", memory={"step": step}, static=True))
        return model


class Reservation(nn.Module):
    """The output that abstains: from features and logits to the log odds of betting."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_features, 1)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return one score per example; higher is more confident."""
        reservation: Tensor = self.layer(features)
        return logits.logsumexp(dim=1) - reservation.squeeze(1)


def attach_reservation(model: Classifier) -> None:
    """Add an untrained reservation to a model as ``selector``; call it before loading weights that have one."""
    model.add_module("selector", Reservation(model.n_features).to(next(model.head.parameters())))


def gamblers_loss(outputs: Tensor, y: Tensor, payoff: float) -> Tensor:
    """Return the mean loss; the last output is the reservation.

    Example:
        >>> outputs = torch.tensor([[0.5, 0.25, 0.25]]).log()  # half on class 0, a quarter reserved
        >>> gamblers_loss(outputs, torch.tensor([0]), 2.0)  # -log(0.5 + 0.25 / 2)
        tensor(0.4700)
    """
    log_p = outputs.log_softmax(dim=1)
    correct = log_p.gather(1, y[:, None]).squeeze(1)
    # in logarithms, so that a confident incorrect bet has a large but finite loss
    return -torch.logaddexp(correct, log_p[:, -1] - math.log(payoff)).mean()
