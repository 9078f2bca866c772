"""Blur: Gaussian, defocus, glass, motion and zoom blur.

Each function takes grey levels 0 to 255 as doubles ``(n, C, H, W)``, the numbers of a level and the draws.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions.draws import Draws
from spurless.data.corruptions.pixels import Level, along, blurred, gaussian, inside, taps, truncated, zoom

NEGLIGIBLE = 1e-9
"""A weight that moves no grey level: 255 of it are still less than the distance to a tie (``pixels.EDGE``)."""


def gaussian_blur(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - all corruptions are called alike
    """Blur; the level is sigma in pixels. Cut off at four sigma, the last pixel repeated outside."""
    (sigma,) = level
    return blurred(x, sigma)


def defocus_blur(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Average over a disk; the level is its radius and the sigma that softens its rim, in pixels.

    As published, a radius below 1 is a disk of one pixel: only the softening blurs.
    """
    radius, softening = level
    height, width = x.shape[-2:]
    rows_of_disk = _disk_rows(width, radius, softening)
    reach = len(rows_of_disk) - 1
    rows = inside(torch.arange(-reach, height + reach), height, "mirror").to(x.device)
    padded = x.index_select(2, rows)
    total = torch.zeros_like(x)
    for k in range(reach + 1):  # the disk is the same above and below
        pair = padded[:, :, reach - k : reach - k + height]
        if k:
            pair = pair + padded[:, :, reach + k : reach + k + height]
        total += pair @ rows_of_disk[k].to(x.device).T
    return total


def glass_blur(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Blur, displace pixels, blur again; the level is sigma, the farthest displacement and the number of passes.

    As published, a pass goes from the last pixel to the first, and a pixel takes the value of a random neighbour at
    -farthest to farthest - 1 in each direction. The published code means to swap the two, but both sides of its swap
    are the same memory, so that it copies: so do we, since the published images are made so. A neighbour that the
    pass has met before is copied as it is by then; such chains are followed to their ends, for all pixels at once.

    Deviations:
        None but the random numbers.
    """
    sigma, farthest, passes = level
    height, width = x.shape[-2:]
    source = torch.arange(height * width, device=x.device).expand(len(x), -1)
    for k in range(int(passes)):
        source = source.gather(1, _pass(height, width, int(farthest), draws, f"pass {k}"))
    flat = truncated(blurred(x, sigma)).flatten(2)
    moved = flat.gather(2, source[:, None].expand_as(flat)).view_as(x)
    return blurred(moved, sigma)


def motion_blur(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Smear each image in a direction of its own, within 45 degrees of the horizontal; the level is radius and sigma.

    Deviations:
        The rule of ImageMagick, with doubles where it may have fewer bits.
    """
    radius, sigma = level
    return smear(x, int(radius), sigma, 90 * draws.uniform("angle") - 45)


def zoom_blur(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Average the image and its enlargements; the level is how many factors and the step between them, from 1 on.

    Deviations:
        Rows and columns are cut and enlarged each by their own number; the published code takes square images.
    """
    n, step = level
    height, width = x.shape[-2:]
    increment = (1 + step) - 1  # numpy's ranges count so, and the size of an enlargement may hang on the last bit
    total = 2 * x  # the image itself, and enlarged by 1
    for k in range(1, int(n)):
        factor = 1 + k * increment
        total += along(x, zoom(height, factor), zoom(width, factor))
    return total.div_(n + 1)


def smear(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Return each image blurred one way along a line: half a Gaussian over ``2 radius + 1`` whole steps.

    ``degrees`` are clockwise from the right, one angle per image. Outside, the last pixel is repeated.
    """
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights = weights[weights > NEGLIGIBLE * weights.sum()]
    weights /= weights.sum()
    n, channels, height, width = x.shape
    flat, total = x.flatten(2), torch.zeros(n, channels, height * width, dtype=x.dtype, device=x.device)
    right, down = (direction[:, None] for direction in (degrees.deg2rad().cos(), degrees.deg2rad().sin()))
    columns, rows = torch.arange(width, device=x.device), torch.arange(height, device=x.device)
    for k, weight in enumerate(weights.tolist()):
        column = inside(columns + (k * right - 0.5).ceil().long(), width, "nearest")
        row = inside(rows + (k * down - 0.5).ceil().long(), height, "nearest") * width
        at = (row[:, :, None] + column[:, None]).view(n, 1, -1)
        total.add_(flat.gather(2, at.expand(-1, channels, -1)), alpha=weight)
    return total.view_as(x)


@lru_cache
def disk(radius: float, softening: float) -> Tensor:
    """Return a soft disk, cut to where its weights count.

    Softened by three taps up to radius 8 and by five above, on a field of 17 x 17 pixels or as wide as the disk. As
    published, a rim that reaches the field's edge (radius 8 and above) is mirrored back: the weights then sum to 1.01.
    """
    reach = 8 if radius <= 8 else int(radius)
    line = torch.arange(-reach, reach + 1).double()
    hard = ((line[:, None] ** 2 + line**2) <= radius**2).double()
    # three or five taps are a Gaussian cut off there, whatever its sigma
    soft = gaussian(len(line), softening, "mirror", (1 if radius <= 8 else 2) / softening)
    kernel = soft @ (hard / hard.sum()) @ soft.T
    used = int((kernel[reach] > NEGLIGIBLE).nonzero().max()) - reach
    return kernel[reach - used : reach + used + 1, reach - used : reach + used + 1]


@lru_cache
def _disk_rows(width: int, radius: float, softening: float) -> tuple[Tensor, ...]:
    """Return what each row of the disk does along a row of the image, from its middle row down."""
    kernel = disk(radius, softening)
    reach = len(kernel) // 2
    offset = torch.arange(-reach, reach + 1)
    return tuple(taps(width, offset, weights, "mirror") for weights in kernel[reach:])


def _pass(height: int, width: int, farthest: int, draws: Draws, purpose: str) -> Tensor:
    """Return where each pixel's value stood before the pass, ``(n, H * W)``."""
    rows, columns = height - 2 * farthest, width - 2 * farthest  # the pass leaves a frame alone
    down, right = (draws.whole(purpose, 2 * farthest, 2, rows, columns) - farthest).unbind(1)
    place = torch.arange(height * width, device=down.device).view(height, width)
    inner = (slice(farthest + 1, farthest + 1 + rows), slice(farthest + 1, farthest + 1 + columns))
    target = place.expand(len(down), -1, -1).clone()
    target[:, *inner] += down * width + right
    moves = torch.zeros_like(place, dtype=torch.bool)
    moves[inner] = True
    target, place, moves = target.flatten(1), place.flatten(), moves.flatten()
    ended = ~(moves[target] & (target > place))  # later pixels have been met before, as the pass goes backwards
    while not ended.all():
        ended, target = ended | ended.gather(1, target), torch.where(ended, target, target.gather(1, target))
    return target
