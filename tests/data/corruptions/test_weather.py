"""Weather by its formulae: what is added, how much, where, and in which direction."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from spurless.data.corruptions import CORRUPTIONS, Scale, corrupt
from spurless.data.corruptions.ops import luma
from spurless.data.corruptions.rng import rng_for_images
from spurless.data.corruptions.weather import _equalise, _light_relief, distance_to_mask, frost_textures, plasma

SCALES: tuple[Scale, ...] = ("cifar", "imagenet")


def raw(name: str, x: Tensor, severity: int, scale: Scale) -> Tensor:
    numbers = getattr(CORRUPTIONS[name], scale)[severity - 1]
    return CORRUPTIONS[name].apply(x.double(), numbers, rng_for_images(torch.arange(len(x)), 0, name))


def flat(level: int, n: int = 8, side: int = 32, channels: int = 3) -> Tensor:
    return torch.full((n, channels, side, side), level, dtype=torch.float64)


@pytest.mark.parametrize(("scale", "kept"), [("cifar", 0.8), ("imagenet", 0.55)])
def test_snow_whitens_black_by_its_share_where_no_flake_falls(scale: Scale, kept: float) -> None:
    x = raw("snow", flat(0, n=20, side=64), 5, scale)
    assert float(x.min()) == pytest.approx((1 - kept) * 127.5, abs=0.5)  # half of white; a flake's tail at most
    assert (x.amax(dim=(1, 2, 3)) > (1 - kept) * 127.5 + 30).all()  # and flakes fall on every image


def test_snow_falls_one_way_and_turned_around(small: Tensor) -> None:
    x = raw("snow", flat(0), 5, "cifar")
    assert torch.allclose(x, x.flip(-2, -1))
    photo = raw("snow", small, 5, "cifar") - x.new_tensor(0.8) * small
    assert not torch.allclose(photo, photo.flip(-2, -1))


def test_flakes_are_longer_than_wide() -> None:
    x = raw("snow", flat(0, n=50, side=64), 5, "imagenet")[:, 0]
    x = x - x.mean(dim=(1, 2), keepdim=True)
    down, right = (x[:, 4:] * x[:, :-4]).mean(), (x[:, :, 4:] * x[:, :, :-4]).mean()
    assert down > 1.5 * right  # they fall within 45 degrees of the vertical


def test_snow_whitens_towards_one_and_a_half_times_the_brightness_and_half_of_white() -> None:
    level = 200
    x = raw("snow", flat(level, n=20), 1, "cifar")
    assert float(x.min()) == pytest.approx(0.95 * level + 0.05 * (1.5 * level + 127.5), abs=0.5)


@pytest.mark.parametrize(
    ("scale", "severity", "kept", "added"),
    [("cifar", 5, 0.75, 0.45), ("imagenet", 1, 1, 0.4)],
)
def test_frost_dims_the_image_and_adds_a_cut_of_a_texture(
    small: Tensor, scale: Scale, severity: int, kept: float, added: float
) -> None:
    ice = raw("frost", torch.zeros_like(small), severity, scale) / added
    assert torch.allclose(raw("frost", small, severity, scale), kept * small + added * ice)
    bank = frost_textures(0.2 if scale == "cifar" else 1.0).double()
    windows = bank.unfold(2, 32, 1).unfold(3, 32, 1)[:, 0]  # every cut of every texture, its first channel
    corner = (windows[..., 0, 0] == ice[0, 0, 0, 0].round()).nonzero()
    assert any(torch.allclose(windows[k, row, column], ice[0, 0]) for k, row, column in corner.tolist())


def test_every_texture_is_used_alike() -> None:
    rng = rng_for_images(torch.arange(1000), 0, "frost")
    counts = torch.bincount(rng.integers("texture", 5), minlength=5)
    assert (counts - 200).abs().max() < 4 * (1000 * 0.2 * 0.8) ** 0.5
    assert len(torch.unique(raw("frost", flat(0, n=100), 5, "cifar"), dim=0)) == 100  # and cut elsewhere


def test_frost_on_an_image_larger_than_the_textures() -> None:
    x = raw("frost", torch.zeros(1, 1, 8, 700, dtype=torch.float64), 5, "imagenet")
    full = luma(frost_textures().double())[:, 0]
    rows = [x[0, 0, 0, :640] / 0.75, x[0, 0, 0, 640:].flip(0) / 0.75]  # the texture, then turned over
    assert torch.allclose(rows[0][-60:], rows[1])
    assert (full - rows[0]).abs().amax(dim=2).min() < 1e-9


@pytest.mark.parametrize(("scale", "strength"), [("cifar", 1.5), ("imagenet", 3.0)])
def test_fog_reaches_from_its_thinnest_to_its_thickest(scale: Scale, strength: float) -> None:
    x = raw("fog", flat(255), 5, scale)
    # on white: (1 + c p) / (1 + c), where the cloud p takes both 0 and 1
    assert torch.allclose(x.amin(dim=(1, 2, 3)), torch.tensor(255 / (1 + strength), dtype=torch.float64))
    assert torch.allclose(x.amax(dim=(1, 2, 3)), torch.tensor(255.0, dtype=torch.float64))


def test_fog_scales_back_to_the_images_own_white() -> None:
    x = torch.zeros(2, 3, 32, 32, dtype=torch.float64)
    x[:, 1, 5, 5] = 100
    cloud = plasma(32, 1.75, rng_for_images(torch.arange(2), 0, "fog"))
    expected = (x + 1.5 * 255 * cloud[:, None]) * 100 / (100 + 1.5 * 255)
    assert torch.allclose(raw("fog", x, 5, "cifar"), expected)


def test_a_plasma_cloud_is_closed_on_all_sides() -> None:
    cloud = plasma(60, 2.5, rng_for_images(torch.arange(40), 0, "fog"))
    assert cloud.shape == (40, 64, 64)
    assert torch.equal(cloud.amin(dim=(1, 2)), torch.zeros(40))
    assert torch.equal(cloud.amax(dim=(1, 2)), torch.ones(40))
    for axis in (1, 2):
        steps = (cloud - cloud.roll(1, axis)).abs().mean(dim=(0, 3 - axis))
        assert steps[0] < 2 * steps.median()  # over the seam it is no rougher than elsewhere


def test_the_smallest_cloud_by_hand() -> None:
    rng = rng_for_images(torch.arange(1), 0, "fog")
    shake = 2 * rng.uniform("cloud", 2, 2)[0] - 1
    # all four corners are the one point 0; the middle adds to it, and the edges to the mean of corners and middles
    middle = shake[1, 1]
    top, side = middle / 2 + shake[0, 1], middle / 2 + shake[1, 0]
    expected = torch.stack([torch.stack([torch.zeros_like(top), top]), torch.stack([side, middle])])
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    assert torch.allclose(plasma(2, 3.0, rng)[0], expected)


def test_a_cloud_point_by_point() -> None:
    m, decay = 8, 1.7
    rng = rng_for_images(torch.arange(1), 0, "fog")
    shake = 2 * rng.uniform("cloud", m, m)[0].numpy() - 1
    cloud, step, swing = np.zeros((m, m)), m, 1.0

    def around(row: int, column: int, offsets: list[tuple[int, int]]) -> float:
        return float(np.mean([cloud[(row + i) % m, (column + j) % m] for i, j in offsets]) + swing * shake[row, column])

    while step > 1:
        h = step // 2
        for row in range(h, m, step):
            for column in range(h, m, step):
                cloud[row, column] = around(row, column, [(-h, -h), (-h, h), (h, -h), (h, h)])
        for row in range(0, m, h):
            for column in range(h if row % step == 0 else 0, m, step):
                cloud[row, column] = around(row, column, [(-h, 0), (h, 0), (0, -h), (0, h)])
        step, swing = h, swing / decay**2
    cloud = (cloud - cloud.min()) / (cloud.max() - cloud.min())
    assert abs(plasma(7, decay, rng)[0].numpy() - cloud).max() < 1e-12


@pytest.mark.parametrize(("scale", "severity"), [("cifar", 4), ("imagenet", 5)])
def test_mud_is_brown_and_opaque(scale: Scale, severity: int) -> None:
    x = raw("spatter", flat(200, n=30), severity, scale)
    muddy = (x < 199).all(dim=1)
    assert 0.005 < float(muddy.double().mean()) < 0.6
    cover = (200 - x) / (200 - torch.tensor([63.0, 42.0, 20.0], dtype=torch.float64).view(1, 3, 1, 1))
    assert torch.allclose(cover[:, 0], cover[:, 2])  # one mixture for all channels
    assert (cover[:, 0][muddy] >= 0.8 - 1e-9).all()  # thinner mud is wiped away
    assert torch.allclose(cover[:, 0][~muddy], torch.zeros(1, dtype=torch.float64))


@pytest.mark.parametrize(("scale", "strength"), [("cifar", 0.5), ("imagenet", 0.5)])
def test_water_adds_pale_turquoise_up_to_its_strength(scale: Scale, strength: float) -> None:
    added = raw("spatter", flat(0, n=30), 3, scale)
    assert float(added.min()) == 0
    thickest = added.amax(dim=(2, 3))
    expected = strength * torch.tensor([175.0, 238.0, 238.0], dtype=torch.float64)
    assert torch.allclose(thickest[thickest[:, 0] > 0], expected)
    wet = (added[:, 0] > 0).double().mean()
    assert 0.01 < float(wet) < 0.5


def test_a_dry_lens_stays_dry() -> None:
    x = flat(100, n=200, side=8)
    found = corrupt(x.to(torch.uint8), "spatter", 1)  # few drops on so few pixels
    dry = (found == 100).flatten(1).all(dim=1)
    assert dry.any()
    assert not dry.all()


def test_distances_are_those_of_scipy_up_to_the_farthest() -> None:
    marked = torch.rand(3, 1, 40, 70, generator=torch.Generator().manual_seed(0)) < 0.005
    expected = np.stack([ndimage.distance_transform_edt(~image[0].numpy()) for image in marked])[:, None]
    assert abs(distance_to_mask(marked, 20).numpy() - expected.clip(max=20)).max() < 1e-12
    assert (distance_to_mask(torch.zeros(1, 1, 9, 9, dtype=torch.bool), 20) == 20).all()


def test_equalising_spreads_depths_by_hand() -> None:
    depth = torch.tensor([[[[2, 2, 3, 20]]], [[[0, 0, 0, 0]]]])
    # two of four lie lowest and become 0; then (3 - 2) / (4 - 2) and (4 - 2) / (4 - 2) of 255
    assert _equalise(depth).tolist() == [[[[0, 0, 128, 255]]], [[[0, 0, 0, 0]]]]


def test_light_falls_through_drops_as_through_those_of_scipy() -> None:
    wet = torch.zeros(2, 1, 30, 40, dtype=torch.bool)
    wet[0, 0, 5:14, 6:30] = True
    wet[0, 0, 20:23, 20:23] = True
    wet[1, 0, :9, :9] = True  # a drop at the border has no rim there
    for image in range(2):
        drop = wet[image, 0].numpy()
        rim = drop & ~ndimage.binary_erosion(drop, border_value=1)
        depth = ndimage.distance_transform_edt(~rim).clip(max=20)
        depth = np.floor(ndimage.uniform_filter(depth, 3, mode="mirror") + 1e-9).astype(int)
        up_to = np.cumsum(np.bincount(depth.ravel(), minlength=21))
        lowest = up_to[depth.min()]
        spread = np.floor((up_to - lowest) / (depth.size - lowest) * 255 + 0.5)[depth]
        kernel = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
        lit = ndimage.correlate(spread, kernel, mode="mirror").clip(0, 255)
        expected = np.round(ndimage.uniform_filter(lit, 3, mode="mirror"))
        assert np.array_equal(_light_relief(wet)[image, 0].numpy(), expected)


@pytest.mark.parametrize("name", ["snow", "frost", "fog", "spatter"])
def test_weather_on_grey_is_the_brightness_of_weather_on_grey_in_colour(name: str) -> None:
    x = flat(60, channels=1)
    for severity in (3, 5):  # water, and mud
        grey, rgb = (raw(name, image, severity, "cifar") for image in (x, x.expand(-1, 3, -1, -1)))
        assert torch.allclose(grey, luma(rgb))
