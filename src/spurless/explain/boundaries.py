"""Boundaries: which class a model says where in the plane, and how that changes while a method trains it.

Frames are taken by a criterion: the loop calls it with the model after every epoch, so nothing else need be told.
How they are shown is in :mod:`spurless.explain.films`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.data.grouped import Grouped, Splits
from spurless.explain.panels import Place
from spurless.models.classifier import Classifier, evaluating
from spurless.models.masks import sparsity
from spurless.models.wrapping import wrap
from spurless.train.evaluate import predict
from spurless.train.run import Run

SIZE = 200
"""places along each side of a grid"""
CORRUPTED = "corrupted"
"""the attribute of training examples whose label is wrong"""


class Fits(Protocol):
    """The part of a method that is needed here."""

    @property
    def info(self) -> Any:
        """Which labels it may see."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        """Train ``model`` on ``data``."""


@dataclass(frozen=True)
class Frame:
    """What a model said after an epoch: everywhere in the plane, and how often it was right."""

    epoch: int
    """from 1; 0 is the model before"""
    classes: Tensor
    """``(size, size)``, the top row first, as it is seen"""
    low: Place
    high: Place
    accuracy: float
    """on the test split"""
    obeyed: float | None
    """the share of wrong training labels that it predicts; None where no label is wrong"""
    sparsity: float


@dataclass(frozen=True)
class Film:
    """The frames of one training, in their order, and the data it was on."""

    data: Splits
    frames: tuple[Frame, ...]


class Watch:
    """Takes frames of a model that is being trained: a criterion that prefers every epoch to the one before.

    So the last epoch is kept, whatever a frame shows: it looks at the test split, and nothing is chosen by it.

    Args:
        data: rows of two features, with their labels and attributes.
        every: epochs from one frame to the next.
        size: places along each side of the grid.

    Example:
        >>> from spurless.data import load
        >>> watch = Watch(load("gaussians"), every=2)
        >>> [watch(nn.Linear(2, 5)) for _ in range(5)], [frame.epoch for frame in watch.frames]
        ([1.0, 2.0, 3.0, 4.0, 5.0], [2, 4])
    """

    def __init__(self, data: Splits, every: int = 1, size: int = SIZE) -> None:
        if every < 1:
            raise BadInput("there is at least one epoch from one frame to the next", got=every)
        self.data, self.every, self.size = data, every, size
        self.epoch = 0
        self.frames: list[Frame] = []
        self.wrong = wrong_labels(data.train)
        x = torch.cat([plane_of(data.train), plane_of(data.test)])
        low, high = x.amin(dim=0), x.amax(dim=0)
        rim = 0.04 * (high - low).clamp(min=1e-6)
        self.low, self.high = _place(low - rim), _place(high + rim)

    def __call__(self, model: nn.Module) -> float:
        """Count an epoch, look at the model if it is due, and return the number of the epoch."""
        self.epoch += 1
        if self.epoch % self.every == 0:
            self.look(model)
        return float(self.epoch)

    def look(self, model: nn.Module) -> None:
        """Take a frame."""
        classes, home = boundary(model, self.low, self.high, self.size), _home(model)
        right = predict(model, self.data.test, home) == self.data.test.y.cpu()
        obeyed = predict(model, self.wrong, home) == self.wrong.y.cpu() if len(self.wrong) else None
        self.frames.append(
            Frame(
                self.epoch,
                classes,
                self.low,
                self.high,
                accuracy=float(right.double().mean()),
                obeyed=None if obeyed is None else float(obeyed.double().mean()),
                sparsity=sparsity(model),
            )
        )


def film(method: Fits, model: nn.Module, data: Splits, run: Run, every: int = 20) -> Film:
    """Fit a method and take frames: of the model before, of every so many epochs, and of the last.

    Args:
        method: one that keeps the epoch that the run's criterion likes best, as all do that train by the loop.
        model: its starting point; it is copied, never changed. A method that repairs a model needs a trained one.
        data: rows of two features. The method is shown what it declared, and never the test split.
        run: from :func:`spurless.train.run.start`; its criterion gives way to the camera.
        every: epochs from one frame to the next.

    Raises:
        BadInput: model or data have other than two features, the run leaves checkpoints, or the method has no epochs
            that the criterion sees.
    """
    if run.checkpoints is not None:
        raise BadInput(
            "a run that is continued has no frames of what came before", do="Start the run without a folder."
        )
    watch, started = Watch(data, every), deepcopy(wrap(model)).to(run.device)
    watch.look(started)
    declared = {name: getattr(method.info, name) for name in ("train_attributes", "val_labels", "val_attributes")}
    last = method.fit(started, data.shown(**declared), replace(run, score=watch))
    if not watch.epoch:
        raise BadInput(f"{method.info.name} asks the criterion after no epoch, so there is nothing to film")
    if watch.frames[-1].epoch != watch.epoch:
        watch.look(last)
    return Film(data, tuple(watch.frames))


@torch.no_grad()
def boundary(model: nn.Module, low: Place, high: Place, size: int = SIZE) -> Tensor:
    """Return the predicted class in the middle of every field of a grid, the top row first.

    Args:
        model: a classifier of rows of two features; it is left as it was.
        low: the corner at the bottom left.
        high: the corner at the top right.
        size: fields along each side.

    Raises:
        BadInput: the model does not take two features, or the corners span no plane.
    """
    if not (low[0] < high[0] and low[1] < high[1] and size > 0):
        raise BadInput("the corners span no plane", expected="bottom left, top right", got=f"{low}, {high}, {size}")
    middles = (torch.arange(size, dtype=torch.double) + 0.5) / size
    across, up = (low[i] + middles * (high[i] - low[i]) for i in (0, 1))
    grid = torch.cartesian_prod(up.flip(0), across).flip(1).float()
    name = getattr(model, "name", type(model).__name__)
    with evaluating(model):
        try:
            logits: Tensor = model(grid.to(_home(model)))
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise BadInput(f"{name} cannot take rows of two features, so it has no plane to draw: {said}") from None
    if logits.dim() != 2:
        raise BadInput(f"{name} gives no logits", expected=f"({size**2}, classes)", got=tuple(logits.shape))
    return logits.argmax(dim=1).view(size, size).cpu()


def wrong_labels(train: Grouped) -> Grouped:
    """Return the training examples that are known to have a wrong label."""
    names = train.groups.attributes
    if CORRUPTED not in names:
        return train.select(torch.empty(0, dtype=torch.long))
    return train.select(train.column(CORRUPTED).a == 1 if train.groups.overlap else train.a == names.index(CORRUPTED))


def plane_of(split: Grouped) -> Tensor:
    """Return the places of the examples."""
    x = split.x
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != 2:
        raise BadInput(
            "these data do not lie in a plane",
            expected="rows of two features",
            got=f"examples of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else "texts or streamed examples",
        )
    if split.transform is not None:
        raise BadInput("these data are transformed on their way to the model, so their plane is not the model's")
    return x.float().cpu()


def _home(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _place(corner: Tensor) -> Place:
    return float(corner[0]), float(corner[1])
