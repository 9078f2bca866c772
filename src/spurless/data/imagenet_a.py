"""ImageNet-A: nine kinds of animals, learnt from ImageNet and tested on photographs that networks get wrong.

The protocol of Bahng et al. (ReBias), which Zheng et al. (NeuronTune) follow: train and val are the official train
and validation images of 42 classes of ImageNet, gathered into nine; test is what ImageNet-A has of the 42. Both call
the first part ImageNet-9, but it is not the ImageNet-9 of the Backgrounds Challenge (see ``imagenet9``).

Reads ``imagenet/train/<wnid>``, ``imagenet/val/<wnid>`` and ``imagenet-a/<wnid>`` in the data folder. Of the 42,
ImageNet-A as it is published has 21, none of them a crab: test has eight classes.

There is no attribute: the groups are the nine classes. What the papers call ImageNet-9 is val here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.imagenet import class_files, class_folders, home
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find
from spurless.data.limits import check_least
from spurless.data.names import Names
from spurless.data.splitting import assemble
from spurless.data.transforms import augmentation

CLASSES = {
    "dog": ("n02085620", "n02099601", "n02106550", "n02106662", "n02110958"),
    "cat": ("n02123045", "n02123159", "n02123394", "n02123597", "n02124075"),
    "frog": ("n01641577", "n01644373", "n01644900"),
    "turtle": ("n01664065", "n01665541", "n01667114", "n01667778", "n01669191"),
    "bird": ("n01819313", "n01820546", "n01833805", "n01843383", "n01847000"),
    "primate": ("n02486410", "n02487347", "n02488291", "n02488702", "n02492035"),
    "fish": ("n02607072", "n02640242", "n02641379", "n02643566", "n02655020"),
    "crab": ("n01978287", "n01978455", "n01980166", "n01981276"),
    "insect": ("n02174001", "n02177972", "n02190166", "n02206856", "n02219486"),
}
GROUPS = Groups(labels=tuple(CLASSES))
NUMBER = {wnid: number for number, wnids in enumerate(CLASSES.values()) for wnid in wnids}
PUBLISHED = {"train": 54_600, "val": 2_100, "test": 1_087}
CARD = Card(
    name="imagenet-a",
    summary="Nine kinds of animals of ImageNet, tested on natural adversarial photographs.",
    input="RGB image, 3 x size x size, uint8",
    label="dog, cat, frog, turtle, bird, primate, fish, crab or insect",
    attribute="none",
    splits="train 54,600, val 2,100 (both ImageNet), test 1,087 (ImageNet-A)",
    source="ImageNet, and ImageNet-A: photographs from the web that a ResNet-50 gets wrong",
    licence="non-commercial research and education only (ImageNet); MIT (ImageNet-A)",
    citation=(
        "Hendrycks et al., Natural Adversarial Examples, CVPR 2021, arXiv:1907.07174; classes of Bahng et al., "
        "Learning De-biased Representations with Biased Representations, ICML 2020, arXiv:1910.02806"
    ),
)
LAYOUT = Layout(
    files=("imagenet/train/<wnid>/<image>.JPEG", "imagenet/val/<wnid>/<image>.JPEG", "imagenet-a/<wnid>/<image>.jpg"),
    markers=("imagenet-a",),
    archives=("imagenet-a.tar",),
    obtain=(
        "Get imagenet-a.tar from the page of hendrycks/natural-adv-examples on GitHub, and ILSVRC 2012 from "
        "image-net.org into imagenet/ beside it."
    ),
)


@dataclass(frozen=True)
class ImagenetAConfig:
    """Where the files are, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = 224  # pixels; the papers
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # decides nothing: the splits are published


DEFAULT = ImagenetAConfig()


def imagenet_a(config: ImagenetAConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, size=8)
    augment = augmentation(config.augment, config.size)
    top = find(CARD.name, LAYOUT, config.root)
    official = home(config.root)
    paths: list[Path] = []
    y: list[int] = []
    split: list[int] = []
    for number, folder in enumerate((official / "train", official / "val", top / "imagenet-a")):
        for wnid in _ours(folder):
            files = class_files(folder / wnid)
            paths += files
            y += [NUMBER[wnid]] * len(files)
            split += [number] * len(files)
    label = torch.tensor(y)
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    whole = Grouped(x, label, torch.full_like(label, -1), GROUPS, augment=augment, names=Names.of_files(paths))
    options = asdict(config)
    splits = assemble(whole, torch.tensor(split), seeds=Seeds(config.seed), name=CARD.name, options=options)
    return compare(splits, PUBLISHED)


def _ours(folder: Path) -> list[str]:
    """Return which of the 42 classes a folder has."""
    found = [wnid for wnid in class_folders(folder) if wnid in NUMBER]
    if not found:
        raise BadInput("none of the 42 classes is there", where=folder, expected=f"{next(iter(NUMBER))} and others")
    return found


DATASET = Dataset(card=CARD, config=ImagenetAConfig, make=imagenet_a, layout=LAYOUT)
