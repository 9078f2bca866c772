"""Normalization layer with the mean and standard deviation that pretrained weights expect.

Images are always loaded in [0, 1]; only the model knows the normalization of its weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Subtracts a mean and divides by a standard deviation per channel.

    Example:
        >>> Normalize((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # not in the state dict: they are constants, and files of other libraries have no such keys
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        return (x - self.mean) / self.std
