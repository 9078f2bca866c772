"""Tiles: the hotter the lighter, in every channel, on any image; small images keep their pixels."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from spurless.core.errors import InputError
from spurless.explain.overlays import GAP, HEADING, IMAGE_BRIGHTNESS, encode_grid, heat_to_color, overlay_heat, to_rgb


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(png)))


def lightness(colours: Tensor) -> Tensor:
    """Return the relative luminance of sRGB colours, channels last."""
    linear = torch.where(colours <= 10.31, colours / 255 / 12.92, ((colours / 255 + 0.055) / 1.055) ** 2.4)
    return linear @ torch.tensor([0.2126, 0.7152, 0.0722])


def test_the_hotter_the_lighter() -> None:
    steps = heat_to_color(torch.linspace(0, 1, 101))
    assert (lightness(steps).diff() > 0).all()
    assert (steps.diff(dim=0) >= 0).all()  # whichever channels an eye has
    assert steps[0].tolist() == [0, 0, 0]
    assert steps[-1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("shade", [0, 90, 255])
def test_heat_is_ordered_on_dark_and_on_light_images(shade: int) -> None:
    image = torch.full((1, 1, 1, 50), shade, dtype=torch.uint8)
    drawn = overlay_heat(image, torch.linspace(0, 1, 50)[None, None])[0, :, 0].T.float()
    assert (drawn.diff(dim=0) >= 0).all()
    assert drawn[0].tolist() == pytest.approx([IMAGE_BRIGHTNESS * shade] * 3, abs=1)
    assert drawn[-1].tolist() == [255, 255, 255]


def test_heat_of_another_size_is_laid_over_the_whole_image() -> None:
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    heat = torch.zeros(1, 2, 2)
    heat[0, 0, 1] = 1.0
    drawn = overlay_heat(image, heat)[0].float().sum(dim=0)
    assert drawn.flatten().argmax() in (6, 7, 14, 15)  # the top right corner
    assert drawn[7, 0] == 0


def test_maps_that_are_no_pictures_are_refused() -> None:
    with pytest.raises(InputError, match=r"the maps cannot be drawn \(expected \(n, height, width\), got \(1, 5\)\)"):
        overlay_heat(torch.zeros(1, 1, 5, 5, dtype=torch.uint8), torch.zeros(1, 5))


def test_small_images_are_enlarged_pixel_by_pixel() -> None:
    image = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    image[0, 0, 3, 5] = 200
    drawn = decoded(encode_grid({"image": to_rgb(image)}, ["0"]))
    assert (drawn == 200).all(axis=2).sum() == 16  # one pixel is four by four
    (top, left) = np.argwhere((drawn == 200).all(axis=2))[0]
    black = np.argwhere((drawn == 0).all(axis=2))[0]
    assert (top - black[0], left - black[1]) == (12, 20)


@pytest.mark.parametrize(
    ("shape", "tile"), [((28, 28), (112, 112)), ((8, 8), (112, 112)), ((224, 448), (96, 192)), ((150, 150), (150, 150))]
)
def test_tiles_have_a_size_that_can_be_read(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    drawn = decoded(encode_grid({"a": to_rgb(torch.zeros(2, 1, *shape, dtype=torch.uint8))}, ["0", "1"]))
    black = np.argwhere((drawn[:, -tile[1] - 8 :] == 0).all(axis=2))
    assert len(black) == 2 * tile[0] * tile[1]


def test_every_column_has_its_heading_and_every_row_its_number() -> None:
    blank = torch.full((2, 3, 28, 28), 255, dtype=torch.uint8)
    drawn = decoded(encode_grid({"image": blank, "a very long heading indeed": blank}, ["7", "123456"]))
    ink = np.asarray((drawn < 120).all(axis=2))
    assert ink[:HEADING, :].any(axis=0).sum() > 60
    edge = int(np.flatnonzero(ink[HEADING:].any(axis=0)).max())
    assert ink[HEADING : HEADING + 112].sum() < ink[HEADING + 120 :].sum()  # six digits have more ink than one
    assert edge < 80
    assert not ink[:, -3:].any()  # no heading is cut off


def test_across_is_the_same_sheet_on_its_side() -> None:
    generator = torch.Generator().manual_seed(0)
    columns = {word: torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=generator) for word in ("a", "b")}
    upright, across = (decoded(encode_grid(columns, ["0", "1", "2"], flag)) for flag in (False, True))
    step = 112 + GAP

    def tile(sheet: np.ndarray, row: int, column: int) -> np.ndarray:
        top, left = HEADING + row * step, sheet.shape[1] - (column + 1) * step
        return sheet[top : top + 112, left : left + 112]

    for row in range(3):
        for column in range(2):  # counted from the right, where the widths of the words play no part
            assert np.array_equal(tile(upright, row, column), tile(across, 1 - column, 2 - row))
