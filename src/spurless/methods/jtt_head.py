"""JTT on the head: the second stage of JTT on the last layer alone, for a model that is trained already.

Liu, Haghgoo, Chen, Raghunathan, Koh, Sagawa, Liang and Finn, "Just Train Twice: Improving Group Robustness without
Training Group Information", ICML 2021, arXiv:2107.09044, Algorithm 1, from its second stage on.

The mistakes of the given model are drawn ``1 + upweight`` times as often as the rest, and the head is tuned on
features that are computed once: eval mode, no augmentation. No group label is used.

Deviations:
    * JTT trains a whole network twice, and the first training is short, so that the minority is still wrong. Here the
      first is the given model, trained to its end: on train it may have no mistake left, and then ``on="val"`` or
      ``"half"`` finds those of validation.
    * The second training goes on from the trained head, not from the initial weights.
    * Steps and rates are those of the class-balanced head, its twin; upweights are JTT's. Batches are not balanced.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.grouped import Splits
from spurless.data.loader import weighted
from spurless.methods.base import Info
from spurless.methods.head_tuning import (
    check_classes,
    check_counts,
    head_to_tune,
    put_head,
    rows_of,
    settings_of,
    tune_head,
)
from spurless.models.classifier import Classifier
from spurless.train.config import Optimiser
from spurless.train.evaluate import predict
from spurless.train.run import Run


@dataclass(frozen=True)
class JTTHeadConfig:
    """Whose mistakes are seen more often, how much more, and how long."""

    upweight: float = 100.0  # lambda_up; --up_weight
    on: Literal["train", "val", "half"] = "train"
    """train, val, or one half of val: the half that class-balanced-head tunes on"""
    epochs: int = 40
    batches: int = 200  # per epoch
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 1e-3
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        check_counts(self, "jtt-head", "epochs", "batches", "batch_size")
        if not 0 <= self.upweight < float("inf"):
            raise BadInput("jtt-head's upweight must not be negative", got=self.upweight)

    @property
    def uses(self) -> Mapping[str, bool]:
        """The labels of validation, unless it is tuned on train."""
        return {"val_labels": self.on != "train"}


JTT_HEAD_WATERBIRDS = JTTHeadConfig(100.0)
JTT_HEAD_CELEBA = JTTHeadConfig(50.0)
JTT_HEAD_MULTINLI = JTTHeadConfig(4.0)
JTT_HEAD_CIVILCOMMENTS = JTTHeadConfig(6.0)


class JTTHead:
    """Ask for no attribute: the mistakes of the given model stand in for the minority."""

    info: ClassVar[Info] = Info(
        "jtt-head",
        "Liu et al. 2021",
        "tune the last layer on more of the trained model's mistakes",
        val_labels=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, JTTHeadConfig]] = {
        "waterbirds": JTT_HEAD_WATERBIRDS,
        "celeba": JTT_HEAD_CELEBA,
        "multinli": JTT_HEAD_MULTINLI,
        "civilcomments": JTT_HEAD_CIVILCOMMENTS,
    }

    def __init__(self, config: JTTHeadConfig = JTT_HEAD_WATERBIRDS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Look for mistakes, then tune a copy of the head with more of them."""
        config, head = self.config, head_to_tune(model, "jtt-head").to(run.device)
        rows, run = rows_of(config.on, model, data, run)
        check_classes(rows, "jtt-head")
        wrong = predict(head, rows, run.device) != rows.y.cpu()
        if not bool(wrong.any()):
            warnings.warn(
                f"jtt-head found no mistake on {config.on}, so it draws every example alike. "
                "Look where the model was not trained (on='val'), or train the model less well (fewer epochs).",
                SpurlessWarning,
                stacklevel=2,
            )
        weights = torch.where(wrong, 1.0 + config.upweight, 1.0)
        order = weighted(weights, run.seeds.child("tune"), config.batches * config.batch_size)
        tune_head(head, rows, order, run, "tune", settings_of(config, run.train))
        return put_head(model, head)
