"""Weather: snow, frost, fog and spatter, all drawn from random numbers; no file is read.

Each function takes grey levels 0 to 255 as doubles ``(n, C, H, W)``, the numbers of a level and the draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spurless.data.corruptions.blur import smear
from spurless.data.corruptions.draws import Draws
from spurless.data.corruptions.frost import textures
from spurless.data.corruptions.pixels import (
    Level,
    along,
    blurred,
    colour,
    inside,
    luma,
    taps,
    truncated,
    zoom,
)

WATER = (175.0, 238.0, 238.0)
MUD = (63.0, 42.0, 20.0)
FARTHEST = 20
"""Distances within a drop of water count up to so many pixels."""


def snow(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Whiten the image and add flakes that fall one way and, turned by 180 degrees, the other.

    The level is mean and standard deviation of the flakes' noise, how much it is enlarged, the threshold below which
    there is no flake, radius and sigma of their motion, and the share of the image that is not whitened.

    Deviations:
        The smeared flakes are not rounded to bytes.
    """
    mean, std, factor, threshold, radius, sigma, kept = level
    height, width = x.shape[-2:]
    noise = draws.normal("flakes", 1, height, width).mul_(std).add_(mean)
    flakes = along(noise, zoom(height, factor), zoom(width, factor))
    flakes = truncated(torch.where(flakes < threshold, 0.0, flakes).clamp_(0, 1) * 255)
    flakes = smear(flakes, int(radius), sigma, 90 * draws.uniform("angle") - 135)
    whitened = torch.maximum(x, luma(x) * 1.5 + 127.5)
    return kept * x + (1 - kept) * whitened + flakes + flakes.flip(-2, -1)


