r"""Class-balanced head: keep the features, tune the last layer on as many examples of every class.

The plain form of last-layer retraining, and the twin that every method of this family must beat: LaBonte,
Muthukumar and Kumar, "Towards Last-layer Retraining for Group Robustness with Fewer Annotations", NeurIPS 2023,
arXiv:2309.08534, section 4, find that class balance alone brings a good part of what group labels do, where the data
it is tuned on are less biased than train.

Features are computed once: eval mode, no augmentation. The head goes on from the trained one.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Order, balanced
from spurless.methods.base import Info
from spurless.methods.erm import mean_loss
from spurless.models.classifier import Classifier
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.embed import embedded
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage


@dataclass(frozen=True)
class HeadConfig:
    """On what the head is tuned, and how long."""

    data: Literal["train", "val", "half"] = "train"
    """train, val, or one half of val: the half that NeuronTune's half/half tunes on, for a fair comparison"""
    epochs: int = 40
    batches: int = 200  # per epoch
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 1e-3
    weight_decay: float = 1e-4

    @property
    def uses(self) -> Mapping[str, bool]:
        """The labels of validation, unless it is tuned on train."""
        return {"val_labels": self.data != "train"}


HEAD_WATERBIRDS = HeadConfig()
"""Steps and rates of NeuronTune, table 10, so that the two are alike but for the suppression."""
HEAD_VAL = HeadConfig("val")
HEAD_HALF = HeadConfig("half")


class ClassBalancedHead:
    """Tune the last layer on class-balanced batches."""

    info: ClassVar[Info] = Info(
        "class-balanced-head",
        "LaBonte et al. 2023",
        "tune the last layer on as many examples of every class",
        val_labels=True,
        start="trained",
    )
    presets: ClassVar[Mapping[str, HeadConfig]] = {
        "waterbirds": HEAD_WATERBIRDS,
        "val": HEAD_VAL,
        "half": HEAD_HALF,
    }

    def __init__(self, config: HeadConfig = HEAD_WATERBIRDS) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Tune a copy of the head on features, and put it in the place of the old one."""
        config, head = self.config, deepcopy(linear_head(model, "class-balanced-head")).to(run.device)
        if config.data == "train":
            rows = embedded(model, data.train, run)
        else:
            val = embedded(model, data.val, run)
            rows = val if config.data == "val" else val.select(halves(val.y, run.seeds)[1])
        order = balanced(rows.y, run.seeds.child("tune"), config.batches * config.batch_size)
        tune_head(head, rows, order, judged(run, model, data.val), "tune", settings_of(config, run.train))
        model.head = head
        return model


def linear_head(model: Classifier, who: str) -> nn.Linear:
    """Return the head, which must be linear to be tuned on features.

    Raises:
        BadInput: it is not.
    """
    if not isinstance(model.head, nn.Linear):
        raise BadInput(
            f"{who} tunes a linear head",
            got=type(model.head).__name__,
            do="Name the last linear layer: wrap(module, head=NAME).",
        )
    return model.head


def tune_head(head: nn.Module, rows: Grouped, order: Order, run: Run, name: str, settings: TrainConfig) -> None:
    """Minimise the mean loss of a head over rows of features, in place; keep the epoch the run's criterion likes."""
    minimise(head, run.loader(rows, order, settings.batch_size), mean_loss, run, Stage(name, settings, static=True))


def judged(run: Run, model: Classifier, val: Grouped) -> Run:
    """Return the run with its criterion reading features, so that an epoch of a head costs no pass over the images."""
    judge = run.judge
    if judge is None:
        return replace(run, score=None)
    rows = embedded(model, val, run)
    return replace(run, score=lambda head: judge(predict(head, rows, run.device)))


def settings_of(config: HeadConfig, base: TrainConfig) -> TrainConfig:
    """Return the settings of the loop for a head: its own lengths and rates, and nothing that stops it early."""
    return replace(
        base,
        epochs=config.epochs,
        steps=None,
        batch_size=config.batch_size,
        optimiser=config.optimiser,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=0.9,
        schedule="constant",
        warmup_steps=0,
        stop_accuracy=None,
        stop_loss=None,
    )


def halves(cells: Tensor, seeds: Seeds) -> tuple[Tensor, Tensor]:
    """Return two random halves with the same share of every cell: one to identify or choose on, one to tune on."""
    generator = seeds.generator("halves")
    first, second = [], []
    for cell in torch.unique(cells):
        members = (cells == cell).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first.append(members[: len(members) // 2])
        second.append(members[len(members) // 2 :])
    return torch.cat(first), torch.cat(second)
