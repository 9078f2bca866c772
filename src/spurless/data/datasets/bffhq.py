"""BFFHQ: young or old faces; nearly all young ones are women and nearly all old ones are men.

It reads the folder released by Lee et al. (DisEnt): ``0.5pct/align/<age>/*.png`` and ``0.5pct/conflict/<age>/*.png``
are train, ``valid/*.png`` (or ``0.5pct/valid/*.png``) is val, ``test/*.png`` is test. File names are
``<id>_<age>_<gender>.png``. The release does not document the digits: we read 0 as young and as female.
Papers report only the accuracy on conflicting test images: young men and old women.

Deviation:
    * Lee et al. ignore the aligned images of test. Here all are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import BINARY_CODES, ImageFilesConfig, read_image_split, split_examples
from spurless.data.loaders.folder import images_in, subfolders
from spurless.data.split import Splits

GROUPS = Groups(labels=("young", "old"), attributes=("female", "male"))
TRAIN_FOLDERS = ("0.5pct", "1pct", "2pct", "5pct")
PUBLISHED = {"0.5pct": {"train": 19200}}  # 19,104 aligned and 96 conflicting
CARD = Card(
    name="bffhq",
    summary="Young or old; in training 99.5 % of the young are women and of the old men.",
    input="RGB image of a face, 3 x size x size, uint8",
    label="young (10 to 29 years) or old (40 to 59)",
    attribute="female or male",
    splits="train 19,200 (19,104 aligned, 96 conflicting); val and test as released",
    source="Biased FFHQ: photographs of Flickr-Faces-HQ, chosen by age and gender",
    licence="non-commercial (FFHQ: CC BY-NC-SA 4.0)",
    citation=(
        "Kim et al., BiaSwap, ICCV 2021, arXiv:2108.10008; files by Lee et al., Learning Debiased Representation via "
        "Disentangled Feature Augmentation, NeurIPS 2021, arXiv:2107.01372"
    ),
)
LAYOUT = Layout(
    files=("*/align/*/*.png", "*/conflict/*/*.png", ("valid/*.png", "*/valid/*.png"), "test/*.png"),
    folders=("bffhq", "BFFHQ", "bFFHQ"),
    markers=TRAIN_FOLDERS,
    archives=("bffhq.zip", "bffhq.tar.gz"),
    obtain="Get bffhq from the page of kakaoenterprise/Learning-Debiased-Disentangled on GitHub.",
)


@dataclass(frozen=True)
class BffhqConfig(ImageFilesConfig):
    """Options of ``bffhq``."""

    percent: str = "0.5pct"  # the train folder by fraction of conflicting images: 0.5pct, 1pct, 2pct or 5pct


def bffhq(config: BffhqConfig = BffhqConfig()) -> Splits:
    """Read the three splits."""
    check_choice(CARD, config, "percent", TRAIN_FOLDERS)
    folder = find_folder(CARD.name, LAYOUT, config.root)
    train = require_file(folder / config.percent, CARD.name)
    valid = train / "valid" if (train / "valid").is_dir() else folder / "valid"
    parts = ((train / "align", 0), (train / "conflict", 0), (valid, 1), (folder / "test", 2))
    files = [(path, split) for part, split in parts for path in _list_images(part)]
    paths = [path for path, _ in files]
    y, a = torch.tensor([_parse_name(path) for path in paths]).T.contiguous()
    split = torch.tensor([split for _, split in files])
    whole = read_image_split(paths, y, a, GROUPS, config)
    return split_examples(CARD, config, whole, split, PUBLISHED.get(config.percent))


def _list_images(folder: Path) -> list[Path]:
    """Return the images of a folder and its subfolders; the releases differ in the folders of a split."""
    require_file(folder, CARD.name)
    images = [path for part in (folder, *subfolders(folder)) for path in images_in(part)]
    if not images:
        raise InputError("the folder contains no images", where=folder, hint="Unpack or download the dataset again.")
    return images


def _parse_name(path: Path) -> tuple[int, int]:
    parts = path.stem.split("_")
    if len(parts) != 3 or not set(parts[1:]) <= set(BINARY_CODES):
        raise InputError("the file name lacks age and gender", where=path, expected="<id>_<0 or 1>_<0 or 1>.png")
    return BINARY_CODES[parts[1]], BINARY_CODES[parts[2]]


DATASET = Dataset(card=CARD, config=BffhqConfig, make=bffhq, layout=LAYOUT)
