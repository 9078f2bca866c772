"""Corrupted bytes depend only on seed, name, severity and index, and the change grows with severity."""

from itertools import product

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, UnknownNameError
from spurless.data import corruptions
from spurless.data.corruptions import CORRUPTIONS, Scale, corrupt
from spurless.data.corruptions.ops import to_bytes
from spurless.data.corruptions.rng import ImageRng, rng_for_images

SCALES: tuple[Scale, ...] = ("cifar", "imagenet")
RANDOM = [name for name, row in CORRUPTIONS.items() if row.random]
FIXED = [name for name, row in CORRUPTIONS.items() if not row.random]

UNPROMISED = {
    # the last blur hides what the swaps did, and the number of passes goes up and down
    ("glass-blur", "cifar"): {(1, 2), (2, 3), (4, 5)},
    ("glass-blur", "imagenet"): {(1, 2), (3, 4)},
    # as much ice on both; level 4 keeps less of the image, which brings the brightened image back towards it
    ("frost", "cifar"): {(3, 4)},
    ("frost", "imagenet"): {(3, 4)},
    # levels 3 and 4 differ in where a Gaussian of sigma 2 is cut off: at 12 or at 16 pixels
    ("motion-blur", "cifar"): {(3, 4)},
    # three levels of water, then two of mud
    ("spatter", "cifar"): {(3, 4)},
    # one and two take colour away, three to five add it
    ("saturate", "cifar"): {(2, 3)},
    ("saturate", "imagenet"): {(2, 3)},
    # the affine part, which moves most, shrinks from level to level
    ("elastic-transform", "cifar"): {(1, 2), (2, 3), (3, 4), (4, 5)},
    ("elastic-transform", "imagenet"): {(2, 3), (3, 4)},
    # the same strength, in a rougher cloud
    ("fog", "imagenet"): {(3, 4)},
    # flakes get larger and fewer
    ("snow", "imagenet"): {(2, 3)},
}
"""Steps at which the published table does not promise more damage, and why."""


