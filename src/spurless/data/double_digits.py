"""Double digits: two digits side by side, the dim left one is the label; the small offline twin of Double MNIST.

The label is the digit on the left, ``dim`` times as bright as the one on the right. In training the right
one is of the same class, but for exactly ``round(conflicting * n)`` of the ``n`` images of every class.
Validation and test are unbiased: every class is as frequent on the right as any other. The right image is
drawn from the split that the left one is in, so that no image is met in two splits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import (
    CONFLICTING_UNBIASED,
    DIGITS,
    DIGITS_CITATION,
    DIGITS_LICENCE,
    DIGITS_SOURCE,
    assign,
    pair,
    partners,
    raw_digits,
)
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_shares
from spurless.data.raw import Raw, Three

GROUPS = Groups(labels=DIGITS, attributes=tuple(f"{digit} on the right" for digit in DIGITS))
PAPER = (
    "Barsbey, Prieto, Zafeiriou and Birdal, Large Learning Rates Simultaneously Achieve Robustness to Spurious "
    "Correlations and Compressibility"
)
CARD = Card(
    name="double-digits",
    summary="Two digits side by side: the dim left one is the label, the bright right one mostly agrees.",
    input="grey image, 1 x size x 2 size, uint8",
    label="the left digit, 10 classes",
    attribute="the right digit, 10 values; digit y goes with label y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{DIGITS_SOURCE}; paired as in Double MNIST",
    licence=DIGITS_LICENCE,
    citation=f"{PAPER}; {DIGITS_CITATION}",
)


@dataclass(frozen=True)
class DoubleDigitsConfig:
    """How rarely the right digit misleads, and how dim the left one is."""

    conflicting: float = 0.025  # rho of the train split; the paper
    dim: float = 0.5  # brightness of the left digit; the paper does not give it, this is our choice
    size: int = 28  # pixels of one digit; as MNIST
    seed: int = 0


DEFAULT = DoubleDigitsConfig()


def double_digits(config: DoubleDigitsConfig = DEFAULT) -> Splits:
    """Pair the digits of the three splits."""
    check(CARD, config)
    parts = doubled(raw_digits(config.size, Seeds(config.seed)), config)
    return Splits(*parts, name=CARD.name, options=asdict(config))


def check(card: Card, config: DoubleDigitsConfig) -> None:
    """Refuse options that are out of range."""
    check_shares(card, config, "conflicting")
    if not 0 < config.dim <= 1:
        raise BadInput("option 'dim' is out of range", where=card.name, expected="above 0, at most 1", got=config.dim)


def doubled(raw: Raw, config: DoubleDigitsConfig) -> Three:
    """Pair any digits, those of the twin and MNIST; the size that is configured counts for nothing here."""
    seeds = Seeds(config.seed)

    def split(name: str, conflicting: float) -> Grouped:
        index = raw.parts[name]
        y = raw.y[index]
        a = assign(y, len(DIGITS), conflicting, seeds.generator("attribute", name))
        partner = index[partners(y, a, seeds.generator("partner", name))]
        return Grouped(pair(raw.x[index], raw.x[partner], config.dim), y, a, GROUPS)

    shares = {"train": config.conflicting, "val": CONFLICTING_UNBIASED, "test": CONFLICTING_UNBIASED}
    train, val, test = (split(name, share) for name, share in shares.items())
    return train, val, test


DATASET = Dataset(card=CARD, config=DoubleDigitsConfig, make=double_digits)
