"""JTT: train briefly, then train again with misclassified examples upweighted.

Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, "Just Train Twice: Improving Group Robustness without
Training Group Information", ICML 2021, arXiv:2107.09044, Algorithm 1.

Deviations:
    * The authors append the misclassified examples to the data ``upweight`` times; here each is sampled
      ``1 + upweight`` times as often as the others, which is the same in expectation and keeps the length of an epoch.
    * The first stage has the settings of the second; the authors' first stage has its own learning rate and weight
      decay on some datasets.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from spurless.core.config import CheckedConfig, Count, NotNegative
from spurless.core.errors import SpurlessWarning
from spurless.data.loader import shuffled_order, weighted_order
from spurless.data.split import Splits
from spurless.methods.base import ConfiguredMethod, Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class JTTConfig(CheckedConfig):
    """Length of the first stage, and weight of its misclassified examples."""

    first_epochs: Count = 60  # T; --final_epoch
    upweight: NotNegative = 100.0  # lambda_up; --up_weight


class JTT(ConfiguredMethod[JTTConfig]):
    """Upweight examples that a first, short training misclassifies; no attributes."""

    info = Info(
        "jtt", "Liu et al. 2021", "train briefly, then train again with misclassified examples upweighted", title="JTT"
    )
    presets: ClassVar[Mapping[str, JTTConfig]] = {
        # For the embedded digit datasets, chosen on their validation splits:
        # benchmarks/records/jtt_digits.json.
        "digits": JTTConfig(2, 50.0),
        "waterbirds": JTTConfig(60, 100.0),
        "celeba": JTTConfig(1, 50.0),
        "multinli": JTTConfig(2, 4.0),
        "civilcomments": JTTConfig(2, 6.0),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train both stages from the same initial weights."""
        train = data.train
        first_model = deepcopy(model)
        first_config = replace(run.train, epochs=self.config.first_epochs, steps=None)
        loader = run.loader(train, shuffled_order(len(train), run.seeds.child("scout")))
        minimise(first_model, loader, mean_loss, run, Stage("scout", first_config, static=True, select=False))

        misclassified = predict(first_model, train, run.device, run.workers) != train.y
        if not bool(misclassified.any()):
            warnings.warn(
                f"JTT's first stage misclassifies no example after {self.config.first_epochs} epochs, so its second "
                "stage is plain ERM. Use fewer first_epochs, or a lower --lr.",
                SpurlessWarning,
                stacklevel=2,
            )
        weights = torch.where(misclassified, 1.0 + self.config.upweight, 1.0)
        order = weighted_order(weights, run.seeds.child("train"))
        minimise(model, run.loader(train, order), mean_loss, run, Stage("train", static=True))
        return model
