"""Colored MNIST and colored digits: which images conflict, and what their colours are."""

import os

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.datasets._digits import PALETTE, load_digit_images, split_digits
from spurless.data.datasets.colored import (
    COLORED_MNIST_CARD,
    PUBLISHED_CONFLICTING,
    ColoredDigitsConfig,
    ColoredMnistConfig,
    colored_digits,
    colored_mnist,
)
from spurless.data.split import Split, Splits

PAPER = {0.005: (54_751, 249), 0.01: (54_509, 491), 0.02: (54_014, 986), 0.05: (52_551, 2_449)}


def aligned_and_conflicting(data: Splits) -> tuple[int, int]:
    wrong = int((data.train.a != data.train.y).sum())
    return len(data.train) - wrong, wrong


@pytest.mark.parametrize("share", PAPER)
def test_the_counts_are_those_of_the_paper(full_mnist: str, share: float) -> None:
    data = colored_mnist(ColoredMnistConfig(root=full_mnist, conflicting=share))
    assert aligned_and_conflicting(data) == PAPER[share]
    assert (len(data.train), len(data.val), len(data.test)) == (55_000, 5_000, 10_000)
    # in proportion to the classes, by largest remainder: never a whole one off
    classes = data.train.class_counts
    wrong = torch.bincount(data.train.y[data.train.a != data.train.y], minlength=10)
    assert ((wrong - classes * PAPER[share][1] / 55_000).abs() < 1).all()
    # the nine others as evenly as possible
    others = data.train.counts.view(10, 10)[~torch.eye(10, dtype=torch.bool)].view(10, 9)
    assert (others.max(dim=1).values - others.min(dim=1).values <= 1).all()
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_at_another_share_the_count_is_rounded(full_mnist: str) -> None:
    data = colored_mnist(ColoredMnistConfig(root=full_mnist, conflicting=0.025, val_conflicting=0.0))
    assert aligned_and_conflicting(data) == (53_625, 1_375)
    assert torch.equal(data.val.a, data.val.y)


def test_a_part_of_mnist_can_be_used_and_is_told(small_mnist: str) -> None:
    with pytest.warns(IncompleteDataWarning, match=r"colored-mnist is not complete.*train has 550 instead of 55,000"):
        data = colored_mnist(ColoredMnistConfig(root=small_mnist, conflicting=0.02, severity=5))
    assert aligned_and_conflicting(data) == (539, 11)  # round(0.02 * 550): no published count here
    assert len(data.notes) == 1
    x = data.train.x
    assert isinstance(x, torch.Tensor)
    shade = x[:, :, 14, 15] / 255  # full ink
    assert torch.equal(torch.cdist(shade, PALETTE).argmin(dim=1), data.train.a)
    assert not x[:, :, :14].any()
    assert data.options["root"] == small_mnist


def test_the_seed_decides_split_and_colours(small_mnist: str) -> None:
    with pytest.warns(IncompleteDataWarning):
        first, again, other = (colored_mnist(ColoredMnistConfig(root=small_mnist, seed=seed)) for seed in (0, 0, 1))
    assert first.fingerprint() == again.fingerprint()
    for split in ("train", "val", "test"):
        assert getattr(first, split).fingerprint() != getattr(other, split).fingerprint()


def test_the_counts_of_the_card_are_those_of_the_table() -> None:
    assert all(f"{wrong:,}" in COLORED_MNIST_CARD.splits for wrong in PUBLISHED_CONFLICTING.values())
    assert {share: (55_000 - wrong, wrong) for share, wrong in PUBLISHED_CONFLICTING.items()} == PAPER


def test_options_are_refused_before_a_file_is_looked_for() -> None:
    with pytest.raises(InputError, match=r"severity must be at most 5 \(got 6\)"):
        colored_mnist(ColoredMnistConfig(root="nowhere", severity=6))
    with pytest.raises(InputError, match=r"nowhere: the data folder of colored-mnist does not exist"):
        colored_mnist(ColoredMnistConfig(root="nowhere"))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_gives_the_published_counts() -> None:
    data = colored_mnist(ColoredMnistConfig(root=os.environ["SPURLESS_DATA"]))
    assert aligned_and_conflicting(data) == (54_509, 491)
    assert data.test.class_counts.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


@pytest.mark.parametrize("conflicting", [0.0, 0.01, 0.05, 0.37])
def test_conflicting_counts_are_exact_in_every_class(conflicting: float) -> None:
    train = colored_digits(ColoredDigitsConfig(conflicting=conflicting)).train
    for label, n in enumerate(train.class_counts.tolist()):
        of_class = train.a[train.y == label]
        assert int((of_class != label).sum()) == round(conflicting * n)


