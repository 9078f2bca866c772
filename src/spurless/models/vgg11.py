"""VGG11-like: configuration A of VGG with one linear layer, no biases and no batch norm.

The net of the learning-rate study (Simonyan and Zisserman 2015, arXiv:1409.1556, for the layers). A pool that
would leave no pixel is left out: at 28x28 the last one is, and 32x32 is the smallest size with all five.
Convolutions start from He's normal initialisation, as torchvision's VGG: without batch norm, torch's default
shrinks the signal at every layer until nothing trains.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import nn

from spurless.models.classifier import Classifier
from spurless.models.shapes import Shape, image_shape

STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
SMALLEST = 16  # four pools of five


@dataclass(frozen=True)
class VGG11Config:
    """As in the study."""

    bias: bool = False


def vgg11(input_shape: Shape, n_classes: int, config: VGG11Config) -> Classifier:
    """Build the net; the head reads the flattened last map."""
    n_in, height, width = image_shape(input_shape, "vgg11-small", SMALLEST)
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, widths in enumerate(STAGES, 1):
        for i, n_out in enumerate(widths, 1):
            parts[f"conv{stage}_{i}"] = _conv(n_in, n_out, config.bias)
            parts[f"relu{stage}_{i}"] = nn.ReLU()
            n_in = n_out
        if min(height, width) >= 2:
            parts[f"pool{stage}"] = nn.MaxPool2d(2)
            height, width = height // 2, width // 2
    parts["flatten"] = nn.Flatten()
    return Classifier(nn.Sequential(parts), nn.Linear(n_in * height * width, n_classes, bias=config.bias))


def _conv(n_in: int, n_out: int, bias: bool) -> nn.Conv2d:
    conv = nn.Conv2d(n_in, n_out, 3, padding=1, bias=bias)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv
