"""JTT on the head: the second stage of JTT on the last layer alone, for a trained model.

Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, "Just Train Twice: Improving Group Robustness without
Training Group Information", ICML 2021, arXiv:2107.09044, Algorithm 1, from its second stage on.

Examples that the given model misclassifies are sampled ``1 + upweight`` times as often as the others, and the head is
tuned on features that are computed once, in eval mode and without augmentation. No group label is used.

Deviations:
    * JTT trains a whole network twice, and the first training is short, so that it still misclassifies the minority.
      Here the first model is the given one, fully trained: it may misclassify nothing on train. ``on="val"`` or
      ``"half"`` uses validation instead.
    * The second training continues from the trained head, not from the initial weights.
    * Steps and learning rates are those of class-balanced-head, its baseline; upweights are JTT's. Batches are not
      balanced.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from spurless.core.config import NotNegative
from spurless.core.errors import SpurlessWarning
from spurless.data.loader import weighted_order
from spurless.data.split import Splits
from spurless.methods._head import (
    HeadTuning,
    check_classes,
    copy_head,
    features_to_tune_on,
    head_train_config,
    replace_head,
    tune_head,
)
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.evaluate import predict
from spurless.train.run import Run


@dataclass(frozen=True)
class JTTHeadConfig(HeadTuning):
    """Data, upweight and training of the head."""

    upweight: NotNegative = 100.0  # lambda_up; --up_weight


class JTTHead(ConfiguredMethod[JTTHeadConfig]):
    """Tune the last layer with the given model's misclassified examples upweighted; no attributes."""

    info = Info(
        "jtt-head",
        "Liu et al. 2021",
        "retrain the last layer with the trained model's misclassified examples upweighted",
        val_labels=True,
        start="trained",
        title="JTT on the head",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, JTTHeadConfig]] = {
        "waterbirds": JTTHeadConfig(100.0),
        "celeba": JTTHeadConfig(50.0),
        "multinli": JTTHeadConfig(4.0),
        "civilcomments": JTTHeadConfig(6.0),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Find misclassified examples, then tune a copy of the head with more of them."""
        config, head = self.config, copy_head(model, "jtt-head").to(run.device)
        features, run = features_to_tune_on(config.on, model, data, run)
        check_classes(features, "jtt-head")
        misclassified = predict(head, features, run.device) != features.y.cpu()
        if not bool(misclassified.any()):
            warnings.warn(
                f"jtt-head found no misclassified example on {config.on}, so all examples have the same weight. "
                "Use data on which the model was not trained (on='val'), or train the model for fewer epochs.",
                SpurlessWarning,
                stacklevel=2,
            )
        weights = torch.where(misclassified, 1.0 + config.upweight, 1.0)
        order = weighted_order(weights, run.seeds.child("tune"), config.batches * config.batch_size)
        tune_head(head, features, order, run, "tune", head_train_config(config, run.train))
        return replace_head(model, head)
