"""Selective prediction: confidence scores, and models that abstain on examples with a low score.

A higher score means more confidence. The scores are

* ``softmax``: the largest probability (softmax response; Geifman and El-Yaniv 2017, arXiv:1705.08500);
* ``product``: the probabilities of several models multiplied, and the largest product (MaskTune, Asgari Taghanaki
  et al. 2022, section 4.2: the initial and the fine-tuned model);
* ``masktune-authors``: as in the code of MaskTune's authors, another softmax over the products. The label is the same,
  but the order of the examples may differ;
* ``selector``: the output of the model's submodule ``selector``, which a method that learns to abstain adds to the
  model; it computes one score per example from features and logits.

Thresholds are chosen on the scores of the validation split, without labels.
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

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.metric_info import COVERAGES
from spurless.core.modules import Input, eval_mode
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split, Splits
from spurless.metrics.selective import Selective, selective_table, threshold_for, thresholds_for
from spurless.models.classifier import Classifier
from spurless.train.evaluate import EVALUATION_BATCH

ABSTAIN = -1  # the label of examples on which a model abstains


class Response(NamedTuple):
    """Confidence score (float64) and predicted label of every example, on the CPU."""

    scores: Tensor
    pred: Tensor


Score: TypeAlias = Callable[[Sequence[nn.Module], Input], Response]
"""Computes scores and labels from models and a batch."""


@dataclass(frozen=True)
class Abstainer:
    """One or more models that predict if the score reaches the threshold, and abstain otherwise.

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
    """Lowest score with a prediction; by default every example has one."""

    def __post_init__(self) -> None:
        check_arguments(Abstainer, vars(self))
        if self.score not in SCORES:
            raise UnknownNameError("score", self.score, SCORES)
        is_single = self.score not in JOINT_SCORES
        if not self.models or is_single != (len(self.models) == 1):
            raise InputError(
                f"the score {self.score!r} needs {'one model' if is_single else 'two models or more'}",
                got=len(self.models),
            )
        if self.score == "selector":
            selector_of(self.models[0])

    @classmethod
    def of(cls, *models: nn.Module) -> Abstainer:
        """Return an abstainer with the default score: product of several models, selector, or softmax response."""
        if len(models) > 1:
            return cls(models, "product")
        return cls(models, "selector" if any(_has_selector(model) for model in models) else "softmax")

    def respond(self, split: Split, workers: int = 0) -> Response:
        """Return score and label of every example of a split, in order, without applying the threshold."""
        device = _device(self.models)
        loader = Loader(split, sequential_order(len(split)), EVALUATION_BATCH, device, workers=workers)
        return self._respond(batch.x for batch in loader.batches())

    def calibrate(self, val: Split, coverage: float, workers: int = 0) -> Abstainer:
        """Return the abstainer with the threshold that predicts a fraction ``coverage`` of ``val``."""
        return replace(self, threshold=threshold_for(self.respond(val, workers).scores, coverage))

    def predict_or_abstain(self, x: Input | Split, workers: int = 0) -> Tensor:
        """Return the label of every example of a split or a batch, or -1 if the model abstains."""
        if isinstance(x, Split):
            scores, pred = self.respond(x, workers)
        else:
            scores, pred = self._respond(_split_batches(x, _device(self.models)))
        return torch.where(scores >= self.threshold, pred, ABSTAIN)

    @torch.no_grad()
    def _respond(self, inputs: Iterable[Input]) -> Response:
        with ExitStack() as modes:
            for model in self.models:
                modes.enter_context(eval_mode(model))
            parts = [SCORES[self.score](self.models, x) for x in inputs]
        if not parts:
            raise InputError("the split has no examples", hint="Pass a split with at least one example.")
        scores, pred = (torch.cat(column).cpu() for column in zip(*parts, strict=True))
        return Response(scores.double(), pred)


def assess_selective(
    abstainer: Abstainer, data: Splits, coverages: Sequence[float] = COVERAGES, workers: int = 0
) -> Selective:
    """Choose a threshold per target coverage on validation, and return coverage and errors on test.

    The threshold of ``abstainer`` is not used.
    """
    thresholds = thresholds_for(abstainer.respond(data.val, workers).scores, coverages)
    scores, pred = abstainer.respond(data.test, workers)
    return selective_table(scores, pred, data.test.y.cpu(), data.test.a.cpu(), data.test.groups, thresholds)


def selector_of(model: nn.Module) -> nn.Module:
    """Return the selector of a model, or raise if it has none."""
    if not _has_selector(model):
        raise InputError(
            "the model has no selector",
            hint="Fit a method that learns to abstain (deep-gamblers, selectivenet), or use the score 'softmax'.",
        )
    return model.get_submodule("selector")


def _has_selector(model: nn.Module) -> bool:
    return isinstance(model, Classifier) and isinstance(getattr(model, "selector", None), nn.Module)


def _probabilities(model: nn.Module, x: Input) -> Tensor:
    # float64: in float32 many confident examples have probability 1, and ties cannot be ordered
    return cast(Tensor, model(x)).double().softmax(dim=1)


def _products(models: Sequence[nn.Module], x: Input) -> Tensor:
    parts = [_probabilities(model, x) for model in models]
    if len({part.shape for part in parts}) > 1:
        raise InputError(
            "the models have different numbers of classes", got=" and ".join(str(part.shape[1]) for part in parts)
        )
    return reduce(torch.mul, parts)


def _selector(models: Sequence[nn.Module], x: Input) -> Response:
    model = cast(Classifier, models[0])
    features = model.features(x)
    logits: Tensor = model.head(features)
    return Response(selector_of(model)(features, logits), logits.argmax(dim=1))


SCORES: dict[str, Score] = {
    "softmax": lambda models, x: Response(*_probabilities(models[0], x).max(dim=1)),
    "product": lambda models, x: Response(*_products(models, x).max(dim=1)),
    "masktune-authors": lambda models, x: Response(*_products(models, x).softmax(dim=1).max(dim=1)),
    "selector": _selector,
}
"""Scores by name."""
JOINT_SCORES = ("product", "masktune-authors")  # scores that need two models or more


def _device(models: Sequence[nn.Module]) -> torch.device:
    devices = {parameter.device for model in models for parameter in model.parameters()}
    if len(devices) > 1:
        raise InputError("the models are on different devices", got=", ".join(sorted(map(str, devices))))
    return devices.pop() if devices else torch.device("cpu")


def _split_batches(x: Input, device: torch.device) -> Iterable[Input]:
    if isinstance(x, Tensor):
        return (part.to(device) for part in torch.split(x, EVALUATION_BATCH) if len(part))
    columns = {name: torch.split(value, EVALUATION_BATCH) for name, value in x.items()}
    rows = zip(*columns.values(), strict=True)
    return ({name: part.to(device) for name, part in zip(columns, row, strict=True)} for row in rows)
