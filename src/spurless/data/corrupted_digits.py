"""Corrupted digits: handwritten digits whose kind of damage tells the label; the offline twin of Corrupted CIFAR-10.

The digits are 32 pixels wide, white on black in three channels. Digit ``y`` has corruption ``y`` of the ten of DisEnt
in training, but for exactly ``round(conflicting * n)`` of the ``n`` images of every class, which have one of the
nine others. Validation and test are unbiased. All goes through the code of :mod:`spurless.data.corrupted_cifar10`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.corrupted_cifar10 import assigned, check, corrupted
from spurless.data.corruptions import DCWP_TEN
from spurless.data.digits import DIGITS, DIGITS_CITATION, DIGITS_LICENCE, DIGITS_SOURCE, raw_digits
from spurless.data.grouped import Splits

GROUPS = Groups(labels=DIGITS, attributes=DCWP_TEN)
CARD = Card(
    name="corrupted-digits",
    summary="Digits whose kind of damage tells the label in training and nothing in the test.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the digit, 10 classes",
    attribute="the corruption, 10 values; corruption y goes with digit y",
    splits="train 1,000 (biased), val 297 and test 500 (unbiased)",
    source=f"{DIGITS_SOURCE}; corruptions of Hendrycks and Dietterich, pairs of DisEnt",
    licence=DIGITS_LICENCE,
    citation=(
        "Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation, NeurIPS 2021, "
        f"arXiv:2107.01372; {DIGITS_CITATION}"
    ),
)


@dataclass(frozen=True)
class CorruptedDigitsConfig:
    """How rarely a corruption misleads, and how strong it is."""

    conflicting: float = 0.01  # share of train images with another corruption; DCWP: 0.005 to 0.05
    severity: int = 5  # 1 to 5; DCWP
    val_conflicting: float | None = None  # None: unbiased, as the test split
    device: str = "auto"  # where the images are made: auto (CUDA if there is one), cpu or cuda; changes no pixel
    seed: int = 0


DEFAULT = CorruptedDigitsConfig()


def corrupted_digits(config: CorruptedDigitsConfig = DEFAULT) -> Splits:
    """Corrupt the digits of the three splits."""
    check(CARD, config)
    grey = raw_digits(32, Seeds(config.seed))
    raw = replace(grey, x=grey.x[:, None].repeat(1, 3, 1, 1))
    return Splits(*corrupted(raw, assigned(raw, config), config, GROUPS), name=CARD.name, options=asdict(config))


DATASET = Dataset(card=CARD, config=CorruptedDigitsConfig, make=corrupted_digits)
