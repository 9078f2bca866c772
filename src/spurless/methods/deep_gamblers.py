r"""Deep Gamblers: let the network bet on the classes, or keep its money.

Liu, Wang, Liang, Salakhutdinov, Morency and Ueda, "Deep Gamblers: Learning to Abstain with Portfolio Theory",
NeurIPS 2019, arXiv:1907.00208. A softmax over the classes and one more output, the reservation, with a payoff
:math:`o` for money on the right class and 1 for money kept:

.. math:: \min_\theta -\frac1N \sum_i \log\big( p_{y_i}(x_i) + p_{m+1}(x_i) / o \big)

For a while the network is trained by cross-entropy, without the reservation, so that learning can start. Examples
of a high reservation are refused. The payoff must lie between 1 (all is kept) and the number of classes (a bet
spread over all of them is as good as keeping).

Deviations:
    * The reservation is a linear layer of its own beside the head, the submodule ``selector`` of the model, so that
      the model still has one logit per class. That is the same function as one layer with m + 1 outputs.
    * The score is the log odds of betting, :math:`\log((1 - p_{m+1}) / p_{m+1})`. It has the order of the
      reservation, and does not round to one value where the reservation is near 0.
    * The authors pretrain for 100 of 300 epochs; here it is that share of the training, whatever its length.
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
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.grouped import Batch, Splits
from spurless.data.loader import shuffled
from spurless.methods.base import Info
from spurless.models.classifier import Classifier
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class DeepGamblersConfig:
    """What a right bet pays, and how long to learn before betting."""

    payoff: float = 2.2  # o; --rewards
    pretrain: float = 1 / 3  # share of the steps with cross-entropy; --pretrain 100 of --epochs 300

    def __post_init__(self) -> None:
        if not 1 < self.payoff < math.inf:
            raise BadInput(
                "Deep Gamblers' payoff must be above 1 (at 1 a sure bet is worth no more than keeping the money)",
                got=self.payoff,
            )
        if not 0 <= self.pretrain < 1:
            raise BadInput(
                "Deep Gamblers' pretrain is a share of the training", expected="0 to under 1", got=self.pretrain
            )


DEEP_GAMBLERS_CIFAR10 = DeepGamblersConfig(2.2, 1 / 3)
DEEP_GAMBLERS_SVHN = DeepGamblersConfig(2.2, 0.0)
"""The authors' code pretrains on CIFAR-10 alone."""
DEEP_GAMBLERS_TWO_CLASSES = DeepGamblersConfig(1.5, 1 / 3)
"""Ours: half-way between the two bounds for two classes."""


class DeepGamblers:
    """Train an extra output to say how much not to bet."""

    info: ClassVar[Info] = Info(
        "deep-gamblers",
        "Liu et al. 2019",
        "an extra output learns when a bet on a class does not pay",
        score="selector",
    )
    presets: ClassVar[Mapping[str, DeepGamblersConfig]] = {
        "cifar10": DEEP_GAMBLERS_CIFAR10,
        "svhn": DEEP_GAMBLERS_SVHN,
        "two-classes": DEEP_GAMBLERS_TWO_CLASSES,
    }

    def __init__(self, config: DeepGamblersConfig = DEEP_GAMBLERS_CIFAR10) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train by cross-entropy, then by the gamblers' loss; the model leaves with a ``selector``."""
        payoff = self.config.payoff
        if payoff >= model.n_classes:
            warnings.warn(
                f"With {model.n_classes} classes and a payoff of {payoff:g} it never pays to abstain, so the "
                f"reservation learns little. Use a payoff between 1 and {model.n_classes}; "
                "the preset two-classes has one for two.",
                SpurlessWarning,
                stacklevel=2,
            )
        with run.seeds.borrowed("selector"):
            attach_reservation(model)
        loader = run.loader(data.train, shuffled(len(data.train), run.seeds.child("train")))
        total = run.train.steps or run.train.epochs * loader.steps()
        step = torch.zeros((), device=run.device)
        first = int(self.config.pretrain * total)

        def objective(model: nn.Module, batch: Batch) -> Tensor:
            network = cast(Classifier, model)
            features = network.features(batch.x)
            logits: Tensor = network.head(features)
            reserved = cast(Reservation, network.selector).layer(features)
            bet = gamblers_loss(torch.cat([logits, reserved], dim=1), batch.y, payoff)
            loss = torch.where(step < first, cross_entropy(logits, batch.y), bet)
            step.add_(1)
            return loss

        minimise(model, loader, objective, run, Stage("train", memory={"step": step}, static=True))
        return model


class Reservation(nn.Module):
    """The output that keeps money: from features and logits to the log odds of betting."""

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(n_features, 1)

    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return one score per example; higher is surer."""
        reserved: Tensor = self.layer(features)
        return logits.logsumexp(dim=1) - reserved.squeeze(1)


def attach_reservation(model: Classifier) -> None:
    """Give a model an untrained reservation as its ``selector``; do so before loading weights that have one."""
    model.add_module("selector", Reservation(model.n_features).to(next(model.head.parameters())))


def gamblers_loss(outputs: Tensor, y: Tensor, payoff: float) -> Tensor:
    """Return the mean loss of outputs of which the last is the reservation.

    Example:
        >>> outputs = torch.tensor([[0.5, 0.25, 0.25]]).log()  # half on class 0, a quarter kept
        >>> gamblers_loss(outputs, torch.tensor([0]), 2.0)  # -log(0.5 + 0.25 / 2)
        tensor(0.4700)
    """
    log_p = outputs.log_softmax(dim=1)
    right = log_p.gather(1, y[:, None]).squeeze(1)
    # in logarithms, so that a sure mistake costs much and never an infinity
    return -torch.logaddexp(right, log_p[:, -1] - math.log(payoff)).mean()
