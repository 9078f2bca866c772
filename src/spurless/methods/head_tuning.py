r"""Class-balanced head: keep the features, tune the last layer on as many examples of every class.

The plain form of last-layer retraining, and the twin that every method of this family must beat: LaBonte,
Muthukumar and Kumar, "Towards Last-layer Retraining for Group Robustness with Fewer Annotations", NeurIPS 2023,
arXiv:2309.08534, section 4, find that class balance alone brings a good part of what group labels do, where the data
it is tuned on are less biased than train.

Features are computed once: eval mode, no augmentation. The head goes on from the trained one.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Order, balanced
from spurless.methods.base import Info
from spurless.methods.erm import ERM, mean_loss
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.embed import embedded
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Run
from spurless.train.step import Stage
from spurless.train.tracking import apart


def check_counts(config: object, who: str, *names: str) -> None:
    """Refuse a configuration where one of these fields is under 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise BadInput(f"{who}'s {name} must be at least 1", got=getattr(config, name))


@dataclass(frozen=True)
class HeadConfig:
    """On what the head is tuned, and how long."""

    on: Literal["train", "val", "half"] = "train"
    """train, val, or one half of val: the half that NeuronTune's half/half tunes on, for a fair comparison"""
    epochs: int = 40
    batches: int = 200  # per epoch
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 1e-3
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        check_counts(self, "class-balanced-head", "epochs", "batches", "batch_size")

    @property
    def uses(self) -> Mapping[str, bool]:
        """The labels of validation, unless it is tuned on train."""
        return {"val_labels": self.on != "train"}


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
        config, head = self.config, head_to_tune(model, "class-balanced-head").to(run.device)
        rows, run = rows_of(config.on, model, data, run)
        check_classes(rows, "class-balanced-head")
        order = balanced(rows.y, run.seeds.child("tune"), config.batches * config.batch_size)
        tune_head(head, rows, order, run, "tune", settings_of(config, run.train))
        return put_head(model, head)


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


def head_to_tune(model: Classifier, who: str) -> nn.Linear:
    """Return a copy of the linear head in float32, as features are; one that came frozen is free to learn.

    :func:`put_head` takes it back.

    Raises:
        BadInput: it is not linear.
    """
    head = deepcopy(linear_head(model, who)).float()
    if not any(parameter.requires_grad for parameter in head.parameters()):
        head.requires_grad_(True)
    return head


def put_head(model: Classifier, head: nn.Linear) -> Classifier:
    """Put a head in the place of the old one, in the precision of that one, and return the model."""
    model.head = head.to(next(model.head.parameters()).dtype)
    return model


def tune_head(head: nn.Module, rows: Grouped, order: Order, run: Run, name: str, settings: TrainConfig) -> None:
    """Minimise the mean loss of a head over rows of features, in place; keep the epoch the run's criterion likes."""
    minimise(head, run.loader(rows, order, settings.batch_size), mean_loss, run, Stage(name, settings, static=True))


def rows_of(which: Literal["train", "val", "half"], model: Classifier, data: Splits, run: Run) -> tuple[Grouped, Run]:
    """Return the features to tune on, and the run with its criterion reading features: one pass over each split."""
    if which == "train":
        return embedded(model, data.train, run), judged(run, model, data.val)
    val = embedded(model, data.val, run)
    rows = val if which == "val" else val.select(halves(val.y, run.seeds)[1])
    return rows, judged_on(run, val)


def judged(run: Run, model: Classifier, val: Grouped) -> Run:
    """Return the run with its criterion reading features, so that an epoch of a head costs no pass over the images."""
    return replace(run, score=None) if run.judge is None else judged_on(run, embedded(model, val, run))


def judged_on(run: Run, rows: Grouped) -> Run:
    """Return the run with its criterion reading ``rows``, the features of the whole validation split, in order."""
    judge = run.judge
    if judge is None:
        return replace(run, score=None)
    return replace(run, score=lambda head: judge(predict(head, rows, run.device)))


class _Lengths(Protocol):
    """The fields by which a configuration says how long and how fast a head is tuned."""

    @property
    def epochs(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def optimiser(self) -> Optimiser: ...
    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def settings_of(config: _Lengths, base: TrainConfig) -> TrainConfig:
    """Return the settings of the loop for a head: its own lengths and rates, and nothing that stops it early."""
    return steady(
        base,
        epochs=config.epochs,
        steps=None,
        batch_size=config.batch_size,
        optimiser=config.optimiser,
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=0.9,
    )


def steady(base: TrainConfig, **changes: Any) -> TrainConfig:
    """Return settings with a constant rate, no L1, no ASAM and nothing that stops early, but for the ``changes``."""
    still: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "stop_accuracy": None, "stop_loss": None}
    return replace(base, **{**still, "l1": 0.0, "asam": 0.0, **changes})


def trained_again(name: str, data: Splits, run: Run, settings: TrainConfig, do: str) -> Classifier:
    """Train the untrained model of this run by ERM once more, to the last epoch, and count it as stage ``name``.

    Order and dropout are those of the starting point: with the same data and a schedule that does not depend on the
    length, fewer steps give the weights that the starting point had after so many.

    Raises:
        BadInput: the user brought a trained model; ``do`` says what else there is.
    """
    if run.fresh is None:
        raise BadInput(f"the stage {name!r} trains the model anew, and the given one was trained elsewhere", do=do)
    points = run.checkpoints
    kept = points and Checkpoints(points.folder / name.replace(" ", "-"), points.key, points.seconds)
    first = replace(run, train=settings, score=None, checkpoints=kept, seconds={}, history=[], stages=set())
    first.log = apart(run.log, stage=name)
    model = ERM().fit(wrap(run.fresh()), data, first)
    run.seconds[name] = sum(first.seconds.values())
    run.history.extend({**row, "stage": name} for row in first.history)
    return model


def check_classes(rows: Grouped, who: str, do: str = "Tune it on data with every class.") -> None:
    """Refuse to tune a head on one class, and warn where another is missing: it would unlearn it."""
    missing = [label for label, n in zip(rows.groups.labels, rows.class_counts.tolist(), strict=True) if not n]
    if len(missing) >= len(rows.groups.labels) - 1:
        raise BadInput(
            f"{who} needs examples of two classes at least to tune the head on",
            got=f"{len(rows)} examples and none of {', '.join(missing[:5])}",
            do=do,
        )
    if missing:
        warnings.warn(
            f"{who} tunes the head on {len(rows)} examples, and none is of the class {', '.join(missing)}: it will "
            f"predict that less. {do}",
            SpurlessWarning,
            stacklevel=3,
        )


def halves(cells: Tensor, seeds: Seeds) -> tuple[Tensor, Tensor]:
    """Return two random halves with the same share of every cell: one to identify or choose on, one to tune on.

    Every method that tunes on half of validation without groups calls ``halves(val.y, run.seeds)`` and tunes on the
    second, so that with one seed all of them tune on the same examples.
    """
    generator = seeds.generator("halves")
    first, second = [], []
    for cell in torch.unique(cells):
        members = (cells == cell).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        first.append(members[: len(members) // 2])
        second.append(members[len(members) // 2 :])
    return torch.cat(first), torch.cat(second)
