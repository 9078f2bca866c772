"""Blurs against scipy, against the published loop over pixels, and by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from spurless.data.corruptions import CORRUPTIONS, Scale, corrupt
from spurless.data.corruptions.blur import disk_kernel, glass_blur, smear
from spurless.data.corruptions.ops import floor_with_tolerance, gaussian_filter
from spurless.data.corruptions.rng import ImageRng, rng_for_images

SCALES: tuple[Scale, ...] = ("cifar", "imagenet")


def raw(name: str, x: Tensor, severity: int, scale: Scale) -> Tensor:
    numbers = getattr(CORRUPTIONS[name], scale)[severity - 1]
    return CORRUPTIONS[name].apply(x.double(), numbers, rng_for_images(torch.arange(len(x)), 0, name))


def point(side: int) -> Tensor:
    x = torch.zeros(1, 1, side, side, dtype=torch.float64)
    x[..., side // 2, side // 2] = 1
    return x


@pytest.mark.parametrize(("scale", "sigma"), [("cifar", 1.0), ("imagenet", 6.0)])
def test_gaussian_blur_at_level_5_is_that_of_scipy(small: Tensor, scale: Scale, sigma: float) -> None:
    expected = ndimage.gaussian_filter(small.double().numpy(), (0, 0, sigma, sigma), mode="nearest")
    assert abs(raw("gaussian-blur", small, 5, scale).numpy() - expected).max() < 1e-9


def test_defocus_at_cifars_level_5_is_the_mean_of_nine(small: Tensor) -> None:
    # a radius of 1.5 reaches the diagonal neighbours; a softening of 0.1 weighs the next by exp(-50)
    expected = ndimage.uniform_filter(small.double().numpy(), (0, 0, 3, 3), mode="mirror")
    assert abs(raw("defocus-blur", small, 5, "cifar").numpy() - expected).max() < 1e-6


def test_defocus_at_cifars_level_1_is_only_soft() -> None:
    side = math.exp(-1 / (2 * 0.4**2))
    line = torch.tensor([side, 1, side], dtype=torch.float64) / (1 + 2 * side)
    assert torch.allclose(disk_kernel(0.3, 0.4), line[:, None] * line, atol=1e-12)


@pytest.mark.parametrize(("scale", "severity"), [("cifar", 4), ("imagenet", 5)])
def test_defocus_correlates_with_the_disk(small: Tensor, scale: Scale, severity: int) -> None:
    x = small[:2]
    kernel = disk_kernel(*getattr(CORRUPTIONS["defocus-blur"], scale)[severity - 1])
    expected = ndimage.correlate(x.double().numpy(), kernel[None, None].numpy(), mode="mirror")
    assert abs(raw("defocus-blur", x, severity, scale).numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("radius", [3.0, 8.0, 10.0])
def test_a_disk_has_its_radius(radius: float) -> None:
    kernel = disk_kernel(radius, 0.5)
    middle = len(kernel) // 2
    line = torch.arange(-middle, middle + 1)
    inner = (line[:, None] ** 2 + line**2).double().sqrt() <= radius - 3
    n = sum(i * i + j * j <= radius**2 for i in range(-10, 11) for j in range(-10, 11))
    assert torch.allclose(kernel[inner], torch.tensor(1 / n, dtype=torch.float64))  # flat inside
    assert torch.allclose(kernel, kernel.T)
    if radius < 8:
        assert float(kernel.sum()) == pytest.approx(1)
    else:
        assert 1 < float(kernel.sum()) < 1.02  # its rim is mirrored back into the field, as published


def published_pass(x: np.ndarray, farthest: int, moves: np.ndarray) -> None:
    """Pixel by pixel, backwards, as the published loop does it: a swap of two views, which copies."""
    height, width = x.shape[:2]
    for row in range(height - farthest, farthest, -1):
        for column in range(width - farthest, farthest, -1):
            down, right = moves[:, row - farthest - 1, column - farthest - 1]
            x[row, column] = x[row + down, column + right]


@pytest.mark.parametrize(("farthest", "passes"), [(1, 2), (2, 3), (4, 2)])
def test_glass_blur_moves_pixels_as_the_published_loop(farthest: int, passes: int) -> None:
    height, width = 17, 23
    x = torch.arange(height * width).view(1, 1, height, width).double().expand(2, -1, -1, -1) % 256
    rng = rng_for_images(torch.arange(2), 0, "glass")
    found = glass_blur(x, (0.05, farthest, passes), rng)  # sigma 0.05: no blur at all
    for image in range(2):
        expected = x[image, 0].numpy().copy()[..., None]
        for k in range(passes):
            moves = rng.integers(f"pass {k}", 2 * farthest, 2, height - 2 * farthest, width - 2 * farthest) - farthest
            published_pass(expected, farthest, moves[image].numpy())
        assert np.array_equal(found[image, 0].numpy(), expected[..., 0])


def test_the_swap_of_two_views_copies() -> None:
    x = np.arange(6).reshape(2, 3)
    x[0], x[1] = x[1], x[0]
    assert x.tolist() == [[3, 4, 5], [3, 4, 5]]  # why glass blur copies, as published


def test_glass_blur_blurs_before_and_after(small: Tensor) -> None:
    rng = rng_for_images(torch.arange(len(small)), 0, "glass")
    x = small.double()
    before = floor_with_tolerance(gaussian_filter(x, 0.7))  # to bytes, as published
    moved = glass_blur(before, (0.05, 1, 2), rng)
    assert torch.allclose(glass_blur(x, (0.7, 1, 2), rng), gaussian_filter(moved, 0.7))


def test_a_point_is_smeared_along_half_a_gaussian_to_the_left() -> None:
    found = smear(point(31), 6, 2.0, torch.zeros(1, dtype=torch.float64))[0, 0]
    weights = torch.exp(-(torch.arange(13.0, dtype=torch.float64) ** 2) / 8)
    weights /= weights.sum()
    # each pixel looks to its right, so that the point is seen from its left
    assert torch.allclose(found[15, 3:16].flip(0), weights, atol=1e-7)
    assert float(found.sum()) == pytest.approx(1)
    assert float(found[15].sum()) == pytest.approx(1)


@pytest.mark.parametrize("degrees", [-135.0, -20.0, 45.0])
def test_the_smear_has_the_direction_of_its_angle(degrees: float) -> None:
    found = smear(point(61), 10, 6.0, torch.tensor([degrees], dtype=torch.float64))[0, 0]
    line = torch.arange(61, dtype=torch.float64) - 30
    down, right = float((found.sum(1) * line).sum()), float((found.sum(0) * line).sum())
    angle = math.degrees(math.atan2(-down, -right))
    assert abs(angle - degrees) < 3  # whole steps
    assert math.hypot(down, right) == pytest.approx(6 * (2 / math.pi) ** 0.5, rel=0.1)  # the mean of half a Gaussian


def test_every_image_moves_its_own_way_within_45_degrees() -> None:
    x = point(61).expand(200, -1, -1, -1)
    found = raw("motion-blur", 255 * x, 5, "imagenet")[:, 0]
    line = torch.arange(61, dtype=torch.float64) - 30
    angle = torch.atan2(-(found.sum(2) * line).sum(1), -(found.sum(1) * line).sum(1)).rad2deg()
    assert -47 < angle.min() < -40
    assert 40 < angle.max() < 47
    assert len(torch.unique(angle)) > 50


@pytest.mark.parametrize(
    ("scale", "severity", "factors"),
    [
        ("cifar", 1, np.arange(1, 1.06, 0.01)),
        ("imagenet", 5, np.arange(1, 1.31, 0.03)),
    ],
)
def test_zoom_blur_is_the_mean_of_the_zoomed_middles(
    small: Tensor, scale: Scale, severity: int, factors: np.ndarray
) -> None:
    x = small[0, 0].double().numpy()
    total = x.copy()
    for factor in factors:
        kept = math.ceil(32 / factor)
        start = (32 - kept) // 2
        larger = ndimage.zoom(x[start : start + kept, start : start + kept], factor, order=1)
        cut = (len(larger) - 32) // 2
        total += larger[cut : cut + 32, cut : cut + 32]
    assert abs(raw("zoom-blur", small[:1], severity, scale)[0, 0].numpy() - total / (len(factors) + 1)).max() < 1e-9


@pytest.mark.parametrize("scale", SCALES)
def test_a_blur_leaves_a_flat_image_alone(scale: Scale) -> None:
    x = torch.full((2, 3, 40, 17), 77, dtype=torch.uint8)
    for name in ("gaussian-blur", "glass-blur", "motion-blur", "zoom-blur"):
        assert torch.equal(corrupt(x, name, 5, scale=scale), x), name


def test_a_fixed_blur_draws_nothing(small: Tensor) -> None:
    nothing = ImageRng(torch.zeros(0, dtype=torch.long))  # a draw for no image would not fit
    for name in ("gaussian-blur", "defocus-blur", "zoom-blur"):
        assert CORRUPTIONS[name].apply(small.double(), CORRUPTIONS[name].cifar[4], nothing).shape == small.shape
