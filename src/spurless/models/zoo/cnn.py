"""Convolutional networks without skip connections: small-cnn, pooled-cnn, rebias-cnn and vgg11-small.

* small-cnn, for MNIST: ``SmallCNN`` in the code of Taghanaki et al., "MaskTune", NeurIPS 2022, arXiv:2210.00055. For
  28x28 pixels the last map is 4x4 and the hidden layer has 512 inputs; other image sizes change that layer.
* pooled-cnn, for colored MNIST: Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR
  2023, arXiv:2210.05247. With three channels and ten classes it has 660,992 convolution and linear weights.
* rebias-cnn, for colored MNIST: four 7x7 convolutions at full resolution, with He's initialization, in the code of
  Bahng et al., "Learning De-biased Representations with Biased Representations", ICML 2020, arXiv:1910.02806. EnD
  (Tartaglione et al., CVPR 2021, arXiv:2103.02023) has it too, with a tanh as the last activation, features of length 1
  and inputs in [-1, 1]: ``last="tanh", unit=True, centred=True``.
* vgg11-small, the network of the learning-rate study: configuration A of Simonyan and Zisserman 2015, arXiv:1409.1556,
  with one linear layer, without biases and batch norm. A pool that would leave no pixel is left out: the last one for
  28x28 images; 32x32 is the smallest size with all five. Convolutions have He's normal initialization, as in
  torchvision's VGG: without batch norm, torch's default shrinks the signal at every layer until training fails.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn.functional import normalize

from spurless.core.config import CheckedConfig, Range, Width
from spurless.core.errors import InputError
from spurless.models.classifier import Classifier
from spurless.models.zoo.normalize import Normalize
from spurless.models.zoo.shapes import Shape, check_image_shape

SMALL_CNN_MIN_SIDE = 16  # 16 -> 14 -> 12 -> 6 -> 4 -> 2 -> 1
VGG_STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))
VGG_MIN_SIDE = 16  # four of the five pools


@dataclass(frozen=True)
class SmallCNNConfig(CheckedConfig):
    """Options of ``small-cnn``; the defaults are the values of MaskTune's authors."""

    width: Width = 16  # channels of the first pair; the second has twice as many
    hidden: Width = 256


def small_cnn(input_shape: Shape, n_classes: int, config: SmallCNNConfig) -> Classifier:
    """Build the network. MaskTune uses the heat maps of ``backbone.relu4``."""
    channels, height, width = check_image_shape(input_shape, "small-cnn", SMALL_CNN_MIN_SIDE)
    first, second = config.width, 2 * config.width
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (n_in, n_out) in enumerate([(channels, first), (first, first), (first, second), (second, second)], 1):
        parts[f"conv{i}"] = nn.Conv2d(n_in, n_out, 3)
        parts[f"norm{i}"] = nn.BatchNorm2d(n_out)
        parts[f"relu{i}"] = nn.ReLU()
        if i in (2, 4):
            parts[f"pool{i // 2}"] = nn.MaxPool2d(2)
    parts["flatten"] = nn.Flatten()
    parts["hidden"] = nn.Linear(second * _last_side(height) * _last_side(width), config.hidden)
    parts["norm5"] = nn.BatchNorm1d(config.hidden)
    parts["relu5"] = nn.ReLU()
    return Classifier(nn.Sequential(parts), nn.Linear(config.hidden, n_classes))


def _last_side(pixels: int) -> int:
    """Return the side of the last map, after two times two unpadded 3x3 convolutions and a pool."""
    return ((pixels - 4) // 2 - 4) // 2


@dataclass(frozen=True)
class PooledCNNConfig(CheckedConfig):
    """Options of ``pooled-cnn``; the defaults are the values of the authors' code."""

    channels: tuple[Width, ...] = (64, 128, 256)
    unit: bool = False  # whether features are scaled to length 1, as by the authors of EnD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise InputError(
                "option 'channels' of pooled-cnn must be positive", expected="for example 64,128,256", got=self.channels
            )


class UnitLength(nn.Module):
    """Scales the features of every example to length 1; zeros stay zero."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, shape ``(N, d)``."""
        return normalize(x, dim=1)


def pooled_cnn(input_shape: Shape, n_classes: int, config: PooledCNNConfig) -> Classifier:
    """Build the network; every convolution halves the sides of the map."""
    n_in, _, _ = check_image_shape(input_shape, "pooled-cnn", smallest=2 ** len(config.channels))
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, n_out in enumerate(config.channels, 1):
        parts[f"conv{i}"] = nn.Conv2d(n_in, n_out, 4, stride=2, padding=1, bias=False)
        parts[f"norm{i}"] = nn.BatchNorm2d(n_out)
        parts[f"relu{i}"] = nn.ReLU()
        n_in = n_out
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    if config.unit:
        parts["unit"] = UnitLength()
    return Classifier(nn.Sequential(parts), nn.Linear(n_in, n_classes))


@dataclass(frozen=True)
class ReBiasCNNConfig(CheckedConfig):
    """Options of ``rebias-cnn``; the defaults are the values of the authors of ReBias."""

    channels: tuple[Width, ...] = (16, 32, 64, 128)
    kernel: Annotated[int, Range(1, 99)] = 7  # pixels; odd, so that the map keeps its size
    last: Literal["relu", "tanh"] = "relu"  # last activation; tanh: the authors of EnD
    unit: bool = False  # whether features are scaled to length 1, as by the authors of EnD
    centred: bool = False  # whether inputs in [0, 1] are scaled to [-1, 1], as by the authors of EnD

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            expected = "for example 16,32,64,128"
            raise InputError("option 'channels' of rebias-cnn is empty", expected=expected, got=self.channels)
        if self.kernel % 2 == 0:
            raise InputError("option 'kernel' of rebias-cnn must be odd", expected="for example 7", got=self.kernel)


def rebias_cnn(input_shape: Shape, n_classes: int, config: ReBiasCNNConfig) -> Classifier:
    """Build the network; every map has the size of the input."""
    n_in, _, _ = check_image_shape(input_shape, "rebias-cnn")
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    if config.centred:
        parts["centred"] = Normalize([0.5] * n_in, [0.5] * n_in)
    for i, n_out in enumerate(config.channels, 1):
        conv = parts[f"conv{i}"] = nn.Conv2d(n_in, n_out, config.kernel, padding=config.kernel // 2)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        parts[f"norm{i}"] = nn.BatchNorm2d(n_out)
        activation = config.last if i == len(config.channels) else "relu"
        parts[f"{activation}{i}"] = nn.Tanh() if activation == "tanh" else nn.ReLU()
        n_in = n_out
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    if config.unit:
        parts["unit"] = UnitLength()
    return Classifier(nn.Sequential(parts), nn.Linear(n_in, n_classes))


@dataclass(frozen=True)
class VGG11Config(CheckedConfig):
    """Options of ``vgg11-small``; the default is the value of "Large Learning Rates"."""

    bias: bool = False


def vgg11(input_shape: Shape, n_classes: int, config: VGG11Config) -> Classifier:
    """Build the network; the features are the flattened last map."""
    n_in, height, width = check_image_shape(input_shape, "vgg11-small", VGG_MIN_SIDE)
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for stage, widths in enumerate(VGG_STAGES, 1):
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
