"""Double MNIST and its offline version "double-digits": the bright right digit predicts the dim left one.

The label is the digit on the left, ``dim`` times as bright as that on the right. In train the right digit has the same
class, except for exactly ``round(conflicting * n)`` images of every class; val and test are unbiased. The right image
is sampled from the split of the left one, so that no image occurs in two splits.

Deviations:
    * The paper trains on all 60,000 images of MNIST and has no val split; here 5,000 are val.
    * The paper does not state how dim the left digit is; 0.5 is our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from spurless.core.config import CheckedConfig, Fraction, PositiveFraction, SeedNumber
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, check_published_counts
from spurless.data.datasets import _digits as digits
from spurless.data.datasets import _mnist as mnist
from spurless.data.datasets._base_images import BaseImages
from spurless.data.datasets._common import DigitSize, FilesConfig, join_splits
from spurless.data.split import Split, Splits

GROUPS = Groups(labels=digits.DIGITS, attributes=tuple(f"{digit} on the right" for digit in digits.DIGITS))
N_VAL = 5_000

DOUBLE_MNIST_CARD = Card(
    name="double-mnist",
    summary="Two MNIST digits side by side: the dim left one is the label, the bright right one mostly agrees.",
    input="grey image, 1 x 28 x 56, uint8",
    label="the left digit, 10 classes",
    attribute="the right digit, 10 values; digit y goes with label y",
    splits="train 55,000 (2.5 % conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; paired",
    licence=mnist.LICENCE,
    citation=f"{digits.BARSBEY}; {mnist.CITATION}",
)
DOUBLE_DIGITS_CARD = Card(
    name="double-digits",
    summary="Two digits side by side: the dim left one is the label, the bright right one mostly agrees.",
    input="grey image, 1 x size x 2 size, uint8",
    label="the left digit, 10 classes",
    attribute="the right digit, 10 values; digit y goes with label y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{digits.SOURCE}; paired as in Double MNIST",
    licence=digits.LICENCE,
    citation=f"{digits.BARSBEY}; {digits.CITATION}",
)


@dataclass(frozen=True)
class _Config(CheckedConfig):
    """Options of both datasets."""

    conflicting: Fraction = 0.025  # rho of the train split; the paper
    dim: PositiveFraction = 0.5  # brightness of the left digit; not in the paper, our choice
    seed: SeedNumber = 0


@dataclass(frozen=True)
class DoubleMnistConfig(_Config, FilesConfig):
    """Options of ``double-mnist``."""


@dataclass(frozen=True)
class DoubleDigitsConfig(_Config):
    """Options of ``double-digits``."""

    size: DigitSize = 28  # pixels of a digit; as MNIST


def double_mnist(config: DoubleMnistConfig) -> Splits:
    """Pair MNIST digits."""
    card = DOUBLE_MNIST_CARD
    base = mnist.load_base_mnist(card.name, config.root, N_VAL, Seeds(config.seed))
    splits = join_splits(card, config, _pair_splits(base, config))
    return check_published_counts(splits, mnist.expected_sizes(N_VAL))


def double_digits(config: DoubleDigitsConfig) -> Splits:
    """Pair the digits of scikit-learn."""
    card = DOUBLE_DIGITS_CARD
    base = digits.load_base_digits(config.size, Seeds(config.seed))
    return join_splits(card, config, _pair_splits(base, config))


def _pair_splits(base: BaseImages, config: _Config) -> list[Split]:
    parts = []
    for name, a in digits.assign_by_split(base, config).items():
        index = base.indices[name]
        y = base.y[index]
        partner = index[digits.draw_partners(y, a, Seeds(config.seed).generator("partner", name))]
        parts.append(Split(digits.place_side_by_side(base.x[index], base.x[partner], config.dim), y, a, GROUPS))
    return parts


DOUBLE_MNIST = Dataset(DOUBLE_MNIST_CARD, DoubleMnistConfig, double_mnist, mnist.LAYOUT)
DOUBLE_DIGITS = Dataset(DOUBLE_DIGITS_CARD, DoubleDigitsConfig, double_digits)
