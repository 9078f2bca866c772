"""Transforms: by hand, and one draw per example."""

import pytest
import torch

from spurless.core.errors import UnknownNameError
from spurless.data.transforms import (
    Compose,
    Normalise,
    PerExample,
    RandomAffine,
    RandomCrop,
    RandomFlip,
    RandomSquare,
    Resize,
    augmentation,
)


def test_normalise_by_hand() -> None:
    x = torch.tensor([0, 255], dtype=torch.uint8).view(1, 2, 1, 1)
    ready = Normalise(mean=(0.5, 0.5), std=(0.25, 0.5))(x)
    assert ready.flatten().tolist() == [-2.0, 1.0]  # (0 - .5) / .25, (1 - .5) / .5


def test_resize_keeps_a_constant_image_constant() -> None:
    x = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    small = Resize(4, 6)(x)
    assert small.shape == (2, 3, 4, 6)
    assert small.unique().tolist() == [77]  # type: ignore[no-untyped-call]


def test_flips_mirror_about_half_of_the_batch() -> None:
    x = torch.arange(2.0).view(1, 1, 1, 2).repeat(1000, 1, 1, 1)
    flipped = RandomFlip()(x)[:, 0, 0, 0] == 1
    assert 400 < int(flipped.sum()) < 600  # six standard errors
    assert RandomFlip()(x).sum(dim=-1).unique().tolist() == [1.0]  # type: ignore[no-untyped-call]


def test_crops_are_shifts_and_each_example_has_its_own() -> None:
    x = torch.zeros(500, 1, 9, 9)
    x[:, 0, 4, 4] = 1
    cut = RandomCrop(padding=2)(x)
    places = cut.flatten(1).argmax(dim=1)
    rows, columns = places // 9, places % 9
    assert cut.sum(dim=(1, 2, 3)).unique().tolist() == [1.0]  # type: ignore[no-untyped-call]
    assert rows.unique().tolist() == columns.unique().tolist() == [2, 3, 4, 5, 6]  # type: ignore[no-untyped-call]


def test_a_chain_is_static_only_if_every_part_is() -> None:
    assert Compose((RandomFlip(), RandomCrop())).static
    assert not Compose((RandomFlip(), lambda x: x)).static
    assert not Compose((RandomFlip(), PerExample(lambda x: x))).static


def test_a_chain_applies_its_parts_in_order() -> None:
    assert Compose((lambda x: x + 1, lambda x: x * 2))(torch.ones(1)).tolist() == [4.0]


def test_a_foreign_transform_meets_one_example_at_a_time() -> None:
    seen: list[tuple[int, ...]] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return x

    PerExample(watch)(torch.zeros(3, 1, 2, 2))
    assert seen == [(1, 2, 2)] * 3


def test_an_augmentation_has_a_name() -> None:
    assert augmentation("none", 32) is None
    assert augmentation("flip", 32) == RandomFlip()
    assert augmentation("crop-flip", 32) == Compose((RandomCrop(4), RandomFlip()))
    with pytest.raises(UnknownNameError, match=r"No augmentation is called 'flop'\. Did you mean 'flip'"):
        augmentation("flop", 32)


def test_a_random_square_hides_one_square_of_every_size_and_place() -> None:
    x = torch.full((4000, 3, 12, 16), 9, dtype=torch.uint8)
    hidden = RandomSquare()(x) == 0
    assert torch.equal(hidden[:, 0], hidden[:, 2])
    rows, columns = hidden[:, 0].any(dim=2), hidden[:, 0].any(dim=1)
    side = rows.sum(dim=1)
    assert torch.equal(side, columns.sum(dim=1))
    assert torch.equal(hidden[:, 0], rows[:, :, None] & columns[:, None, :])  # one block, and it is square
    assert set(side.tolist()) == {2, 3, 4, 5, 6}
    assert torch.bincount(side)[2:].min() > 4000 / 5 * 0.8  # each side alike
    assert hidden[:, 0].float().mean(dim=0).min() > 0  # no pixel is safe


def test_a_random_square_hides_a_whole_corner_as_rarely_as_randmask_says() -> None:
    hidden = RandomSquare()(torch.ones(100_000, 28, 28, dtype=torch.uint8)) == 0
    whole = hidden[:, :4, :4].flatten(1).all(dim=1).double().mean()
    by_hand = sum(1 / (29 - side) ** 2 for side in range(4, 15)) / 13  # it begins at 0 in both directions
    assert by_hand == pytest.approx(0.0023, abs=1e-4)
    assert float(whole) == pytest.approx(by_hand, abs=8e-4)  # five standard errors


def test_a_random_square_of_images_without_channels_is_a_square_of_each() -> None:
    hidden = RandomSquare()(torch.ones(500, 12, 16)) == 0
    rows, columns = hidden.any(dim=2), hidden.any(dim=1)
    assert torch.equal(hidden, rows[:, :, None] & columns[:, None, :])
    assert torch.equal(rows.sum(dim=1), columns.sum(dim=1))
    assert set(rows.sum(dim=1).tolist()) == {2, 3, 4, 5, 6}  # each example has its own


def test_a_random_square_of_a_row_is_a_run_of_features() -> None:
    hidden = RandomSquare()(torch.ones(500, 8)) == 0
    assert set(hidden.sum(dim=1).tolist()) == {1, 2, 3, 4}
    assert ((hidden.int().diff(dim=1) == 1).sum(dim=1) <= 1).all()


def test_an_affine_map_turns_and_shifts_each_image_by_its_own_draw() -> None:
    x = torch.zeros(2000, 1, 41, 61, dtype=torch.uint8)
    x[:, 0, 18:23, 48:53] = 200  # a block 20 pixels right of the middle
    turned = RandomAffine(degrees=15, shift=0.0)(x)
    assert turned.dtype == torch.uint8
    rows, columns = (turned[:, 0] > 0).nonzero()[:, 1:].double().sub(torch.tensor([20.0, 30.0])).unbind(dim=1)
    which = (turned[:, 0] > 0).nonzero()[:, 0]
    n = torch.bincount(which, minlength=len(x)).double()
    down = torch.bincount(which, rows, minlength=len(x)) / n
    aside = torch.bincount(which, columns, minlength=len(x)) / n
    angle = torch.rad2deg(torch.atan2(down, aside))
    assert (down.hypot(aside) - 20).abs().max() < 0.7  # it stays 20 pixels from the middle, on a wide image, too
    assert angle.abs().max() < 17
    assert angle.min() < -13
    assert angle.max() > 13
    shifted = RandomAffine(degrees=0.0, shift=0.1)(x)[:, 0] > 0
    left = shifted.any(dim=1).float().argmax(dim=1)
    assert set((left - 48).tolist()) == set(range(-6, 7))  # a tenth of 61 to either side


def test_turn_is_masktunes_augmentation_of_cifar10() -> None:
    assert augmentation("turn", 32) == Compose((RandomFlip(), RandomAffine(15.0, 0.1)))
