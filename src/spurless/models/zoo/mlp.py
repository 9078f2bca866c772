"""Multi-layer perceptron and linear classifier, as in the learning-rate study.

"Depth" counts linear layers, as in that study's code and appendix C: depth 3 is two hidden layers and the head; section
5 mentions three hidden layers for parity. Its networks have no biases; the width is 1024 for images and 200 for
synthetic data.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Literal

from torch import Tensor, nn

from spurless.core.config import ADDED_LATER, CheckedConfig, Positive, Range, Width
from spurless.core.errors import InputError
from spurless.models.classifier import Classifier
from spurless.models.zoo.shapes import Shape

MAX_DEPTH = 1000  # linear layers


@dataclass(frozen=True)
class MLPConfig(CheckedConfig):
    """Values for synthetic data of the learning-rate study."""

    depth: Annotated[int, Range(1, MAX_DEPTH)] = 3  # number of linear layers, including the head
    width: Width = 200
    features: Width | None = None  # width of the last hidden layer, the input of the head; None is ``width``
    activation: Literal["relu", "tanh"] = "relu"
    bias: bool = False
    divisor: Positive = field(default=1.0, metadata=ADDED_LATER)
    """inputs are divided by this; 255 as in the code of LfF and DisEnt, which divides images in [0, 1] by 255 again"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is not None and self.depth == 1:
            raise InputError("option 'features' of mlp needs a hidden layer", expected="depth of 2 or more", got=1)


@dataclass(frozen=True)
class LinearConfig(CheckedConfig):
    """One linear layer."""

    bias: bool = True


class Divide(nn.Module):
    """Divides its input by a number."""

    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        """Return the quotient."""
        return x / self.divisor


def mlp(input_shape: Shape, n_classes: int, config: MLPConfig) -> Classifier:
    """Build an MLP; inputs of any shape are flattened."""
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[config.activation]
    layers, size = list[nn.Module]([nn.Flatten()]), prod(input_shape)
    if config.divisor != 1:  # not always, because it renumbers the layers in files of weights
        layers.insert(0, Divide(config.divisor))
    widths = [config.width] * (config.depth - 1)
    if config.features is not None:
        widths[-1] = config.features
    for width in widths:
        layers += [nn.Linear(size, width, bias=config.bias), activation()]
        size = width
    return Classifier(nn.Sequential(*layers), nn.Linear(size, n_classes, bias=config.bias))


def linear(input_shape: Shape, n_classes: int, config: LinearConfig) -> Classifier:
    """Build a linear classifier of the raw input."""
    return mlp(input_shape, n_classes, MLPConfig(depth=1, bias=config.bias))
