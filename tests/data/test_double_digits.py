"""Double digits: what is on the left, what is on the right, and that nothing leaks."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.digits import load_digits_28, split_digits
from spurless.data.double_digits import DoubleDigitsConfig, double_digits
from spurless.data.grouped import Grouped


def halves(split: Grouped) -> tuple[Tensor, Tensor]:
    assert isinstance(split.x, Tensor)
    assert split.x.shape[1:] == (1, 28, 56)
    return split.x[:, 0, :, :28], split.x[:, 0, :, 28:]


def test_the_left_half_is_the_labelled_digit_at_half_its_brightness() -> None:
    images, y = load_digits_28()
    train = split_digits(y, Seeds(0))[0]
    data = double_digits()
    left, _ = halves(data.train)
    assert torch.equal(data.train.y, y[train])
    assert torch.equal(left, (images[train] * 0.5).round().to(torch.uint8))


def test_the_right_half_is_a_digit_of_the_attribute_from_the_same_split() -> None:
    images, y = load_digits_28()
    data = double_digits(DoubleDigitsConfig(conflicting=0.5))
    parts = split_digits(y, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), parts, strict=True):
        own = {bytes(images[i].numpy()): int(y[i]) for i in index.tolist()}
        _, right = halves(split)
        assert [own[bytes(image.numpy())] for image in right] == split.a.tolist()


def test_no_image_on_the_right_is_met_in_two_splits() -> None:
    data = double_digits()
    train, val, test = ({bytes(i.numpy()) for i in halves(s)[1]} for s in (data.train, data.val, data.test))
    assert not train & val
    assert not train & test
    assert not val & test


def test_conflicting_counts_are_exact_in_every_class() -> None:
    train = double_digits().train
    for label, n in enumerate(train.class_counts.tolist()):
        assert int((train.a[train.y == label] != label).sum()) == round(0.025 * n)


def test_val_and_test_have_each_right_digit_as_often_as_any_other() -> None:
    data = double_digits()
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_the_right_images_of_a_class_are_used_equally_often() -> None:
    _, right = halves(double_digits(DoubleDigitsConfig(conflicting=0.0)).train)
    assert len({bytes(image.numpy()) for image in right}) == 1000  # every train image once


@pytest.mark.parametrize("dim", [0.0, 1.5])
def test_a_bad_brightness_is_refused(dim: float) -> None:
    with pytest.raises(BadInput, match=f"option 'dim' is out of range .expected above 0, at most 1, got {dim}"):
        double_digits(DoubleDigitsConfig(dim=dim))


def test_a_bad_share_is_refused() -> None:
    with pytest.raises(BadInput, match="double-digits: option 'conflicting' must be a share"):
        double_digits(DoubleDigitsConfig(conflicting=2.0))
