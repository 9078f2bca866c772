"""Gaussian, shot, impulse and speckle noise, independent for every value of every image.

Each function takes pixel values 0 to 255 as float64 ``(n, C, H, W)``, the parameters of a level and random numbers.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions.ops import Level
from spurless.data.corruptions.rng import ImageRng, poisson, poisson_table


def gaussian_noise(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Add normal noise; the level is its standard deviation, white being 1."""
    (std,) = level
    return torch.add(x, rng.normal("noise", *x.shape[1:]), alpha=255 * std)


def shot_noise(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Sample photon counts; the level is the mean count of white, so that lower is noisier.

    Deviations:
        Counts above the mean of white are not distinguished: they all become white.
    """
    (photons,) = (int(number) for number in level)
    row = x.to(torch.int64)
    bits = rng.bits("photons", row[0].numel()).view_as(row)
    return poisson(bits, row, _grey_table(photons).to(x.device)).to(torch.float64).mul_(255 / photons)


def impulse_noise(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Set values to black or white with equal probability; the level is the fraction of values, per channel."""
    (fraction,) = level
    u = rng.uniform("impulse", *x.shape[1:])
    return torch.where(u < fraction / 2, 0.0, torch.where(u < fraction, 255.0, x))


def speckle_noise(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Multiply by 1 plus normal noise; the level is the standard deviation of the noise."""
    (std,) = level
    return rng.normal("noise", *x.shape[1:]).mul_(std).add_(1).mul_(x)


@lru_cache
def _grey_table(photons: int) -> Tensor:
    """Return the table for the 256 pixel values; computed on the CPU, so that all devices have the same bits."""
    return poisson_table(torch.arange(256, dtype=torch.float64) * photons / 255, photons)
