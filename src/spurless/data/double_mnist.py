"""Double MNIST: two digits side by side, the dim left one is the label and the bright right one mostly agrees.

Reads MNIST (:mod:`spurless.data.mnist`). Of its 60,000 train images 55,000 are train and 5,000 val, cut at random,
each class alike; the test images stay as they are. All goes through :mod:`spurless.data.double_digits`, the twin
without files: the right image is drawn from the split that the left one is in, and val and test are unbiased.

Deviations:
    * The paper trains on all 60,000 images and has no val split.
    * The paper does not say how dim the left digit is; half is our choice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spurless.core.seeds import Seeds
from spurless.data import mnist
from spurless.data.card import Card, Dataset
from spurless.data.double_digits import PAPER, DoubleDigitsConfig, check, doubled
from spurless.data.grouped import Splits
from spurless.data.layout import compare

VAL = 5_000
CARD = Card(
    name="double-mnist",
    summary="Two MNIST digits side by side: the dim left one is the label, the bright right one mostly agrees.",
    input="grey image, 1 x 28 x 56, uint8",
    label="the left digit, 10 classes",
    attribute="the right digit, 10 values; digit y goes with label y",
    splits="train 55,000 (2.5 % conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; paired",
    licence=mnist.LICENCE,
    citation=f"{PAPER}; {mnist.CITATION}",
)
LAYOUT = mnist.LAYOUT


@dataclass(frozen=True)
class DoubleMnistConfig:
    """Where MNIST is, how rarely the right digit misleads, and how dim the left one is."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    conflicting: float = 0.025  # rho of the train split; the paper
    dim: float = 0.5  # brightness of the left digit; the paper does not give it, this is our choice
    seed: int = 0


DEFAULT = DoubleMnistConfig()


def double_mnist(config: DoubleMnistConfig = DEFAULT) -> Splits:
    """Pair the digits of the three splits."""
    look = DoubleDigitsConfig(config.conflicting, config.dim, seed=config.seed)
    check(CARD, look)
    raw = mnist.raw_mnist(CARD.name, config.root, mnist.TRAIN // VAL, Seeds(config.seed))
    splits = Splits(*doubled(raw, look), name=CARD.name, options=asdict(config))
    return compare(splits, mnist.published(VAL))


DATASET = Dataset(card=CARD, config=DoubleMnistConfig, make=double_mnist, layout=LAYOUT)