class Shaken(ImageRng):
    """Draws whose last bits are other ones, as another device's logarithm and cosine would have them."""

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        return super().uniform(purpose, *shape) * (1 + 1e-14)

    def normal(self, purpose: str, *shape: int) -> Tensor:
        return super().normal(purpose, *shape) * (1 - 1e-14)


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def damage(x: Tensor, name: str, severity: int, scale: Scale, n_copies: int) -> float:
    """The mean squared change, over several copies if the corruption is random."""
    copies = x.repeat(n_copies if name in RANDOM else 1, 1, 1, 1)
    return float((corrupt(copies, name, severity, scale=scale).double() - copies.double()).square().mean())


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_damage_grows_with_severity_where_the_published_numbers_promise_it(
    small: Tensor, large: Tensor, name: str
) -> None:
    for x, scale, n_copies in ((small, SCALES[0], 12), (large, SCALES[1], 4)):
        found = [damage(x, name, severity, scale, n_copies) for severity in range(1, 6)]
        for severity in range(1, 5):
            if (severity, severity + 1) not in UNPROMISED.get((name, scale), set()):
                assert found[severity] > found[severity - 1], (scale, found)
        assert found[0] > 0


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_same_seed_gives_the_same_bytes(small: Tensor, name: str) -> None:
    x = small[:4]
    first = corrupt(x, name, 3)
    assert first.dtype == torch.uint8
    assert first.shape == x.shape
    assert torch.equal(corrupt(x, name, 3), first)
    assert torch.equal(corrupt(x, name, 3, seed=1), first) == (name in FIXED)
    assert torch.equal(corrupt(x, name, 3, index=torch.arange(4) + 10), first) == (name in FIXED)
    # the same image twice is corrupted in two ways; at the highest severity, since a lens may stay dry at lower ones
    twice = corrupt(small[:1].repeat(2, 1, 1, 1), name, 5)
    assert torch.equal(twice[0], twice[1]) == (name in FIXED)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_neither_batch_nor_order_nor_chunk_matters(small: Tensor, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, index = small[:7], torch.tensor([4, 0, 9, 2**40, 3, 8, 1])
    whole = corrupt(x, name, 4, index=index)
    order = torch.tensor([6, 2, 5, 0, 1, 4, 3])
    assert torch.equal(corrupt(x[order], name, 4, index=index[order]), whole[order])
    alone = torch.cat([corrupt(x[k : k + 1], name, 4, index=index[k : k + 1]) for k in range(7)])
    assert torch.equal(alone, whole)
    for images_at_once in (1, 3):
        monkeypatch.setattr(corruptions, "VALUES_PER_BATCH", {"cpu": images_at_once * 3072, "cuda": 0})
        assert torch.equal(corrupt(x, name, 4, index=index), whole)


def test_corruptions_and_severities_share_no_noise() -> None:
    x = torch.full((20, 3, 32, 32), 128, dtype=torch.uint8)
    kinds = [("gaussian-noise", 4), ("gaussian-noise", 5), ("speckle-noise", 5)]
    change = torch.stack([corrupt(x, name, severity).double().flatten() - 128 for name, severity in kinds])
    apart = torch.corrcoef(change)[~torch.eye(3, dtype=torch.bool)]
    assert apart.abs().max() < 4 / x.numel() ** 0.5


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_last_bits_change_no_byte(small: Tensor, name: str) -> None:
    """Devices add in other orders and have other logarithms: both are simulated, on photographs and on ties."""
    board = ((torch.arange(32)[:, None] + torch.arange(32)) % 2 * 255).to(torch.uint8).expand(2, 3, 32, 32)
    plain = torch.tensor([0, 1, 100, 127, 254, 255], dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 32, 32)
    x = torch.cat([small, noise(4, 3, 32, 32), board, plain])
    rng = rng_for_images(torch.arange(len(x)), 0, name)
    row, apply = CORRUPTIONS[name], CORRUPTIONS[name].apply
    # shot noise looks integers up in a table
    shaken = x.double() if name == "shot-noise" else x.double() * (1 + 1e-14)
    for level in (*row.cifar, *row.imagenet):
        expected = to_bytes(apply(x.double(), level, rng))
        assert torch.equal(to_bytes(apply(shaken, level, Shaken(rng.keys))), expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_cuda_gives_the_bytes_of_the_cpu(small: Tensor, large: Tensor, name: str) -> None:
    for scale, severity in product(SCALES, (2, 5)):
        for x in (small, noise(300, 3, 32, 32), noise(50, 1, 17, 40), large):
            found = corrupt(x.to("cuda"), name, severity, scale=scale)
            assert found.device.type == "cuda"
            assert torch.equal(found.cpu(), corrupt(x, name, severity, scale=scale)), (scale, severity, x.shape)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_odd_shapes_and_the_ends_of_the_range(name: str) -> None:
    for shape, scale, severity in product(((1, 3, 8, 8), (1, 1, 9, 30)), SCALES, (1, 5)):
        for x in (noise(*shape), torch.zeros(shape, dtype=torch.uint8), torch.full(shape, 255, dtype=torch.uint8)):
            before = x.clone()
            assert corrupt(x, name, severity, scale=scale).shape == shape
            assert torch.equal(x, before)  # the input is not changed


def test_black_stays_black() -> None:
    for name in ("shot-noise", "speckle-noise", "contrast", "fog", "saturate", "gaussian-blur"):
        assert not corrupt(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), name, 5).any(), name


def test_white_stays_white() -> None:
    for name in ("snow", "brightness", "contrast", "gaussian-blur", "pixelate", "jpeg-compression"):
        assert (corrupt(torch.full((2, 3, 32, 32), 255, dtype=torch.uint8), name, 5) == 255).all(), name


def test_no_images_give_no_images() -> None:
    assert corrupt(torch.zeros(0, 3, 32, 32, dtype=torch.uint8), "frost").shape == (0, 3, 32, 32)


def test_images_that_lie_apart_in_memory(small: Tensor) -> None:
    last = small.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last
    assert torch.equal(corrupt(last, "elastic-transform"), corrupt(small, "elastic-transform"))
    assert corrupt(last, "contrast").is_contiguous()


def test_the_scale_follows_the_short_side() -> None:
    for shape, scale in (((1, 3, 64, 100), "cifar"), ((1, 3, 65, 100), "imagenet")):
        x = noise(*shape)
        assert torch.equal(corrupt(x, "contrast"), corrupt(x, "contrast", scale=scale))  # type: ignore[arg-type]
    assert not torch.equal(corrupt(x, "contrast"), corrupt(x, "contrast", scale="cifar"))


@pytest.mark.parametrize(
    ("images", "options", "sentence"),
    [
        (torch.zeros(1, 3, 8, 8), {}, r"images must be uint8 \(expected torch.uint8, got torch.float32\)"),
        (noise(3, 8, 8), {}, r"images must be \(N, C, H, W\) with one or three channels \(got \(3, 8, 8\)\)"),
        (noise(1, 4, 8, 8), {}, r"with one or three channels \(got \(1, 4, 8, 8\)\)"),
        (noise(1, 3, 7, 9), {}, r"images must be at least 8 pixels a side \(got \(7, 9\)\)"),
        (noise(1, 3, 8, 8), {"severity": 0}, r"severity must be an integer from 1 to 5 \(got 0\)"),
        (noise(1, 3, 8, 8), {"severity": 6}, r"severity must be an integer from 1 to 5 \(got 6\)"),
        (noise(1, 3, 8, 8), {"severity": 2.0}, r"severity must be an integer from 1 to 5 \(got 2.0\)"),
        (noise(1, 3, 8, 8), {"scale": "mnist"}, r"unknown scale \(expected cifar or imagenet, got mnist\)"),
        (noise(2, 3, 8, 8), {"index": torch.arange(3)}, r"one number per image \(expected shape \(2,\), got \(3,\)\)"),
        (noise(1, 3, 8, 8), {"index": torch.rand(1)}, r"index must be integers \(got torch.float32\)"),
    ],
)
def test_what_cannot_be_used_is_refused(images: Tensor, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        corrupt(images, "contrast", **options)  # type: ignore[arg-type]


def test_an_unknown_corruption_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'pixelate'\?"):
        corrupt(noise(1, 3, 8, 8), "pixelated")
