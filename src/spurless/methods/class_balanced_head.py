r"""Class-balanced head: keep the features and retrain the last layer on class-balanced batches.

LaBonte, Muthukumar and Kumar, "Towards Last-layer Retraining for Group Robustness with Fewer Annotations", NeurIPS
2023, arXiv:2309.08534, section 4: class balance alone gives a good part of what group labels give, if the data to tune
on are less biased than train. It is the baseline of all methods that retrain the last layer.

Features are computed once, in eval mode and without augmentation. Training continues from the trained head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from spurless.data.loader import balanced_order
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
from spurless.train.run import Run


@dataclass(frozen=True)
class ClassBalancedHeadConfig(HeadTuning):
    """Data and training of the head."""


class ClassBalancedHead(ConfiguredMethod[ClassBalancedHeadConfig]):
    """Tune the last layer on class-balanced batches."""

    info = Info(
        "class-balanced-head",
        "LaBonte et al. 2023",
        "retrain the last layer on class-balanced batches",
        val_labels=True,
        start="trained",
        title="Class-balanced head",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, ClassBalancedHeadConfig]] = {
        # Steps and learning rate of NeuronTune, table 10, so that only the suppression differs.
        "waterbirds": ClassBalancedHeadConfig(),
        "val": ClassBalancedHeadConfig(on="val"),
        "half": ClassBalancedHeadConfig(on="half"),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Tune a copy of the head on features and replace the old head by it."""
        config, head = self.config, copy_head(model, "class-balanced-head").to(run.device)
        features, run = features_to_tune_on(config.on, model, data, run)
        check_classes(features, "class-balanced-head")
        order = balanced_order(features.y, run.seeds.child("tune"), config.batches * config.batch_size)
        tune_head(head, features, order, run, "tune", head_train_config(config, run.train))
        return replace_head(model, head)
