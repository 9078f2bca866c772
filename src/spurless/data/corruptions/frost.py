"""Frost: five textures of ice on a window, drawn once and cut from ever after."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from spurless.data.corruptions.draws import Draws, draws_of
from spurless.data.corruptions.pixels import blurred, to_bytes

TEXTURES = 5
SIDE = 640
FANS = {300: 6, 170: 14, 90: 32}
"""How many fans of feathers a texture has of each length in pixels."""

FEATHERS = 4
"""How many feathers a fan has."""

BARBS = 200
DARK = (38.0, 52.0, 74.0)
WHITE = (232.0, 241.0, 250.0)


@lru_cache(maxsize=4)
def textures(scale: float = 1.0) -> Tensor:
    """Return the textures as bytes ``(5, 3, side, side)``, scaled from 640 pixels a side.

    They take seconds to draw, once per process. Made on the CPU whatever the device of the images, so that all
    devices share their bits.
    """
    full = _full_size()
    if scale == 1:
        return full
    size = (round(SIDE * scale), round(SIDE * scale))
    return to_bytes(torch.nn.functional.interpolate(full.double(), size=size, mode="bilinear", antialias=True))


@lru_cache
def _full_size() -> Tensor:
    return torch.stack([_texture(draws_of(torch.tensor([k]), 0, "frost")) for k in range(TEXTURES)])


def _texture(draws: Draws) -> Tensor:
    """Return one texture: fans of feathers over a grainy film that is thick in places, on a dark pane."""
    film = _cloud(draws, 90, 36, 14)
    ice = 0.1 + 0.3 * film**2 + 0.4 * film**3 * _cloud(draws, 6, 3, 1.2) ** 3
    bend = torch.stack([_noise(draws, f"bend {axis}", 9) for axis in "yx"]) * 3  # no line of ice is straight
    lengths = [length for length, count in FANS.items() for _ in range(count)]
    place = draws.uniform("fan", len(lengths), 3)[0]
    chance = draws.uniform("feather", len(lengths), FEATHERS, 5)[0]
    ragged = draws.uniform("barbs", len(lengths), FEATHERS, 2, BARBS)[0]  # no two barbs are equally long
    for fan, length in enumerate(lengths):
        row, column, turn = place[fan].tolist()
        for k in range(FEATHERS):  # feathers that grow from one place spread like the fingers of a hand
            start = (row * SIDE, column * SIDE, 2 * math.pi * turn + 0.5 * k)
            _feather(ice, bend, start, length, (chance[fan, k], ragged[fan, k]))
    ice = (ice * (1 + 0.18 * _noise(draws, "grain", 0.7))).clamp(0, 1)
    dark, white = (torch.tensor(rgb, dtype=torch.float64).view(3, 1, 1) for rgb in (DARK, WHITE))
    return to_bytes(dark + (white - dark) * ice)


def _noise(draws: Draws, purpose: str, sigma: float) -> Tensor:
    """Return smooth noise of standard deviation 1."""
    noise = blurred(draws.normal(purpose, SIDE, SIDE)[0], sigma, "symmetric")
    return noise / noise.std()


def _cloud(draws: Draws, *sigmas: float) -> Tensor:
    """Return smooth noise of several sizes, spread evenly from 0 to 1."""
    total = torch.stack([_noise(draws, f"cloud {sigma}", sigma) / (1 + k) for k, sigma in enumerate(sigmas)]).sum(dim=0)
    return 0.5 * (1 + torch.erf(total / total.std() / math.sqrt(2)))


def _feather(
    ice: Tensor, bend: Tensor, start: tuple[float, float, float], longest: int, chance: tuple[Tensor, Tensor]
) -> None:
    """Draw one feather onto the ice: a bent spine with barbs on both sides, and barbs on the barbs."""
    (turned, short, leaning, bent, bright), ragged = chance[0].tolist(), chance[1]
    row, column, turn = start[0], start[1], start[2] + 0.3 * turned
    length, slant = longest * (0.4 + 0.6 * short), math.radians(38 + 24 * leaning)
    window = (_reach(row, length, math.sin(turn)), _reach(column, length, math.cos(turn)))
    there = ice[window]
    y = torch.arange(SIDE)[window[0], None] - row + bend[0][window]
    x = torch.arange(SIDE)[window[1]] - column + bend[1][window]
    along = x * math.cos(turn) + y * math.sin(turn)
    aside = y * math.cos(turn) - x * math.sin(turn) + 0.5 * (bent - 0.5) * along**2 / length
    foot, reached = _fold(along, aside.abs(), slant)
    spacing, width = 3 + length * 0.022, 0.8 + length / 300
    part = (foot / length).clamp(0, 1)
    barb = (foot / spacing).round().clamp(0, BARBS - 1).long()
    room = length * 0.55 * part.sqrt() * (1 - part) * (0.3 + ragged[(aside > 0).long(), barb])
    fading = (1 - reached / room.clamp(min=1e-6)).clamp(0, 1).sqrt()
    off = _off(foot, spacing) * math.sin(slant)
    twig = _off(_fold(reached, off.abs(), slant)[0], 0.6 * spacing) * math.sin(slant)
    drawn = fading * torch.maximum(_line(off, width), 0.15 + 0.45 * _line(twig, 0.8 * width))
    spine = _line(aside, 1.5 * width) * ((along > 0) & (along < length)) * (1 - part).sqrt()
    fresh = (0.35 + 0.5 * bright) * torch.maximum(drawn, spine)
    there.copy_(torch.maximum(there, fresh) + 0.35 * torch.minimum(there, fresh))


def _reach(start: float, length: float, towards: float) -> slice:
    """Return the rows or columns that a feather may cover: its spine, and a margin for barbs and bends."""
    margin = 0.35 * length + 12
    low, high = sorted((start, start + length * towards))
    return slice(max(0, int(low - margin)), max(0, int(high + margin)))


def _fold(along: Tensor, aside: Tensor, slant: float) -> tuple[Tensor, Tensor]:
    """Return where the barb through each point leaves the spine, and how far along the barb the point lies."""
    return along - aside / math.tan(slant), aside / math.sin(slant)


def _off(position: Tensor, spacing: float) -> Tensor:
    """Return the distance to the nearest multiple of ``spacing``, with its sign."""
    return position - spacing * (position / spacing).round()


def _line(off: Tensor, width: float) -> Tensor:
    """Return a line of that width: 1 in its middle, 0 outside."""
    return (1 - off.abs() / width).clamp(0, 1)
