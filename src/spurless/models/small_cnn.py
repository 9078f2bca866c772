"""Small CNN: MaskTune's net for MNIST, two pairs of 3x3 convolutions and a hidden layer on the flattened map.

Taghanaki et al., "MaskTune", NeurIPS 2022, arXiv:2210.00055; ``SmallCNN`` in the authors' code. On 28x28
pixels the last map is 4x4 and the hidden layer reads 512 numbers; other sizes adapt that layer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from spurless.models.classifier import Classifier
from spurless.models.shapes import Shape, image_shape

SMALLEST = 16  # 16 -> 14 -> 12 -> 6 -> 4 -> 2 -> 1


@dataclass(frozen=True)
class SmallCNNConfig:
    """Values of the authors' code."""

    width: int = 16
    """channels of the first pair; the second has twice as many"""
    hidden: int = 256


def small_cnn(input_shape: Shape, n_classes: int, config: SmallCNNConfig) -> Classifier:
    """Build the net. MaskTune's heat maps are taken at ``backbone.relu4``."""
    channels, height, width = image_shape(input_shape, "small-cnn", SMALLEST)
    first, second = config.width, 2 * config.width
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (n_in, n_out) in enumerate([(channels, first), (first, first), (first, second), (second, second)], 1):
        parts[f"conv{i}"] = nn.Conv2d(n_in, n_out, 3)
        parts[f"norm{i}"] = nn.BatchNorm2d(n_out)
        parts[f"relu{i}"] = nn.ReLU()
        if i in (2, 4):
            parts[f"pool{i // 2}"] = nn.MaxPool2d(2)
    parts["flatten"] = nn.Flatten()
    parts["hidden"] = nn.Linear(second * _side(height) * _side(width), config.hidden)
    parts["norm5"] = nn.BatchNorm1d(config.hidden)
    parts["relu5"] = nn.ReLU()
    return Classifier(nn.Sequential(parts), nn.Linear(config.hidden, n_classes))


def _side(pixels: int) -> int:
    """Return the side of the last map: twice two unpadded 3x3 convolutions and a pool."""
    return ((pixels - 4) // 2 - 4) // 2
