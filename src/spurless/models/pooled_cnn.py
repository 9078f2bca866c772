"""Pooled CNN: DCWP's net for coloured MNIST, three strided convolutions and a global average.

Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247.
With three channels and ten classes it has 660,992 convolution and linear weights, the ones that can be pruned.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import normalize

from spurless.core.errors import BadInput
from spurless.models.classifier import Classifier
from spurless.models.shapes import Shape, image_shape


@dataclass(frozen=True)
class PooledCNNConfig:
    """Values of the authors' code."""

    channels: tuple[int, ...] = (64, 128, 256)
    unit: bool = False
    """the head reads features of length 1, as EnD's authors have it"""

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise BadInput(
                "option 'channels' of pooled-cnn cannot be used", expected="for example 64,128,256", got=self.channels
            )


class Unit(nn.Module):
    """Scales the features of every example to length 1; those of length 0 stay."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the features, shape ``(N, d)``."""
        return normalize(x, dim=1)


def pooled_cnn(input_shape: Shape, n_classes: int, config: PooledCNNConfig) -> Classifier:
    """Build the net; every convolution halves the sides."""
    n_in, _, _ = image_shape(input_shape, "pooled-cnn", smallest=2 ** len(config.channels))
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    for i, n_out in enumerate(config.channels, 1):
        parts[f"conv{i}"] = nn.Conv2d(n_in, n_out, 4, stride=2, padding=1, bias=False)
        parts[f"norm{i}"] = nn.BatchNorm2d(n_out)
        parts[f"relu{i}"] = nn.ReLU()
        n_in = n_out
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    if config.unit:
        parts["unit"] = Unit()
    return Classifier(nn.Sequential(parts), nn.Linear(n_in, n_classes))
