"""Colored digits: handwritten digits whose colour tells the label; the small offline twin of Colored MNIST.

Digit ``y`` has colour ``y`` in training, but for exactly ``round(conflicting * n)`` of the ``n`` images of
every class, which have one of the nine other colours. Validation and test are unbiased: each colour is as
frequent as any other in every class. Colours, severities and the way of colouring are those of LfF: one
shade per image, ``clamp(mean[a] + N(0, std))``, multiplied into the grey digit, on black.

Deviation:
    * The images that conflict are drawn at random; LfF takes them in the order of the file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import (
    COLOURS,
    CONFLICTING_UNBIASED,
    DIGITS,
    DIGITS_CITATION,
    DIGITS_LICENCE,
    DIGITS_SOURCE,
    PALETTE,
    SEVERITY_STD,
    assign,
    assign_total,
    colour,
    raw_digits,
)
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_shares
from spurless.data.raw import Raw, Three

GROUPS = Groups(labels=DIGITS, attributes=COLOURS)
CARD = Card(
    name="colored-digits",
    summary="Digits whose colour tells the label in training and nothing in the test.",
    input="RGB image, 3 x size x size, uint8",
    label="the digit, 10 classes",
    attribute="the colour, 10 values; colour y goes with digit y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{DIGITS_SOURCE}; colours of LfF",
    licence=DIGITS_LICENCE,
    citation=f"Nam et al., Learning from Failure, NeurIPS 2020, arXiv:2007.02561; {DIGITS_CITATION}",
)


@dataclass(frozen=True)
class ColoredDigitsConfig:
    """How rarely a colour misleads, and how pure it is."""

    conflicting: float = 0.01  # share of train images with another colour; LfF and DCWP use 0.005 to 0.05
    severity: int = 1  # 1 to 5; LfF: how little a colour varies, so 5 is the easiest shortcut
    size: int = 28  # pixels; as MNIST
    val_conflicting: float | None = None  # None: unbiased, as the test split
    seed: int = 0


DEFAULT = ColoredDigitsConfig()


def colored_digits(config: ColoredDigitsConfig = DEFAULT) -> Splits:
    """Colour the digits of the three splits."""
    check(CARD, config)
    parts = coloured(raw_digits(config.size, Seeds(config.seed)), config)
    return Splits(*parts, name=CARD.name, options=asdict(config))


def check(card: Card, config: ColoredDigitsConfig) -> None:
    """Refuse options that are out of range."""
    check_shares(card, config, "conflicting", "val_conflicting")
    if not 1 <= config.severity <= len(SEVERITY_STD):
        raise BadInput("option 'severity' is out of range", where=card.name, expected="1 to 5", got=config.severity)


def coloured(raw: Raw, config: ColoredDigitsConfig, n_conflicting: int | None = None) -> Three:
    """Colour any digits: those of the twin, and MNIST.

    Args:
        raw: grey digits ``(N, H, W)``.
        config: the size counts for nothing here.
        n_conflicting: the exact number in train; by default, ``conflicting`` of each class.
    """
    seeds, std = Seeds(config.seed), SEVERITY_STD[config.severity - 1]
    val_share = CONFLICTING_UNBIASED if config.val_conflicting is None else config.val_conflicting
    shares = {"train": config.conflicting, "val": val_share, "test": CONFLICTING_UNBIASED}

    def split(name: str, conflicting: float) -> Grouped:
        index, generator = raw.parts[name], seeds.generator("attribute", name)
        y = raw.y[index]
        if name == "train" and n_conflicting is not None:
            a = assign_total(y, len(COLOURS), n_conflicting, generator)
        else:
            a = assign(y, len(COLOURS), conflicting, generator)
        return Grouped(colour(raw.x[index], a, PALETTE, std, seeds.generator("colour", name)), y, a, GROUPS)

    train, val, test = (split(name, share) for name, share in shares.items())
    return train, val, test


DATASET = Dataset(card=CARD, config=ColoredDigitsConfig, make=colored_digits)
