"""Rounding at ties, borders, and the matrices against scipy and Pillow."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from spurless.data.corruptions.ops import (
    Border,
    apply_matrices,
    border_index,
    box_matrix,
    floor_with_tolerance,
    gaussian_filter,
    luma,
    match_channels,
    round_half_up,
    to_bytes,
    zoom_matrix,
)


def noise(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 255


def just_below(value: float) -> float:
    return math.nextafter(value, -math.inf)


@pytest.mark.parametrize("tie", [0.5, 25.5, 254.5])
def test_a_last_bit_does_not_decide_a_tie(tie: float) -> None:
    x = torch.tensor([just_below(tie), tie, math.nextafter(tie, math.inf)], dtype=torch.float64)
    assert to_bytes(x).tolist() == [math.ceil(tie)] * 3
    assert round_half_up(x).tolist() == [math.ceil(tie)] * 3
    assert to_bytes(x - 1e-5).tolist() == [math.floor(tie)] * 3  # but a hundred-thousandth of a level does


def test_a_last_bit_does_not_cut_a_whole_number_down() -> None:
    x = torch.tensor([just_below(99.0), 99.0, 99.9], dtype=torch.float64)
    assert floor_with_tolerance(x).tolist() == [99, 99, 99]


def test_bytes_are_clamped_rather_than_wrapped() -> None:
    x = torch.tensor([-1e9, -0.6, -0.4, 254.6, 255.4, 256.0, 1e9], dtype=torch.float64)
    assert to_bytes(x).tolist() == [0, 0, 0, 255, 255, 255, 255]


@pytest.mark.parametrize(("border", "mode"), [("nearest", "nearest"), ("symmetric", "reflect"), ("mirror", "mirror")])
def test_blurring_agrees_with_scipy_to_the_border(border: Border, mode: str) -> None:
    x = noise(2, 3, 17, 40)
    for sigma, truncate in ((0.4, 4.0), (20.0, 3.0)):  # the second reaches far beyond both borders
        expected = ndimage.gaussian_filter(x.numpy(), (0, 0, sigma, sigma), mode=mode, truncate=truncate)
        assert abs(gaussian_filter(x, sigma, border, truncate).numpy() - expected).max() < 1e-9


@pytest.mark.parametrize("border", ["nearest", "symmetric", "mirror"])
def test_every_position_however_far_is_inside(border: Border) -> None:
    found = border_index(torch.arange(-100, 100), 8, border)
    assert found.min() == 0
    assert found.max() == 7
    assert found[100:108].tolist() == list(range(8))


@pytest.mark.parametrize(("side", "factor"), [(17, 1.0), (224, 1.01), (32, 1.75), (17, 3.0)])
def test_zooming_agrees_with_scipy_on_the_middle(side: int, factor: float) -> None:
    x = noise(side, side)
    kept = math.ceil(side / factor)
    start = (side - kept) // 2
    larger = ndimage.zoom(x.numpy()[start : start + kept, start : start + kept], factor, order=1)
    cut = (len(larger) - side) // 2
    expected = larger[cut : cut + side, cut : cut + side]
    assert abs(apply_matrices(x, zoom_matrix(side, factor), zoom_matrix(side, factor)).numpy() - expected).max() < 1e-9


@pytest.mark.parametrize(("n", "out"), [(32, 20), (224, 134), (20, 32)])
def test_a_box_is_that_of_pillow(n: int, out: int) -> None:
    x = noise(1, n).round()
    image = Image.fromarray(x.numpy().astype(np.uint8).repeat(4, axis=0))
    expected = np.array(image.resize((out, 4), Image.Resampling.BOX))[0]
    assert abs((x @ box_matrix(n, out).T)[0].numpy() - expected).max() <= 0.5 + 1e-9  # Pillow's own rounding


def test_a_colour_on_a_grey_image_is_its_brightness() -> None:
    rgb = (63.0, 42.0, 20.0)
    assert match_channels(rgb, torch.zeros(1, 3, 8, 8)).flatten().tolist() == [63, 42, 20]
    assert float(match_channels(rgb, torch.zeros(1, 1, 8, 8))) == pytest.approx(0.299 * 63 + 0.587 * 42 + 0.114 * 20)


def test_grey_in_colour_has_its_own_brightness() -> None:
    x = noise(2, 1, 8, 8)
    assert torch.equal(luma(x), x)
    assert torch.allclose(luma(x.expand(-1, 3, -1, -1)), x, rtol=1e-12)
