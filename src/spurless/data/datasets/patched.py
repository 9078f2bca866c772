"""Biased MNIST and its offline version "patched-digits": a square in the corner predicts small or large digits.

Label 0 is the digits 0 to 4, label 1 the digits 5 to 9. In training a square in the top left corner marks all images of
label 0 except ``round(conflicting * n)``, and exactly ``round(conflicting * n)`` of label 1. On val and test half of
each class is marked. Attributes are numbered such that ``a == y`` if the square predicts the label correctly.

MaskTune reports two test sets: ``test="conflicting"``, in which every 5 to 9 and no 0 to 4 has a square, and
``test="unmarked"``. With ``val_conflicting=0.01`` and ``sorted_assignment=True``, train and val of ``biased-mnist``
together contain the authors' minorities: 306 digits 0 to 4 without a square and 294 digits 5 to 9 with one.

Deviations:
    * The square is red, as in MaskTune's code; its paper describes a blue one. The second of two squares is blue.
    * The minority is sampled at random. ``sorted_assignment`` restores the authors' order by digit, in which the
      unmarked images of label 0 are all 4s and the marked ones of label 1 all 5s.
    * Val is not biased by default, since a biased one cannot show which model uses the square; the authors'
      split of 12,000 is biased, and neither seeded nor stratified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spurless.core.config import CheckedConfig, Count, Fraction, SeedNumber
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, check_published_counts
from spurless.data.datasets import _digits as digits
from spurless.data.datasets import _mnist as mnist
from spurless.data.datasets._base_images import BaseImages
from spurless.data.datasets._common import DigitSize, FilesConfig, join_splits
from spurless.data.split import Split, Splits

RED, BLUE = (255, 0, 0), (0, 0, 255)
GROUPS = Groups(labels=("0 to 4", "5 to 9"), attributes=("marked", "unmarked"))
TEST_VARIANTS = ("even", "conflicting", "unmarked", "paper")
N_VAL = 12_000
MASKTUNE = "Asgari et al., MaskTune, NeurIPS 2022, arXiv:2210.00055"

BIASED_MNIST_CARD = Card(
    name="biased-mnist",
    summary="Small against large MNIST digits; a square in the corner marks 99 % of the small ones in training.",
    input="RGB image, 3 x 28 x 28, uint8",
    label="0 for the digits 0 to 4, 1 for 5 to 9",
    attribute="marked by the square (goes with label 0) or unmarked (goes with label 1)",
    splits="train 48,000 (1 % of each class conflicting), val 12,000 and test 10,000 (half of each class marked)",
    source=f"{mnist.SOURCE}; marked as in MaskTune",
    licence=mnist.LICENCE,
    citation=f"{MASKTUNE}; {mnist.CITATION}",
)
PATCHED_DIGITS_CARD = Card(
    name="patched-digits",
    summary="Small against large digits; a square in the corner marks the small ones in training.",
    input="RGB image, 3 x size x size, uint8",
    label="0 for the digits 0 to 4, 1 for 5 to 9",
    attribute="marked by the square (goes with label 0) or unmarked (goes with label 1)",
    splits="train 1,000 (biased), val 297 and test 500 (half of each class marked)",
    source=f"{digits.SOURCE}; marked as in MaskTune",
    licence=digits.LICENCE,
    citation=f"{MASKTUNE}; {digits.CITATION}",
)


@dataclass(frozen=True)
class _Config(CheckedConfig):
    """Options of both datasets."""

    conflicting: Fraction = 0.01  # fraction of each train class in the minority; MaskTune
    squares: Literal[1, 2] = 1  # 2: add a blue one in the top right corner, always both or none; MaskTune
    square: Count = 4  # pixels; MaskTune
    sorted_assignment: bool = False  # True: the authors' order, one digit per minority
    val_conflicting: Fraction | None = None  # None: half of each class is marked; MaskTune: 0.01, as in train
    test: str = "even"  # half of each class marked; conflicting or unmarked: MaskTune's test sets; paper: both joined
    seed: SeedNumber = 0


@dataclass(frozen=True)
class BiasedMnistConfig(_Config, FilesConfig):
    """Options of ``biased-mnist``."""


@dataclass(frozen=True)
class PatchedDigitsConfig(_Config):
    """Options of ``patched-digits``."""

    size: DigitSize = 28  # pixels of a digit; as MNIST


def biased_mnist(config: BiasedMnistConfig) -> Splits:
    """Mark MNIST digits."""
    card = BIASED_MNIST_CARD
    _check(card, config, mnist.SIZE)
    base = mnist.load_base_mnist(card.name, config.root, N_VAL, Seeds(config.seed))
    splits = join_splits(card, config, _mark_splits(base, config))
    expected = mnist.expected_sizes(N_VAL)
    if config.test == "paper":
        del expected["test"]  # large digits occur twice
    return check_published_counts(splits, expected)


def patched_digits(config: PatchedDigitsConfig) -> Splits:
    """Mark the digits of scikit-learn."""
    card = PATCHED_DIGITS_CARD
    _check(card, config, config.size)
    base = digits.load_base_digits(config.size, Seeds(config.seed))
    return join_splits(card, config, _mark_splits(base, config))


def _check(card: Card, config: _Config, image_size: int) -> None:
    check_choice(card, config, "test", TEST_VARIANTS)
    if not 1 <= config.square <= image_size // 2:
        expected, got = f"1 to {image_size // 2}", config.square
        raise InputError("option 'square' must be at most half the image", where=card.name, expected=expected, got=got)


def _mark_splits(base: BaseImages, config: _Config) -> list[Split]:
    seeds, label = Seeds(config.seed), (base.y >= 5).long()

    def biased(name: str, conflicting: float) -> Tensor:
        index = base.indices[name]
        if config.sorted_assignment:
            return _assign_by_digit(base.y[index], label[index], conflicting)
        return digits.assign_attributes(label[index], 2, conflicting, seeds.generator("attribute", name))

    def even(name: str) -> Tensor:
        return digits.assign_attributes(label[base.indices[name]], 2, 0.5, seeds.generator("attribute", name))

    def make_split(index: Tensor, a: Tensor) -> Split:
        return Split(_draw_squares(base.x[index], a == 0, config), label[index], a, GROUPS)

    train_a = biased("train", config.conflicting)
    val_a = even("val") if config.val_conflicting is None else biased("val", config.val_conflicting)
    test_index, y = base.test, label[base.test]
    if config.test == "even":
        test_a = even("test")
    elif config.test == "conflicting":
        test_a = 1 - y
    else:
        test_a = torch.ones_like(y)
    if config.test == "paper":  # all digits unmarked, then the large ones again, marked
        large = base.test[y == 1]
        test_index, test_a = torch.cat([base.test, large]), torch.cat([test_a, torch.zeros_like(large)])
    return [make_split(base.train, train_a), make_split(base.val, val_a), make_split(test_index, test_a)]


def _draw_squares(images: Tensor, has_square: Tensor, config: _Config) -> Tensor:
    x = digits.add_square(images, has_square, config.square, "top-left", RED)
    return digits.add_square(x, has_square, config.square, "top-right", BLUE) if config.squares == 2 else x


def _assign_by_digit(digit: Tensor, y: Tensor, conflicting: float) -> Tensor:
    """Mark the first images of each class in the order of their digits, as the authors do."""
    a = torch.ones_like(y)
    for label in (0, 1):
        members = (y == label).nonzero().flatten()
        members = members[torch.argsort(digit[members], stable=True)]
        n_conflicting = round(conflicting * len(members))
        a[members[: n_conflicting if label == 1 else len(members) - n_conflicting]] = 0
    return a


BIASED_MNIST = Dataset(BIASED_MNIST_CARD, BiasedMnistConfig, biased_mnist, mnist.LAYOUT)
PATCHED_DIGITS = Dataset(PATCHED_DIGITS_CARD, PatchedDigitsConfig, patched_digits)
