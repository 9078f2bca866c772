"""Checks before training: arguments, labels, scores and models; and the selection criterion of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import NoneType

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, MissingAttributesError, UnknownNameError
from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.data.transplants import Transplant, get_transplants
from spurless.data.words import load_spelling
from spurless.methods import METHODS
from spurless.methods.base import Info
from spurless.metrics.groupwise import group_table
from spurless.models.classifier import Classifier
from spurless.train.config import TrainConfig
from spurless.train.evaluate import predict
from spurless.train.run import Compute, Run
from spurless.train.selection import Criterion
from spurless.train.selective import JOINT_SCORES, SCORES
from spurless.train.transplant_accuracy import DONORS, transplant_examples


def check_argument_types(**arguments: object) -> None:
    """Raise if an argument of :func:`~spurless.fitting.fit` has the wrong type."""
    for name, value in arguments.items():
        types, expected = _ARGUMENT_TYPES[name]
        if not isinstance(value, types):
            raise InputError(f"{name!r} has the wrong type", expected=expected, got=type(value).__name__)


_ARGUMENT_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "model": ((nn.Module,), "a module, for example from sp.build(NAME, data)"),
    "data": ((Splits,), "three splits, for example from sp.load, sp.from_folder or sp.from_csv"),
    "train": ((TrainConfig, Mapping, str, NoneType), "settings, for example {'epochs': 5, 'lr': 0.1}, or a recipe"),
    "compute": ((Compute, NoneType), "for example sp.Compute('cpu')"),
}


def check_labels(info: Info, criterion: Criterion, data: Splits) -> None:
    """Raise if method or criterion need labels, attributes or a starting model that are not available."""
    if criterion.inferred and info.start != "trained":
        raise InputError(
            f"{criterion.name} infers groups from a starting model, but {info.name} trains from scratch",
            hint="Use val-worst-class or val-balanced.",
        )
    without_attributes = [
        name for name, other in METHODS.items() if not (other.info.train_attributes or other.info.val_attributes)
    ]
    if info.train_attributes and not data.train.given.has_attributes:
        raise MissingAttributesError(info.name, "train", without_attributes)
    if info.val_attributes and not data.val.given.has_attributes:
        raise MissingAttributesError(info.name, "val", without_attributes)
    if criterion.attributes and not data.val.given.has_attributes:
        raise MissingAttributesError(f"Selection by {criterion.name}", "val")


def labels_used(info: Info, criterion: Criterion) -> dict[str, bool]:
    """Return which labels, besides those of train, the method or the criterion uses."""
    return {
        "train_attributes": info.train_attributes,
        "val_labels": info.val_labels or criterion.labels,
        "val_attributes": info.val_attributes or criterion.attributes,
    }


def check_model_fits_data(model: Classifier, data: Splits) -> None:
    """Raise if the model does not accept these examples or has another number of classes."""
    x = data.example()
    try:
        model.verify(x)
    except RuntimeError as error:
        shape = tuple(x.shape[1:]) if isinstance(x, torch.Tensor) else "text"
        raise InputError(
            f"the model {model.name!r} does not accept examples of shape {shape}: {str(error).splitlines()[0]}",
            hint="Build it for these data: sp.build(NAME, data).",
        ) from None
    if isinstance(model.head, nn.Linear) and model.n_classes != len(data.groups.labels):
        raise InputError(
            f"the model {model.name!r} has {model.n_classes} outputs but the data {len(data.groups.labels)} classes",
            hint="Build or wrap a model with one output per class.",
        )


def resolve_score(name: str, info: Info, coverages: Sequence[float] = ()) -> str:
    """Return the confidence score of a method; ``auto`` is its own. Raise if the method cannot have this score."""
    for coverage in coverages:
        if not 0 < coverage <= 1:
            raise InputError("the coverage must be a fraction", expected="above 0 and at most 1", got=coverage)
    score = info.score if name == "auto" else name
    if score not in SCORES:
        raise UnknownNameError("score", score, SCORES)
    if score in JOINT_SCORES and info.start != "trained":
        raise InputError(
            f"the score {score!r} needs two models, but {info.name} does not start from a trained one",
            hint="Use the score 'softmax'.",
        )
    if score == "selector" and info.score != score:
        methods = ", ".join(name for name, other in METHODS.items() if other.info.score == score)
        raise InputError(
            f"the score 'selector' is trained, but {info.name} does not train one",
            hint=f"Use the score 'softmax', or {methods}.",
        )
    return score


def with_criterion(
    run: Run, criterion: Criterion, val: Split, start: Classifier | None = None, data: Splits | None = None
) -> Run:
    """Return the run with its selection criterion, as functions that hide the validation labels from the method.

    A criterion that infers groups is added only once ``start``, the trained starting point, is known. ``data`` are the
    splits of ``val``, from which words are named if the criterion exchanges words of texts.
    """
    if not criterion.labels or (criterion.inferred and start is None):
        return run
    split = val.given if criterion.attributes else val.hide_attributes()
    if criterion.properties:
        spelling = load_spelling(data) if data is not None and isinstance(val.x, dict) else None
        return _with_transplants(run, criterion, split, get_transplants(split, criterion.properties, spelling))
    if criterion.inferred and start is not None:
        start.to(run.device)  # a cached model is on the CPU
        correct = predict(start, split, run.device, run.workers) == split.y.cpu()
        split = replace(
            split, a=correct.long(), groups=Groups(split.groups.labels, ("wrong at first", "right at first"))
        )
    y, a, groups = split.y.cpu(), split.a.cpu(), split.groups

    def score_predictions(pred: Tensor) -> float:
        return criterion.score(group_table(pred.cpu(), y, a, groups))

    def score(model: nn.Module) -> float:
        return score_predictions(predict(model, split, run.device, run.workers))

    return replace(run, score=score, score_predictions=score_predictions)


def _with_transplants(run: Run, criterion: Criterion, split: Split, transplants: Sequence[Transplant]) -> Run:
    """Return the run with a criterion on transplanted examples, of which no features are stored."""
    examples = transplant_examples(split, transplants)
    if not any(row.get("stage") == "selection" for row in run.history):
        definition = {"criterion": criterion.name, "what": criterion.what, "examples": len(examples.rows)}
        run.add_history({"stage": "selection", **definition, "donors": DONORS}, track=False)

    def score(model: nn.Module) -> float:
        return examples.find_lowest(examples.compute_correct(model, run.device, run.workers))[0]

    def score_predictions(_: Tensor) -> float:
        raise InputError(
            f"{criterion.name} needs the predictions of changed images, but this method evaluates a head on features",
            hint="Use val-worst-class, or a method that trains the whole network.",
        )

    return replace(run, score=score, score_predictions=score_predictions)
