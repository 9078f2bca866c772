"""CIFAR-100: small photographs of a hundred things, without an attribute; the groups are the classes.

Reads CIFAR-100 (:mod:`spurless.data.cifar`), with its fine labels. A val split is cut from the 50,000 train images at
random, each class alike; the 10,000 test images stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data import cifar
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Splits
from spurless.data.layout import compare
from spurless.data.limits import check_least
from spurless.data.transforms import augmentation

NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CLASSES = tuple(name.replace("_", " ") for name in NAMES.split())
GROUPS = Groups(labels=CLASSES)
CARD = Card(
    name="cifar100",
    summary="A hundred kinds of things in small photographs; no attribute is known.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the thing, 100 classes",
    attribute="none",
    splits="train 45,000 and val 5,000 (of the official 50,000), test 10,000",
    source="CIFAR-100: 60,000 photographs of 32 x 32 pixels",
    licence=cifar.LICENCE,
    citation=cifar.CITATION,
)
LAYOUT = cifar.LAYOUT100


@dataclass(frozen=True)
class Cifar100Config:
    """Where the files are, and how much of train is held out."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    val: int = 5000  # images of the official train split; usual
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: int = 0


DEFAULT = Cifar100Config()


def cifar100(config: Cifar100Config = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, val=1)
    augment = augmentation(config.augment, 32)
    found = cifar.read_cifar100(config.root, CARD.name)
    raw = found.cut(CARD.name, config.val, Seeds(config.seed))
    splits = found.splits(CARD.name, raw.plain(GROUPS, augment), config)
    return compare(splits, {"train": cifar.TRAIN - config.val, "val": config.val, "test": cifar.TEST})


DATASET = Dataset(card=CARD, config=Cifar100Config, make=cifar100, layout=LAYOUT)
