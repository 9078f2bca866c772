"""Double MNIST and double digits: the left and the right digit, and how often they differ."""

import os

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets._digits import load_digit_images, split_digits
from spurless.data.datasets.double import DoubleDigitsConfig, DoubleMnistConfig, double_digits, double_mnist
from spurless.data.split import Split


def test_the_left_digit_is_dim_and_the_label_and_the_right_one_is_the_attribute(small_mnist: str) -> None:
    with pytest.warns(IncompleteDataWarning, match=r"double-mnist is not complete.*test has 100 instead of 10,000"):
        data = double_mnist(DoubleMnistConfig(root=small_mnist, conflicting=0.2))
    for split in (data.train, data.val, data.test):
        assert isinstance(split.x, Tensor)
        assert split.x.shape[1:] == (1, 28, 56)
        # the fixture's pixel (14, 14) is the digit: halved and rounded to even on the left, itself on the right
        assert torch.equal(split.x[:, 0, 14, 14].long(), (split.y * 0.5).round().long())
        assert torch.equal(split.x[:, 0, 14, 28 + 14].long(), split.a)
        assert (split.x[:, 0, 14, 15] == 128).all()
        assert (split.x[:, 0, 14, 28 + 15] == 255).all()
    assert [int((data.train.a[data.train.y == k] != k).sum()) for k in range(10)] == [11] * 10  # 0.2 of 55


def test_one_in_forty_conflicts_in_train_and_nothing_is_biased_elsewhere(full_mnist: str) -> None:
    data = double_mnist(DoubleMnistConfig(root=full_mnist))
    assert (len(data.train), len(data.val), len(data.test)) == (55_000, 5_000, 10_000)
    for label, n in enumerate(data.train.class_counts.tolist()):
        assert int((data.train.a[data.train.y == label] != label).sum()) == round(0.025 * n)
    cells = data.test.counts.view(10, 10)
    assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_a_bad_brightness_is_refused() -> None:
    with pytest.raises(InputError, match="dim must be"):
        double_mnist(DoubleMnistConfig(dim=0.0))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_is_whole() -> None:
    data = double_mnist(DoubleMnistConfig(root=os.environ["SPURLESS_DATA"]))
    assert int((data.train.a != data.train.y).sum()) == sum(round(0.025 * n) for n in data.train.class_counts.tolist())


def halves(split: Split) -> tuple[Tensor, Tensor]:
    assert isinstance(split.x, Tensor)
    assert split.x.shape[1:] == (1, 28, 56)
    return split.x[:, 0, :, :28], split.x[:, 0, :, 28:]


def test_the_left_half_is_the_labelled_digit_at_half_its_brightness() -> None:
    images, y = load_digit_images()
    train = split_digits(y, Seeds(0))[0]
    data = double_digits(DoubleDigitsConfig())
    left, _ = halves(data.train)
    assert torch.equal(data.train.y, y[train])
    assert torch.equal(left, (images[train] * 0.5).round().to(torch.uint8))


def test_the_right_half_is_a_digit_of_the_attribute_from_the_same_split() -> None:
    images, y = load_digit_images()
    data = double_digits(DoubleDigitsConfig(conflicting=0.5))
    parts = split_digits(y, Seeds(0))
    for split, index in zip((data.train, data.val, data.test), parts, strict=True):
        own = {bytes(images[i].numpy()): int(y[i]) for i in index.tolist()}
        _, right = halves(split)
        assert [own[bytes(image.numpy())] for image in right] == split.a.tolist()


def test_no_image_on_the_right_is_met_in_two_splits() -> None:
    data = double_digits(DoubleDigitsConfig())
    train, val, test = ({bytes(i.numpy()) for i in halves(s)[1]} for s in (data.train, data.val, data.test))
    assert not train & val
    assert not train & test
    assert not val & test


def test_conflicting_counts_are_exact_in_every_class() -> None:
    train = double_digits(DoubleDigitsConfig()).train
    for label, n in enumerate(train.class_counts.tolist()):
        assert int((train.a[train.y == label] != label).sum()) == round(0.025 * n)


def test_val_and_test_have_each_right_digit_as_often_as_any_other() -> None:
    data = double_digits(DoubleDigitsConfig())
    for split in (data.val, data.test):
        cells = split.counts.view(10, 10)
        assert (cells.max(dim=1).values - cells.min(dim=1).values <= 1).all()


def test_the_right_images_of_a_class_are_used_equally_often() -> None:
    _, right = halves(double_digits(DoubleDigitsConfig(conflicting=0.0)).train)
    assert len({bytes(image.numpy()) for image in right}) == 1000  # every train image once


@pytest.mark.parametrize("dim", [0.0, 1.5])
def test_a_bad_brightness_is_refused_of_double_digits(dim: float) -> None:
    with pytest.raises(InputError, match=f"dim must be a fraction .*got {dim}"):
        double_digits(DoubleDigitsConfig(dim=dim))


def test_a_bad_share_is_refused() -> None:
    with pytest.raises(InputError, match="conflicting must be a fraction"):
        double_digits(DoubleDigitsConfig(conflicting=2.0))
