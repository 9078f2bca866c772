"""Tiles: images and their heat as one PNG; small images are enlarged pixel by pixel.

Heat adds light to an image, which is dimmed and grey: the hotter, the lighter, from black over red and yellow to
white, in every channel. So the order is one of lightness, and needs no eye for colours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from spurless.core.errors import BadInput

SMALL, LARGE = 112, 192
"""pixels: smaller images are enlarged to about the one, larger ones are reduced to the other"""
GAP, HEADING, FONT = 8, 24, 13
PAPER, INK = (251, 250, 247), (27, 30, 35)
DIM = 0.5
"""how light an image is behind its heat"""
STOPS = (0.0, 0.4, 0.8, 1.0), ((0, 0, 0), (215, 20, 0), (255, 205, 30), (255, 255, 255))
"""from cold to hot: no channel ever falls"""


def rgb(images: Tensor) -> Tensor:
    """Return images with three channels, grey ones too."""
    return images.expand(-1, 3, -1, -1)


def glow(images: Tensor, heat: Tensor) -> Tensor:
    """Lay heat over dimmed grey images: light is added where it is hot."""
    if heat.dim() != 3:
        raise BadInput("these maps are no pictures", expected="(n, height, width)", got=tuple(heat.shape))
    if heat.shape[1:] != images.shape[2:]:  # the model sees the images in another size
        heat = interpolate(heat[:, None], size=tuple(images.shape[2:]), mode="bilinear", align_corners=False)[:, 0]
    grey = DIM * images.float().mean(dim=1, keepdim=True).round() / 255
    light = palette(heat.float()).permute(0, 3, 1, 2) / 255
    return (255 * (grey + light - grey * light)).round().to(torch.uint8)


def palette(heat: Tensor) -> Tensor:
    """Return the colour of every heat from 0 to 1, channels last, 0 to 255.

    Example:
        >>> palette(torch.tensor([0.0, 0.2, 1.0])).tolist()
        [[0.0, 0.0, 0.0], [107.5, 10.0, 0.0], [255.0, 255.0, 255.0]]
    """
    at, colours = torch.tensor(STOPS[0]), torch.tensor(STOPS[1], dtype=torch.float32)
    heat = heat.clamp(0, 1)
    i = torch.bucketize(heat, at[1:-1], right=True)
    part = ((heat - at[i]) / (at[i + 1] - at[i]))[..., None]
    return colours[i] + part * (colours[i + 1] - colours[i])


def encode(columns: Mapping[str, Tensor], numbers: Sequence[str], across: bool = False) -> bytes:
    """Put the columns side by side, a row per example, with headings above and the number of each before its row.

    ``across`` lays it on its side: a column per example.
    """
    tiles = [[images[i] for images in columns.values()] for i in range(len(numbers))]
    if across:
        return _sheet([list(row) for row in zip(*tiles, strict=True)], list(columns), numbers)
    return _sheet(tiles, numbers, list(columns))


def encode_one(image: Tensor) -> bytes:
    """Return one image ``(3, height, width)`` as a tile by itself."""
    from PIL import Image

    buffer = BytesIO()
    _fitted(Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _fitted(image: Any) -> Any:
    """Enlarge a small image pixel by pixel, reduce a large one smoothly."""
    from PIL import Image

    size = _tile((image.height, image.width))
    return image.resize(size, Image.Resampling.NEAREST if size[0] >= image.width else Image.Resampling.LANCZOS)


def _sheet(tiles: Sequence[Sequence[Tensor]], before: Sequence[str], above: Sequence[str]) -> bytes:
    """Draw rows of tiles with a word before each row and a word above each column."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT)
    size = _tile(tuple(tiles[0][0].shape[1:]))
    edge = 2 * GAP + max(round(font.getlength(word)) for word in before)
    widths = [max(size[0], round(font.getlength(word))) + GAP for word in above]
    sheet = Image.new("RGB", (edge + sum(widths), HEADING + len(before) * (size[1] + GAP)), PAPER)
    pen = ImageDraw.Draw(sheet)
    for row, word in enumerate(before):
        pen.text((edge - GAP, HEADING + row * (size[1] + GAP) + size[1] // 2), word, INK, font, anchor="rm")
    left = edge
    for column, (word, width) in enumerate(zip(above, widths, strict=True)):
        pen.text((left, HEADING // 2), word, INK, font, anchor="lm")
        for row, tile in enumerate(tiles):
            image = Image.fromarray(tile[column].permute(1, 2, 0).contiguous().numpy())
            sheet.paste(_fitted(image), (left, HEADING + row * (size[1] + GAP)))
        left += width
    buffer = BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _tile(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return width and height of a tile: whole pixels of small images, a smaller copy of large ones."""
    long = max(shape)
    scale = max(1, round(SMALL / long)) if long <= LARGE else LARGE / long
    return max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))
