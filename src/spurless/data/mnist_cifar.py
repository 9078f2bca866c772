"""MNIST-CIFAR: a digit on top of a photograph, which is the label; dominoes of ten classes.

Reads MNIST (:mod:`spurless.data.mnist`) and CIFAR-10 (:mod:`spurless.data.cifar`) from one data folder. MNIST is padded
to 32 pixels, repeated to three channels, and stacked on top of CIFAR-10: 3 x 64 x 32. The label is the class of CIFAR;
in training the digit has the same number, but for exactly ``round(conflicting * n)`` of the ``n`` images of every
class. Val and test are unbiased. Of CIFAR's 50,000 train images 5,000 are val, cut at random, each class alike, and
one in twelve of MNIST's is kept for them. :mod:`spurless.data.dominoes_digits` is the twin without files.

Deviation:
    * The paper trains on all 50,000 images and has no val split.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data import cifar, mnist
from spurless.data.card import Card, Dataset
from spurless.data.dominoes_digits import ON_TOP, SHAH, stacked
from spurless.data.double_digits import PAPER
from spurless.data.grouped import Splits
from spurless.data.layout import Layout, compare
from spurless.data.limits import check_choice, check_shares

VAL = 5_000
GROUPS = Groups(labels=cifar.CLASSES, attributes=ON_TOP)
CARD = Card(
    name="mnist-cifar",
    summary="An MNIST digit on top of a CIFAR-10 photograph: the photograph is the label, the digit mostly agrees.",
    input="RGB image, 3 x 64 x 32, uint8",
    label="the photograph below, 10 classes",
    attribute="the digit above, 10 values; digit y goes with class y",
    splits="train 45,000 (10 % conflicting), val 5,000 and test 10,000 (unbiased)",
    source=f"{mnist.SOURCE}; {cifar.SOURCE}; stacked",
    licence=f"{mnist.LICENCE}; {cifar.LICENCE}",
    citation=f"{SHAH}; {PAPER}; {mnist.CITATION}; {cifar.CITATION}",
)


def download(root: Path) -> None:
    """Fetch MNIST and CIFAR-10; torchvision checks their checksums."""
    mnist.download(root)
    cifar.download_cifar10(root)


LAYOUT = Layout(
    files=(*mnist.LAYOUT.files, *cifar.LAYOUT10.files),
    folders=(*mnist.LAYOUT.folders, *cifar.LAYOUT10.folders),
    markers=cifar.LAYOUT10.markers,
    archives=cifar.LAYOUT10.archives,
    obtain=f"{mnist.LAYOUT.obtain} {cifar.LAYOUT10.obtain}",
    download=download,
)


@dataclass(frozen=True)
class MnistCifarConfig:
    """Where MNIST and CIFAR-10 are, and how rarely the digit misleads."""

    root: str | None = None  # the data folder of both; None: $SPURLESS_DATA, else ./data
    form: str = "auto"  # of CIFAR-10: official, or jpeg (a lossy copy); auto: official files where they are
    conflicting: float = 0.1  # rho of the train split; the paper, 0.25 for its fully connected net
    seed: int = 0


DEFAULT = MnistCifarConfig()


def mnist_cifar(config: MnistCifarConfig = DEFAULT) -> Splits:
    """Stack the halves of the three splits."""
    check_shares(CARD, config, "conflicting")
    check_choice(CARD, config, "form", cifar.FORMS)
    seeds = Seeds(config.seed)
    top = mnist.raw_mnist(CARD.name, config.root, mnist.TRAIN // VAL, seeds.child("mnist"))
    found = cifar.read_cifar10(config.root, config.form, CARD.name)
    bottom = found.cut(CARD.name, len(found.train[1]) * VAL // cifar.TRAIN, seeds)
    splits = found.splits(CARD.name, stacked(top, bottom, config.conflicting, GROUPS, seeds), config)
    return compare(splits, {"train": cifar.TRAIN - VAL, "val": VAL, "test": cifar.TEST})


DATASET = Dataset(card=CARD, config=MnistCifarConfig, make=mnist_cifar, layout=LAYOUT)
