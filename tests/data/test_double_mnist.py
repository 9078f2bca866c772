"""Double MNIST: the twin's code on MNIST; what is left, what is right, and how often they differ."""

import os

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete
from spurless.data.double_mnist import DoubleMnistConfig, double_mnist


def test_the_left_digit_is_dim_and_the_label_and_the_right_one_is_the_attribute(small_mnist: str) -> None:
    with pytest.warns(Incomplete, match=r"not the whole double-mnist.*test has 100 and not 10,000"):
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
    with pytest.raises(BadInput, match="double-mnist: option 'dim' is out of range"):
        double_mnist(DoubleMnistConfig(dim=0.0))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_is_whole() -> None:
    data = double_mnist(DoubleMnistConfig(root=os.environ["SPURLESS_DATA"]))
    assert int((data.train.a != data.train.y).sum()) == sum(round(0.025 * n) for n in data.train.class_counts.tolist())
