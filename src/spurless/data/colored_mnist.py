"""Colored MNIST: digits whose colour tells the label in training.

Reads MNIST (:mod:`spurless.data.mnist`). Of its 60,000 train images 55,000 are train and 5,000 val, cut at random,
each class alike; the test images stay as they are. Digit ``y`` has colour ``y`` in train, but for the conflicting
ones: exactly as many as in the set of DisEnt, which DCWP uses too, at the four shares that it exists for (249, 491,
986 and 2,449 at 0.005, 0.01, 0.02 and 0.05), and ``round(conflicting * 55,000)`` at any other. They are shared out
over the classes in proportion, drawn at random, and have the nine other colours as evenly as possible. Val and test
are unbiased. Colours and severities are those of LfF; :mod:`spurless.data.colored_digits` is the twin without files.

Deviations:
    * The draw is ours: DisEnt's published images are another one, with the same counts.
    * DisEnt does not name its severity; the default is that of LfF's own runs.
    * LfF cuts the fraction of a grey level off; here it is rounded.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from spurless.core.seeds import Seeds
from spurless.data import mnist
from spurless.data.card import Card, Dataset
from spurless.data.colored_digits import ColoredDigitsConfig, check, coloured
from spurless.data.grouped import Splits
from spurless.data.layout import compare

CONFLICTING = {0.005: 249, 0.01: 491, 0.02: 986, 0.05: 2449}
"""Conflicting images of 55,000 by their nominal share (DCWP, appendix E.1)."""
TRAIN, VAL = 55_000, 5_000
CARD = Card(
    name="colored-mnist",
    summary="MNIST digits whose colour tells the label in training and nothing in the test.",
    input="RGB image, 3 x 28 x 28, uint8",
    label="the digit, 10 classes",
    attribute="the colour, 10 values; colour y goes with digit y",
    splits="train 55,000 (249, 491, 986 or 2,449 conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; colours of LfF, counts of DisEnt",
    licence=mnist.LICENCE,
    citation=(
        "Nam et al., Learning from Failure, NeurIPS 2020, arXiv:2007.02561; Lee et al., Learning Debiased "
        f"Representation via Disentangled Feature Augmentation, NeurIPS 2021, arXiv:2107.01372; {mnist.CITATION}"
    ),
)
LAYOUT = mnist.LAYOUT


@dataclass(frozen=True)
class ColoredMnistConfig:
    """Where MNIST is, how rarely a colour misleads, and how pure it is."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    conflicting: float = 0.01  # share of train images with another colour; DCWP: 0.005, 0.01, 0.02, 0.05
    severity: int = 4  # 1 to 5; how little a colour varies, so 5 is the easiest shortcut; LfF's runs
    val_conflicting: float | None = None  # None: unbiased, as the test split
    seed: int = 0


DEFAULT = ColoredMnistConfig()


def colored_mnist(config: ColoredMnistConfig = DEFAULT) -> Splits:
    """Colour the digits of the three splits."""
    look = ColoredDigitsConfig(
        config.conflicting, config.severity, val_conflicting=config.val_conflicting, seed=config.seed
    )
    check(CARD, look)
    raw = mnist.raw_mnist(CARD.name, config.root, mnist.TRAIN // VAL, Seeds(config.seed))
    parts = coloured(raw, look, count(config.conflicting, len(raw.train)))
    splits = Splits(*parts, name=CARD.name, options=asdict(config))
    return compare(splits, mnist.published(VAL))


def count(conflicting: float, n: int) -> int:
    """Return how many of ``n`` train images conflict: the published number where there is one.

    Example:
        >>> count(0.01, 55_000), count(0.025, 55_000)
        (491, 1375)
    """
    exact = CONFLICTING.get(conflicting) if n == TRAIN else None
    return round(conflicting * n) if exact is None else exact


DATASET = Dataset(card=CARD, config=ColoredMnistConfig, make=colored_mnist, layout=LAYOUT)
