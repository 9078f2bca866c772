"""Cats vs. Dogs: photographs of pets, for classifiers that may abstain.

Reads Kaggle's layout, ``train/cat.0.jpg`` to ``train/dog.12499.jpg``, or Microsoft's, ``PetImages/Cat/0.jpg`` and so
on. Microsoft's archive has two files that are empty, ``Cat/666.jpg`` and ``Dog/11702.jpg``: they are left out.

20 % of the images are test, as in the papers on selective classification; 20 % of the rest are val. There is no
attribute: the groups are the classes.

Deviations:
    * Which images are test is drawn by ``seed``, by class. MaskTune reads a list of its own, which is not published.
    * Images are resized by their short side and cut square. MaskTune squeezes them to a square.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.folder import images_in
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_least
from spurless.data.names import Names
from spurless.data.splitting import assemble, stratified
from spurless.data.transforms import augmentation

GROUPS = Groups(labels=("cat", "dog"))
SHARES = (0.64, 0.16, 0.2)
KAGGLE = {"train": 16_000, "val": 4_000, "test": 5_000}
MICROSOFT = {"train": 15_998, "val": 4_000, "test": 5_000}  # two files are empty
EMPTY = ("Cat/666.jpg", "Dog/11702.jpg")
NAME = re.compile(r"(cat|dog)\.\d+\.jpg", re.IGNORECASE)
CARD = Card(
    name="cats-vs-dogs",
    summary="Cats or dogs; for classifiers that may abstain.",
    input="RGB image, 3 x size x size, uint8",
    label="cat or dog",
    attribute="none",
    splits="train 16,000, val 4,000, test 5,000, drawn by seed",
    source="Asirra: photographs of pets in animal shelters, by Petfinder",
    licence="research only (Microsoft and Kaggle ask you to accept their terms)",
    citation="Elson et al., Asirra: A CAPTCHA that Exploits Interest-Aligned Manual Image Categorization, CCS 2007",
)
LAYOUT = Layout(
    files=("train/cat.<number>.jpg, train/dog.<number>.jpg or PetImages/Cat/<number>.jpg, PetImages/Dog/<number>.jpg",),
    folders=("cats-vs-dogs", "cats_vs_dogs", "dogs-vs-cats", "catsvsdogs", "kagglecatsanddogs_5340"),
    markers=("PetImages", "train/cat.0.jpg", "train/dog.0.jpg"),
    archives=("kagglecatsanddogs_5340.zip", "dogs-vs-cats.zip"),
    obtain="Get kagglecatsanddogs_5340.zip from Microsoft's download centre, or dogs-vs-cats from Kaggle.",
)


@dataclass(frozen=True)
class CatsVsDogsConfig:
    """Where the files are, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = 64  # pixels; SelectiveNet, MaskTune
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # draws the splits


DEFAULT = CatsVsDogsConfig()


def cats_vs_dogs(config: CatsVsDogsConfig = DEFAULT) -> Splits:
    """Read all images and draw the three splits."""
    check_least(CARD, config, size=8)
    augment = augmentation(config.augment, config.size)
    folder = find(CARD.name, LAYOUT, config.root)
    microsoft = (folder / "PetImages").is_dir()
    cats, dogs = _pets(folder / "PetImages") if microsoft else _numbered(folder / "train")
    y = torch.tensor([0] * len(cats) + [1] * len(dogs))
    split = torch.zeros_like(y)
    for number, part in enumerate(stratified(y, SHARES, seeds=Seeds(config.seed))):
        split[part] = number
    paths = [*cats, *dogs]
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    whole = Grouped(x, y, torch.full_like(y, -1), GROUPS, augment=augment, names=Names.of_files(paths))
    splits = assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return compare(splits, MICROSOFT if microsoft else KAGGLE)


def _pets(folder: Path) -> tuple[list[Path], list[Path]]:
    """List Microsoft's folders, without the two files that are known to be empty."""
    empty = {folder / name for name in EMPTY}
    cats, dogs = (
        [path for path in images_in(need(folder / name, CARD.name)) if path not in empty] for name in ("Cat", "Dog")
    )
    return _both(cats, dogs, folder)


def _numbered(folder: Path) -> tuple[list[Path], list[Path]]:
    """List Kaggle's folder, where the name of a file says what it shows."""
    images = images_in(folder)
    for path in images:
        if not NAME.fullmatch(path.name):
            raise BadInput(
                "the name does not say cat or dog", where=path, expected="cat.<number>.jpg, dog.<number>.jpg"
            )
    cats = [path for path in images if path.name[:3].lower() == "cat"]
    return _both(cats, [path for path in images if path.name[:3].lower() == "dog"], folder)


def _both(cats: list[Path], dogs: list[Path], folder: Path) -> tuple[list[Path], list[Path]]:
    for images, name in ((cats, "cat"), (dogs, "dog")):
        if not images:
            raise BadInput(f"there is no {name}", where=folder, do="Unpack or download the dataset again.")
    return cats, dogs


DATASET = Dataset(card=CARD, config=CatsVsDogsConfig, make=cats_vs_dogs, layout=LAYOUT)
