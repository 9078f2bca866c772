"""Cats vs. Dogs: photographs of pets, for selective classification.

It reads Kaggle's layout, ``train/cat.0.jpg`` to ``train/dog.12499.jpg``, or Microsoft's, ``PetImages/Cat/0.jpg`` and so
on. Two files of Microsoft's archive are empty, ``Cat/666.jpg`` and ``Dog/11702.jpg``: they are skipped.

20 % of the images are test, as in the papers on selective classification; 20 % of the rest are val. There is no
attribute: the groups are the classes.

Deviations:
    * The test images are sampled by ``seed``, stratified. MaskTune uses a list that is not published.
    * Images are resized by their short side and cropped to a square. MaskTune resizes them to a square.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import (
    ImageFilesConfig,
    PhotoSize,
    read_image_split,
    sample_split_numbers,
    split_examples,
)
from spurless.data.loaders.folder import images_in
from spurless.data.split import Splits

GROUPS = Groups(labels=("cat", "dog"))
SPLIT_FRACTIONS = (0.64, 0.16, 0.2)
KAGGLE_COUNTS = {"train": 16_000, "val": 4_000, "test": 5_000}
MICROSOFT_COUNTS = {"train": 15_998, "val": 4_000, "test": 5_000}  # two files are empty
EMPTY_FILES = ("Cat/666.jpg", "Dog/11702.jpg")
FILE_NAME = re.compile(r"(cat|dog)\.\d+\.jpg", re.IGNORECASE)
CARD = Card(
    name="cats-vs-dogs",
    summary="Cats or dogs; for selective classification. No attribute is known.",
    input="RGB image, 3 x size x size, uint8",
    label="cat or dog",
    attribute="none",
    splits="train 16,000, val 4,000, test 5,000, sampled by seed",
    source="Asirra: photographs of pets in animal shelters, by Petfinder",
    licence="research only (the terms of Microsoft or Kaggle must be accepted)",
    citation="Elson et al., Asirra: A CAPTCHA that Exploits Interest-Aligned Manual Image Categorization, CCS 2007",
)
LAYOUT = Layout(
    files=(("train/cat.*.jpg", "PetImages/Cat/*.jpg"), ("train/dog.*.jpg", "PetImages/Dog/*.jpg")),
    folders=("cats-vs-dogs", "cats_vs_dogs", "dogs-vs-cats", "catsvsdogs", "kagglecatsanddogs_5340"),
    markers=("PetImages", "train/cat.0.jpg", "train/dog.0.jpg"),
    archives=("kagglecatsanddogs_5340.zip", "dogs-vs-cats.zip"),
    obtain="Get kagglecatsanddogs_5340.zip from Microsoft's download centre, or dogs-vs-cats from Kaggle.",
)


@dataclass(frozen=True)
class CatsVsDogsConfig(ImageFilesConfig):
    """Options of ``cats-vs-dogs``."""

    size: PhotoSize = 64  # pixels; SelectiveNet, MaskTune


def cats_vs_dogs(config: CatsVsDogsConfig = CatsVsDogsConfig()) -> Splits:
    """Read all images and sample the three splits."""
    folder = find_folder(CARD.name, LAYOUT, config.root)
    microsoft = (folder / "PetImages").is_dir()
    cats, dogs = _list_microsoft(folder / "PetImages") if microsoft else _list_kaggle(folder / "train")
    y = torch.tensor([0] * len(cats) + [1] * len(dogs))
    split = sample_split_numbers(y, SPLIT_FRACTIONS, Seeds(config.seed))
    whole = read_image_split([*cats, *dogs], y, None, GROUPS, config)
    return split_examples(CARD, config, whole, split, MICROSOFT_COUNTS if microsoft else KAGGLE_COUNTS)


def _list_microsoft(folder: Path) -> tuple[list[Path], list[Path]]:
    empty = {folder / name for name in EMPTY_FILES}
    cats, dogs = (
        [path for path in images_in(require_file(folder / name, CARD.name)) if path not in empty]
        for name in ("Cat", "Dog")
    )
    return _require_both(cats, dogs, folder)


def _list_kaggle(folder: Path) -> tuple[list[Path], list[Path]]:
    images = images_in(folder)
    for path in images:
        if not FILE_NAME.fullmatch(path.name):
            expected = "cat.<number>.jpg, dog.<number>.jpg"
            raise InputError("the file name is neither that of a cat nor of a dog", where=path, expected=expected)
    cats = [path for path in images if path.name[:3].lower() == "cat"]
    return _require_both(cats, [path for path in images if path.name[:3].lower() == "dog"], folder)


def _require_both(cats: list[Path], dogs: list[Path], folder: Path) -> tuple[list[Path], list[Path]]:
    for images, name in ((cats, "cat"), (dogs, "dog")):
        if not images:
            raise InputError(
                f"there are no images of {name}s", where=folder, hint="Unpack or download the dataset again."
            )
    return cats, dogs


DATASET = Dataset(card=CARD, config=CatsVsDogsConfig, make=cats_vs_dogs, layout=LAYOUT)
