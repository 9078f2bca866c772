r"""Accuracy under transplants: how accurate a model is if a property no longer comes with the label.

Every example :math:`i` of class :math:`c` gets a property :math:`T` (:mod:`spurless.data.transplants`) of ``DONORS``
random donors :math:`j`, which are of every class equally often. Classes are weighted alike:

.. math:: A_T = \frac1K \sum_c \frac{1}{D n_c} \sum_{y_i = c} \sum_{d=1}^{D} [\hat y(T(x_i, x_{j_{id}})) = y_i] .

The criterion is the lowest :math:`A_T`: of all given properties together, which come from the same donor, and of each
alone if there are several. No group label is needed, and no example that breaks the shortcut. Donors are fixed: all
models are compared on the same images.

Limits: the accuracy is measured for these properties only. A label that is in the property itself, such as an object at
the border of the image, is lost in a transplant, and the accuracy of a good model falls as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.data.transplants import Transplant, transplant_split
from spurless.train.evaluate import predict

DONORS = 3  # donors of every example
MAX_EXAMPLES = 1000  # examples that get transplants, sampled at random if there are more
TOGETHER = "all of these properties"
SEEDS = Seeds(0).child("transplants")  # not that of the run: all models get the same donors


@dataclass(frozen=True, eq=False)
class TransplantedExamples:
    """Examples of a split with properties of random donors; create it with :func:`transplant_examples`."""

    names: tuple[str, ...]  # of the properties
    rows: Tensor  # indices of the examples in the split, ``(M,)``
    y: Tensor  # their labels
    splits: Mapping[str, Split]  # ``DONORS * M`` transplanted examples, by name of the property

    def compute_correct(self, model: nn.Module, device: torch.device, workers: int = 0) -> dict[str, Tensor]:
        """Return which predictions are correct, ``(DONORS, M)`` by name of the property."""
        return {
            name: predict(model, split, device, workers).view(DONORS, -1) == self.y
            for name, split in self.splits.items()
        }

    def find_lowest(self, correct: Mapping[str, Tensor]) -> tuple[float, str]:
        """Return the lowest accuracy with classes weighted alike, and the name of its property."""
        return min((average_classes(part.double().mean(dim=0), self.y), name) for name, part in correct.items())


def transplant_examples(split: Split, transplants: Sequence[Transplant]) -> TransplantedExamples:
    """Return examples of a split with the given properties of fixed random donors.

    Raises:
        InputError: no property is given, or labels of the split are hidden.
    """
    if not transplants:
        raise InputError("accuracy under transplants needs the name of a property", hint="Name one: 'the frame'.")
    y = split.y.cpu()
    if not len(y) or bool((y < 0).any()):
        raise InputError("accuracy under transplants needs examples with labels", got=f"{len(y)} examples")
    rows = torch.arange(len(y))
    if len(y) > MAX_EXAMPLES:
        rows = torch.randperm(len(y), generator=SEEDS.generator("rows"))[:MAX_EXAMPLES].sort().values
    donors, repeated = sample_balanced_donors(y, len(rows)).flatten(), rows.repeat(DONORS)
    together = [combine_transplants(transplants)] if len(transplants) > 1 else []
    splits = {t.name: transplant_split(split, repeated, donors, t) for t in (*together, *transplants)}
    return TransplantedExamples(tuple(t.name for t in transplants), rows, y[rows], splits)


def sample_balanced_donors(y: Tensor, n: int) -> Tensor:
    """Return ``DONORS`` donors for each of ``n`` examples: of every class equally often, random within a class.

    Example:
        >>> y = torch.tensor([0] * 90 + [1] * 10)
        >>> torch.bincount(y[sample_balanced_donors(y, 100)].flatten()).tolist()
        [150, 150]
    """
    labels, generator = torch.unique(y), SEEDS.generator("donors")
    order = torch.arange(DONORS * n) % len(labels)
    chosen = labels[order[torch.randperm(len(order), generator=generator)]]
    donors = torch.empty_like(chosen)
    for label in labels:
        receivers, pool = (chosen == label).nonzero().flatten(), (y == label).nonzero().flatten()
        donors[receivers] = pool[torch.randint(len(pool), (len(receivers),), generator=generator)]
    return donors.view(DONORS, n)


def combine_transplants(transplants: Sequence[Transplant]) -> Transplant:
    """Return the transplant of several properties of the same donor, one after the other."""

    def apply(x: Any, donors: Any) -> Any:
        return reduce(lambda result, transplant: transplant.apply(result, donors), transplants, x)

    return replace(transplants[0], name=TOGETHER, apply=apply)


def average_classes(values: Tensor, y: Tensor) -> float:
    """Return the mean of values with classes weighted alike.

    Example:
        >>> average_classes(torch.tensor([1.0, 1.0, 1.0, 0.0]), torch.tensor([0, 0, 0, 1]))
        0.5
    """
    return float(torch.stack([values[y == label].mean() for label in torch.unique(y)]).mean())
