"""Ten classes of coloured patterns and shapes, drawn by formula, that replace photographs in offline datasets.

Each image has two colours, background and ink, one pattern or shape at a random position, phase and scale, and noise.
Colour, position and scale are independent of the class. All arithmetic is in integers, so that the bytes are the same
on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

IMAGE_SIZE = 32
TEXTURES = ("rows", "columns", "diagonals", "checks", "rings", "disc", "square", "triangle", "cross", "dots")
CONTRAST = (24, 72)  # smallest and largest difference of ink and background, in grey levels per channel
NOISE_RANGE = 96  # each value is shifted by the sum of two uniform samples of up to plus or minus half of this


def draw_textures(y: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one image of each class in ``y``; return uint8 ``(N, 3, 32, 32)``.

    Example:
        >>> draw_textures(torch.arange(10), torch.Generator().manual_seed(0)).shape
        torch.Size([10, 3, 32, 32])
    """
    n = len(y)
    centre = torch.randint(-5, 6, (2, n, 1, 1), generator=generator)
    scale = torch.randint(0, 5, (n, 1, 1), generator=generator)
    phase = torch.randint(0, 64, (2, n, 1, 1), generator=generator)
    line = 2 * torch.arange(IMAGE_SIZE) - IMAGE_SIZE + 1  # twice the distance from the middle, an integer
    rows, columns = line.view(1, -1, 1) - 2 * centre[0], line.view(1, 1, -1) - 2 * centre[1]
    ink = torch.zeros(n, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.bool)
    for label, name in enumerate(TEXTURES):
        of_class = y == label
        geometry = (rows[of_class], columns[of_class], scale[of_class], phase[:, of_class])
        ink[of_class] = _patterns(*geometry)[name] if name in PATTERNS else _shapes(*geometry[:3])[name]
    return _colourize(ink, generator)


PATTERNS = ("rows", "columns", "diagonals", "checks", "rings", "dots")


def _patterns(rows: Tensor, columns: Tensor, scale: Tensor, phase: Tensor) -> dict[str, Tensor]:
    """Return the ink masks of patterns that fill the image; periods of 8 to 16 pixels, in half pixels."""
    period = 16 + 4 * scale
    down, right = _square_wave(rows + phase[0], period), _square_wave(columns + phase[1], period)
    distance = ((rows**2 + columns**2).double().sqrt()).floor().long()  # sqrt is correctly rounded on every machine
    flat = torch.zeros_like(rows + columns)
    middle = ((rows + phase[0]) % period - period // 2) ** 2 + ((columns + phase[1]) % period - period // 2) ** 2
    return {
        "rows": (down + flat).bool(),
        "columns": (right + flat).bool(),
        "diagonals": _square_wave(rows + columns + phase[0], period + period // 2).bool(),
        "checks": (down != right),
        "rings": _square_wave(distance + phase[0], period).bool(),
        "dots": middle <= (period // 4) ** 2,
    }


def _shapes(rows: Tensor, columns: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Return the ink masks of a single shape; half its extent is 8 to 12 pixels, in half pixels."""
    half = 16 + 2 * scale
    wide = torch.maximum(rows.abs(), columns.abs())
    return {
        "disc": rows**2 + columns**2 <= half**2,
        "square": wide <= half - 2,
        "triangle": (rows <= half) & (2 * columns.abs() <= rows + half),
        "cross": (wide <= half + 2) & (torch.minimum(rows.abs(), columns.abs()) <= half // 3),
    }


def _square_wave(position: Tensor, period: Tensor) -> Tensor:
    """Return 1 in the first half of each period and 0 in the second."""
    return (position % period < period // 2).long()


def _colourize(ink: Tensor, generator: torch.Generator) -> Tensor:
    n, low, high = len(ink), *CONTRAST
    ground = torch.randint(high, 256 - high, (n, 3, 1, 1), generator=generator)
    step = torch.randint(low, high + 1, (n, 3, 1, 1), generator=generator)
    side = 2 * torch.randint(0, 2, (n, 3, 1, 1), generator=generator) - 1
    half = NOISE_RANGE // 2
    noise = torch.randint(-half, half + 1, (2, n, 3, IMAGE_SIZE, IMAGE_SIZE), generator=generator).sum(dim=0)
    return (ground + ink[:, None] * step * side + noise).clamp(0, 255).to(torch.uint8)
