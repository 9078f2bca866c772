"""Abstaining: how sure a model is of every example, and a label only where it is sure enough.

A score is higher where the model is surer. The scores are

* ``softmax``: the largest probability (softmax response; Geifman and El-Yaniv 2017, arXiv:1705.08500);
* ``product``: the probabilities of several models multiplied, and the largest product (MaskTune, Asgari Taghanaki
  et al. 2022, section 4.2: the initial and the fine-tuned model);
* ``masktune-authors``: as the code of MaskTune's authors does, one more softmax over the products. The label is the
  same and the order of the examples need not be;
* ``selector``: what a method that learns to abstain left on the model as its submodule ``selector``, a module from
  features and logits to one score per example.

Choosing a threshold looks at the scores of the validation split, and at no label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, UnknownName
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.metrics.selective import COVERAGES, Selective, selective_table, threshold_for, thresholds_for
from spurless.models.classifier import Classifier, Input, evaluating
from spurless.train.evaluate import EVALUATION_BATCH

ABSTAIN = -1
"""The label of an example that is not predicted."""


class Response(NamedTuple):
    """What models say of every example: how sure they are (float64), and the label; both on the CPU."""

    scores: Tensor
    pred: Tensor


Score: TypeAlias = Callable[[Sequence[nn.Module], Input], Response]
"""From models and a batch to scores and labels."""


@dataclass(frozen=True)
class Abstainer:
    """A model, or several, that gives a label where its score reaches the threshold, and none elsewhere.

    Example:
        >>> model = nn.Linear(1, 2)
        >>> with torch.no_grad():
        ...     _ = model.weight.copy_(torch.tensor([[-1.0], [1.0]])), model.bias.zero_()
        >>> abstainer = Abstainer((model,), "softmax", threshold=0.8)
        >>> abstainer.predict_or_abstain(torch.tensor([[-2.0], [0.1], [2.0]]))  # 0.98, 0.55, 0.98
        tensor([ 0, -1,  1])
    """

    models: tuple[nn.Module, ...]
    score: str = "softmax"
    threshold: float = -math.inf
    """Lowest score that is predicted; by default every example is."""

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise UnknownName("score", self.score, SCORES)
        alone = self.score not in JOINT
        if not self.models or alone != (len(self.models) == 1):
            raise BadInput(
                f"the score {self.score!r} is of {'one model' if alone else 'two models or more'}",
                got=len(self.models),
            )
        if self.score == "selector":
            selector_of(self.models[0])

    @classmethod
    def of(cls, *models: nn.Module) -> Abstainer:
        """Return the abstainer that fits the models: their product, the model's selector, or its softmax response."""
        if len(models) > 1:
            return cls(models, "product")
        return cls(models, "selector" if any(_has_selector(model) for model in models) else "softmax")

    def respond(self, split: Grouped, workers: int = 0) -> Response:
        """Return score and label of every example of a split, in order; nothing is refused yet."""
        device = _device(self.models)
        loader = Loader(split, in_order(len(split)), EVALUATION_BATCH, device, workers=workers)
        return self._respond(batch.x for batch in loader.batches())

    def calibrate(self, val: Grouped, coverage: float, workers: int = 0) -> Abstainer:
        """Return the abstainer that keeps a share ``coverage`` of ``val``; see :func:`threshold_for`."""
        return replace(self, threshold=threshold_for(self.respond(val, workers).scores, coverage))

    def predict_or_abstain(self, x: Input | Grouped, workers: int = 0) -> Tensor:
        """Return the label of every example, -1 where none is given.

        Args:
            x: a split, or inputs as the model takes them.
            workers: processes that read a streamed split.
        """
        if isinstance(x, Grouped):
            scores, pred = self.respond(x, workers)
        else:
            scores, pred = self._respond(_pieces(x, _device(self.models)))
        return torch.where(scores >= self.threshold, pred, ABSTAIN)

    @torch.no_grad()
    def _respond(self, inputs: Iterable[Input]) -> Response:
        with ExitStack() as modes:
            for model in self.models:
                modes.enter_context(evaluating(model))
            parts = [SCORES[self.score](self.models, x) for x in inputs]
        if not parts:
            raise BadInput("there is no example to predict", do="Pass a split with at least one example.")
        scores, pred = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        return Response(scores.double(), pred)


