"""ImageNet-9: nine kinds of things, tested on photographs whose background was exchanged or removed.

The Backgrounds Challenge of Xiao et al. The attribute is what was done to the background. Train and val are
photographs as they are ("original"); test joins several versions of the same photographs, so that the accuracy on
each version is that of an attribute, and the BG-gap is the accuracy on "mixed-same" minus that on "mixed-rand".

Reads the test sets of the release, ``bg_challenge/<version>/val/<00_dog to 08_fish>/*.JPEG``, and beside them the
training data, which are archives of their own: ``in9l/{train,val}/...`` or ``original/{train,val}/...``. Without
them, a model that was trained elsewhere can be tested on :func:`backgrounds`.

Deviation:
    * Photographs of val that are in test too, by the names of their files, are left out of val.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput, UnknownName
from spurless.core.groups import Groups
from spurless.data.card import Card, Dataset
from spurless.data.checks import check_splits
from spurless.data.folder import image_names, images_in, subfolders
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_choice, check_least
from spurless.data.names import Names
from spurless.data.transforms import augmentation

LABELS = (
    "dog", "bird", "wheeled vehicle", "reptile", "carnivore", "insect", "musical instrument", "primate", "fish",
)  # fmt: skip
ORIGINAL = "original"
VERSIONS = (ORIGINAL, "mixed-same", "mixed-rand", "mixed-next", "only-fg", "only-bg-b", "only-bg-t", "no-fg")
"""What was done to the background; FG is the foreground, BG the background, B and T black and tiled."""
SOURCES = ("in9l", "original")
PER_CLASS = 450
"""Test photographs of each class, in every version."""
PUBLISHED = {"original": 45_405}  # train; Xiao et al. say "about 180k" of in9l
CARD = Card(
    name="imagenet-9",
    summary="Nine kinds of things; in test their background is exchanged or removed.",
    input="RGB image, 3 x size x size, uint8",
    label="dog, bird, wheeled vehicle, reptile, carnivore, insect, musical instrument, primate or fish",
    attribute="what was done to the background: nothing, another of the same class, a random one, removed, ...",
    splits="train about 180,000 (in9l) or 45,405 (original), val as released, test 4,050 of each version",
    source="ImageNet, foregrounds cut out and placed on other backgrounds",
    licence="non-commercial research and education only (ImageNet)",
    citation="Xiao et al., Noise or Signal: The Role of Image Backgrounds in Object Recognition, ICLR 2021, "
    "arXiv:2006.09994",
)
LAYOUT = Layout(
    files=(
        "bg_challenge/<version>/val/<class>/<image>.JPEG",
        "in9l/train/<class>/<image>.JPEG, in9l/val/<class>/<image>.JPEG "
        "or original/train/<class>/<image>.JPEG, original/val/<class>/<image>.JPEG",
    ),
    folders=("backgrounds_challenge", "imagenet-9", "imagenet9", "in9"),
    markers=("bg_challenge",),
    archives=("backgrounds_challenge_data.tar.gz", "in9l.tar.gz", "original.tar.gz"),
    obtain=(
        "Get the test sets from the releases, and in9l.tar.gz from the training data, of "
        "MadryLab/backgrounds_challenge on GitHub."
    ),
)


@dataclass(frozen=True)
class ImagenetNineConfig:
    """Where the files are, what is trained and tested on, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    train: str = "in9l"  # the folder of train and val: in9l (MaskTune) or original, a quarter of it
    variants: str = "original,mixed-same,mixed-rand,only-fg"  # the versions in test; MaskTune, and the BG-gap
    size: int = 224  # pixels; as released
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # decides nothing: the splits are published


DEFAULT = ImagenetNineConfig()


