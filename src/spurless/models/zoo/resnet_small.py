"""ResNet-20 and ResNet-32 of He et al. for 32x32 images.

He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385, section
4.2: three stages of 16, 32 and 64 channels with n blocks each, 6n + 2 layers. When a stage halves the map, shortcut A
(the paper's choice here) takes every other pixel and pads the channels with zeros, without parameters; shortcut B is a
strided 1x1 convolution with batch norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from spurless.core.config import CheckedConfig
from spurless.models.classifier import Classifier
from spurless.models.zoo.shapes import Shape, check_image_shape

WIDTHS = (16, 32, 64)


@dataclass(frozen=True)
class SmallResNetConfig(CheckedConfig):
    """Options of small ResNets; the default is the value of the paper."""

    shortcut: Literal["A", "B"] = "A"


def resnet20(input_shape: Shape, n_classes: int, config: SmallResNetConfig) -> Classifier:
    """Build ResNet-20, 0.27 million parameters."""
    return _classifier("resnet20", 3, input_shape, n_classes, config)


def resnet32(input_shape: Shape, n_classes: int, config: SmallResNetConfig) -> Classifier:
    """Build ResNet-32, 0.46 million parameters. MaskTune uses the heat maps of ``backbone.layer3.4``."""
    return _classifier("resnet32", 5, input_shape, n_classes, config)


class SmallResNet(nn.Module):
    """The backbone: images to 64 pooled features."""

    def __init__(self, channels: int, blocks: int, shortcut: Literal["A", "B"]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.layer1 = _stage(WIDTHS[0], WIDTHS[0], blocks, shortcut)
        self.layer2 = _stage(WIDTHS[0], WIDTHS[1], blocks, shortcut)
        self.layer3 = _stage(WIDTHS[1], WIDTHS[2], blocks, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, shape ``(N, 64)``."""
        x = relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut; a change of width also halves the map."""

    def __init__(self, n_in: int, n_out: int, shortcut: Literal["A", "B"]) -> None:
        super().__init__()
        stride = 1 if n_in == n_out else 2
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.shortcut: nn.Module
        if stride == 1:
            self.shortcut = nn.Identity()
        elif shortcut == "A":
            self.shortcut = PaddedShortcut(n_out - n_in)
        else:
            self.shortcut = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the block."""
        out = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(out + self.shortcut(x))


class PaddedShortcut(nn.Module):
    """Shortcut A: every other pixel, and zeros for the new channels, half of them on each side."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Return the map with half the sides and more channels."""
        return pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


def _classifier(name: str, blocks: int, input_shape: Shape, n_classes: int, config: SmallResNetConfig) -> Classifier:
    channels, _, _ = check_image_shape(input_shape, name)
    model = Classifier(SmallResNet(channels, blocks, config.shortcut), nn.Linear(WIDTHS[-1], n_classes))
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return model


def _stage(n_in: int, n_out: int, blocks: int, shortcut: Literal["A", "B"]) -> nn.Sequential:
    return nn.Sequential(Block(n_in, n_out, shortcut), *(Block(n_out, n_out, shortcut) for _ in range(blocks - 1)))
