"""Biased MNIST: small against large digits, with a square in the corner of almost all small ones in training.

Reads MNIST (:mod:`spurless.data.mnist`). Of its 60,000 train images 48,000 are train and 12,000 val, cut at random,
each digit alike; the test images stay as they are. All goes through :mod:`spurless.data.patched_digits`, the twin
without files, where the groups, the options and the two test sets of MaskTune are explained.

With ``val_conflicting=0.01`` and ``sorted_assignment=True``, train and val together hold the authors' minorities: of
30,596 digits 0 to 4, 306 without a square, all of them 4s; of 29,404 digits 5 to 9, 294 with one, all of them 5s.

Deviations:
    * As for the twin: the squares are red (two: red and blue), chance decides who is in the minority, val is even.
    * The authors' cut of 12,000 is neither seeded nor stratified.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spurless.core.seeds import Seeds
from spurless.data import mnist
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Splits
from spurless.data.layout import compare
from spurless.data.patched_digits import PatchedDigitsConfig, check, marked

VAL = 12_000
CARD = Card(
    name="biased-mnist",
    summary="Small against large MNIST digits; a square in the corner marks 99 % of the small ones in training.",
    input="RGB image, 3 x 28 x 28, uint8",
    label="0 for the digits 0 to 4, 1 for 5 to 9",
    attribute="marked by the square (goes with label 0) or unmarked (goes with label 1)",
    splits="train 48,000 (1 % of each class conflicting), val 12,000 and test 10,000 (half of each class marked)",
    source=f"{mnist.SOURCE}; marked as in MaskTune",
    licence=mnist.LICENCE,
    citation=f"Asgari et al., MaskTune, NeurIPS 2022, arXiv:2210.00055; {mnist.CITATION}",
)
LAYOUT = mnist.LAYOUT


@dataclass(frozen=True)
class BiasedMnistConfig:
    """Where MNIST is, how rarely the square misleads, and what it looks like."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    conflicting: float = 0.01  # share of each train class on the wrong side of the square; MaskTune
    squares: int = 1  # 2: a blue one in the top right corner beside it, always both or none; MaskTune
    square: int = 4  # pixels; MaskTune
    sorted_assignment: bool = False  # True: the authors' order, one digit per minority
    val_conflicting: float | None = None  # None: half of each class is marked; MaskTune: 0.01, as in train
    test: str = "even"  # half of each class marked; conflicting or unmarked: MaskTune's test sets; paper: both joined
    seed: int = 0


DEFAULT = BiasedMnistConfig()


def biased_mnist(config: BiasedMnistConfig = DEFAULT) -> Splits:
    """Mark the digits of the three splits."""
    look = PatchedDigitsConfig(**{key: value for key, value in asdict(config).items() if key != "root"})
    check(CARD, look)
    raw = mnist.raw_mnist(CARD.name, config.root, mnist.TRAIN // VAL, Seeds(config.seed))
    splits = Splits(*marked(raw, look), name=CARD.name, options=asdict(config))
    expected = mnist.published(VAL)
    if config.test == "paper":
        expected = {name: count for name, count in expected.items() if name != "test"}  # large digits are there twice
    return compare(splits, expected)


DATASET = Dataset(card=CARD, config=BiasedMnistConfig, make=biased_mnist, layout=LAYOUT)
