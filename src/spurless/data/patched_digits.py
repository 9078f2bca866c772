"""Patched digits: small against large digits, with a square in the corner; the small offline twin of Biased MNIST.

Label 0 is the digits 0 to 4, label 1 the digits 5 to 9. In training all but ``round(conflicting * n)`` of
the ``n`` images of label 0 are marked with a square in the top left corner, and so are exactly
``round(conflicting * n)`` of label 1. On validation and test half of each class is marked, unless options say
otherwise. The attributes are numbered such that ``a == y`` where the square tells the truth.

MaskTune reports two test sets. Its biased one has a square on every 5 to 9 and on no 0 to 4: the accuracy over the
two conflicting groups, or the average with ``test="conflicting"``, which puts all images there. Its original one
has no square at all: the average with ``test="unmarked"``.

Deviations:
    * The square is red, as in MaskTune's code; its paper says blue.
    * Chance decides who is in the minority. ``sorted_assignment`` restores the authors' order by digit, in
      which the unmarked images of label 0 are all 4s and the marked ones of label 1 all 5s.
    * Val is not biased by default, since a biased one cannot tell who uses the square. The authors cut theirs
      from the biased train split: ``val_conflicting=0.01``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import (
    DIGITS_CITATION,
    DIGITS_LICENCE,
    DIGITS_SOURCE,
    assign,
    patch,
    raw_digits,
)
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_choice, check_shares
from spurless.data.raw import Raw, Three

RED, BLUE = (255, 0, 0), (0, 0, 255)
GROUPS = Groups(labels=("0 to 4", "5 to 9"), attributes=("marked", "unmarked"))
TESTS = ("even", "conflicting", "unmarked", "paper")
CARD = Card(
    name="patched-digits",
    summary="Small against large digits; a square in the corner marks the small ones in training.",
    input="RGB image, 3 x size x size, uint8",
    label="0 for the digits 0 to 4, 1 for 5 to 9",
    attribute="marked by the square (goes with label 0) or unmarked (goes with label 1)",
    splits="train 1,000 (biased), val 297 and test 500 (half of each class marked)",
    source=f"{DIGITS_SOURCE}; marked as in MaskTune",
    licence=DIGITS_LICENCE,
    citation=f"Asgari et al., MaskTune, NeurIPS 2022, arXiv:2210.00055; {DIGITS_CITATION}",
)


@dataclass(frozen=True)
class PatchedDigitsConfig:
    """How rarely the square misleads, and what it looks like."""

    conflicting: float = 0.01  # share of each train class on the wrong side of the square; MaskTune
    squares: int = 1  # 2: a blue one in the top right corner beside it, always both or none; MaskTune
    square: int = 4  # pixels; MaskTune
    size: int = 28  # pixels; as MNIST
    sorted_assignment: bool = False  # True: the authors' order, one digit per minority
    val_conflicting: float | None = None  # None: half of each class is marked; MaskTune: 0.01, as in train
    test: str = "even"  # half of each class marked; conflicting or unmarked: MaskTune's test sets; paper: both joined
    seed: int = 0


DEFAULT = PatchedDigitsConfig()


def patched_digits(config: PatchedDigitsConfig = DEFAULT) -> Splits:
    """Mark the digits of the three splits."""
    check(CARD, config)
    parts = marked(raw_digits(config.size, Seeds(config.seed)), config)
    return Splits(*parts, name=CARD.name, options=asdict(config))


def check(card: Card, config: PatchedDigitsConfig) -> None:
    """Refuse options that are out of range."""
    check_shares(card, config, "conflicting", "val_conflicting")
    check_choice(card, config, "test", TESTS)
    if config.squares not in (1, 2):
        raise BadInput("option 'squares' is out of range", where=card.name, expected="1 or 2", got=config.squares)
    if not 1 <= config.square <= config.size // 2:
        raise BadInput(
            "option 'square' must fit twice beside each other",
            where=card.name,
            expected=f"1 to {config.size // 2}",
            got=config.square,
        )


def marked(raw: Raw, config: PatchedDigitsConfig) -> Three:
    """Mark any digits, those of the twin and MNIST; the size that is configured counts for nothing here."""
    seeds, label = Seeds(config.seed), (raw.y >= 5).long()

    def split(name: str, a: Tensor, more: Tensor | None = None) -> Grouped:
        index = raw.parts[name] if more is None else torch.cat([raw.parts[name], more])
        return Grouped(_mark(raw.x[index], a == 0, config), label[index], a, GROUPS)

    def biased(name: str, conflicting: float) -> Tensor:
        index = raw.parts[name]
        if config.sorted_assignment:
            return _by_digit(raw.y[index], label[index], conflicting)
        return assign(label[index], 2, conflicting, seeds.generator("attribute", name))

    def even(name: str) -> Tensor:
        return assign(label[raw.parts[name]], 2, 0.5, seeds.generator("attribute", name))

    val = even("val") if config.val_conflicting is None else biased("val", config.val_conflicting)
    y, more = label[raw.test], None
    test = even("test") if config.test == "even" else 1 - y if config.test == "conflicting" else torch.ones_like(y)
    if config.test == "paper":  # all digits unmarked, then the large ones once more, marked
        more = raw.test[y == 1]
        test = torch.cat([test, torch.zeros_like(more)])
    return split("train", biased("train", config.conflicting)), split("val", val), split("test", test, more)


def _mark(images: Tensor, has: Tensor, config: PatchedDigitsConfig) -> Tensor:
    x = patch(images, has, config.square, "top-left", RED)
    return patch(x, has, config.square, "top-right", BLUE) if config.squares == 2 else x


def _by_digit(digit: Tensor, y: Tensor, conflicting: float) -> Tensor:
    """Mark the first images of each class in the order of their digits, as the authors do."""
    a = torch.ones_like(y)
    for label in (0, 1):
        members = (y == label).nonzero().flatten()
        members = members[torch.argsort(digit[members], stable=True)]
        wrong = round(conflicting * len(members))
        a[members[: wrong if label == 1 else len(members) - wrong]] = 0
    return a


DATASET = Dataset(card=CARD, config=PatchedDigitsConfig, make=patched_digits)
