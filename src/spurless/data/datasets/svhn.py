"""SVHN: digits of house numbers in photographs, without an attribute, so the groups are the classes.

It reads the cropped digits ``train_32x32.mat`` and ``test_32x32.mat`` with SciPy; their label 10 is the digit 0. A val
split is taken from train (random, stratified); the test images are unchanged. The 531,131 extra images are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from spurless.core.config import SeedNumber
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, Layout, check_published_counts, find_folder, require_file
from spurless.data.datasets._base_images import LabelledImages, check_image_labels, hold_out_val
from spurless.data.datasets._common import Examples, FilesConfig, join_splits
from spurless.data.datasets._digits import DIGITS
from spurless.data.split import Splits
from spurless.data.transforms import augmentation

N_TRAIN, N_TEST = 73_257, 26_032
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
    """Download the two files with torchvision, which checks their checksums."""
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
class SvhnConfig(FilesConfig):
    """Options of ``svhn``."""

    val: Examples = 7326  # images of the official train split: 10 %; ours
    augment: str = "none"  # none, flip, crop-flip or turn, in training; flips change digits
    seed: SeedNumber = 0


def svhn(config: SvhnConfig = SvhnConfig()) -> Splits:
    """Read the three splits."""
    augment = augmentation(config.augment, 32)
    folder = find_folder(CARD.name, LAYOUT, config.root)
    train, test = (read_mat(require_file(folder / file, CARD.name)) for file in LAYOUT.file_names)
    base = hold_out_val(CARD.name, train, test, config.val, Seeds(config.seed))
    splits = join_splits(CARD, config, base.to_splits(GROUPS, augment))
    return check_published_counts(splits, {"train": N_TRAIN - config.val, "val": config.val, "test": N_TEST})


def read_mat(path: Path) -> LabelledImages:
    """Read one file: images uint8 ``(N, 3, 32, 32)`` and the digits."""
    from scipy.io import loadmat

    try:
        content = loadmat(str(path))
        x, y = torch.from_numpy(content["X"]), torch.from_numpy(content["y"]).flatten().long()
    except KeyError as error:
        raise InputError(f"there is no matrix {error}", where=path, expected="X and y") from None
    except Exception as error:  # a broken file can raise any exception
        raise InputError(f"the file cannot be read: {error}", where=path, hint="Download it again.") from error
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[:3] != (32, 32, 3):
        raise InputError("not images of SVHN", where=path, expected="uint8 of shape (32, 32, 3, N)", got=tuple(x.shape))
    x, y = check_image_labels(x.permute(3, 2, 0, 1).contiguous(), y - 1, 10, path)  # 1 to 10 in the file
    return x, (y + 1) % 10


DATASET = Dataset(card=CARD, config=SvhnConfig, make=svhn, layout=LAYOUT)
