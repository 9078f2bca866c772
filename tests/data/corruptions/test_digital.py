"""Digital corruptions against colorsys, Pillow and scipy, and by hand."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from spurless.data.corruptions import CORRUPTIONS, Scale, corrupt
from spurless.data.corruptions.digital import elastic_transform, sample_bilinear
from spurless.data.corruptions.ops import Border
from spurless.data.corruptions.rng import rng_for_images

SCALES: tuple[Scale, ...] = ("cifar", "imagenet")


def raw(name: str, x: Tensor, severity: int, scale: Scale) -> Tensor:
    numbers = getattr(CORRUPTIONS[name], scale)[severity - 1]
    return CORRUPTIONS[name].apply(x.double(), numbers, rng_for_images(torch.arange(len(x)), 0, name))


def psnr(a: Tensor, b: Tensor) -> float:
    return float(10 * torch.log10(255**2 / (a.double() - b.double()).square().mean()))


def pillow(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())


def pixels() -> Tensor:
    """Colours of all kinds, with greys, black and white, as one image (1, 3, 8, 50)."""
    rgb = torch.randint(0, 256, (3, 400), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    rgb[:, :20] = torch.arange(20, dtype=torch.uint8) * 13
    rgb[:, 20], rgb[:, 21] = 0, 255
    return rgb.view(1, 3, 8, 50)


def hsv_changed(x: Tensor, severity: int, name: str, scale: Scale) -> Tensor:
    """Pixel by pixel in HSV, as published."""
    numbers = getattr(CORRUPTIONS[name], scale)[severity - 1]
    out = []
    for rgb in (x[0].flatten(1).T.double() / 255).tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*rgb)
        if name == "brightness":
            value = min(value + numbers[0], 1)
        else:
            saturation = min(saturation * numbers[0] + numbers[1], 1)
        out.append(colorsys.hsv_to_rgb(hue, saturation, value))
    return torch.tensor(out, dtype=torch.float64).T.view_as(x) * 255


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["brightness", "saturate"])
def test_hue_saturation_and_value_change_as_in_hsv(name: str, scale: Scale) -> None:
    x = pixels()
    for severity in range(1, 6):
        expected = hsv_changed(x, severity, name, scale)
        assert torch.allclose(raw(name, x, severity, scale), expected, atol=1e-9)


def test_brightness_raises_the_value_by_the_published_share() -> None:
    x = torch.tensor([100, 60, 20], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    found = raw("brightness", x, 5, "cifar")[0, :, 0, 0]
    assert found.tolist() == pytest.approx([176.5, 60 * 1.765, 20 * 1.765])  # 100 + 0.3 * 255, the ratios kept


def test_grey_images_have_brightness_but_no_saturation() -> None:
    x = torch.full((2, 1, 28, 28), 100, dtype=torch.uint8)
    assert (corrupt(x, "brightness", 5) == 177).all()
    assert torch.equal(corrupt(x, "saturate", 5), x)


@pytest.mark.parametrize(("scale", "kept"), [("cifar", 0.15), ("imagenet", 0.05)])
def test_contrast_scales_the_spread_about_the_mean_exactly(small: Tensor, scale: Scale, kept: float) -> None:
    found, x = raw("contrast", small, 5, scale), small.double()
    assert torch.allclose(found.mean(dim=(2, 3)), x.mean(dim=(2, 3)))
    assert torch.allclose(found.std(dim=(2, 3)), kept * x.std(dim=(2, 3)))


@pytest.mark.parametrize(("severity", "side"), [(1, 30), (5, 20)])
def test_cifars_pixelate_has_so_many_blocks(severity: int, side: int) -> None:
    x = torch.arange(32).view(1, 1, 1, 32).expand(1, 1, 32, 32) * 8 + torch.arange(32).view(32, 1) / 32.0
    found = raw("pixelate", x, severity, "cifar")
    assert len(torch.unique(found)) == side * side


@pytest.mark.parametrize(("scale", "severity"), [("cifar", 1), ("imagenet", 5)])
def test_pixelate_is_that_of_pillow(large: Tensor, scale: Scale, severity: int) -> None:
    share = getattr(CORRUPTIONS["pixelate"], scale)[severity - 1][0]
    x = large[:1, :, :, :100]  # not square
    less = pillow(x[0]).resize((int(100 * share), int(128 * share)), Image.Resampling.BOX)
    expected = np.array(less.resize((100, 128), Image.Resampling.BOX))
    found = corrupt(x, "pixelate", severity, scale=scale)[0].permute(1, 2, 0).numpy()
    assert abs(found.astype(int) - expected).max() <= 1  # Pillow rounds after every axis


def jpeg(image: Tensor, quality: int) -> Tensor:
    file = io.BytesIO()
    pillow(image).save(file, "JPEG", quality=quality)
    decoded = torch.from_numpy(np.array(Image.open(file)))
    return decoded[None] if decoded.dim() == 2 else decoded.permute(2, 0, 1)


@pytest.mark.parametrize(("scale", "severity"), [("cifar", 1), ("imagenet", 5)])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 128, 128), (3, 101, 83), (1, 101, 83)])
def test_jpeg_is_that_of_pillow_at_the_same_quality(
    large: Tensor, scale: Scale, severity: int, channels: int, height: int, width: int
) -> None:
    (quality,) = getattr(CORRUPTIONS["jpeg-compression"], scale)[severity - 1]
    x = large[:, :channels, :height, :width].contiguous()
    expected = torch.stack([jpeg(image, int(quality)) for image in x])
    found = corrupt(x, "jpeg-compression", severity, scale=scale)
    for ours, theirs, image in zip(found, expected, x, strict=True):
        assert psnr(ours, theirs) > psnr(image, theirs) + 3  # nearer to each other than to the photograph
        assert psnr(ours, theirs) > 34
    # most values are the same to within a level; the others are where whole numbers and doubles round apart
    near = (found.int() - expected.int()).abs() <= 1
    assert float(near.double().mean()) > (0.91 if channels == 3 else 0.985)


def test_jpeg_of_a_flat_block_keeps_its_step() -> None:
    # the mean of a grey block is coded in steps of table / 8: at quality 50, 16 / 8 = 2 levels from 128
    x = torch.tensor([100, 101, 128, 131], dtype=torch.uint8).view(4, 1, 1, 1).expand(4, 1, 8, 8)
    found = corrupt(x, "jpeg-compression", 4)
    assert torch.unique(found.flatten(1), dim=1).flatten().tolist() == [100, 100, 128, 132]  # ties away from 128


@pytest.mark.parametrize(("border", "mode"), [("symmetric", "reflect"), ("mirror", "mirror"), ("nearest", "nearest")])
def test_sampling_agrees_with_scipy(small: Tensor, border: Border, mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.rand(2, 32, 32, generator=generator, dtype=torch.float64) * 120 - 40 for _ in "rc")
    found = sample_bilinear(small[:2].double(), rows, columns, border)
    for image in range(2):
        where = torch.stack([rows[image], columns[image]]).numpy()
        for channel in range(3):
            x = small[image, channel].double().numpy()
            expected = ndimage.map_coordinates(x, where, order=1, mode=mode)
            assert abs(found[image, channel].numpy() - expected).max() < 1e-9


def test_elastic_moves_three_corners_by_at_most_the_published_share() -> None:
    side, farthest = 96, 0.08 * 96
    line = torch.arange(side, dtype=torch.float64)
    ramps = torch.stack([line[:, None].expand(side, side), line.expand(side, side)])  # where a pixel comes from
    rng = rng_for_images(torch.arange(5), 0, "elastic")
    found = elastic_transform(ramps.expand(5, -1, -1, -1), (0, 0, 0.08), rng)
    moved = (2 * rng.uniform("corners", 3, 2) - 1) * farthest
    assert moved.abs().max() > farthest / 2
    for k, corner in enumerate(((80, 80), (80, 16), (16, 16))):  # the middle, 48, and a third of the side around it
        at = torch.tensor(corner, dtype=torch.float64) + moved[:, k]
        rows, columns = (at[:, axis].view(5, 1, 1).expand(-1, side, side) for axis in (0, 1))
        came = sample_bilinear(found, rows, columns, "mirror")
        assert torch.allclose(came[:, :, 0, 0], torch.tensor(corner, dtype=torch.float64).expand(5, 2))


def test_elastic_field_is_smoothed_noise_of_the_published_strength() -> None:
    side, n = 64, 10
    line = torch.arange(side, dtype=torch.float64)
    ramps = torch.stack([line[:, None].expand(side, side), line.expand(side, side)]).expand(n, -1, -1, -1)
    rng = rng_for_images(torch.arange(n), 0, "elastic")
    found = elastic_transform(ramps, (0.1, 0.03, 0), rng)  # the corners stay
    noise = 2 * rng.uniform("field", 2, side, side).numpy() - 1
    sigma = 0.03 * side
    smooth = ndimage.gaussian_filter(noise, (0, 0, sigma, sigma), mode="reflect", truncate=3) * 0.1 * side
    for image in range(n):
        for channel in range(2):
            where = ramps[image].numpy() + smooth[image]
            expected = ndimage.map_coordinates(ramps[image, channel].numpy(), where, order=1, mode="reflect")
            assert abs(found[image, channel].numpy() - expected).max() < 1e-9
    inner = (slice(None), slice(None), slice(8, -8), slice(8, -8))  # at the border a ramp turns around
    # smoothing leaves 1 / (2 sigma sqrt(pi)) of the spread of uniform noise, sqrt(1 / 3)
    spread = 0.1 * side * math.sqrt(1 / 3) / (2 * sigma * math.sqrt(math.pi))
    assert float((found - ramps)[inner].std()) == pytest.approx(spread, rel=0.1)


def test_elastic_at_imagenets_level_2_bends_in_waves_of_a_twelfth_of_the_side() -> None:
    strength, sigma, corner = CORRUPTIONS["elastic-transform"].imagenet[1]
    # published as 244 * (2, 0.08, 0.2) pixels, for images of 224
    assert (224 * strength, 224 * sigma, 224 * corner) == pytest.approx((488, 19.52, 48.8))


@pytest.mark.parametrize("name", ["contrast", "pixelate", "jpeg-compression", "elastic-transform"])
def test_a_flat_image_stays_flat(name: str) -> None:
    x = torch.full((2, 3, 17, 40), 128, dtype=torch.uint8)
    for scale in SCALES:
        assert torch.equal(corrupt(x, name, 5, scale=scale), x)
