"""ImageNet-A: nine classes of animals, trained on ImageNet and tested on photographs that networks misclassify.

The protocol is that of Bahng et al. (ReBias) and Zheng et al. (NeuronTune): train and val are the official images of 42
classes of ImageNet, merged into nine; test is the part of ImageNet-A in the 42, which has no crab. Both call the first
part ImageNet-9, but it is not that of the Backgrounds Challenge (``imagenet9``). It reads ``imagenet/train/<wnid>``,
``imagenet/val/<wnid>`` and ``imagenet-a/<wnid>`` in the data folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.dataset import Card, Dataset, Layout, find_folder
from spurless.data.datasets._common import ImageFilesConfig, read_image_split, split_examples
from spurless.data.datasets.imagenet import class_files, class_folders, find_imagenet
from spurless.data.split import Splits

WNIDS = {
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
GROUPS = Groups(labels=tuple(WNIDS))
LABEL_OF_WNID = {wnid: number for number, wnids in enumerate(WNIDS.values()) for wnid in wnids}
PUBLISHED = {"train": 54_600, "val": 2_100, "test": 1_087}
CARD = Card(
    name="imagenet-a",
    summary="Nine classes of animals of ImageNet, tested on natural adversarial photographs.",
    input="RGB image, 3 x size x size, uint8",
    label="dog, cat, frog, turtle, bird, primate, fish, crab or insect",
    attribute="none",
    splits="train 54,600, val 2,100 (both ImageNet), test 1,087 (ImageNet-A)",
    source="ImageNet, and ImageNet-A: photographs from the web that a ResNet-50 misclassifies",
    licence="non-commercial research and education only (ImageNet); MIT (ImageNet-A)",
    citation="Hendrycks et al., Natural Adversarial Examples, CVPR 2021, arXiv:1907.07174; classes of Bahng et al., "
    "Learning De-biased Representations with Biased Representations, ICML 2020, arXiv:1910.02806",
)
LAYOUT = Layout(
    files=("imagenet/train/*/*.JPEG", "imagenet/val/*/*.JPEG", "imagenet-a/*/*.jpg"),
    markers=("imagenet-a",),
    archives=("imagenet-a.tar",),
    obtain="Get imagenet-a.tar from the page of hendrycks/natural-adv-examples on GitHub, and ILSVRC 2012 from "
    "image-net.org into imagenet/ in the same folder.",
)


@dataclass(frozen=True)
class ImagenetAConfig(ImageFilesConfig):
    """Options of ``imagenet-a``."""


def imagenet_a(config: ImagenetAConfig = ImagenetAConfig()) -> Splits:
    """Read the three splits."""
    top = find_folder(CARD.name, LAYOUT, config.root)
    official = find_imagenet(config.root)
    paths: list[Path] = []
    y: list[int] = []
    split: list[int] = []
    for number, folder in enumerate((official / "train", official / "val", top / "imagenet-a")):
        for wnid in _used_classes(folder):
            files = class_files(folder / wnid)
            paths += files
            y += [LABEL_OF_WNID[wnid]] * len(files)
            split += [number] * len(files)
    whole = read_image_split(paths, torch.tensor(y), None, GROUPS, config)
    return split_examples(CARD, config, whole, torch.tensor(split), PUBLISHED)


def _used_classes(folder: Path) -> list[str]:
    wnids = [wnid for wnid in class_folders(folder) if wnid in LABEL_OF_WNID]
    if not wnids:
        raise InputError(
            "the folder has none of the 42 classes", where=folder, expected=f"{next(iter(LABEL_OF_WNID))} and others"
        )
    return wnids


DATASET = Dataset(card=CARD, config=ImagenetAConfig, make=imagenet_a, layout=LAYOUT)
