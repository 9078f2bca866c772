"""Biased MNIST and patched digits: which images are marked, and where the square is."""

import os

import pytest
import torch
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.datasets._digits import load_digit_images, split_digits
from spurless.data.datasets.patched import BiasedMnistConfig, PatchedDigitsConfig, biased_mnist, patched_digits
from spurless.data.split import Split


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


def digit(split: Split) -> Tensor:
    return inputs(split)[:, 0, 14, 14].long()  # the fixture writes it there


def has_square(split: Split) -> Tensor:
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
    with pytest.warns(IncompleteDataWarning):
        data = biased_mnist(BiasedMnistConfig(root=small_mnist, test="conflicting"))
    assert torch.equal(has_square(data.test), digit(data.test) >= 5)
    assert data.test.counts.tolist() == [0, 50, 50, 0]


def test_the_original_test_set_has_no_square(small_mnist: str) -> None:
    with pytest.warns(IncompleteDataWarning, match=r"train has 480 instead of 48,000"):
        data = biased_mnist(BiasedMnistConfig(root=small_mnist, test="unmarked", squares=2))
    assert not inputs(data.test)[:, :, :14].any()
    assert data.test.counts.tolist() == [0, 50, 0, 50]
    blue = inputs(data.train)[:, 2, :4, -4:] == 255
    assert torch.equal(blue.flatten(1).all(dim=1), data.train.a == 0)


def test_bad_options_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"biased-mnist: option 'test' is unknown .*even, conflicting, unmarked, paper, got odd"
    ):
        biased_mnist(BiasedMnistConfig(test="odd"))
    with pytest.raises(InputError, match=r"biased-mnist: option 'square' .*expected 1 to 14, got 15"):
        biased_mnist(BiasedMnistConfig(square=15))


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_mnist_has_the_class_totals_of_the_authors() -> None:
    config = BiasedMnistConfig(root=os.environ["SPURLESS_DATA"], sorted_assignment=True, val_conflicting=0.01)
    data = biased_mnist(config)
    assert (data.train.counts + data.val.counts).tolist() == [30_290, 306, 294, 29_110]


def is_filled(x: Tensor, colour: tuple[int, int, int]) -> Tensor:
    return (x == torch.tensor(colour).view(3, 1, 1)).flatten(1).all(dim=1)


@pytest.mark.parametrize("sorted_assignment", [False, True])
def test_the_minorities_are_exact(sorted_assignment: bool) -> None:
    train = patched_digits(PatchedDigitsConfig(conflicting=0.03, sorted_assignment=sorted_assignment)).train
    small, large = train.class_counts.tolist()
    wrong_small, wrong_large = round(0.03 * small), round(0.03 * large)
    assert train.counts.tolist() == [small - wrong_small, wrong_small, wrong_large, large - wrong_large]


def test_half_of_each_class_is_marked_on_val_and_test() -> None:
    data = patched_digits(PatchedDigitsConfig())
    for split in (data.val, data.test):
        cells = split.counts.view(2, 2)
        assert (cells[:, 0] - cells[:, 1]).abs().max() <= 1


def test_label_one_is_the_digits_from_five() -> None:
    _, digit = load_digit_images()
    train = split_digits(digit, Seeds(0))[0]
    assert torch.equal(patched_digits(PatchedDigitsConfig()).train.y, (digit[train] >= 5).long())


def test_a_red_square_of_four_pixels_marks_the_marked_and_nothing_else() -> None:
    images, digit = load_digit_images()
    test = patched_digits(PatchedDigitsConfig()).test
    x, marked = inputs(test), test.a == 0
    assert torch.equal(is_filled(x[:, :, :4, :4], (255, 0, 0)), marked)
    grey = images[split_digits(digit, Seeds(0))[2]]
    changed = (x != grey[:, None]).any(dim=1)
    assert not changed[~marked].any()
    assert not changed[:, 4:].any()
    assert not changed[:, :, 4:].any()


def test_two_squares_come_together() -> None:
    test = patched_digits(PatchedDigitsConfig(squares=2)).test
    x, marked = inputs(test), test.a == 0
    assert torch.equal(is_filled(x[:, :, :4, :4], (255, 0, 0)), marked)
    assert torch.equal(is_filled(x[:, :, :4, -4:], (0, 0, 255)), marked)


def test_in_the_authors_order_each_minority_is_one_digit() -> None:
    _, digit = load_digit_images()
    digit = digit[split_digits(digit, Seeds(0))[0]]
    train = patched_digits(PatchedDigitsConfig(conflicting=0.05, sorted_assignment=True)).train
    wrong = train.a != train.y
    assert torch.unique(digit[wrong & (train.y == 0)]).tolist() == [4]
    assert torch.unique(digit[wrong & (train.y == 1)]).tolist() == [5]


def test_by_chance_the_minorities_are_of_several_digits() -> None:
    _, digit = load_digit_images()
    digit = digit[split_digits(digit, Seeds(0))[0]]
    train = patched_digits(PatchedDigitsConfig(conflicting=0.05)).train
    assert len(torch.unique(digit[train.a != train.y])) > 4


def test_val_can_be_biased_as_train_is() -> None:
    val = patched_digits(PatchedDigitsConfig(val_conflicting=0.1)).val
    small, large = val.class_counts.tolist()
    assert val.counts.tolist() == [
        small - round(0.1 * small),
        round(0.1 * small),
        round(0.1 * large),
        large - round(0.1 * large),
    ]


def test_the_two_test_sets_of_the_paper() -> None:
    _, digit = load_digit_images()
    digit = digit[split_digits(digit, Seeds(0))[2]]
    biased = patched_digits(PatchedDigitsConfig(test="conflicting")).test
    assert torch.equal(is_filled(inputs(biased)[:, :, :4, :4], (255, 0, 0)), digit >= 5)
    assert (biased.a != biased.y).all()
    original = patched_digits(PatchedDigitsConfig(test="unmarked")).test
    assert not is_filled(inputs(original)[:, :, :4, :4], (255, 0, 0)).any()
    assert (original.a == 1).all()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("conflicting", -0.1),
        ("squares", 3),
        ("square", 15),
        ("val_conflicting", 2.0),
        ("test", "odd"),
        ("square", 0),
    ],
)
def test_bad_options_are_refused_of_patched_digits(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*{value}\b"):
        load("patched-digits", **{option: value})


def test_the_papers_two_test_sets_are_joined_so_that_both_can_be_read_off_the_groups() -> None:
    both, biased, original = (
        patched_digits(PatchedDigitsConfig(test=test)).test for test in ("paper", "conflicting", "unmarked")
    )
    small, large = original.class_counts.tolist()
    assert both.counts.tolist() == [0, small, large, large]
    joined = both.x[original.y.new_tensor(range(500))], both.x[500:]  # type: ignore[index]
    assert torch.equal(joined[0], original.x)  # type: ignore[arg-type]
    assert torch.equal(joined[1], biased.x[biased.y == 1])  # type: ignore[index]
