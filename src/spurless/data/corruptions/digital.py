"""Brightness, contrast, saturation, elastic transform, pixelation and JPEG compression.

Each function takes pixel values 0 to 255 as float64 ``(n, C, H, W)``, the parameters of a level and random numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions import ops
from spurless.data.corruptions.ops import Level
from spurless.data.corruptions.rng import ImageRng

LUMINANCE_STEPS = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE_STEPS = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99, 99, 99, 99, 99, 99, 99, 99),) * 4,
)
"""Quantisation steps of the coefficients at quality 50 (ITU-T T.81, annex K)."""

_CB_WEIGHTS = (-0.168736, -0.331264, 0.5)
_CR_WEIGHTS = (0.5, -0.418688, -0.081312)


def brightness(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Increase the value of HSV; hue and saturation are unchanged. The level is the increase, white being 1."""
    (increase,) = level
    value = x.amax(dim=1, keepdim=True)
    brighter = (value + 255 * increase).clamp(max=255)
    return torch.where(value > 0, x * (brighter / value.clamp(min=1)), brighter)


def contrast(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Scale the difference of each value from the mean of its channel in the image; the level is the factor."""
    (factor,) = level
    mean = x.mean(dim=(2, 3), keepdim=True)
    return (x - mean).mul_(factor).add_(mean)


def saturate(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Multiply the saturation of HSV and add to it; hue and value are unchanged. The level is factor and summand.

    A grey pixel of a colour image has no hue; as published it counts as red. An image of one channel is unchanged.
    """
    factor, summand = level
    if x.shape[1] == 1:
        return x
    value = x.amax(dim=1, keepdim=True)
    depth = value - x.amin(dim=1, keepdim=True)
    new_depth = (depth * factor + value * summand).clamp_(max=value)
    red = torch.tensor([0.0, 1.0, 1.0], dtype=x.dtype, device=x.device).view(1, 3, 1, 1)
    return value - torch.where(depth > 0, (value - x) / depth.clamp(min=1), red) * new_depth


def pixelate(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Shrink and enlarge with box resampling; the level is the fraction of each side.

    Deviations:
        Rounded once at the end; the published code rounds after each axis.
    """
    (fraction,) = level
    rows, columns = (_pixelate_matrix(side, fraction) for side in x.shape[-2:])
    return ops.apply_matrices(x, rows, columns)


def jpeg_compression(x: Tensor, level: Level, rng: ImageRng) -> Tensor:  # noqa: ARG001 - the signature of a corruption
    """Compress as JPEG, with chroma at half the resolution, and decompress; the level is the quality.

    Deviations:
        float64 instead of libjpeg's integers: a value may differ by one or two.
    """
    (quality,) = level
    _, channels, height, width = x.shape
    unit = 8 if channels == 1 else 16
    rows = torch.arange(-(-height // unit) * unit, device=x.device).clamp(max=height - 1)
    columns = torch.arange(-(-width // unit) * unit, device=x.device).clamp(max=width - 1)
    padded = x.index_select(2, rows).index_select(3, columns)
    if channels == 1:
        return _compress_plane(padded, LUMINANCE_STEPS, quality)[:, :, :height, :width]
    light = _compress_plane(ops.round_half_up(ops.sum_channels(padded, ops.LUMA)), LUMINANCE_STEPS, quality)
    chroma = torch.cat(
        [ops.round_half_up(ops.sum_channels(padded, weights).add_(128)) for weights in (_CB_WEIGHTS, _CR_WEIGHTS)],
        dim=1,
    )
    half = ops.round_half_up(
        ops.apply_matrices(chroma, *(ops.box_matrix(side, side // 2) for side in chroma.shape[-2:]))
    )
    coded = _compress_plane(half, CHROMINANCE_STEPS, quality)
    blue, red = (
        ops.round_half_up(ops.apply_matrices(coded, *(_upsample_matrix(side) for side in coded.shape[-2:]))) - 128
    ).chunk(2, dim=1)
    green = light - 0.344136 * blue - 0.714136 * red
    return torch.cat([light + 1.402 * red, green, light + 1.772 * blue], dim=1)[:, :, :height, :width]


def elastic_transform(x: Tensor, level: Level, rng: ImageRng) -> Tensor:
    """Move three corners of a square at random (an affine map), then every pixel by a smooth random field.

    The level is the field's strength, its smoothing sigma, and the displacement of a corner, as fractions of the short
    side.

    Deviations:
        Bilinear in float64; OpenCV rounds positions to 1/32 of a pixel. Fractions of the short side, while the
        published code has pixels for sizes 32 and 224.
    """
    strength, sigma, corner = (number * min(x.shape[-2:]) for number in level)
    bent = sample_bilinear(x, *_affine(x, corner, rng), border="mirror")
    if strength == 0:
        return bent
    height, width = x.shape[-2:]
    field = ops.gaussian_filter(2 * rng.uniform("field", 2, height, width) - 1, sigma, "symmetric", 3.0) * strength
    rows = field[:, 0] + torch.arange(height, device=x.device)[:, None]
    columns = field[:, 1] + torch.arange(width, device=x.device)
    return sample_bilinear(bent, rows, columns, border="symmetric")


def sample_bilinear(x: Tensor, rows: Tensor, columns: Tensor, border: ops.Border) -> Tensor:
    """Return the values of each image at positions ``(n, H, W)`` by bilinear interpolation."""
    n, _, height, width = x.shape
    top, left = rows.floor(), columns.floor()
    down, right = (rows - top).view(n, 1, -1), (columns - left).view(n, 1, -1)
    flat = x.flatten(2)
    edges = [(ops.border_index(top.long() + k, height, border) * width).view(n, 1, -1) for k in (0, 1)]
    sides = [ops.border_index(left.long() + k, width, border).view(n, 1, -1) for k in (0, 1)]
    corners = [[flat.gather(2, (edge + side).expand_as(flat)) for side in sides] for edge in edges]
    above, below = (torch.lerp(first, second, right.expand_as(first)) for first, second in corners)
    return torch.lerp(above, below, down.expand_as(above)).view_as(x)


def _affine(x: Tensor, displacement: float, rng: ImageRng) -> tuple[Tensor, Tensor]:
    """Return the source row and column of each pixel, ``(n, H, W)``, if three corners of a central square move."""
    height, width = x.shape[-2:]
    reach = min(height, width) // 3
    shift = (2 * rng.uniform("corners", 3, 2) - 1) * displacement
    # the corners are (+, +), (+, -) and (-, -) from the middle; their differences are the axes, 2 reach long
    down = (shift[:, 1] - shift[:, 2]) / (2 * reach) + torch.tensor([1.0, 0.0], dtype=x.dtype, device=x.device)
    right = (shift[:, 0] - shift[:, 1]) / (2 * reach) + torch.tensor([0.0, 1.0], dtype=x.dtype, device=x.device)
    area = down[:, 0] * right[:, 1] - down[:, 1] * right[:, 0]
    area = torch.where(area.abs() < 1e-6, 1e-6, area)  # a degenerate square cannot be inverted
    last = torch.tensor([height // 2 - reach, width // 2 - reach], dtype=x.dtype, device=x.device)
    start = last + shift[:, 2]
    row = torch.arange(height, device=x.device)[:, None] - start[:, 0, None, None]
    column = torch.arange(width, device=x.device) - start[:, 1, None, None]
    down, right, area = down[..., None, None], right[..., None, None], area[:, None, None]
    rows = (row * right[:, 1] - column * right[:, 0]) / area + last[0]
    columns = (column * down[:, 0] - row * down[:, 1]) / area + last[1]
    return rows, columns


def _compress_plane(x: Tensor, table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    """Quantise the cosine transform of the 8 x 8 blocks of planes, and transform back."""
    height, width = x.shape[-2:]
    rows, columns = _dct_matrix(height // 8), _dct_matrix(width // 8)
    steps = _quantisation_steps(table, quality).repeat(height // 8, width // 8).to(x.device)
    waves = ops.apply_matrices(x - 128, rows, columns) / steps
    quantised = ops.round_half_up(waves.abs()).mul_(waves.sign()).mul_(steps)  # ties away from zero
    return ops.round_half_up(ops.apply_matrices(quantised, rows.T, columns.T).add_(128)).clamp_(0, 255)


def _quantisation_steps(table: tuple[tuple[int, ...], ...], quality: float) -> Tensor:
    percent = int(5000 / quality) if quality < 50 else int(200 - 2 * quality)
    return ((torch.tensor(table) * percent + 50) // 100).clamp(1, 255).double()


@lru_cache
def _dct_matrix(blocks: int) -> Tensor:
    """Return the orthonormal cosine transform of blocks of eight as one matrix."""
    k, i = torch.arange(8.0, dtype=torch.float64)[:, None], torch.arange(8.0, dtype=torch.float64)
    wave = torch.cos((2 * i + 1) * k * math.pi / 16) / 2
    wave[0] = math.sqrt(1 / 8)
    return torch.kron(torch.eye(blocks, dtype=torch.float64), wave)


@lru_cache
def _upsample_matrix(n: int) -> Tensor:
    """Return the matrix that upsamples ``n`` values by two: 3/4 of the nearest and 1/4 of the next."""
    before = ops.filter_matrix(n, torch.tensor([-1, 0]), torch.tensor([0.25, 0.75], dtype=torch.float64), "nearest")
    after = ops.filter_matrix(n, torch.tensor([0, 1]), torch.tensor([0.75, 0.25], dtype=torch.float64), "nearest")
    return torch.stack([before, after], dim=1).view(2 * n, n)


@lru_cache
def _pixelate_matrix(n: int, fraction: float) -> Tensor:
    small = max(1, int(n * fraction))
    return ops.box_matrix(small, n) @ ops.box_matrix(n, small)
