"""Biased MNIST: the authors' minorities on files of full size, and their two test sets."""

import os

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput, Incomplete
from spurless.data.biased_mnist import BiasedMnistConfig, biased_mnist
from spurless.data.grouped import Grouped


def inputs(split: Grouped) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


def digit(split: Grouped) -> Tensor:
    return inputs(split)[:, 0, 14, 14].long()  # the fixture writes it there


def has_square(split: Grouped) -> Tensor:
    return (inputs(split)[:, :, :4, :4] == torch.tensor([255, 0, 0]).view(3, 1, 1)).flatten(1).all(dim=1)


def test_by_default_one_in_a_hundred_of_each_class_conflicts_and_val_is_even(full_mnist: str) -> None:
    data = biased_mnist(BiasedMnistConfig(root=full_mnist))
    assert (len(data.train), len(data.val), len(data.test)) == (48_000, 12_000, 10_000)
    small, large = data.train.class_counts.tolist()
    wrong = round(0.01 * small), round(0.01 * large)
    assert data.train.counts.tolist() == [small - wrong[0], wrong[0], wrong[1], large - wrong[1]]
    for split in (data.val, data.test):
        assert (split.counts.view(2, 2).diff(dim=1).abs() <= 1).all()
        assert torch.equal(has_square(split), split.a == 0)


def test_in_the_authors_order_train_and_val_hold_their_minorities(full_mnist: str) -> None:
    data = biased_mnist(BiasedMnistConfig(root=full_mnist, sorted_assignment=True, val_conflicting=0.01))
    counts = (data.train.counts + data.val.counts).tolist()
    assert counts == [30_596 - 306, 306, 294, 29_404 - 294]
    for split in (data.train, data.val):
        wrong = split.a != split.y
        assert torch.unique(digit(split)[wrong & (split.y == 0)]).tolist() == [4]
        assert torch.unique(digit(split)[wrong & (split.y == 1)]).tolist() == [5]


def test_the_biased_test_set_marks_every_large_digit_and_no_small_one(small_mnist: str) -> None:
    with pytest.warns(Incomplete):
        data = biased_mnist(BiasedMnistConfig(root=small_mnist, test="conflicting"))
    assert torch.equal(has_square(data.test), digit(data.test) >= 5)
    assert data.test.counts.tolist() == [0, 50, 50, 0]


def test_the_original_test_set_has_no_square(small_mnist: str) -> None:
    with pytest.warns(Incomplete, match=r"train has 480 and not 48,000"):
        data = biased_mnist(BiasedMnistConfig(root=small_mnist, test="unmarked", squares=2))
    assert not inputs(data.test)[:, :, :14].any()
    assert data.test.counts.tolist() == [0, 50, 0, 50]
    blue = inputs(data.train)[:, 2, :4, -4:] == 255
    assert torch.equal(blue.flatten(1).all(dim=1), data.train.a == 0)


def test_bad_options_are_refused() -> None:
    with pytest.raises(
        BadInput, match=r"biased-mnist: option 'test' is unknown .*even, conflicting, unmarked, paper, got odd"
    ):
        biased_mnist(BiasedMnistConfig(test="odd"))
    with pytest.raises(BadInput, match=r"biased-mnist: option 'square' must fit twice .*expected 1 to 14, got 15"):
        biased_mnist(BiasedMnistConfig(square=15))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_has_the_class_totals_of_the_authors() -> None:
    config = BiasedMnistConfig(root=os.environ["SPURLESS_DATA"], sorted_assignment=True, val_conflicting=0.01)
    data = biased_mnist(config)
    assert (data.train.counts + data.val.counts).tolist() == [30_290, 306, 294, 29_110]
