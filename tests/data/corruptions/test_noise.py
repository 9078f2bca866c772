"""Noise by its published size: spreads, shares and means, within sampling error."""

import math

import pytest
import torch
from torch import Tensor

from spurless.data.corruptions import CORRUPTIONS, Scale, corrupt
from spurless.data.corruptions.rng import rng_for_images


def flat(level: int, n: int = 20) -> Tensor:
    return torch.full((n, 3, 32, 32), level, dtype=torch.uint8)


def raw(name: str, x: Tensor, severity: int, scale: Scale = "cifar") -> Tensor:
    """The corrupted grey levels before they are clamped and rounded."""
    numbers = getattr(CORRUPTIONS[name], scale)[severity - 1]
    return CORRUPTIONS[name].apply(x.double(), numbers, rng_for_images(torch.arange(len(x)), 0, name))


def within(found: float, expected: float, n: int) -> bool:
    """Whether a spread over ``n`` normal draws lies within four standard errors."""
    return abs(found / expected - 1) < 4 / math.sqrt(2 * n)


@pytest.mark.parametrize(
    ("scale", "stds"), [("cifar", (0.04, 0.06, 0.08, 0.09, 0.10)), ("imagenet", (0.08, 0.12, 0.18, 0.26, 0.38))]
)
def test_gaussian_noise_has_the_published_spread(scale: Scale, stds: tuple[float, ...]) -> None:
    for severity, std in enumerate(stds, start=1):
        change = raw("gaussian-noise", flat(128), severity, scale) - 128
        assert within(float(change.std()), 255 * std, change.numel())
        assert abs(float(change.mean())) < 4 * 255 * std / change.numel() ** 0.5


def test_gaussian_noise_at_level_5_in_bytes() -> None:
    change = corrupt(flat(128), "gaussian-noise", 5).double() - 128
    assert within(float(change.std()), (25.5**2 + 1 / 12) ** 0.5, change.numel())  # rounding adds a twelfth


@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
def test_speckle_noise_grows_with_the_value(scale: Scale) -> None:
    for severity, std in {"cifar": {1: 0.06, 5: 0.2}, "imagenet": {1: 0.15, 5: 0.6}}[scale].items():
        for level in (20, 200):
            change = raw("speckle-noise", flat(level), severity, scale) - level
            assert within(float(change.std()), level * std, change.numel())


@pytest.mark.parametrize(("scale", "share"), [("cifar", 0.07), ("imagenet", 0.27)])
def test_impulse_noise_sets_the_stated_share_half_black_half_white(scale: Scale, share: float) -> None:
    x = corrupt(flat(100), "impulse-noise", 5, scale=scale)
    n = x.numel()
    for value in (0, 255):
        assert abs(float((x == value).double().mean()) - share / 2) < 4 * (share / 2 / n) ** 0.5
    assert int(((x == 0) | (x == 255) | (x == 100)).sum()) == n  # the others are untouched


def test_impulse_noise_is_drawn_per_channel() -> None:
    x = corrupt(flat(100), "impulse-noise", 5)
    hit = (x != 100).double()
    both = float((hit[:, 0] * hit[:, 1]).mean())
    assert abs(both - 0.07**2) < 4 * (0.07**2 / hit[:, 0].numel()) ** 0.5


@pytest.mark.parametrize(("scale", "severity", "photons"), [("cifar", 1, 500), ("cifar", 5, 50), ("imagenet", 1, 60)])
def test_shot_noise_keeps_the_mean_and_has_the_variance_of_its_photons(
    scale: Scale, severity: int, photons: int
) -> None:
    level = 0.4  # 102 of 255
    x = raw("shot-noise", flat(102), severity, scale) / 255
    n, variance = x.numel(), level / photons
    assert abs(float(x.mean()) - level) < 4 * (variance / n) ** 0.5
    # the variance of a variance: that of a normal, and what the skewness of few photons adds
    assert abs(float(x.var()) - variance) < 4 * variance * ((2 + 1 / (level * photons)) / n) ** 0.5


def test_shot_noise_of_three_photons_has_four_shades() -> None:
    x = corrupt(flat(102), "shot-noise", 5, scale="imagenet")
    rate = 0.4 * 3
    none = torch.exp(torch.tensor(-rate, dtype=torch.float64))
    shares = torch.stack([none, none * rate, none * rate**2 / 2])
    assert torch.unique(x).tolist() == [0, 85, 170, 255]
    for value, share in zip((0, 85, 170), shares.tolist(), strict=True):
        assert abs(float((x == value).double().mean()) - share) < 4 * (share * (1 - share) / x.numel()) ** 0.5
