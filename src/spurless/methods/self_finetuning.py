r"""SELF: retrain the last layer on the examples on which the trained model and a less trained one disagree most.

LaBonte, Muthukumar and Kumar, "Towards Last-layer Retraining for Group Robustness with Fewer Annotations", NeurIPS
2023, arXiv:2309.08534, selective last-layer finetuning. With the trained model f and a regularised one g, the n
examples of held-out data with the largest

.. math:: \frac{1}{K} \sum_{k=1}^K g_k(x) \log \frac{g_k(x)}{f_k(x)}

are chosen, and training of the head continues on class-balanced batches of these. The regularised model is an earlier
checkpoint of the same training (``early``), or the trained model with dropout on the features (``dropout``);
``mistakes`` chooses the n examples with the largest loss instead. The choice uses no label, except for ``mistakes``;
tuning uses the labels of the n chosen examples. No group label is used.

The examples are chosen from one half of validation; the other half is left to the criterion.

Deviations:
    * The criterion uses all of validation, including the half to choose from: it is the same for every method here.
    * The early model is trained again from the untrained one, with the same order of examples. With a schedule that
      depends on the length of training (cosine, linear, one-cycle) it is the end of a shorter schedule, not a point on
      the longer one.
    * Dropout is on the features only, and the backbone is in eval mode; the authors put the whole network in train
      mode, whose batch normalisation then disagrees as well.
    * The halves are stratified by class, and features are computed once, without augmentation. The authors' starting
      model is trained on class-balanced batches; here it is the user's, or ERM's.
    * ``momentum`` is 0 for SGD: the authors' code sets 0.9 where PyTorch does not read it.
    * n, learning rate and time of the early model are those of the authors' demonstration on Waterbirds. They search n
      in 20, 100 and 500, the time in 10, 20 and 50 % of training, dropout in 0.5, 0.7 and 0.9 and the learning rate in
      1e-4 to 1e-2 (texts: 1e-6 to 1e-4) by the worst group of validation; the other presets are points of that grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import Count, FractionBelowOne, InnerFraction, Positive
from spurless.core.errors import InputError
from spurless.data.loader import balanced_order, sequential_order
from spurless.data.split import Split, Splits
from spurless.methods._head import (
    HeadTraining,
    check_classes,
    copy_head,
    head_train_config,
    replace_head,
    score_on_features,
    split_halves,
    train_again,
    tune_head,
)
from spurless.methods.base import ConfiguredMethod, Info
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.embed import embed_split
from spurless.train.evaluate import logits
from spurless.train.run import Run


@dataclass(frozen=True)
class SelfConfig(HeadTraining):
    """How examples are chosen, and how the head is tuned on them."""

    disagreement: Literal["early", "dropout", "mistakes"] = "early"
    n: Count = 500  # finetune_num_data
    early: InnerFraction = 0.5  # fraction of the training of the early model; early_stop_num
    dropout: InnerFraction = 0.5  # fraction of the features; dropout_prob
    epochs: Count = 10  # of 25 batches: finetune_steps 250
    batches: Count = 25  # per epoch
    batch_size: Count = 32
    lr: Positive = 1e-2  # finetune_lr
    momentum: FractionBelowOne = 0.0


@dataclass(frozen=True)
class Chosen:
    """The validation examples that the head was tuned on, and the disagreement of the two models on them."""

    index: Tensor
    disagreement: Tensor


class Self(ConfiguredMethod[SelfConfig]):
    """Tune the last layer on examples on which two models disagree; no attributes."""

    info = Info(
        "self",
        "LaBonte et al. 2023",
        "retrain the last layer on examples on which the trained model and a less trained one disagree",
        val_labels=True,
        start="trained",
        title="SELF",
        fix="fast",
    )
    presets: ClassVar[Mapping[str, SelfConfig]] = {
        "waterbirds": SelfConfig(),
        "celeba": SelfConfig(batch_size=100),
        "civilcomments": SelfConfig(epochs=20, batch_size=16, optimiser="adamw", lr=1e-5, momentum=0.9),
        "multinli": SelfConfig(epochs=20, batch_size=16, optimiser="adamw", lr=1e-5, momentum=0.9),
    }

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Choose examples, then tune a copy of the head on them."""
        config, head = self.config, copy_head(model, "SELF").to(run.device)
        half = split_halves(data.val.y, run.seeds)[1]
        if config.n > len(half):
            raise InputError(
                "one half of the validation split has fewer than n examples",
                expected=f"n of at most {len(half)}",
                got=config.n,
                hint="Set n lower, or use a larger validation split.",
            )
        val = embed_split(model, data.val, run)
        score = self._disagreement(head, data, val.select(half), half, run)
        best = score.sort(descending=True, stable=True).indices[: config.n]
        run.explain(Chosen(half[best], score[best]))
        features = val.select(half[best])
        check_classes(features, "SELF", "Choose more (a larger n) of data with every class.")
        order = balanced_order(features.y, run.seeds.child("tune"), config.batches * config.batch_size)
        train_config = replace(head_train_config(config, run.train), momentum=config.momentum)
        tune_head(head, features, order, score_on_features(run, val), "tune", train_config)
        return replace_head(model, head)

    def _disagreement(self, head: nn.Linear, data: Splits, features: Split, half: Tensor, run: Run) -> Tensor:
        """Return the disagreement of the regularised and the trained model on every example of the half."""
        final = logits(head, features, run.device).double()
        if self.config.disagreement == "mistakes":
            return cross_entropy(final, features.y.cpu(), reduction="none")
        if self.config.disagreement == "dropout":
            return divergence(logits(head, drop_features(features, self.config.dropout, run), run.device), final)
        hint = "Pass an untrained model, or use disagreement='dropout' or 'mistakes'."
        per_epoch = run.loader(data.train, sequential_order(len(data.train))).steps()
        early = train_again("early", data, run, shorten(run.train, per_epoch, self.config.early), hint)
        return divergence(logits(early, data.val.select(half), run.device, run.workers), final)


def divergence(regularised: Tensor, final: Tensor) -> Tensor:
    """Return the divergence of the trained model from the regularised one, divided by K, from logits.

    Example:
        >>> sure, torn = torch.tensor([[100.0, 0.0]]), torch.tensor([[0.0, 0.0]])
        >>> divergence(sure, torn)  # log(2) / 2
        tensor([0.3466], dtype=torch.float64)
    """
    p, q = regularised.double().log_softmax(dim=1), final.double().log_softmax(dim=1)
    return (p.exp() * (p - q)).mean(dim=1)


def drop_features(features: Split, p: float, run: Run) -> Split:
    """Return the features after dropout with probability ``p``."""
    x = torch.as_tensor(features.x)
    mask = torch.rand(x.shape, generator=run.seeds.generator("dropout")) >= p
    return replace(features, x=x * mask / (1 - p))


def shorten(train: TrainConfig, per_epoch: int, fraction: float) -> TrainConfig:
    """Return the settings of the first fraction of a training with ``per_epoch`` steps per epoch."""
    total = train.steps or train.epochs * per_epoch
    return replace(train, steps=max(1, round(fraction * total)))
