"""JTT: train, keep the mistakes, train again on more of them.

Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, "Just Train Twice: Improving Group Robustness without
Training Group Information", ICML 2021, arXiv:2107.09044, Algorithm 1.

Deviations:
    * The authors append the mistakes to the data ``upweight`` times; we draw each ``1 + upweight`` times as often as
      the rest, which is the same in expectation and keeps the length of an epoch.
    * The first stage runs with the settings of the second; the authors' first stage has its own learning rate and
      weight decay on some datasets.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.grouped import Splits
from spurless.data.loader import shuffled, weighted
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class JTTConfig:
    """When to look for mistakes, and how much more to see of them."""

    first_epochs: int = 60  # T; --final_epoch
    upweight: float = 100.0  # lambda_up; --up_weight

    def __post_init__(self) -> None:
        if self.first_epochs < 1:
            raise BadInput("JTT's first_epochs must be at least 1", got=self.first_epochs)
        if not self.upweight >= 0:
            raise BadInput("JTT's upweight must not be negative", got=self.upweight)


JTT_DIGITS = JTTConfig(2, 50.0)
"""For the embedded digit sets, chosen on their validation splits: benchmarks/records/jtt_digits.json."""
JTT_WATERBIRDS = JTTConfig(60, 100.0)
JTT_CELEBA = JTTConfig(1, 50.0)
JTT_MULTINLI = JTTConfig(2, 4.0)
JTT_CIVILCOMMENTS = JTTConfig(2, 6.0)


class JTT:
    """Ask for no attribute: the mistakes of a first, short training stand in for the minority."""

    info: ClassVar[Info] = Info("jtt", "Liu et al. 2021", "train, keep the mistakes, train again on more of them")
    presets: ClassVar[Mapping[str, JTTConfig]] = {
        "digits": JTT_DIGITS,
        "waterbirds": JTT_WATERBIRDS,
        "celeba": JTT_CELEBA,
        "multinli": JTT_MULTINLI,
        "civilcomments": JTT_CIVILCOMMENTS,
    }

    def __init__(self, config: JTTConfig = JTT_DIGITS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Run both stages from the same initial weights."""
        train = data.train
        scout = deepcopy(model)
        first = replace(run.train, epochs=self.config.first_epochs, steps=None)
        order = shuffled(len(train), run.seeds.child("scout"))
        minimise(scout, run.loader(train, order), mean_loss, run, Stage("scout", first, static=True, select=False))

        wrong = predict(scout, train, run.device, run.workers) != train.y
        if not bool(wrong.any()):
            warnings.warn(
                f"JTT found no mistake after {self.config.first_epochs} epochs, so its second stage is plain ERM. "
                "Look earlier (fewer first_epochs), or train the first stage less well (lower --lr).",
                SpurlessWarning,
                stacklevel=2,
            )
        weights = torch.where(wrong, 1.0 + self.config.upweight, 1.0)
        order = weighted(weights, run.seeds.child("train"))
        minimise(model, run.loader(train, order), mean_loss, run, Stage("train", static=True))
        return model
