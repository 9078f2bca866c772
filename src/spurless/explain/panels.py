"""Panels: the plane of a classifier as pixels: soft ground by class, circles and crosses on it, words around it.

A class is told by its colour; where two meet there is a line, so that a boundary needs no eye for colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from spurless.explain.tiles import INK, PAPER

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont
    from PIL.ImageFont import ImageFont as PlainFont

Place: TypeAlias = tuple[float, float]
"""from left to right, from bottom to top"""
SIDE, GAP = 400, 24
"""pixels; about twice what a page shows, for screens that have them"""
FONT, LINE = 0.075, 0.1
"""of a side: the size of a letter, and from one line to the next"""
FINE = 2
"""drawn so much larger and then reduced: Pillow draws no smooth edges"""
COLOURS = ((0, 114, 178), (213, 94, 0), (0, 140, 105), (184, 82, 140), (166, 132, 0), (94, 79, 162), (90, 90, 90))
"""of the classes; an eighth has that of the first"""
SOFT = 0.3
"""how much of its colour the ground of a class has"""
MOST_COLOURS, SAMPLE = 128, 4
"""of a moving picture: how many colours, chosen by one pixel in so many each way"""
SOURCE, OVER = 0, 1
"""how a frame of an animated PNG is laid on the one before: in its place, or over it"""


@dataclass(frozen=True)
class Panel:
    """One plane: its ground, examples on it, and the words above and below."""

    ground: Tensor
    """the class of every field, ``(size, size)``, the top row first"""
    low: Place
    high: Place
    circles: Tensor
    """places, ``(n, 2)``"""
    circle_classes: Tensor
    crosses: Tensor
    cross_classes: Tensor
    above: str = ""
    below: tuple[str, ...] = ()


def draw(panel: Panel, side: int) -> Image:
    """Return the plane alone, ``side`` pixels wide and high."""
    from PIL import Image as Images
    from PIL import ImageDraw

    fine = FINE * side
    image = Images.fromarray(_painted(_enlarged(panel.ground, fine)).numpy())
    pen = ImageDraw.Draw(image)
    radius, arm, thick = fine / 100, fine / 60, max(2, fine // 100)
    for (x, y), colour in _points(panel, panel.circles, panel.circle_classes, fine):
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), colour, PAPER, max(1, FINE // 2))
    for (x, y), colour in _points(panel, panel.crosses, panel.cross_classes, fine):  # small: the ground counts
        for reach, shade, width in ((arm + thick / 3, INK, thick + thick // 2 + 1), (arm, colour, thick)):
            pen.line((x - reach, y - reach, x + reach, y + reach), shade, width)
            pen.line((x - reach, y + reach, x + reach, y - reach), shade, width)
    return image.reduce(FINE)


def sheet(rows: Mapping[str, Sequence[Panel]], side: int = SIDE) -> Image:
    """Return rows of panels, each row under its name."""
    from PIL import Image as Images
    from PIL import ImageDraw, ImageFont

    columns = max(len(row) for row in rows.values())
    below = max(len(panel.below) for row in rows.values() for panel in row)
    line = round(LINE * side)
    head = round(2.4 * line)  # a name, a little air, and the words above the panels
    tall = head + side + below * line + 2 * GAP
    image = Images.new("RGB", (GAP + columns * (side + GAP), len(rows) * tall), PAPER)
    pen, words = ImageDraw.Draw(image), ImageFont.load_default(FONT * side)
    for number, (name, row) in enumerate(rows.items()):
        top = GAP + number * tall
        _write(pen, (GAP, top + line // 2), name, ImageFont.load_default(1.2 * FONT * side), image.width - 2 * GAP)
        for column, panel in enumerate(row):
            left = GAP + column * (side + GAP)
            _write(pen, (left, top + head - line // 2), panel.above, words, side)
            image.paste(draw(panel, side), (left, top + head))
            for i, text in enumerate(panel.below):
                _write(pen, (left, top + head + side + line // 2 + i * line), text, words, side)
    return image


def encode(image: Image) -> bytes:
    """Return a PNG."""
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def in_one_palette(images: Sequence[Image]) -> list[Image]:
    """Return the images with few colours, the same for all, as a moving picture needs them."""
    from PIL import Image as Images

    some = np.concatenate([np.asarray(image)[::SAMPLE, ::SAMPLE] for image in images])  # a class may come and go
    palette = Images.fromarray(some).quantize(MOST_COLOURS, Images.Quantize.MEDIANCUT).getpalette() or []
    return [_indexed(_nearest(np.asarray(image), palette), palette) for image in images]


def encode_moving(images: Sequence[Image], times: Sequence[int], plays: int) -> bytes:
    """Return an animated PNG of images in one palette; ``times`` are in milliseconds.

    Every image is laid over the one before, clear where nothing changed: that takes half the room of whole images.
    """
    palette = images[0].getpalette() or []
    clear, whole = len(palette) // 3, [np.asarray(image) for image in images]
    layers = [whole[0], *(np.where(now == before, clear, now) for before, now in pairwise(whole))]
    drawn = [_indexed(layer, [*palette, 0, 0, 0]) for layer in layers]
    options: dict[str, Any] = {"duration": list(times), "blend": [SOURCE] + [OVER] * (len(drawn) - 1)}
    buffer = BytesIO()
    drawn[0].save(buffer, "PNG", save_all=True, append_images=drawn[1:], loop=plays, transparency=clear, **options)
    return buffer.getvalue()


def _indexed(index: np.ndarray, palette: Sequence[int]) -> Image:
    from PIL import Image as Images

    image = Images.fromarray(index.astype(np.uint8)).convert("P")
    image.putpalette(palette)
    return image


def _nearest(pixels: np.ndarray, palette: Sequence[int]) -> np.ndarray:
    """Return the number of the nearest colour of every pixel; Pillow's own search is off by a shade or two."""
    packed = pixels.astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
    known, where = np.unique(packed, return_inverse=True)
    colours = np.stack([known >> 16, known >> 8 & 255, known & 255], axis=1)
    far = ((colours[:, None] - np.array(palette).reshape(1, -1, 3)) ** 2).sum(axis=2)
    return np.asarray(far.argmin(axis=1)[where].reshape(packed.shape))


