"""SVHN: house numbers in photographs, the digit in the middle is the label; no attribute, the groups are the classes.

Reads the cropped digits ``train_32x32.mat`` and ``test_32x32.mat`` with SciPy; their label 10 is the digit 0. A val
split is cut from train at random, each class alike; the test images stay as they are. The 531,131 extra images are not
used.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.digits import DIGITS
from spurless.data.grouped import Splits
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_least
from spurless.data.raw import Labelled, check_labelled, hold_out
from spurless.data.transforms import augmentation

TRAIN, TEST = 73_257, 26_032
GROUPS = Groups(labels=DIGITS)
CARD = Card(
    name="svhn",
    summary="Digits of house numbers in photographs; no attribute is known.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the digit in the middle, 10 classes",
    attribute="none",
    splits="train 65,931 and val 7,326 (of the official 73,257), test 26,032",
    source="SVHN, cropped digits",
    licence="non-commercial use only (SVHN)",
    citation="Netzer et al., Reading Digits in Natural Images with Unsupervised Feature Learning, NIPS workshop 2011",
)


def download(root: Path) -> None:
    """Fetch the two files; torchvision checks their checksums."""
    from torchvision.datasets import SVHN

    for split in ("train", "test"):
        SVHN(str(root), split=split, download=True)


LAYOUT = Layout(
    files=("train_32x32.mat", "test_32x32.mat"),
    folders=("svhn", "SVHN"),
    markers=("train_32x32.mat",),
    obtain="Get SVHN with torchvision.datasets.SVHN(FOLDER, split, download=True), for train and test.",
    download=download,
)


@dataclass(frozen=True)
class SvhnConfig:
    """Where the files are, and how much of train is held out."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    val: int = 7326  # images of the official train split: 10 %; ours
    augment: str = "none"  # none, flip, crop-flip or turn, in training; a flipped digit is no digit
    seed: int = 0


DEFAULT = SvhnConfig()


def svhn(config: SvhnConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, val=1)
    augment = augmentation(config.augment, 32)
    folder = find(CARD.name, LAYOUT, config.root)
    train, test = (read_mat(need(folder / file, CARD.name)) for file in LAYOUT.files)
    raw = hold_out(CARD.name, train, test, config.val, Seeds(config.seed))
    splits = Splits(*raw.plain(GROUPS, augment), name=CARD.name, options=asdict(config))
    return compare(splits, {"train": TRAIN - config.val, "val": config.val, "test": TEST})


def read_mat(path: Path) -> Labelled:
    """Read one file: images uint8 ``(N, 3, 32, 32)`` and the digits.

    Raises:
        BadInput: the file is cut off, or not what its name says.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(str(path))
        x, y = torch.from_numpy(content["X"]), torch.from_numpy(content["y"]).flatten().long()
    except KeyError as error:
        raise BadInput(f"there is no matrix called {error}", where=path, expected="X and y") from None
    except Exception as error:  # broken bytes raise anything
        raise BadInput(f"the file cannot be read: {error}", where=path, do="Get it again.") from error
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[:3] != (32, 32, 3):
        raise BadInput(
            "these are no images of SVHN", where=path, expected="uint8 of shape (32, 32, 3, N)", got=tuple(x.shape)
        )
    x, y = check_labelled(x.permute(3, 2, 0, 1).contiguous(), y - 1, 10, path)  # 1 to 10 in the file
    return x, (y + 1) % 10


DATASET = Dataset(card=CARD, config=SvhnConfig, make=svhn, layout=LAYOUT)
