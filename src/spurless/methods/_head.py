"""Helpers of methods that retrain the last layer on features, which are computed once in eval mode."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from spurless.core.config import CheckedConfig, Count, NotNegative, Positive
from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.loader import Order
from spurless.data.split import Split, Splits
from spurless.methods._config import constant_lr_config
from spurless.methods.erm import ERM, mean_loss
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.embed import embed_split
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


def linear_head(model: Classifier, method: str) -> nn.Linear:
    """Return the model's head; raise if it is not linear."""
    if not isinstance(model.head, nn.Linear):
        raise InputError(
            f"{method} tunes a linear head",
            got=type(model.head).__name__,
            hint="Name the last linear layer: wrap(module, head=NAME).",
        )
    return model.head


def copy_head(model: Classifier, method: str) -> nn.Linear:
    """Return a trainable float32 copy of the linear head; :func:`replace_head` puts it into the model."""
    head = deepcopy(linear_head(model, method)).float()
    if not any(parameter.requires_grad for parameter in head.parameters()):
        head.requires_grad_(True)
    return head


def replace_head(model: Classifier, head: nn.Linear) -> Classifier:
    """Replace the model's head by ``head``, in the old head's precision, and return the model."""
    model.head = head.to(next(model.head.parameters()).dtype)
    return model


def tune_head(head: nn.Module, features: Split, order: Order, run: Run, stage: str, config: TrainConfig) -> None:
    """Minimise the mean loss of a head on features, in place; keep the best epoch by the run's criterion."""
    loader = run.loader(features, order, config.batch_size)
    minimise(head, loader, mean_loss, run, Stage(stage, config, static=True))


@dataclass(frozen=True, kw_only=True)
class HeadTraining(CheckedConfig):
    """How long and how fast a head is tuned; by default as NeuronTune, table 10."""

    epochs: Count = 40
    batches: Count = 200  # per epoch
    batch_size: Count = 128
    optimiser: Optimiser = "sgd"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 1e-4


@dataclass(frozen=True, kw_only=True)
class HeadTuning(HeadTraining):
    """The data that a head is tuned on, and how."""

    on: Literal["train", "val", "half"] = "train"
    """train, val, or one half of val: the half that NeuronTune's half/half tunes on, for a fair comparison"""

    @property
    def uses(self) -> Mapping[str, bool]:
        """Validation labels, unless the head is tuned on train."""
        return {"val_labels": self.on != "train"}


def head_train_config(config: HeadTraining, base: TrainConfig) -> TrainConfig:
    """Return the loop's settings for tuning a head."""
    names = ("epochs", "batch_size", "optimiser", "lr", "weight_decay")
    return constant_lr_config(base, steps=None, momentum=0.9, **{name: getattr(config, name) for name in names})


def features_to_tune_on(
    which: Literal["train", "val", "half"], model: Classifier, data: Splits, run: Run
) -> tuple[Split, Run]:
    """Return the features to tune on, and the run with a criterion that uses the features of validation."""
    if which == "train":
        return embed_split(model, data.train, run), score_on_val(run, model, data.val)
    val = embed_split(model, data.val, run)
    features = val if which == "val" else val.select(split_halves(val.y, run.seeds)[1])
    return features, score_on_features(run, val)


def score_on_val(run: Run, model: Classifier, val: Split) -> Run:
    """Return the run with a criterion that evaluates a head on the features of the validation split."""
    if run.score_predictions is None:
        return replace(run, score=None)
    return score_on_features(run, embed_split(model, val, run))


def score_on_features(run: Run, val: Split) -> Run:
    """Return the run with a criterion that evaluates a head on ``val``, features of the whole validation split."""
    score = run.score_predictions
    if score is None:
        return replace(run, score=None)
    return replace(run, score=lambda head: score(predict(head, val, run.device)))


def train_again(stage: str, data: Splits, run: Run, config: TrainConfig, hint: str) -> Classifier:
    """Train the run's untrained model by ERM again, to the last epoch, and record it as the stage ``stage``.

    Batches and dropout are those of the starting point: with the same data and a schedule that does not depend on the
    length of training, fewer steps give the weights that the starting point had after that number of steps.
    """
    if run.make_untrained is None:
        raise InputError(
            f"the stage {stage!r} trains the model again, but its initial weights are unknown: a trained model was "
            "passed",
            hint=hint,
        )
    with run.sub_run(stage, train=config, score=None) as sub_run:
        return ERM().fit(wrap(run.make_untrained()), data, sub_run)


def check_classes(features: Split, method: str, hint: str = "Tune it on data with every class.") -> None:
    """Raise if there are examples of fewer than two classes, and warn if a class is missing."""
    counts = zip(features.groups.labels, features.class_counts.tolist(), strict=True)
    missing = [label for label, n in counts if not n]
    if len(missing) >= len(features.groups.labels) - 1:
        raise InputError(
            f"{method} needs examples of at least two classes to tune the head on",
            got=f"{len(features)} examples and none of {', '.join(missing[:5])}",
            hint=hint,
        )
    if missing:
        warnings.warn(
            f"{method} tunes the head on {len(features)} examples without the class {', '.join(missing)}: the head "
            f"will predict that class less often. {hint}",
            SpurlessWarning,
            stacklevel=3,
        )


def split_halves(cells: Tensor, seeds: Seeds) -> tuple[Tensor, Tensor]:
    """Return the indices of two random halves, stratified by ``cells``: one to identify or choose on, one to tune on.

    Every method that tunes on half of validation without groups calls ``split_halves(val.y, run.seeds)`` and tunes on
    the second half, so that with one seed all of them tune on the same examples.
    """
    generator = seeds.generator("halves")
    first, second = [], []
    for cell in torch.unique(cells):
        members = (cells == cell).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first.append(members[: len(members) // 2])
        second.append(members[len(members) // 2 :])
    return torch.cat(first), torch.cat(second)