def _enlarged(ground: Tensor, side: int) -> Tensor:
    """Return the classes on a finer grid: the nearest of each in size, so that a slanted boundary has no steps."""
    shares = one_hot(ground.long()).permute(2, 0, 1)[None].float()
    return interpolate(shares, size=(side, side), mode="bilinear", align_corners=False)[0].argmax(dim=0)


def _painted(classes: Tensor) -> Tensor:
    """Return soft colours, ``(side, side, 3)``, with a line where two classes meet."""
    strong = torch.tensor([_colour(k) for k in range(int(classes.max()) + 1)], dtype=torch.float32)
    soft = 255 - SOFT * (255 - strong)
    meets = torch.zeros_like(classes, dtype=torch.bool)
    for dim in (0, 1):
        n = classes.shape[dim] - 1
        differs = classes.narrow(dim, 0, n) != classes.narrow(dim, 1, n)
        meets.narrow(dim, 0, n).logical_or_(differs)
        meets.narrow(dim, 1, n).logical_or_(differs)
    painted = soft[classes]
    painted[meets] = torch.tensor(INK, dtype=torch.float32)
    return painted.round().to(torch.uint8).contiguous()


def _points(
    panel: Panel, places: Tensor, classes: Tensor, side: int
) -> list[tuple[tuple[float, float], tuple[int, int, int]]]:
    """Return where each example lies in pixels, and its colour."""
    low, high = torch.tensor(panel.low), torch.tensor(panel.high)
    share = (places.float() - low) / (high - low)
    at = torch.stack([share[:, 0], 1 - share[:, 1]], dim=1) * side
    return [((x, y), _colour(k)) for (x, y), k in zip(at.tolist(), classes.tolist(), strict=True)]


def _colour(k: int) -> tuple[int, int, int]:
    return COLOURS[k % len(COLOURS)]


def _write(pen: ImageDraw, at: tuple[int, int], text: str, font: FreeTypeFont | PlainFont, width: int) -> None:
    """Write a line to the right of its middle, cut where there is no more room."""
    if font.getlength(text) > width:
        while text and font.getlength(text + "...") > width:
            text = text[:-1]
        text += "..."
    pen.text(at, text, INK, font, anchor="lm")
