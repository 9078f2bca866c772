"""Normalising: the mean and deviation that pretrained weights expect, as the first layer of the model.

Data say nothing of models, so images come as [0, 1] whatever reads them; what the weights were trained on is
known to the model alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalising(nn.Module):
    """Subtracts a mean and divides by a standard deviation, per channel.

    Example:
        >>> Normalising((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        # not in the state dict: constants of the architecture, and weights of others have no such keys
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        return (x - self.mean) / self.std
