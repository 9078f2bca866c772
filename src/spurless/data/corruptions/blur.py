"""Gaussian, defocus, glass, motion and zoom blur.

Each function takes pixel values 0 to 255 as float64 ``(n, C, H, W)``, the parameters of a level and random numbers.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions import ops
from spurless.data.corruptions.ops import Level
from spurless.data.corruptions.rng import ImageRng

NEGLIGIBLE_WEIGHT = 1e-9  # A weight too small to change a byte: 255 times it is less than ``ops.TIE_SHIFT``


def gaussian_blur(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Blur; the level is sigma in pixels. The kernel ends at four sigma, and the border pixel is repeated."""
    (sigma,) = level
    return ops.gaussian_filter(x, sigma)


def defocus_blur(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Average over a disk; the level is its radius and the sigma that softens its edge, in pixels.

    As published, a radius below 1 is a disk of one pixel: only the softening blurs.
    """
    radius, softening = level
    height, width = x.shape[-2:]
    disk_rows = _disk_rows(width, radius, softening)
    reach = len(disk_rows) - 1
    rows = ops.border_index(torch.arange(-reach, height + reach), height, "mirror").to(x.device)
    padded = x.index_select(2, rows)
    total = torch.zeros_like(x)
    for k in range(reach + 1):  # the disk is symmetric
        pair = padded[:, :, reach - k : reach - k + height]
        if k:
            pair = pair + padded[:, :, reach + k : reach + k + height]
        total += pair @ disk_rows[k].to(x.device).T
    return total


def glass_blur(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Blur, displace pixels, blur again; the level is sigma, the largest displacement and the number of passes.

    As published, a pass goes from the last pixel to the first, and a pixel takes the value of a random neighbour at
    -displacement to displacement - 1 in each direction. The published code intends to swap the two, but both sides of
    its swap are views of the same memory, so it copies, and so do we. A neighbour that the pass has already changed is
    copied with its new value; such chains are followed to their ends for all pixels at once.
    """
    sigma, displacement, passes = level
    height, width = x.shape[-2:]
    source = torch.arange(height * width, device=x.device).expand(len(x), -1)
    for k in range(int(passes)):
        source = source.gather(1, _glass_sources(height, width, int(displacement), rng, f"pass {k}"))
    flat = ops.floor_with_tolerance(ops.gaussian_filter(x, sigma)).flatten(2)
    moved = flat.gather(2, source[:, None].expand_as(flat)).view_as(x)
    return ops.gaussian_filter(moved, sigma)


def motion_blur(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Blur each image in a random direction within 45 degrees of the horizontal; the level is radius and sigma.

    Deviations:
        ImageMagick's formula in float64, where ImageMagick may have less precision.
    """
    radius, sigma = level
    return smear(x, int(radius), sigma, 90 * rng.uniform("angle") - 45)


def zoom_blur(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Average the image and its enlargements; the level is the number of factors and their step, starting at 1.

    Deviations:
        Rows and columns are cropped and enlarged separately; the published code needs square images.
    """
    n, step = level
    height, width = x.shape[-2:]
    increment = (1 + step) - 1  # as numpy.arange computes it; the size of an enlargement may depend on the last bit
    total = 2 * x  # the image itself, and enlarged by 1
    for k in range(1, int(n)):
        factor = 1 + k * increment
        total += ops.apply_matrices(x, ops.zoom_matrix(height, factor), ops.zoom_matrix(width, factor))
    return total.div_(n + 1)


def smear(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Return each image blurred along a line in one direction: half a Gaussian over ``2 radius + 1`` integer steps.

    ``degrees`` are clockwise from the right, one angle per image. The border pixel is repeated.
    """
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights = weights[weights > NEGLIGIBLE_WEIGHT * weights.sum()]
    weights /= weights.sum()
    n, channels, height, width = x.shape
    flat, total = x.flatten(2), torch.zeros(n, channels, height * width, dtype=x.dtype, device=x.device)
    right, down = (direction[:, None] for direction in (degrees.deg2rad().cos(), degrees.deg2rad().sin()))
    columns, rows = torch.arange(width, device=x.device), torch.arange(height, device=x.device)
    for k, weight in enumerate(weights.tolist()):
        column = ops.border_index(columns + (k * right - 0.5).ceil().long(), width, "nearest")
        row = ops.border_index(rows + (k * down - 0.5).ceil().long(), height, "nearest") * width
        at = (row[:, :, None] + column[:, None]).view(n, 1, -1)
        total.add_(flat.gather(2, at.expand(-1, channels, -1)), alpha=weight)
    return total.view_as(x)


@lru_cache
def disk_kernel(radius: float, softening: float) -> Tensor:
    """Return the kernel of a disk with a soft edge, cropped to its non-negligible weights.

    It is softened by a filter of three values up to radius 8 and of five above, on a field of 17 x 17 pixels or the
    size of the disk. As published, an edge at the border of the field (radius 8 and above) is mirrored, so that the
    weights sum to 1.01.
    """
    reach = 8 if radius <= 8 else int(radius)
    line = torch.arange(-reach, reach + 1).double()
    hard = ((line[:, None] ** 2 + line**2) <= radius**2).double()
    # a Gaussian with three or five values for any sigma
    soft = ops.gaussian_matrix(len(line), softening, "mirror", (1 if radius <= 8 else 2) / softening)
    kernel = soft @ (hard / hard.sum()) @ soft.T
    used = int((kernel[reach] > NEGLIGIBLE_WEIGHT).nonzero().max()) - reach
    return kernel[reach - used : reach + used + 1, reach - used : reach + used + 1]


@lru_cache
def _disk_rows(width: int, radius: float, softening: float) -> tuple[Tensor, ...]:
    """Return the filter matrix of each row of the disk along an image row, from the middle row down."""
    kernel = disk_kernel(radius, softening)
    reach = len(kernel) // 2
    offset = torch.arange(-reach, reach + 1)
    return tuple(ops.filter_matrix(width, offset, weights, "mirror") for weights in kernel[reach:])


def _glass_sources(height: int, width: int, reach: int, rng: ImageRng, purpose: str) -> Tensor:
    """Return the index of each pixel's source before the pass, ``(n, H * W)``."""
    rows, columns = height - 2 * reach, width - 2 * reach  # the border is not changed
    down, right = (rng.integers(purpose, 2 * reach, 2, rows, columns) - reach).unbind(1)
    position = torch.arange(height * width, device=down.device).view(height, width)
    inner = (slice(reach + 1, reach + 1 + rows), slice(reach + 1, reach + 1 + columns))
    source = position.expand(len(down), -1, -1).clone()
    source[:, *inner] += down * width + right
    moves = torch.zeros_like(position, dtype=torch.bool)
    moves[inner] = True
    source, position, moves = source.flatten(1), position.flatten(), moves.flatten()
    resolved = ~(moves[source] & (source > position))  # the pass goes backwards, so later pixels are already changed
    while not resolved.all():
        resolved, source = (
            resolved | resolved.gather(1, source),
            torch.where(resolved, source, source.gather(1, source)),
        )
    return source
