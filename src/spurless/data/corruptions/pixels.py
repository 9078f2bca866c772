"""Pixels: what all corruptions share: rounding alike on every device, borders, and linear maps along both axes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Level: TypeAlias = tuple[float, ...]
"""The numbers of one level of one corruption."""

Border: TypeAlias = Literal["nearest", "symmetric", "mirror"]
"""What lies outside: the last pixel again; the image turned over with that pixel; turned over without it."""

EDGE = math.pi * 1e-6
"""How far below the tie numbers are rounded.

Devices add in another order and differ in the last bits of a logarithm. Where the exact result is a tie (the mean
of 1 and 2, a tenth of 255), those bits would decide. Moved by this number, which no table, no mean and no pixel
leads to, the decision falls where results lie by chance alone: 1 in 10**12 or so is close enough to differ.
"""

LUMA = (0.299, 0.587, 0.114)


def nearest(x: Tensor) -> Tensor:
    """Return the nearest whole numbers, ties upwards on every device."""
    return (x + (0.5 + EDGE)).floor_()


def truncated(x: Tensor) -> Tensor:
    """Return the whole numbers below, where one that falls short of a whole number by a last bit has reached it."""
    return (x + EDGE).floor_()


def to_bytes(x: Tensor) -> Tensor:
    """Return grey levels as bytes."""
    return (x + (0.5 + EDGE)).clamp_(0, 255).to(torch.uint8)


def luma(x: Tensor) -> Tensor:
    """Return the brightness of every pixel, ``(n, 1, H, W)``."""
    return x if x.shape[1] == 1 else sum_channels(x, LUMA)


def sum_channels(x: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return a weighted sum of the channels, ``(n, 1, H, W)``."""
    total = x[:, :1] * weights[0]
    for channel, weight in enumerate(weights[1:], start=1):
        total.add_(x[:, channel : channel + 1], alpha=weight)
    return total


def colour(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    """Return a colour ``(1, C, 1, 1)`` for images of three channels or of one."""
    shade = torch.tensor(rgb, dtype=torch.float64, device=like.device).view(1, 3, 1, 1)
    return shade if like.shape[1] == 3 else luma(shade)


def inside(position: Tensor, n: int, border: Border) -> Tensor:
    """Return which of ``n`` pixels stands at each whole position, however far outside it lies.

    Example:
        >>> at = torch.arange(-2, 5)
        >>> [inside(at, 3, border).tolist() for border in ("nearest", "symmetric", "mirror")]
        [[0, 0, 0, 1, 2, 2, 2], [1, 0, 0, 1, 2, 2, 1], [2, 1, 0, 1, 2, 1, 0]]
    """
    if border == "nearest":
        return position.clamp(0, n - 1)
    period = 2 * n if border == "symmetric" else 2 * n - 2
    folded = position.remainder(period)
    return torch.minimum(folded, (period - 1 if border == "symmetric" else period) - folded)


def along(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``rows @ x @ columns.T`` for every channel of every image."""
    return rows.to(x.device) @ (x @ columns.to(x.device).T)


def blurred(x: Tensor, sigma: float, border: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Return images under a Gaussian of ``sigma`` pixels, cut off at ``truncate`` of them."""
    height, width = x.shape[-2:]
    return along(x, gaussian(height, sigma, border, truncate), gaussian(width, sigma, border, truncate))


@lru_cache
def gaussian(n: int, sigma: float, border: Border, truncate: float) -> Tensor:
    """Return the ``(n, n)`` matrix of a Gaussian blur."""
    reach = int(truncate * sigma + 0.5)
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-(offset.double() ** 2) / (2 * sigma**2))
    return taps(n, offset, weight / weight.sum(), border)


def taps(n: int, offset: Tensor, weight: Tensor, border: Border) -> Tensor:
    """Return the ``(n, n)`` matrix that sums neighbours at these offsets with these weights."""
    row = torch.arange(n)[:, None].expand(-1, len(offset))
    matrix = torch.zeros(n, n, dtype=torch.float64)
    return matrix.index_put_((row, inside(row + offset, n, border)), weight.expand_as(row), accumulate=True)


@lru_cache(maxsize=256)
def zoom(n: int, factor: float) -> Tensor:
    """Return the matrix that enlarges the middle of ``n`` pixels to all ``n``, bilinear.

    The middle is ``ceil(n / factor)`` pixels, stretched from first to last over ``round(that * factor)``.
    """
    kept = math.ceil(n / factor)
    out = round(kept * factor)
    at = (torch.arange(n).double() + (out - n) // 2) * (kept - 1) / (out - 1)
    below = at.floor().clamp(max=max(kept - 2, 0)).long()
    matrix = torch.zeros(n, n, dtype=torch.float64)
    row, start = torch.arange(n), (n - kept) // 2
    matrix[row, start + below] = 1 - (at - below)
    matrix[row, start + (below + 1).clamp(max=kept - 1)] += at - below
    return matrix


@lru_cache
def box(n: int, out: int) -> Tensor:
    """Return the ``(out, n)`` matrix that averages the pixels whose middle falls into each new one, or repeats them."""
    # middles at (2j + 1) / 2n and (2i + 1) / 2out of the width, times 2 n out: whole numbers, no ties by rounding
    apart = (2 * torch.arange(n) + 1) * out - (2 * torch.arange(out)[:, None] + 1) * n
    chosen = ((apart > -max(n, out)) & (apart <= max(n, out))).double()
    return chosen / chosen.sum(dim=1, keepdim=True)
