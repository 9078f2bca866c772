"""Operations shared by the corruptions: device-independent rounding, borders, and linear filters along both axes."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

Level: TypeAlias = tuple[float, ...]  # the parameters of one severity of one corruption

Border: TypeAlias = Literal["nearest", "symmetric", "mirror"]
"""Border mode: repeat the border pixel; mirror the image including that pixel; mirror it without that pixel."""

TIE_SHIFT = math.pi * 1e-6
"""Values this far below a tie are rounded up.

Devices add in different orders and differ in the last bits of a logarithm. If the exact result is a tie (the mean of 1
and 2, a tenth of 255), those bits would decide the rounding. Shifted by this number, which no parameter, mean or pixel
leads to, exact results are not ties any more, and only about 1 in 10**12 random values is close enough to differ.
"""

LUMA = (0.299, 0.587, 0.114)


def round_half_up(x: Tensor) -> Tensor:
    """Round to integers, ties up, with the same result on every device."""
    return (x + (0.5 + TIE_SHIFT)).floor_()


def floor_with_tolerance(x: Tensor) -> Tensor:
    """Round down to integers, except for values that are below an integer only by rounding errors."""
    return (x + TIE_SHIFT).floor_()


def to_bytes(x: Tensor) -> Tensor:
    """Round and clamp pixel values to uint8."""
    return (x + (0.5 + TIE_SHIFT)).clamp_(0, 255).to(torch.uint8)


def luma(x: Tensor) -> Tensor:
    """Return the brightness of every pixel, ``(n, 1, H, W)``."""
    return x if x.shape[1] == 1 else sum_channels(x, LUMA)


def sum_channels(x: Tensor, weights: tuple[float, ...]) -> Tensor:
    """Return a weighted sum of the channels, ``(n, 1, H, W)``."""
    total = x[:, :1] * weights[0]
    for channel, weight in enumerate(weights[1:], start=1):
        total.add_(x[:, channel : channel + 1], alpha=weight)
    return total


def match_channels(rgb: tuple[float, float, float], like: Tensor) -> Tensor:
    """Return a colour ``(1, C, 1, 1)`` with as many channels as the images, three or one."""
    colour = torch.tensor(rgb, dtype=torch.float64, device=like.device).view(1, 3, 1, 1)
    return colour if like.shape[1] == 3 else luma(colour)


def border_index(position: Tensor, n: int, border: Border) -> Tensor:
    """Map integer positions, inside or outside an image of ``n`` pixels, to pixel indices.

    Example:
        >>> at = torch.arange(-2, 5)
        >>> [border_index(at, 3, border).tolist() for border in ("nearest", "symmetric", "mirror")]
        [[0, 0, 0, 1, 2, 2, 2], [1, 0, 0, 1, 2, 2, 1], [2, 1, 0, 1, 2, 1, 0]]
    """
    if border == "nearest":
        return position.clamp(0, n - 1)
    period = 2 * n if border == "symmetric" else 2 * n - 2
    folded = position.remainder(period)
    return torch.minimum(folded, (period - 1 if border == "symmetric" else period) - folded)


def apply_matrices(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return ``rows @ x @ columns.T`` for every channel of every image."""
    return rows.to(x.device) @ (x @ columns.to(x.device).T)


def gaussian_filter(x: Tensor, sigma: float, border: Border = "nearest", truncate: float = 4.0) -> Tensor:
    """Blur images with a Gaussian of ``sigma`` pixels that ends at ``truncate`` sigma."""
    height, width = x.shape[-2:]
    return apply_matrices(
        x, gaussian_matrix(height, sigma, border, truncate), gaussian_matrix(width, sigma, border, truncate)
    )


@lru_cache
def gaussian_matrix(n: int, sigma: float, border: Border, truncate: float) -> Tensor:
    """Return the ``(n, n)`` matrix of a Gaussian blur."""
    reach = int(truncate * sigma + 0.5)
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-(offset.double() ** 2) / (2 * sigma**2))
    return filter_matrix(n, offset, weight / weight.sum(), border)


def filter_matrix(n: int, offset: Tensor, weight: Tensor, border: Border) -> Tensor:
    """Return the ``(n, n)`` matrix that sums neighbours at the given offsets with the given weights."""
    row = torch.arange(n)[:, None].expand(-1, len(offset))
    matrix = torch.zeros(n, n, dtype=torch.float64)
    return matrix.index_put_((row, border_index(row + offset, n, border)), weight.expand_as(row), accumulate=True)


@lru_cache(maxsize=256)
def zoom_matrix(n: int, factor: float) -> Tensor:
    """Return the ``(n, n)`` matrix that enlarges the middle of ``n`` pixels bilinearly.

    The middle is ``ceil(n / factor)`` pixels, stretched from first to last over ``round(that * factor)``.
    """
    middle = math.ceil(n / factor)
    out = round(middle * factor)
    at = (torch.arange(n).double() + (out - n) // 2) * (middle - 1) / (out - 1)
    below = at.floor().clamp(max=max(middle - 2, 0)).long()
    matrix = torch.zeros(n, n, dtype=torch.float64)
    row, start = torch.arange(n), (n - middle) // 2
    matrix[row, start + below] = 1 - (at - below)
    matrix[row, start + (below + 1).clamp(max=middle - 1)] += at - below
    return matrix


@lru_cache
def box_matrix(n: int, out: int) -> Tensor:
    """Return the ``(out, n)`` matrix of box resampling: average the pixels with a centre in each new one, or repeat."""
    # centres at (2j + 1) / 2n and (2i + 1) / 2out of the width, times 2 n out: integers, so ties are exact
    difference = (2 * torch.arange(n) + 1) * out - (2 * torch.arange(out)[:, None] + 1) * n
    covered = ((difference > -max(n, out)) & (difference <= max(n, out))).double()
    return covered / covered.sum(dim=1, keepdim=True)