def test_val_and_test_have_each_colour_as_often_as_any_other() -> None:
    data = colored_digits(ColoredDigitsConfig())
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_val_can_be_biased_as_well() -> None:
    val = colored_digits(ColoredDigitsConfig(val_conflicting=0.1)).val
    assert int((val.a != val.y).sum()) == 30  # 29 or 30 per class: round(0.1 * n) is 3


def test_a_pixel_of_full_ink_has_the_colour_of_its_attribute() -> None:
    data = colored_digits(ColoredDigitsConfig(severity=5, conflicting=0.5))
    x = inputs(data.train) / 255
    brightest = x.sum(dim=1).flatten(1).argmax(dim=1)
    shade = x.flatten(2)[torch.arange(len(x)), :, brightest]
    ink = shade.sum(dim=1, keepdim=True) / PALETTE[data.train.a].sum(dim=1, keepdim=True)
    assert (shade - ink * PALETTE[data.train.a]).abs().max() < 0.02  # a std of 0.002, and the rounding to bytes
    nearest = torch.cdist(shade / ink, PALETTE).argmin(dim=1)
    assert torch.equal(nearest, data.train.a)


def test_each_split_has_the_digits_of_its_own_part_on_black() -> None:
    images, y = load_digit_images()
    data = colored_digits(ColoredDigitsConfig())
    for split, index in zip((data.train, data.val, data.test), split_digits(y, Seeds(0)), strict=True):
        strongest, grey = inputs(split).amax(dim=1), images[index]
        assert torch.equal(split.y, y[index])
        assert not strongest[grey == 0].any()
        # every mean colour has a channel of at least 0.39, less four of the widest std
        assert (strongest[grey == 255] > 0.19 * 255).all()


def test_severity_narrows_the_colours() -> None:
    spread = []
    for severity in (1, 5):
        data = colored_digits(ColoredDigitsConfig(severity=severity, conflicting=0.0)).train
        zeros = inputs(data)[data.y == 0].amax(dim=(2, 3)) / 255
        spread.append(float(zeros[:, 1].std()))  # green: mean 0.31, never clamped
    assert spread[0] == pytest.approx(0.05, rel=0.3)
    assert spread[1] < 0.01


def test_the_palette_of_disent_by_hand() -> None:
    hues = [(255, 0, 0), (255, 128, 0), (255, 255, 0), (128, 255, 0), (0, 255, 0)]
    hues += [(0, 255, 255), (0, 0, 255), (128, 0, 255), (255, 0, 128), (255, 0, 255)]
    data, (images, _) = colored_digits(ColoredDigitsConfig(palette="disent", conflicting=0.5)), load_digit_images()
    grey = images[split_digits(load_digit_images()[1], Seeds(0))[0]]
    x, a = inputs(data.train), data.train.a
    for label, hue in enumerate(hues):
        coloured = x[a == label].permute(0, 2, 3, 1)
        ink = grey[a == label] >= 128
        assert (coloured[ink] == torch.tensor(hue, dtype=torch.uint8)).all()
        assert torch.equal(coloured[~ink], grey[a == label][~ink][:, None].expand(-1, 3))
    assert int(((grey > 0) & (grey < 128)).sum()) > 0  # pixels that stay grey exist
    assert data.groups.attributes[5] == "cyan"
    assert torch.equal(a, colored_digits(ColoredDigitsConfig(conflicting=0.5)).train.a)  # the same examples conflict


def test_the_default_palette_is_that_of_lff(small_mnist: str) -> None:
    with pytest.warns(IncompleteDataWarning):
        default, lff, disent = (
            colored_mnist(config).train
            for config in (
                ColoredMnistConfig(root=small_mnist),
                ColoredMnistConfig(root=small_mnist, palette="lff"),
                ColoredMnistConfig(root=small_mnist, palette="disent"),
            )
        )
    assert default.fingerprint() == lff.fingerprint() != disent.fingerprint()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("conflicting", 1.5),
        ("val_conflicting", -1.0),
        ("severity", 0),
        ("severity", 6),
        ("size", 4),
        ("palette", "hsv"),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("colored-digits", **{option: value})


def test_a_constant_palette_has_no_severity() -> None:
    with pytest.raises(InputError, match="option 'severity' does not apply to the palette disent"):
        load("colored-digits", palette="disent", severity=2)