def frost(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Dim the image and add a random cut of one of five textures of ice; the level is both shares and their scale.

    Deviations:
        The published textures are six photographs, of which the code uses five; ours are drawn (``frost.textures``).
    """
    kept, added, scale = level
    bank = textures(scale).to(x.device)  # (5, 3, side, side)
    side = bank.shape[-1]
    which = draws.whole("texture", len(bank))
    cut = []
    for axis, length in (("down", x.shape[-2]), ("right", x.shape[-1])):
        start = draws.whole(axis, max(1, side - length + 1))
        cut.append(inside(start[:, None] + torch.arange(length, device=x.device), side, "symmetric"))
    ice = bank[which[:, None, None], :, cut[0][:, :, None], cut[1][:, None]].permute(0, 3, 1, 2)
    ice = ice.to(torch.float64)
    return kept * x + added * (luma(ice) if x.shape[1] == 1 else ice)


def fog(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Add a plasma cloud and scale back to the image's own white; the level is the cloud's strength and decay."""
    strength, decay = level
    height, width = x.shape[-2:]
    white = x.amax(dim=(1, 2, 3), keepdim=True)
    cloud = plasma(max(height, width), decay, draws)[:, None, :height, :width]
    return (x + 255 * strength * cloud) * (white / (white + 255 * strength))


def spatter(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Splash water (levels 1 to 3) or mud (4 and 5) onto the lens.

    The level is mean and standard deviation of the splashes' noise, the sigma that smooths it, the threshold below
    which the lens is dry, the strength of water or the sigma of mud, and 0 for water or 1 for mud.

    Deviations:
        The rim of a drop is the rim of the wet region itself, where the published code searches it with Canny's edge
        detector; distances to it are exact, not chamfer distances.
    """
    mean, std, sigma, threshold, last, muddy = level
    noise = draws.normal("liquid", 1, *x.shape[-2:]).mul_(std).add_(mean)
    liquid = blurred(noise, sigma)
    wet = liquid >= threshold
    if muddy:
        cover = blurred(wet.to(torch.float64), last)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * colour(MUD, x)
    film = truncated(liquid.clamp(0, 1) * 255) * wet * _relief(wet)
    thickest = film.amax(dim=(1, 2, 3), keepdim=True).clamp(min=1)  # a dry lens stays dry
    return x + film / thickest * last * colour(WATER, x)


def plasma(side: int, decay: float, draws: Draws) -> Tensor:
    """Return clouds from 0 to 1 by midpoint displacement, ``(n, m, m)``, where m is the next power of two.

    The square of points is closed to a torus: what leaves on the right comes back on the left. Each halving of the
    distance divides the displacement by ``decay`` squared, as the published code multiplies by it twice.
    """
    m = 1 << (side - 1).bit_length()
    shake = 2 * draws.uniform("cloud", m, m) - 1
    cloud = torch.zeros_like(shake)
    step, swing = m, 1.0
    while step > 1:
        half = step // 2
        corner = cloud[:, ::step, ::step]
        across = corner + corner.roll(-1, 1)
        middle = (across + across.roll(-1, 2)) / 4 + swing * shake[:, half::step, half::step]
        cloud[:, half::step, half::step] = middle
        top = (corner + corner.roll(-1, 2) + middle + middle.roll(1, 1)) / 4
        cloud[:, ::step, half::step] = top + swing * shake[:, ::step, half::step]
        side_points = (corner + corner.roll(-1, 1) + middle + middle.roll(1, 2)) / 4
        cloud[:, half::step, ::step] = side_points + swing * shake[:, half::step, ::step]
        step, swing = half, swing / decay**2
    cloud -= cloud.amin(dim=(1, 2), keepdim=True)
    return cloud / cloud.amax(dim=(1, 2), keepdim=True)


def distance(marked: Tensor, farthest: int) -> Tensor:
    """Return the distance of each pixel to the nearest marked one, ``farthest`` at most."""
    squared = torch.where(marked, 0.0, float(farthest**2)).to(torch.float64)
    for axis in (-1, -2):  # first along the row; then the best row, by Pythagoras
        n = squared.shape[axis]
        best = squared.clone()
        for k in range(1, min(farthest, n)):
            for to, start in ((k, 0), (0, k)):
                there = best.narrow(axis, to, n - k)
                torch.minimum(there, squared.narrow(axis, start, n - k) + k**2, out=there)
        squared = best
    return squared.sqrt_()


def _relief(wet: Tensor) -> Tensor:
    """Return how light falls through drops, 0 to 255: their distance to the rim, spread evenly and lit from a corner.

    In whole numbers, as bytes are in the published code.
    """
    height, width = wet.shape[-2:]
    grown = wet
    for axis, n in ((-2, height), (-1, width)):
        index = torch.arange(n, device=wet.device)
        for k in (-1, 1):
            grown = grown & wet.index_select(axis, inside(index + k, n, "nearest"))
    depth = truncated(_mean3(distance(wet & ~grown, FARTHEST))).long()
    lit = _correlated(_equalised(depth).to(torch.float64)).clamp_(0, 255)
    return (_mean3(lit) + 0.5).floor_()  # ninths are never ties


def _equalised(depth: Tensor) -> Tensor:
    """Return depths, ``(n, 1, H, W)`` from 0 to ``FARTHEST``, spread over 0 to 255 by their ranks."""
    n, total = len(depth), depth[0].numel()
    row = torch.arange(n, device=depth.device).view(-1, 1, 1, 1) * (FARTHEST + 1)
    counts = torch.bincount((row + depth).flatten(), minlength=n * (FARTHEST + 1)).view(n, -1)
    up_to = counts.cumsum(dim=1)
    lowest = counts.gather(1, (counts > 0).long().argmax(dim=1, keepdim=True))
    room = (total - lowest).clamp(min=1)
    table = ((up_to - lowest).clamp(min=0) * 510 + room) // (2 * room)
    return table.flatten()[row + depth]


def _mean3(x: Tensor) -> Tensor:
    third = torch.ones(3, dtype=torch.float64)
    return along(x, *(taps(side, torch.arange(-1, 2), third, "mirror") for side in x.shape[-2:])) / 9


def _correlated(x: Tensor) -> Tensor:
    """Return the light from the lower right: ``[[-2, -1, 0], [-1, 1, 1], [0, 1, 2]]`` over each pixel."""
    height, width = x.shape[-2:]
    rows = inside(torch.arange(-1, height + 1), height, "mirror").to(x.device)
    columns = inside(torch.arange(-1, width + 1), width, "mirror").to(x.device)
    padded = x.index_select(2, rows).index_select(3, columns)
    total = torch.zeros_like(x)
    for i, weights in enumerate(((-2, -1, 0), (-1, 1, 1), (0, 1, 2))):
        for j, weight in enumerate(weights):
            total.add_(padded[:, :, i : i + height, j : j + width], alpha=weight)
    return total
