"""Noise: Gaussian, shot, impulse and speckle noise, drawn anew for every value of every image.

Each function takes grey levels 0 to 255 as doubles ``(n, C, H, W)``, the numbers of a level and the draws.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions.draws import Draws, poisson, poisson_table
from spurless.data.corruptions.pixels import Level


def gaussian_noise(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Add normal noise; the level is its standard deviation, white being 1."""
    (std,) = level
    return torch.add(x, draws.normal("noise", *x.shape[1:]), alpha=255 * std)


def shot_noise(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Count photons; the level is how many a white value has on average, so that fewer are noisier.

    Deviations:
        Counts above white's average are one count: they all end as white.
    """
    (photons,) = (int(number) for number in level)
    row = x.to(torch.int64)
    bits = draws.bits("photons", row[0].numel()).view_as(row)
    return poisson(bits, row, _grey_table(photons).to(x.device)).to(torch.float64).mul_(255 / photons)


def impulse_noise(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Set values to black or white, each as likely; the level is the share of values, channels drawn apart."""
    (share,) = level
    u = draws.uniform("impulse", *x.shape[1:])
    return torch.where(u < share / 2, 0.0, torch.where(u < share, 255.0, x))


def speckle_noise(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Multiply by 1 plus normal noise; the level is the standard deviation of the noise."""
    (std,) = level
    return draws.normal("noise", *x.shape[1:]).mul_(std).add_(1).mul_(x)


@lru_cache
def _grey_table(photons: int) -> Tensor:
    """Return the table of the 256 rates there are; made on the CPU, so that all devices share its bits."""
    return poisson_table(torch.arange(256, dtype=torch.float64) * photons / 255, photons)