def softmax_response(model: nn.Module, split: Grouped, workers: int = 0) -> Response:
    """Return the largest probability of every example, and its label."""
    return Abstainer((model,), "softmax").respond(split, workers)


def product_response(
    first: nn.Module, second: nn.Module, split: Grouped, score: str = "product", workers: int = 0
) -> Response:
    """Return the largest product of two models' probabilities, and its label.

    Args:
        first: the initial model.
        second: the fine-tuned model.
        split: the examples.
        score: ``product`` as in the paper of MaskTune, or ``masktune-authors`` as in its authors' code.
        workers: processes that read a streamed split.
    """
    return Abstainer((first, second), score).respond(split, workers)


def selector_response(model: nn.Module, split: Grouped, workers: int = 0) -> Response:
    """Return what the model's own selector says of every example, and the model's label."""
    return Abstainer((model,), "selector").respond(split, workers)


def assess_selective(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float] = COVERAGES, workers: int = 0
) -> Selective:
    """Choose a threshold per target coverage on validation, and count what it keeps and what of it is wrong on test.

    The threshold of ``abstainer`` plays no part.
    """
    thresholds = thresholds_for(abstainer.respond(data.val, workers).scores, coverages)
    scores, pred = abstainer.respond(data.test, workers)
    return selective_table(scores, pred, data.test.y.cpu(), data.test.a.cpu(), data.test.groups, thresholds)


def selector_of(model: nn.Module) -> nn.Module:
    """Return the module that scores the examples of a model.

    Raises:
        BadInput: no method has left one.
    """
    if not _has_selector(model):
        raise BadInput(
            "the model has no selector",
            do="Fit a method that learns to abstain (deep-gamblers, selectivenet), or use the score 'softmax'.",
        )
    return model.get_submodule("selector")


def _has_selector(model: nn.Module) -> bool:
    return isinstance(model, Classifier) and isinstance(getattr(model, "selector", None), nn.Module)


def _probabilities(model: nn.Module, x: Input) -> Tensor:
    # in float64: in single precision every sure example has the probability 1, and a tie cannot be split
    logits: Tensor = model(x)
    return logits.double().softmax(dim=1)


def _softmax(models: Sequence[nn.Module], x: Input) -> Response:
    return Response(*_probabilities(models[0], x).max(dim=1))


def _products(models: Sequence[nn.Module], x: Input) -> Tensor:
    parts = [_probabilities(model, x) for model in models]
    if len({part.shape for part in parts}) > 1:
        raise BadInput(
            "the models do not tell the same classes apart", got=" and ".join(str(part.shape[1]) for part in parts)
        )
    return reduce(torch.mul, parts)


def _product(models: Sequence[nn.Module], x: Input) -> Response:
    return Response(*_products(models, x).max(dim=1))


def _masktune_authors(models: Sequence[nn.Module], x: Input) -> Response:
    return Response(*_products(models, x).softmax(dim=1).max(dim=1))


def _selector(models: Sequence[nn.Module], x: Input) -> Response:
    model = cast(Classifier, models[0])
    features = model.features(x)
    logits: Tensor = model.head(features)
    return Response(selector_of(model)(features, logits), logits.argmax(dim=1))


SCORES: dict[str, Score] = {
    "softmax": _softmax,
    "product": _product,
    "masktune-authors": _masktune_authors,
    "selector": _selector,
}
"""Every score by name."""
JOINT = ("product", "masktune-authors")
"""The scores of two models or more."""


def _device(models: Sequence[nn.Module]) -> torch.device:
    devices = {parameter.device for model in models for parameter in model.parameters()}
    if len(devices) > 1:
        raise BadInput("the models are on different devices", got=", ".join(sorted(map(str, devices))))
    return devices.pop() if devices else torch.device("cpu")


def _pieces(x: Input, device: torch.device) -> Iterable[Input]:
    if isinstance(x, Tensor):
        return (part.to(device) for part in torch.split(x, EVALUATION_BATCH) if len(part))
    columns = {name: torch.split(value, EVALUATION_BATCH) for name, value in x.items()}
    rows = zip(*columns.values(), strict=True)
    return ({name: part.to(device) for name, part in zip(columns, row, strict=True)} for row in rows)
