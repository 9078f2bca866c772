"""ImageNet-9: nine classes, tested on photographs with replaced or removed backgrounds.

This is the Backgrounds Challenge of Xiao et al. The attribute is the modification of the background. Train and val are
unmodified photographs ("original"); test contains several versions of the same photographs, so that the accuracy on a
version is that of an attribute, and the BG-gap is the accuracy on "mixed-same" minus that on "mixed-rand".

It reads the test sets of the release, ``bg_challenge/<version>/val/<00_dog to 08_fish>/*.JPEG``, and in the same folder
the training data, which are separate archives: ``in9l/{train,val}/...`` or ``original/{train,val}/...``. Without them,
:func:`backgrounds` loads the test split for a model that was trained elsewhere.

Deviation:
    * Photographs of val that are also in test, by file name, are dropped from val.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.data.checks import check_choice, check_splits
from spurless.data.dataset import Card, Dataset, Layout, check_published_counts, find_folder, require_file
from spurless.data.datasets._common import ImageFilesConfig, read_image_split
from spurless.data.loaders.folder import image_names, images_in, subfolders
from spurless.data.split import Split, Splits

LABELS = (
    "dog", "bird", "wheeled vehicle", "reptile", "carnivore", "insect", "musical instrument", "primate", "fish",
)  # fmt: skip
ORIGINAL = "original"
VERSIONS = (ORIGINAL, "mixed-same", "mixed-rand", "mixed-next", "only-fg", "only-bg-b", "only-bg-t", "no-fg")
"""Modifications of the background; FG is the foreground, BG the background, B and T black and tiled."""
TRAIN_FOLDERS = ("in9l", "original")
TEST_PER_CLASS = 450  # number of test photographs of each class in every version
PUBLISHED = {"original": 45_405}  # train; in9l has "about 180k" according to Xiao et al.
CARD = Card(
    name="imagenet-9",
    summary="Nine classes of objects; in the test split their background is replaced or removed.",
    input="RGB image, 3 x size x size, uint8",
    label="dog, bird, wheeled vehicle, reptile, carnivore, insect, musical instrument, primate or fish",
    attribute="the background: original, another of the same class, a random one, removed, ...",
    splits="train about 180,000 (in9l) or 45,405 (original), val as released, test 4,050 of each version",
    source="ImageNet, foregrounds cut out and placed on other backgrounds",
    licence="non-commercial research and education only (ImageNet)",
    citation="Xiao et al., Noise or Signal: The Role of Image Backgrounds in Object Recognition, ICLR 2021, "
    "arXiv:2006.09994",
)
LAYOUT = Layout(
    files=(
        "bg_challenge/*/val/*/*.JPEG",
        ("in9l/train/*/*.JPEG", "original/train/*/*.JPEG"),
        ("in9l/val/*/*.JPEG", "original/val/*/*.JPEG"),
    ),
    folders=("backgrounds_challenge", "imagenet-9", "imagenet9", "in9"),
    markers=("bg_challenge",),
    archives=("backgrounds_challenge_data.tar.gz", "in9l.tar.gz", "original.tar.gz"),
    obtain="Get the test sets from the releases, and in9l.tar.gz from the training data, of "
    "MadryLab/backgrounds_challenge on GitHub.",
)


@dataclass(frozen=True)
class ImagenetNineConfig(ImageFilesConfig):
    """Options of ``imagenet-9``."""

    train: str = "in9l"  # the folder of train and val: in9l (MaskTune) or original, a quarter of it
    variants: str = "original,mixed-same,mixed-rand,only-fg"  # versions in test; those of MaskTune and the BG-gap


def imagenet9(config: ImagenetNineConfig = ImagenetNineConfig()) -> Splits:
    """Read the three splits."""
    folder = _find_checked(config)
    source = folder / config.train
    if not (source / "train").is_dir():
        raise InputError(
            f"the training data of {CARD.name} are missing",
            where=source / "train",
            expected=f"{config.train}/ in the folder of bg_challenge/",
            hint=f"Get {config.train}.tar.gz from the training data of MadryLab/backgrounds_challenge on GitHub. To "
            "evaluate an existing model, use spurless.data.datasets.imagenet9.backgrounds(config), which only needs "
            "bg_challenge/.",
        )
    test_names = _image_names(folder / "bg_challenge" / ORIGINAL / "val")
    train = _read_split([(source / "train", ORIGINAL)], config)
    val = _read_split([(source / "val", ORIGINAL)], config, without=test_names)
    splits = check_splits(Splits(train, val, backgrounds(config), CARD.name, asdict(config)))
    test_counts = [TEST_PER_CLASS if name in _parse_versions(config) else 0 for name in _attributes(config)]
    totals = {"train": PUBLISHED[config.train]} if config.train in PUBLISHED else {}
    return check_published_counts(splits, {**totals, "test": test_counts * len(LABELS)})


def backgrounds(config: ImagenetNineConfig = ImagenetNineConfig()) -> Split:
    """Read only the test split, the chosen versions one after another; needs no training data."""
    top = _find_checked(config) / "bg_challenge"
    return _read_split(
        [(top / version.replace("-", "_") / "val", version) for version in _parse_versions(config)], config
    )


def _find_checked(config: ImagenetNineConfig) -> Path:
    check_choice(CARD, config, "train", TRAIN_FOLDERS)
    _parse_versions(config)
    return find_folder(CARD.name, LAYOUT, config.root)


def _parse_versions(config: ImagenetNineConfig) -> list[str]:
    versions = [part.strip().replace("_", "-") for part in config.variants.split(",")]
    for version in versions:
        if version not in VERSIONS:
            raise UnknownNameError("version of imagenet-9", version, VERSIONS)
    if len(set(versions)) < len(versions):
        raise InputError("a version occurs twice in option 'variants'", where=CARD.name, got=config.variants)
    return versions


def _attributes(config: ImagenetNineConfig) -> tuple[str, ...]:
    """Return the values of the attribute, which include "original" for train and val."""
    chosen = _parse_versions(config)
    return tuple(chosen) if ORIGINAL in chosen else (ORIGINAL, *chosen)


def _read_split(parts: list[tuple[Path, str]], config: ImagenetNineConfig, without: Collection[str] = ()) -> Split:
    """Read class folders, each part with one attribute value; skip the files named in ``without``."""
    groups = Groups(LABELS, _attributes(config))
    paths: list[Path] = []
    codes: list[tuple[int, int]] = []
    for folder, attribute in parts:
        for label, classes in enumerate(_class_folders(folder)):
            images = [path for path in images_in(classes) if path.name not in without]
            paths += images
            codes += [(label, groups.attributes.index(attribute))] * len(images)
    if not paths:
        raise InputError(
            "the folder contains no images", where=parts[0][0], hint="Unpack or download the dataset again."
        )
    y, a = torch.tensor(codes).T.contiguous()
    return read_image_split(paths, y, a, groups, config)


def _class_folders(folder: Path) -> list[Path]:
    """Return the nine class folders, which are numbered: ``00_dog``, ``01_bird``, ..."""
    folders = {path.name[:3]: path for path in subfolders(require_file(folder, CARD.name))}
    for number, name in enumerate(LABELS):
        if f"{number:02}_" not in folders:
            raise InputError(f"the class {name!r} is missing", where=folder, expected=f"{number:02}_{name}/*.JPEG")
    return [folders[f"{number:02}_"] for number in range(len(LABELS))]


def _image_names(folder: Path) -> set[str]:
    """Return the names of all test photographs; empty if the folder is missing."""
    return set().union(*map(image_names, _class_folders(folder))) if folder.is_dir() else set()


DATASET = Dataset(card=CARD, config=ImagenetNineConfig, make=imagenet9, layout=LAYOUT)
