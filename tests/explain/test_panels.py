"""Panels: colours at known places, words that stay within their panel, moving pictures that lose nothing."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.explain.panels import (
    COLOURS,
    GAP,
    SOFT,
    Panel,
    draw,
    encode,
    encode_moving,
    in_one_palette,
    sheet,
)
from spurless.explain.tiles import PAPER

NOWHERE, NONE = torch.empty(0, 2), torch.empty(0, dtype=torch.long)
CORNERS = (-1.0, 0.0), (3.0, 2.0)


def panel(ground: Tensor, **given: Any) -> Panel:
    parts = {"circles": NOWHERE, "circle_classes": NONE, "crosses": NOWHERE, "cross_classes": NONE, **given}
    return Panel(ground, *CORNERS, **parts)


def soft(k: int) -> list[int]:
    return [round(255 - SOFT * (255 - channel)) for channel in COLOURS[k]]


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("RGB")).astype(int)


def darkness(drawn: np.ndarray) -> np.ndarray:
    return np.asarray(255 - drawn.max(axis=2))


def test_the_ground_is_soft_and_a_line_parts_the_classes() -> None:
    ground = torch.zeros(8, 8, dtype=torch.long)
    ground[:4, 4:] = 3  # the top right quarter
    drawn = pixels(draw(panel(ground), 80))
    assert drawn.shape == (80, 80, 3)
    assert drawn[10, 10].tolist() == drawn[70, 70].tolist() == soft(0)
    assert drawn[10, 70].tolist() == soft(3)
    dark = darkness(drawn)
    assert (dark[:38].argmax(axis=1) >= 38).all()
    assert (dark[:38].argmax(axis=1) <= 41).all()
    assert (dark[:38].max(axis=1) > 100).all()
    assert dark[50:].max() < 60  # no line where nothing meets


def test_a_slanted_boundary_has_no_steps_of_whole_fields() -> None:
    fields = torch.arange(10)
    drawn = darkness(pixels(draw(panel((fields[None] > fields[:, None]).long()), 200)))
    line = drawn[20:180].argmax(axis=1)  # fields are 20 pixels wide
    assert (abs(np.diff(line)) <= 3).all()


def test_circles_and_crosses_lie_where_their_examples_do() -> None:
    ground = torch.full((4, 4), 2)
    circle, cross = torch.tensor([[0.0, 1.5]]), torch.tensor([[2.0, 0.5]])  # a quarter and three quarters across
    marks = {"circles": circle, "circle_classes": torch.tensor([1]), "crosses": cross}
    drawn = pixels(draw(panel(ground, cross_classes=torch.tensor([4]), **marks), 200))
    assert drawn[50, 50] == pytest.approx(COLOURS[1], abs=3)
    assert drawn[150, 150] == pytest.approx(COLOURS[4], abs=3)
    assert drawn[151, 151] == pytest.approx(COLOURS[4], abs=3)  # along the arm
    assert drawn[147:154, 147:154].max(axis=2).min() < 80  # and dark around it
    assert drawn[150, 156].tolist() == soft(2)  # between two arms lies the ground
    far = (drawn == np.array(soft(2))).all(axis=2)
    assert far.mean() > 0.98


def test_more_classes_than_colours_begin_again() -> None:
    drawn = pixels(draw(panel(torch.full((2, 2), len(COLOURS) + 1)), 40))
    assert drawn[20, 20].tolist() == soft(1)


def test_words_stay_above_and_below_their_panel() -> None:
    blank = panel(torch.zeros(2, 2, dtype=torch.long), above="up", below=("one", "a line that is far too long " * 3))
    short = panel(torch.zeros(2, 2, dtype=torch.long))
    drawn = pixels(sheet({"first": [blank, short], "": [short, short]}, 100))
    ground = (drawn == np.array(soft(0))).all(axis=2)
    assert ground.sum() == 4 * 100 * 100
    rows, columns = np.flatnonzero(ground.any(axis=1)), np.flatnonzero(ground.any(axis=0))
    assert (columns[0], columns[-1]) == (GAP, 2 * GAP + 2 * 100 - 1)
    ink = darkness(drawn) > 60
    top, second = rows[0], rows[np.flatnonzero(np.diff(rows) > 1)[0] + 1]
    assert ink[:top].any()  # the name, and the words above
    assert ink[top + 100 : top + 100 + 10].any()
    assert ink[top + 100 + 10 : second].any()
    assert not ink[:, GAP + 100 : 2 * GAP + 100].any()  # the long line ends with its panel
    assert not ink[second - 10 :].any()


def test_a_png_is_the_image_itself() -> None:
    image = sheet({"name": [panel(torch.tensor([[0, 1], [1, 0]]))]}, 60)
    assert np.array_equal(pixels(Image.open(BytesIO(encode(image)))), pixels(image))


def images(count: int) -> list[Image.Image]:
    ground = torch.zeros(count, count, dtype=torch.long)
    found = []
    for i in range(count):
        ground[i] = i
        found.append(sheet({f"epoch {i}": [panel(ground.clone())]}, 60))
    return found


def test_few_colours_are_the_nearest_ones() -> None:
    given = images(5)
    few = in_one_palette(given)
    palettes = [image.getpalette() for image in few]
    assert all(palette == palettes[0] for palette in palettes)
    for before, after in zip(given, few, strict=True):  # also what is neither in the first nor in the last
        assert (abs(pixels(before) - pixels(after)).max(axis=2) <= 2).mean() > 0.9
        assert pixels(after)[1, 1].tolist() == list(PAPER)  # Pillow's own search would miss it by a few shades
    palette = np.array(palettes[0]).reshape(-1, 3)
    wanted, got = pixels(given[2]).reshape(-1, 3)[::37], pixels(few[2]).reshape(-1, 3)[::37]
    nearest = ((wanted[:, None] - palette[None]) ** 2).sum(axis=2).min(axis=1)
    assert (((wanted - got) ** 2).sum(axis=1) == nearest).all()


def test_an_animated_png_has_every_image_whole_and_its_time() -> None:
    few = in_one_palette(images(4))
    data = encode_moving(few, [50, 60, 70, 900], plays=3)
    moving = Image.open(BytesIO(data))
    assert isinstance(moving, Image.Image)
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert getattr(moving, "n_frames", 1) == 4
    assert moving.info["loop"] == 3
    for i, (image, time) in enumerate(zip(few, (50, 60, 70, 900), strict=True)):
        moving.seek(i)
        shown = np.asarray(moving.convert("RGBA")).astype(int)
        assert (shown[..., 3] == 255).all()  # nothing of the page shines through
        assert np.array_equal(shown[..., :3], pixels(image))
        assert moving.info["duration"] == time
