"""CIFAR-10: small photographs of ten things, without an attribute; the groups are the classes.

Reads CIFAR-10 (:mod:`spurless.data.cifar`). A val split is cut from the 50,000 train images at random, each class
alike; the 10,000 test images stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data import cifar
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Splits
from spurless.data.layout import compare
from spurless.data.limits import check_choice, check_least
from spurless.data.transforms import augmentation

GROUPS = Groups(labels=cifar.CLASSES)
CARD = Card(
    name="cifar10",
    summary="Ten kinds of things in small photographs; no attribute is known.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the thing, 10 classes",
    attribute="none",
    splits="train 45,000 and val 5,000 (of the official 50,000), test 10,000",
    source=cifar.SOURCE,
    licence=cifar.LICENCE,
    citation=cifar.CITATION,
)
LAYOUT = cifar.LAYOUT10


@dataclass(frozen=True)
class Cifar10Config:
    """Where the files are, and how much of train is held out."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    form: str = "auto"  # official, or jpeg (a lossy copy); auto: official files where they are
    val: int = 5000  # images of the official train split; usual
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: int = 0


DEFAULT = Cifar10Config()


def cifar10(config: Cifar10Config = DEFAULT) -> Splits:
    """Read the three splits."""
    check_choice(CARD, config, "form", cifar.FORMS)
    check_least(CARD, config, val=1)
    augment = augmentation(config.augment, 32)
    found = cifar.read_cifar10(config.root, config.form, CARD.name)
    raw = found.cut(CARD.name, config.val, Seeds(config.seed))
    splits = found.splits(CARD.name, raw.plain(GROUPS, augment), config)
    return compare(splits, {"train": cifar.TRAIN - config.val, "val": config.val, "test": cifar.TEST})


DATASET = Dataset(card=CARD, config=Cifar10Config, make=cifar10, layout=LAYOUT)
