"""Colored digits: who conflicts, what the colours are, and what the test split says."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.colored_digits import ColoredDigitsConfig, colored_digits
from spurless.data.digits import PALETTE, load_digits_28, split_digits
from spurless.data.grouped import Grouped


def inputs(split: Grouped) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


@pytest.mark.parametrize("conflicting", [0.0, 0.01, 0.05, 0.37])
def test_conflicting_counts_are_exact_in_every_class(conflicting: float) -> None:
    train = colored_digits(ColoredDigitsConfig(conflicting=conflicting)).train
    for label, n in enumerate(train.class_counts.tolist()):
        of_class = train.a[train.y == label]
        assert int((of_class != label).sum()) == round(conflicting * n)


def test_val_and_test_have_each_colour_as_often_as_any_other() -> None:
    data = colored_digits()
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
    images, y = load_digits_28()
    data = colored_digits()
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


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ColoredDigitsConfig(conflicting=1.5), "option 'conflicting' must be a share .expected 0 to 1, got 1.5"),
        (ColoredDigitsConfig(val_conflicting=-1.0), "option 'val_conflicting' must be a share"),
        (ColoredDigitsConfig(severity=0), "option 'severity' is out of range .expected 1 to 5, got 0"),
        (ColoredDigitsConfig(severity=6), "option 'severity' is out of range .expected 1 to 5, got 6"),
        (ColoredDigitsConfig(size=4), "size must be at least the 8 pixels"),
    ],
)
def test_bad_options_are_refused(config: ColoredDigitsConfig, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        colored_digits(config)
