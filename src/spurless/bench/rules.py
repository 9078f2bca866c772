"""Rules of a run: which labels, scores and models it may use; whatever cannot be is refused before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, MissingAttributes, UnknownName
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped, Splits
from spurless.methods import METHODS
from spurless.methods.base import Info
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier
from spurless.train.abstain import JOINT, SCORES
from spurless.train.config import TrainConfig
from spurless.train.evaluate import predict
from spurless.train.run import Engine, Run
from spurless.train.select import Criterion


def check_kinds(**given: object) -> None:
    """Refuse an argument of :func:`~spurless.bench.fitting.fit` that is something else than it should be."""
    for name, value in given.items():
        kinds, expected = _KINDS[name]
        if not isinstance(value, kinds):
            raise BadInput(f"{name!r} is of the wrong kind", expected=expected, got=type(value).__name__)


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((nn.Module,), "a module, such as sp.build(NAME, data) returns"),
    "data": ((Splits,), "three splits, as sp.load, sp.from_folder or sp.from_csv return"),
    "train": ((TrainConfig, Mapping, NoneType), "settings such as {'epochs': 5, 'lr': 0.1}"),
    "engine": ((Engine, NoneType), "sp.Engine('cpu') or the like"),
}


def check_labels(info: Info, criterion: Criterion, data: Splits) -> None:
    """Refuse what the data or the method cannot give, before anything is trained."""
    if criterion.inferred and info.start != "trained":
        raise BadInput(
            f"{criterion.name} asks where a starting model was right, and {info.name} trains from scratch",
            do="Use val-worst-class or val-balanced.",
        )
    free = [name for name, other in METHODS.items() if not (other.info.train_attributes or other.info.val_attributes)]
    if info.train_attributes and not data.train.given.has_attributes:
        raise MissingAttributes(info.name, "train", free)
    if info.val_attributes and not data.val.given.has_attributes:
        raise MissingAttributes(info.name, "val", free)
    if criterion.attributes and not data.val.given.has_attributes:
        raise MissingAttributes(f"Selection by {criterion.name}", "val")


def used(info: Info, criterion: Criterion) -> dict[str, bool]:
    """Return which labels beyond those of train a run uses, by its method or by its criterion."""
    return {
        "train_attributes": info.train_attributes,
        "val_labels": info.val_labels or criterion.labels,
        "val_attributes": info.val_attributes or criterion.attributes,
    }


def check_fit(model: Classifier, data: Splits) -> None:
    """Refuse a model that cannot take these examples or does not know these classes."""
    x = data.train.example()
    try:
        model.verify(x)
    except RuntimeError as error:
        shape = tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else "text"
        raise BadInput(
            f"the model {model.name!r} cannot take examples of shape {shape}: {str(error).splitlines()[0]}",
            do="Build it for these data: sp.build(NAME, data).",
        ) from None
    if isinstance(model.head, nn.Linear) and model.n_classes != len(data.groups.labels):
        raise BadInput(
            f"the model {model.name!r} tells {model.n_classes} classes apart, the data have {len(data.groups.labels)}",
            do="Build or wrap a model with one output per class.",
        )


def score_of(asked: str, info: Info, coverages: Sequence[float] = ()) -> str:
    """Return the score by which a model abstains; refuse one that it cannot have, and a coverage that is no share."""
    for coverage in coverages:
        if not 0 < coverage <= 1:
            raise BadInput("the coverage must be a share", expected="above 0 and at most 1", got=coverage)
    score = info.score if asked == "auto" else asked
    if score not in SCORES:
        raise UnknownName("score", score, SCORES)
    if score in JOINT and info.start != "trained":
        raise BadInput(
            f"the score {score!r} is of two models, and {info.name} starts from none", do="Use the score 'softmax'."
        )
    if score == "selector" and info.score != score:
        learn = ", ".join(name for name, other in METHODS.items() if other.info.score == score)
        raise BadInput(
            f"the score 'selector' is learnt, and {info.name} learns none", do=f"Use the score 'softmax', or {learn}."
        )
    return score


def set_criterion(run: Run, criterion: Criterion, val: Grouped, start: Classifier | None = None) -> None:
    """Give the run its criterion as functions that hide what they look at, so that a method cannot look at it."""
    if not criterion.labels or (criterion.inferred and start is None):
        return
    split = val.given if criterion.attributes else val.hide_attributes()
    if criterion.inferred and start is not None:
        start.to(run.device)  # from the cache it comes on the CPU
        right = predict(start, split, run.device, run.workers) == split.y.cpu()
        split = replace(split, a=right.long(), groups=Groups(split.groups.labels, ("wrong at first", "right at first")))
    y, a, groups = split.y.cpu(), split.a.cpu(), split.groups

    def judge(pred: Tensor) -> float:
        return criterion.score(group_table(pred.cpu(), y, a, groups))

    run.judge, run.score = judge, lambda model: judge(predict(model, split, run.device, run.workers))
