"""ImageNet: the thousand classes of ILSVRC 2012, and functions that read its folders.

It reads ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``. The labels of the official test images are not published, so
the official validation images are test here, and val is split off train, 50 images of each class by ``seed``. Class
names are WordNet ids, or words if ``LOC_synset_mapping.txt`` (Kaggle) or ``imagenet_class_index.json`` (Keras) is in
the folder or in the data folder.

There is no attribute: the groups are the classes. A subset of ImageNet, in classes or in images, can be read too.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.files import data_folder
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import Examples, ImageFilesConfig, read_image_split, split_examples
from spurless.data.loaders.folder import image_names, subfolders
from spurless.data.split import Splits

WNID = re.compile(r"n\d{8}")
PUBLISHED = {"train": 1_231_167, "val": 50_000, "test": 50_000}  # train and val are the official 1,281,167
CARD = Card(
    name="imagenet",
    summary="The thousand classes of ILSVRC 2012.",
    input="RGB image, 3 x size x size, uint8",
    label="one of 1,000 synsets of WordNet",
    attribute="none",
    splits="train 1,231,167 and val 50,000 (of the official train), test 50,000 (the official validation)",
    source="ImageNet: photographs from the web, labelled by people",
    licence="non-commercial research and education only",
    citation="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015, arXiv:1409.0575",
)
LAYOUT = Layout(
    files=("train/*/*.JPEG", "val/*/*.JPEG"),
    folders=("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
    markers=("train/n01440764", "val/n01440764"),  # the first class; see `find_imagenet` for a subset without it
    obtain=(
        "Get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from image-net.org into "
        "one folder: torchvision.datasets.ImageNet(folder, split='train') and split='val' unpack them by class."
    ),
)
SORTING_HINT = (
    "Move each into val/<wnid>/. With ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz in one folder, "
    "torchvision.datasets.ImageNet(folder, split='val') does so."
)


@dataclass(frozen=True)
class ImagenetConfig(ImageFilesConfig):
    """Options of ``imagenet``."""

    val_per_class: Examples = 50  # of the official train split, at most half of a class; as in the official val split


def imagenet(config: ImagenetConfig = ImagenetConfig()) -> Splits:
    """Read train and the official validation images, and split val off train."""
    folder = find_imagenet(config.root)
    wnids = class_folders(folder / "train")
    test_wnids = class_folders(folder / "val")
    if unknown := sorted(set(test_wnids) - set(wnids)):
        raise InputError(f"the class {unknown[0]} is not in train", where=folder / "val")
    train = [class_files(folder / "train" / wnid) for wnid in wnids]
    test = [class_files(folder / "val" / wnid) for wnid in test_wnids]
    test_labels = torch.tensor([wnids.index(wnid) for wnid in test_wnids])
    y = torch.cat([number_classes(train), test_labels[number_classes(test)]])
    split = torch.full_like(y, 2)
    split[: -sum(map(len, test))] = _choose_val([len(files) for files in train], config)
    paths = [path for files in (*train, *test) for path in files]
    whole = read_image_split(paths, y, None, Groups(_class_names(folder, wnids, config.root)), config)
    return split_examples(CARD, config, whole, split, PUBLISHED)


def find_imagenet(root: str | None) -> Path:
    """Return the folder with ``train/<wnid>`` for at least one class."""
    top = data_folder(root)
    for folder in (top, *(top / part for part in LAYOUT.folders)):
        train = folder / "train"
        if train.is_dir() and any(WNID.fullmatch(path.name) for path in train.iterdir()):
            return folder
    return find_folder(CARD.name, LAYOUT, root)  # raises a helpful error


def class_folders(folder: Path) -> list[str]:
    """Return the sorted WordNet ids that have a folder.

    Raises:
        InputError: there is none, for example because the official validation images are not sorted into classes.
    """
    require_file(folder, CARD.name)
    wnids = [path.name for path in subfolders(folder) if WNID.fullmatch(path.name)]
    if not wnids and image_names(folder):
        raise InputError("the images are not sorted into class folders", where=folder, hint=SORTING_HINT)
    if not wnids:
        raise InputError("the folder contains no class folders", where=folder, expected="<wnid>/*.JPEG")
    return wnids


def class_files(folder: Path) -> list[Path]:
    """Return the image files of one class in alphabetical order; raise if there are none."""
    names = sorted(image_names(folder))
    if not names:
        raise InputError("the folder contains no images", where=folder, hint="Unpack or download the class again.")
    return [folder / name for name in names]


def number_classes(classes: Iterable[list[Path]]) -> Tensor:
    """Return the class number of every file.

    Example:
        >>> number_classes([[Path("a"), Path("b")], [Path("c")]])
        tensor([0, 0, 1])
    """
    counts = torch.tensor([len(files) for files in classes])
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _choose_val(counts: list[int], config: ImagenetConfig) -> Tensor:
    """Return 1 for the images of train that are val, and 0 for the others."""
    parts = []
    for number, n in enumerate(counts):
        order = torch.randperm(n, generator=Seeds(config.seed).generator("val", number))
        parts.append((order < min(config.val_per_class, n // 2)).long())
    return torch.cat(parts)


def _class_names(folder: Path, wnids: list[str], root: str | None) -> tuple[str, ...]:
    """Return class names from a list if present, else WordNet ids; the id is added to ambiguous names."""
    known: dict[str, str] = {}
    for path in (folder, data_folder(root)):
        known = known or _read_synset_mapping(path / "LOC_synset_mapping.txt")
        known = known or _read_class_index(path / "imagenet_class_index.json")
    names = [known.get(wnid, wnid) for wnid in wnids]
    count = Counter(names)
    return tuple(f"{name} ({wnid})" if count[name] > 1 else name for name, wnid in zip(names, wnids, strict=True))


def _read_synset_mapping(path: Path) -> dict[str, str]:
    """Read lines like ``n01440764 tench, Tinca tinca``; return the first name by WordNet id."""
    if not path.is_file():
        return {}
    pairs = (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {wnid: words.partition(",")[0].strip() for wnid, _, words in pairs}


def _read_class_index(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        return {wnid: word.replace("_", " ") for wnid, word in json.loads(path.read_text(encoding="utf-8")).values()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        expected = '{"0": ["n01440764", "tench"], ...}'
        raise InputError("the file is not a class index", where=path, expected=expected) from None


DATASET = Dataset(card=CARD, config=ImagenetConfig, make=imagenet, layout=LAYOUT)
