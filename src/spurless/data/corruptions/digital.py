"""Digital: brightness, contrast, saturation, elastic transform, pixelation and JPEG compression.

Each function takes grey levels 0 to 255 as doubles ``(n, C, H, W)``, the numbers of a level and the draws.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions.draws import Draws
from spurless.data.corruptions.pixels import (
    LUMA,
    Border,
    Level,
    along,
    blurred,
    box,
    inside,
    nearest,
    sum_channels,
    taps,
)

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99, 99, 99, 99, 99, 99, 99, 99),) * 4,
)
"""The steps of the coefficients at quality 50 (ITU-T T.81, annex K)."""

_BLUE = (-0.168736, -0.331264, 0.5)
_RED = (0.5, -0.418688, -0.081312)


def brightness(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - all corruptions are called alike
    """Raise the value of HSV, white at most; hue and saturation stay. The level is by how much, white being 1."""
    (raised,) = level
    value = x.amax(dim=1, keepdim=True)
    brighter = (value + 255 * raised).clamp(max=255)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1)), brighter)


def contrast(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Draw all values towards their channel's mean over the image; the level is the share of the distance kept."""
    (kept,) = level
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean).mul_(kept).add_(mean)


def saturate(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Multiply the saturation of HSV and add to it; hue and value stay. The level is factor and summand.

    A grey pixel of a colour image has no hue; as published it is taken for red. An image of one channel has no
    saturation and stays as it is.
    """
    factor, summand = level
    if x.shape[1] == 1:
        return x
    value = x.amax(dim=1, keepdim=True)
    depth = value - x.amin(dim=1, keepdim=True)
    wanted = (depth * factor + value * summand).clamp_(max=value)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    return value - torch.where(depth > 0, (value - x) / depth.clamp(min=1), red) * wanted


def pixelate(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Shrink and enlarge again, whole pixels averaged and repeated; the level is the share of each side.

    Deviations:
        Rounded once, at the end; the published code rounds after every axis.
    """
    (share,) = level
    rows, columns = (_pixelated(side, share) for side in x.shape[-2:])
    return along(x, rows, columns)


def jpeg_compression(x: Tensor, level: Level, draws: Draws) -> Tensor:  # noqa: ARG001 - as above
    """Compress as JPEG, chroma at half the resolution, and decompress; the level is the quality.

    Deviations:
        Doubles where libjpeg has whole numbers: a value may differ by a level or two.
    """
    (quality,) = level
    _, channels, height, width = x.shape
    unit = 8 if channels == 1 else 16
    rows = torch.arange(-(-height // unit) * unit, device=x.device).clamp(max=height - 1)
    columns = torch.arange(-(-width // unit) * unit, device=x.device).clamp(max=width - 1)
    padded = x.index_select(2, rows).index_select(3, columns)
    if channels == 1:
        return _coded(padded, LUMINANCE, quality)[:, :, :height, :width]
    light = _coded(nearest(sum_channels(padded, LUMA)), LUMINANCE, quality)
    chroma = torch.cat([nearest(sum_channels(padded, weights).add_(128)) for weights in (_BLUE, _RED)], dim=1)
    half = nearest(along(chroma, *(box(side, side // 2) for side in chroma.shape[-2:])))
    coded = _coded(half, CHROMINANCE, quality)
    blue, red = (nearest(along(coded, *(_doubled(side) for side in coded.shape[-2:]))) - 128).chunk(2, dim=1)
    green = light - 0.344136 * blue - 0.714136 * red
    return torch.cat([light + 1.402 * red, green, light + 1.772 * blue], dim=1)[:, :, :height, :width]


def elastic_transform(x: Tensor, level: Level, draws: Draws) -> Tensor:
    """Move three corners of a square at random (an affine map), then every pixel by a smooth random field.

    The level is the field's strength, the sigma that smooths it, and how far a corner moves, as shares of the short
    side.

    Deviations:
        Bilinear with doubles; OpenCV rounds positions to 1/32 of a pixel. Shares of the short side where the
        published code has pixels at 32 and 224.
    """
    strength, sigma, corner = (number * min(x.shape[-2:]) for number in level)
    bent = sampled(x, *_affine(x, corner, draws), border="mirror")
    if strength == 0:
        return bent
    height, width = x.shape[-2:]
    field = blurred(2 * draws.uniform("field", 2, height, width) - 1, sigma, "symmetric", 3.0) * strength
    rows = field[:, 0] + torch.arange(height, device=x.device)[:, None]
    columns = field[:, 1] + torch.arange(width, device=x.device)
    return sampled(bent, rows, columns, border="symmetric")


def sampled(x: Tensor, rows: Tensor, columns: Tensor, border: Border) -> Tensor:
    """Return the values of each image at its own positions ``(n, H, W)``, bilinear."""
    n, _, height, width = x.shape
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top).view(n, 1, -1), (columns - left).view(n, 1, -1)
    flat = x.flatten(2)
    edges = [(inside(top.long() + k, height, border) * width).view(n, 1, -1) for k in (0, 1)]
    sides = [inside(left.long() + k, width, border).view(n, 1, -1) for k in (0, 1)]
    corners = [[flat.gather(2, (edge + side).expand_as(flat)) for side in sides] for edge in edges]
    above, below = (torch.lerp(first, second, right.expand_as(first)) for first, second in corners)
    return torch.lerp(above, below, down.expand_as(above)).view_as(x)


def _affine(x: Tensor, farthest: float, draws: Draws) -> tuple[Tensor, Tensor]:
    """Return where each pixel comes from when three corners of a square in the middle move, ``(n, H, W)`` twice."""
    height, width = x.shape[-2:]
    reach = min(height, width) // 3
    moved = (2 * draws.uniform("corners", 3, 2) - 1) * farthest
    # the corners are (+, +), (+, -) and (-, -) from the middle; their differences are the axes, 2 reach long
    down = (moved[:, 1] - moved[:, 2]) / (2 * reach) + torch.tensor([1.0, 0.0], dtype=x.dtype, device=x.device)
    right = (moved[:, 0] - moved[:, 1]) / (2 * reach) + torch.tensor([0.0, 1.0], dtype=x.dtype, device=x.device)
    area = down[:, 0] * right[:, 1] - down[:, 1] * right[:, 0]
    area = torch.where(area.abs() < 1e-6, 1e-6, area)  # a square squeezed flat has no way back
    last = torch.tensor([height // 2 - reach, width // 2 - reach], dtype=x.dtype, device=x.device)
    start = last + moved[:, 2]
    row = torch.arange(height, device=x.device)[:, None] - start[:, 0, None, None]
    column = torch.arange(width, device=x.device) - start[:, 1, None, None]
    down, right, area = down[..., None, None], right[..., None, None], area[:, None, None]
    rows = (row * right[:, 1] - column * right[:, 0]) / area + last[0]
    columns = (column * down[:, 0] - row * down[:, 1]) / area + last[1]
    return rows, columns


def _coded(x: Tensor, table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Return one plane, or planes of one kind, after quantising the cosine transform of its 8 x 8 blocks."""
    height, width = x.shape[-2:]
    rows, columns = _cosines(height // 8), _cosines(width // 8)
    steps = _steps(table, quality).repeat(height // 8, width // 8).to(x.device)
    waves = along(x - 128, rows, columns) / steps
    quantised = nearest(waves.abs()).mul_(waves.sign()).mul_(steps)  # ties away from zero
    return nearest(along(quantised, rows.T, columns.T).add_(128)).clamp_(0, 255)


def _steps(table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Return the quantisation steps of a quality, as libjpeg scales them."""
    percent = int(5000 / quality) if quality < 50 else int(200 - 2 * quality)
    return ((torch.tensor(table) * percent + 50) // 100).clamp(1, 255).double()


@lru_cache
def _cosines(blocks: int) -> Tensor:
    """Return the orthonormal cosine transform of blocks of eight, as one matrix."""
    k, i = torch.arange(8.0, dtype=torch.float64)[:, None], torch.arange(8.0, dtype=torch.float64)
    wave = torch.cos((2 * i + 1) * k * math.pi / 16) / 2
    wave[0] = math.sqrt(1 / 8)
    return torch.kron(torch.eye(blocks, dtype=torch.float64), wave)


@lru_cache
def _doubled(n: int) -> Tensor:
    """Return the matrix that doubles ``n`` values: three quarters of the nearest, a quarter of the next."""
    before = taps(n, torch.tensor([-1, 0]), torch.tensor([0.25, 0.75], dtype=torch.float64), "nearest")
    after = taps(n, torch.tensor([0, 1]), torch.tensor([0.75, 0.25], dtype=torch.float64), "nearest")
    return torch.stack([before, after], dim=1).view(2 * n, n)


@lru_cache
def _pixelated(n: int, share: float) -> Tensor:
    small = max(1, int(n * share))
    return box(small, n) @ box(n, small)
