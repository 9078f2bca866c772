"""BFFHQ: young or old faces, where nearly all young ones are women and nearly all old ones are men.

Reads the folder that Lee et al. (DisEnt) released: ``0.5pct/align/<age>/*.png`` and ``0.5pct/conflict/<age>/*.png``
are train, ``valid/*.png`` (or ``0.5pct/valid/*.png``) is val, ``test/*.png`` is test. A file is called
``<id>_<age>_<gender>.png``; where the two digits are equal, the shortcut is right. The release does not say which
digit is which: 0 is read as young and as female, 1 as old and as male. Newer releases have 1, 2 and 5 % of
conflicting images in ``1pct``, ``2pct`` and ``5pct``.

Papers report the accuracy on the conflicting test images alone: young men and old women, a mean of two groups here.

Deviation:
    * Lee et al. leave the aligned images of test out when they load it. Here all are read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.folder import images_in, subfolders
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_choice, check_least
from spurless.data.names import Names
from spurless.data.splitting import assemble
from spurless.data.transforms import augmentation

GROUPS = Groups(labels=("young", "old"), attributes=("female", "male"))
PERCENTS = ("0.5pct", "1pct", "2pct", "5pct")
PUBLISHED = {"0.5pct": {"train": 19200}}  # 19,104 aligned and 96 conflicting
BINARY = {"0": 0, "1": 1}
CARD = Card(
    name="bffhq",
    summary="Young or old; in training 99.5 % of the young are women and of the old men.",
    input="RGB image of a face, 3 x size x size, uint8",
    label="young (10 to 29 years) or old (40 to 59)",
    attribute="female or male",
    splits="train 19,200 (19,104 aligned, 96 conflicting); val and test as they are released",
    source="Biased FFHQ: photographs of Flickr-Faces-HQ, chosen by age and gender",
    licence="non-commercial (FFHQ: CC BY-NC-SA 4.0)",
    citation=(
        "Kim et al., BiaSwap, ICCV 2021, arXiv:2108.10008; files by Lee et al., Learning Debiased Representation via "
        "Disentangled Feature Augmentation, NeurIPS 2021, arXiv:2107.01372"
    ),
)
LAYOUT = Layout(
    files=(
        "<percent>/align/<age>/<image>.png",
        "<percent>/conflict/<age>/<image>.png",
        "valid/<image>.png or <percent>/valid/<image>.png",
        "test/<image>.png",
    ),
    folders=("bffhq", "BFFHQ", "bFFHQ"),
    markers=PERCENTS,
    archives=("bffhq.zip", "bffhq.tar.gz"),
    obtain="Get bffhq from the page of kakaoenterprise/Learning-Debiased-Disentangled on GitHub.",
)


@dataclass(frozen=True)
class BffhqConfig:
    """Where the files are, how biased train is, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    percent: str = "0.5pct"  # the folder of train: 0.5pct, 1pct, 2pct or 5pct are conflicting
    size: int = 224  # pixels; Lee et al. 2021 (DCWP: 128)
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # decides nothing: the splits are published


DEFAULT = BffhqConfig()


def bffhq(config: BffhqConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, size=8)
    check_choice(CARD, config, "percent", PERCENTS)
    augment = augmentation(config.augment, config.size)
    folder = find(CARD.name, LAYOUT, config.root)
    train = need(folder / config.percent, CARD.name)
    valid = train / "valid" if (train / "valid").is_dir() else folder / "valid"
    parts = ((train / "align", 0), (train / "conflict", 0), (valid, 1), (folder / "test", 2))
    found = [(path, split) for part, split in parts for path in _listed(part)]
    said = torch.tensor([_said(path) for path, _ in found])
    paths = [path for path, _ in found]
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    y, a = said.T.contiguous()
    whole = Grouped(x, y, a, GROUPS, augment=augment, names=Names.of_files(paths))
    splits = assemble(
        whole,
        torch.tensor([split for _, split in found]),
        seeds=Seeds(config.seed),
        name=CARD.name,
        options=asdict(config),
    )
    return compare(splits, PUBLISHED.get(config.percent, {}))


def _listed(folder: Path) -> list[Path]:
    """Return the images of a folder and of those in it; the releases differ in how they pack a split."""
    need(folder, CARD.name)
    images = [path for part in (folder, *subfolders(folder)) for path in images_in(part)]
    if not images:
        raise BadInput("the folder holds no images", where=folder, do="Unpack or download the dataset again.")
    return images


def _said(path: Path) -> tuple[int, int]:
    """Return age and gender, which the name of a file says."""
    words = path.stem.split("_")
    if len(words) != 3 or not set(words[1:]) <= set(BINARY):
        raise BadInput("the name does not say age and gender", where=path, expected="<id>_<0 or 1>_<0 or 1>.png")
    return BINARY[words[1]], BINARY[words[2]]


DATASET = Dataset(card=CARD, config=BffhqConfig, make=bffhq, layout=LAYOUT)
