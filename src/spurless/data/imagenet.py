"""ImageNet: the thousand classes of ILSVRC 2012, and how their folders are read.

Reads ``train/<wnid>/*.JPEG`` and ``val/<wnid>/*.JPEG``. The labels of the official test images were never published,
so that everybody tests on the official validation images: they are test here, and val is cut from train, 50 of each
class by ``seed``. The classes are called by their WordNet ids, or in words where ``LOC_synset_mapping.txt`` (Kaggle)
or ``imagenet_class_index.json`` (Keras) lies in the folder or in the data folder.

There is no attribute: the groups are the classes. A part of ImageNet may be read, in classes and in images.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.places import data_folder
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.folder import image_names, subfolders
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_least
from spurless.data.names import Names
from spurless.data.splitting import assemble
from spurless.data.transforms import augmentation

WNID = re.compile(r"n\d{8}")
PUBLISHED = {"train": 1_231_167, "val": 50_000, "test": 50_000}  # train and val are the official 1,281,167
CARD = Card(
    name="imagenet",
    summary="The thousand classes of ILSVRC 2012.",
    input="RGB image, 3 x size x size, uint8",
    label="one of 1,000 synsets of WordNet",
    attribute="none",
    splits="train 1,231,167 and val 50,000 (cut from the official train), test 50,000 (the official validation)",
    source="ImageNet: photographs from the web, labelled by people",
    licence="non-commercial research and education only",
    citation="Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015, arXiv:1409.0575",
)
LAYOUT = Layout(
    files=("train/<wnid>/<image>.JPEG", "val/<wnid>/<image>.JPEG"),
    folders=("imagenet", "ImageNet", "imagenet-1k", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
    markers=("train/n01440764", "val/n01440764"),  # the first class; see `home` for a part without it
    obtain=(
        "Get ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz from image-net.org into "
        "one folder: torchvision.datasets.ImageNet(folder, split='train') and split='val' unpack them by class."
    ),
)
SORTING = (
    "Move each into val/<wnid>/. With ILSVRC2012_img_val.tar and ILSVRC2012_devkit_t12.tar.gz in one folder, "
    "torchvision.datasets.ImageNet(folder, split='val') does so."
)


@dataclass(frozen=True)
class ImagenetConfig:
    """Where the files are, what is held out, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = 224  # pixels; everybody
    val_per_class: int = 50  # cut from train, at most half of a class; as many as the official split has
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs (193 GB at 224 pixels); None: if there are many
    seed: int = 0  # draws val


DEFAULT = ImagenetConfig()


def imagenet(config: ImagenetConfig = DEFAULT) -> Splits:
    """Read train and the official validation images, and cut val from train."""
    check_least(CARD, config, size=8, val_per_class=1)
    augment = augmentation(config.augment, config.size)
    folder = home(config.root)
    wnids = class_folders(folder / "train")
    held = class_folders(folder / "val")
    if strange := sorted(set(held) - set(wnids)):
        raise BadInput(f"the class {strange[0]} is not in train", where=folder / "val")
    train, test = ([class_files(folder / part / w) for w in names] for part, names in (("train", wnids), ("val", held)))
    y = torch.cat([labels(train), torch.tensor([wnids.index(w) for w in held])[labels(test)]])
    split = torch.full_like(y, 2)
    split[: -sum(map(len, test))] = _held_out([len(files) for files in train], config)
    paths, groups = [path for files in (*train, *test) for path in files], Groups(_words(folder, wnids, config.root))
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    whole = Grouped(x, y, torch.full_like(y, -1), groups, augment=augment, names=Names.of_files(paths))
    splits = assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config))
    return compare(splits, PUBLISHED)


def home(root: str | None) -> Path:
    """Return the folder that holds ``train/<wnid>``, be it for a few classes."""
    top = data_folder(root)
    for folder in (top, *(top / part for part in LAYOUT.folders)):
        train = folder / "train"
        if train.is_dir() and any(WNID.fullmatch(path.name) for path in train.iterdir()):
            return folder
    return find(CARD.name, LAYOUT, root)  # to say what was looked for


def class_folders(folder: Path) -> list[str]:
    """Return the WordNet ids that have a folder, in order.

    Raises:
        BadInput: there is none, as when the official validation images still lie in one heap.
    """
    need(folder, CARD.name)
    wnids = [path.name for path in subfolders(folder) if WNID.fullmatch(path.name)]
    if not wnids and image_names(folder):
        raise BadInput("the images are not sorted into class folders", where=folder, do=SORTING)
    if not wnids:
        raise BadInput("the folder holds no class folders", where=folder, expected="<wnid>/*.JPEG")
    return wnids


def class_files(folder: Path) -> list[Path]:
    """Return the images of one class, which must have some; in plain order, as that is quick."""
    names = sorted(image_names(folder))
    if not names:
        raise BadInput("the folder holds no images", where=folder, do="Unpack or download the class again.")
    return [folder / name for name in names]


def labels(classes: Iterable[list[Path]]) -> Tensor:
    """Number the classes, and return the number for every file of them.

    Example:
        >>> labels([[Path("a"), Path("b")], [Path("c")]])
        tensor([0, 0, 1])
    """
    counts = torch.tensor([len(files) for files in classes])
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _held_out(counts: list[int], config: ImagenetConfig) -> Tensor:
    """Return 1 for the images of train that are val, and 0 for the others."""
    parts = []
    for number, n in enumerate(counts):
        order = torch.randperm(n, generator=Seeds(config.seed).generator("val", number))
        parts.append((order < min(config.val_per_class, n // 2)).long())
    return torch.cat(parts)


def _words(folder: Path, wnids: list[str], root: str | None) -> tuple[str, ...]:
    """Name the classes in words where a list of them is there; the WordNet id is added to a word that comes twice."""
    known: dict[str, str] = {}
    for place in (folder, data_folder(root)):
        known = known or _synsets(place / "LOC_synset_mapping.txt") or _index(place / "imagenet_class_index.json")
    words = [known.get(wnid, wnid) for wnid in wnids]
    count = Counter(words)
    return tuple(f"{word} ({wnid})" if count[word] > 1 else word for word, wnid in zip(words, wnids, strict=True))


def _synsets(path: Path) -> dict[str, str]:
    """Read lines like ``n01440764 tench, Tinca tinca``: the first word of each."""
    if not path.is_file():
        return {}
    pairs = (line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {wnid: words.partition(",")[0].strip() for wnid, _, words in pairs}


def _index(path: Path) -> dict[str, str]:
    """Read ``{"0": ["n01440764", "tench"], ...}``."""
    if not path.is_file():
        return {}
    try:
        return {wnid: word.replace("_", " ") for wnid, word in json.loads(path.read_text(encoding="utf-8")).values()}
    except (ValueError, TypeError, AttributeError):
        expected = '{"0": ["n01440764", "tench"], ...}'
        raise BadInput("the file does not name classes", where=path, expected=expected) from None


DATASET = Dataset(card=CARD, config=ImagenetConfig, make=imagenet, layout=LAYOUT)
