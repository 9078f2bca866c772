"""Subject: a model and the examples it is judged on, with what several audits need computed once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.models.classifier import Classifier
from spurless.models.features import logits_of_features
from spurless.train.embed import features_of
from spurless.train.run import Run

LEVEL = 0.05
"""How often an audit may flag a model that leans on nothing."""
PERMUTATIONS = 499
"""How often chance is asked; the smallest p is one in so many and one."""


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited. Everything lies on the CPU, in the order of the split."""

    model: Classifier
    split: Grouped
    """held-out examples with labels; attributes where they are known"""
    features: Tensor
    """what the head reads, ``(N, d)``"""
    logits: Tensor
    """``(N, classes)``"""
    train: Grouped | None = None
    """what the model was trained on, where it is at hand"""
    seeds: Seeds = field(default_factory=Seeds)
    permutations: int = PERMUTATIONS
    level: float = LEVEL
    guesses: str | None = None
    """why the model is no better than guessing, as half a sentence; None where it is better"""

    def __len__(self) -> int:
        return len(self.split)

    @property
    def y(self) -> Tensor:
        """The labels."""
        return self.split.y.cpu()

    @cached_property
    def probabilities(self) -> Tensor:
        """What the model gives to each label, in float64."""
        return self.logits.double().softmax(dim=1)

    @cached_property
    def predicted(self) -> Tensor:
        """The label that the model gives."""
        return self.logits.argmax(dim=1)

    @cached_property
    def wrong(self) -> Tensor:
        """Where that is not the label."""
        return self.predicted != self.y

    @cached_property
    def margin(self) -> Tensor:
        """How sure the model is: the first logit over the second."""
        top = self.logits.double().topk(min(2, self.logits.shape[1]), dim=1).values
        return top[:, 0] - top[:, -1]


def look(model: Classifier, split: Grouped, run: Run, train: Grouped | None = None) -> Subject:
    """Pass the examples through the model once.

    Raises:
        BadInput: the labels are hidden, a label is none of the model's, or what the model says is no number.
    """
    y = split.y.cpu()
    if bool((y < 0).any()):
        raise BadInput("the labels of this split are hidden, and an audit asks where the model is wrong")
    if int(y.max()) >= model.n_classes:
        raise BadInput(
            "a label is none of the model's",
            expected=f"{model.n_classes} labels",
            got=len(split.groups.labels),
            do="A model of one logit must be given two: one for each label." if model.n_classes == 1 else "",
        )
    features = features_of(model, split, run)
    logits = logits_of_features(model, features)
    if not bool(logits.isfinite().all()):
        row = int((~logits.isfinite()).any(dim=1).nonzero()[0])
        raise BadInput(
            f"the logits of example {row} are not finite",
            got=logits[row].tolist()[:4],
            do="The weights of the head are no numbers, or have diverged.",
        )
    return Subject(model, _named(split, logits.shape[1]), features, logits, train, run.seeds.child("audit"))


def _named(split: Grouped, count: int) -> Grouped:
    """Return examples that have a name for every label which the model may say; data may lack the last ones."""
    labels = split.groups.labels
    more = tuple(f"label {number}" for number in range(len(labels), count))
    return replace(split, groups=replace(split.groups, labels=(*labels, *more))) if more else split


def rows_first(score: Tensor, among: Tensor, most: int = 24) -> tuple[int, ...]:
    """Return the examples with the highest scores among some, the highest first.

    Example:
        >>> rows_first(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([True, False, True]))
        (2, 0)
    """
    places = among.nonzero().flatten()
    order = torch.argsort(score[places], descending=True, stable=True)[:most]
    return tuple(places[order].tolist())