def imagenet9(config: ImagenetNineConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    folder = _home(config)
    source = folder / config.train
    if not (source / "train").is_dir():
        raise BadInput(
            f"the training data of {CARD.name} are not there",
            where=source / "train",
            expected=f"{config.train}/ beside bg_challenge/",
            do=f"Get {config.train}.tar.gz from the training data of MadryLab/backgrounds_challenge on GitHub: nothing "
            "is cut from the test images to train on. To test a model that you have, use "
            "spurless.data.imagenet9.backgrounds(config), which needs bg_challenge/ alone.",
        )
    seen = _names(folder / "bg_challenge" / ORIGINAL / "val")
    train = _split([(source / "train", ORIGINAL)], config)
    val = _split([(source / "val", ORIGINAL)], config, without=seen)
    splits = check_splits(Splits(train, val, backgrounds(config), CARD.name, asdict(config)))
    each = [PER_CLASS if name in _chosen(config) else 0 for name in _attributes(config)] * len(LABELS)
    totals = {"train": PUBLISHED[config.train]} if config.train in PUBLISHED else {}
    return compare(splits, {**totals, "test": each})


def backgrounds(config: ImagenetNineConfig = DEFAULT) -> Grouped:
    """Read the test split alone: the chosen versions, one after another. No training data are needed."""
    top = _home(config) / "bg_challenge"
    return _split([(top / version.replace("-", "_") / "val", version) for version in _chosen(config)], config)


def _home(config: ImagenetNineConfig) -> Path:
    """Return the folder, once the options are known to be in order."""
    check_least(CARD, config, size=8)
    check_choice(CARD, config, "train", SOURCES)
    _chosen(config)
    return find(CARD.name, LAYOUT, config.root)


def _chosen(config: ImagenetNineConfig) -> list[str]:
    """Return the versions that test shall have."""
    words = [word.strip().replace("_", "-") for word in config.variants.split(",")]
    for word in words:
        if word not in VERSIONS:
            raise UnknownName("version of imagenet-9", word, VERSIONS)
    if len(set(words)) < len(words):
        raise BadInput("a version is named twice", where=CARD.name, got=config.variants)
    return words


def _attributes(config: ImagenetNineConfig) -> tuple[str, ...]:
    """Return the values of the attribute: train and val are original, whatever is tested on."""
    chosen = _chosen(config)
    return tuple(chosen) if ORIGINAL in chosen else (ORIGINAL, *chosen)


def _split(parts: list[tuple[Path, str]], config: ImagenetNineConfig, without: Collection[str] = ()) -> Grouped:
    """Read folders of classes, each with one value of the attribute; files with some names are left out."""
    groups, augment = Groups(LABELS, _attributes(config)), augmentation(config.augment, config.size)
    paths: list[Path] = []
    codes: list[tuple[int, int]] = []
    for folder, attribute in parts:
        for label, classes in enumerate(_classes(folder)):
            images = [path for path in images_in(classes) if path.name not in without]
            paths += images
            codes += [(label, groups.attributes.index(attribute))] * len(images)
    if not paths:
        raise BadInput("the folder holds no images", where=parts[0][0], do="Unpack or download the dataset again.")
    y, a = torch.tensor(codes).T.contiguous()
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    return Grouped(x, y, a, groups, augment=augment, names=Names.of_files(paths))


def _classes(folder: Path) -> list[Path]:
    """Return the nine class folders, which are numbered: ``00_dog``, ``01_bird``, ..."""
    found = {path.name[:3]: path for path in subfolders(need(folder, CARD.name))}
    for number, name in enumerate(LABELS):
        if f"{number:02}_" not in found:
            raise BadInput(f"the class {name!r} is missing", where=folder, expected=f"{number:02}_{name}/*.JPEG")
    return [found[f"{number:02}_"] for number in range(len(LABELS))]


def _names(folder: Path) -> set[str]:
    """Return the names of all test photographs; none where the original ones are not there."""
    return set().union(*map(image_names, _classes(folder))) if folder.is_dir() else set()


DATASET = Dataset(card=CARD, config=ImagenetNineConfig, make=imagenet9, layout=LAYOUT)
