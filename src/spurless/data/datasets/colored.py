"""Colored MNIST and its offline version "colored-digits": the colour of a digit predicts its label in training.

Digit ``y`` has colour ``y`` in train, except for the conflicting images, which have one of the nine others; val and
test are unbiased. There are two palettes, with the way of colouring that belongs to them:

* ``lff``, the default: the colours of LfF, which vary by severity, multiplied by the grey digit;
* ``disent``: the images of DisEnt, which DCWP uses too. Pixels of at least half the full ink have one pure, constant
  colour; the others stay grey.

At the four fractions for which DisEnt
published its dataset, the number of conflicting images of ``colored-mnist`` is theirs, else
``round(conflicting * 55,000)``; in ``colored-digits`` it is exactly ``round(conflicting * n)`` of every class.

Deviations:
    * The sample is ours: DisEnt's published images are another one, with the same counts. LfF takes the conflicting
      images in file order.
    * The palette ``disent`` is read from the sample images in the repositories of DisEnt and DCWP; the code that drew
      them is not public. The threshold is at least 65 and at most 128.
    * LfF truncates grey levels to integers; here they are rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from spurless.core.config import CheckedConfig, Fraction, Range, SeedNumber
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

PUBLISHED_CONFLICTING = {0.005: 249, 0.01: 491, 0.02: 986, 0.05: 2449}
"""Number of conflicting images among 55,000 by nominal fraction (DCWP, appendix E.1)."""
N_TRAIN, N_VAL = 55_000, 5_000
GROUPS = {
    "lff": Groups(labels=digits.DIGITS, attributes=digits.COLOURS),
    "disent": Groups(labels=digits.DIGITS, attributes=tuple(digits.PURE_COLOURS)),
}
"""Labels and colours by palette."""
LFF = "Nam et al., Learning from Failure, NeurIPS 2020, arXiv:2007.02561"

COLORED_MNIST_CARD = Card(
    name="colored-mnist",
    summary="MNIST digits whose colour predicts the label in training and is independent of it in the test split.",
    input="RGB image, 3 x 28 x 28, uint8",
    label="the digit, 10 classes",
    attribute="the colour, 10 values; colour y goes with digit y",
    splits="train 55,000 (249, 491, 986 or 2,449 conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; colours of LfF or of DisEnt, counts of DisEnt",
    licence=mnist.LICENCE,
    citation=(
        f"{LFF}; Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation, NeurIPS 2021, "
        f"arXiv:2107.01372; {mnist.CITATION}"
    ),
)
COLORED_DIGITS_CARD = Card(
    name="colored-digits",
    summary="Digits whose colour predicts the label in training and is independent of it in the test split.",
    input="RGB image, 3 x size x size, uint8",
    label="the digit, 10 classes",
    attribute="the colour, 10 values; colour y goes with digit y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{digits.SOURCE}; colours of LfF or of DisEnt",
    licence=digits.LICENCE,
    citation=f"{LFF}; {digits.CITATION}",
)


@dataclass(frozen=True)
class _Config(CheckedConfig):
    """Options of both datasets."""

    conflicting: Fraction = 0.01  # fraction of train images with another colour; DCWP: 0.005, 0.01, 0.02, 0.05
    palette: str = "lff"  # lff: colours that vary (LfF); disent: pure constant colours (DisEnt, DCWP)
    severity: Annotated[int, Range(1, 5)] = 1  # of lff, 1 to 5; higher: colours vary less, so the shortcut is easier
    val_conflicting: Fraction | None = None  # None: unbiased, as the test split
    seed: SeedNumber = 0


@dataclass(frozen=True)
class ColoredMnistConfig(_Config, FilesConfig):
    """Options of ``colored-mnist``."""

    severity: Annotated[int, Range(1, 5)] = 4  # LfF's runs


@dataclass(frozen=True)
class ColoredDigitsConfig(_Config):
    """Options of ``colored-digits``."""

    size: DigitSize = 28  # pixels of a digit; as MNIST


def colored_mnist(config: ColoredMnistConfig) -> Splits:
    """Colour MNIST digits."""
    card = COLORED_MNIST_CARD
    _check(card, config)
    base = mnist.load_base_mnist(card.name, config.root, N_VAL, Seeds(config.seed))
    parts = _colour_splits(base, config, count_conflicting(config.conflicting, len(base.train)))
    splits = join_splits(card, config, parts)
    return check_published_counts(splits, mnist.expected_sizes(N_VAL))


def colored_digits(config: ColoredDigitsConfig) -> Splits:
    """Colour the digits of scikit-learn."""
    card = COLORED_DIGITS_CARD
    _check(card, config)
    parts = _colour_splits(digits.load_base_digits(config.size, Seeds(config.seed)), config)
    return join_splits(card, config, parts)


def count_conflicting(fraction: float, n_train: int) -> int:
    """Return how many of ``n_train`` images conflict: the published number if there is one.

    Example:
        >>> count_conflicting(0.01, 55_000), count_conflicting(0.025, 55_000)
        (491, 1375)
    """
    published = PUBLISHED_CONFLICTING.get(fraction) if n_train == N_TRAIN else None
    return round(fraction * n_train) if published is None else published


def _check(card: Card, config: _Config) -> None:
    check_choice(card, config, "palette", tuple(GROUPS))
    if config.palette != "lff" and config.severity != type(config).severity:
        what = f"option 'severity' does not apply to the palette {config.palette}, whose colours are constant"
        raise InputError(what, where=card.name, got=config.severity, hint="Leave severity out, or use palette=lff.")


def _colour_splits(base: BaseImages, config: _Config, n_conflicting: int | None = None) -> list[Split]:
    std, parts = digits.SEVERITY_STD[config.severity - 1], []
    for name, a in digits.assign_by_split(base, config, n_conflicting).items():
        index, generator = base.indices[name], Seeds(config.seed).generator("colour", name)
        if config.palette == "disent":
            colours = torch.tensor(list(digits.PURE_COLOURS.values()))
            x = digits.paint(base.x[index], a, colours, digits.INK)
        else:
            x = digits.colourize(base.x[index], a, digits.PALETTE, std, generator)
        parts.append(Split(x, base.y[index], a, GROUPS[config.palette]))
    return parts


COLORED_MNIST = Dataset(COLORED_MNIST_CARD, ColoredMnistConfig, colored_mnist, mnist.LAYOUT)
COLORED_DIGITS = Dataset(COLORED_DIGITS_CARD, ColoredDigitsConfig, colored_digits)
