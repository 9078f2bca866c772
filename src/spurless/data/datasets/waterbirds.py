"""Waterbirds: waterbirds and landbirds, mostly on the matching background.

It reads the official folder of Sagawa et al.: ``metadata.csv`` with the columns ``img_filename``, ``y``, ``place`` and
``split`` (0 train, 1 val, 2 test), and the images it lists. Val and test have half of each class on each background, so
their average is not that of the train distribution: report the worst group and the adjusted average.

Deviation:
    * Images are resized by their short side and cropped to a square. Most papers resize them to a square of 8/7 of the
      size first, and crop its centre.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.files import data_folder
from spurless.core.groups import Groups
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import (
    BINARY_CODES,
    SPLIT_CODES,
    ImageConfig,
    ImageFilesConfig,
    PixelsOrZero,
    read_image_split,
    split_examples,
)
from spurless.data.loaders.csv import ImageRoot, check_duplicates, encode_column, read_columns
from spurless.data.loaders.images import read_images
from spurless.data.loaders.pack import Pack, read_arrays
from spurless.data.split import Split, Splits
from spurless.data.splitting import sort_naturally
from spurless.data.transforms import augmentation

GROUPS = Groups(labels=("landbird", "waterbird"), attributes=("land", "water"))
PUBLISHED = {"train": (3498, 184, 56, 1057), "val": (467, 466, 133, 133), "test": (2255, 2255, 642, 642)}
CARD = Card(
    name="waterbirds",
    summary="Waterbirds against landbirds; in training 95 % are on the matching background.",
    input="RGB image, 3 x size x size, uint8",
    label="landbird or waterbird",
    attribute="the background, land or water",
    splits="train 4,795 (3498/184/56/1057 by group), val 1,199, test 5,794",
    source="CUB-200-2011 birds cut out and placed on backgrounds of Places",
    licence="research use only (CUB-200-2011, Places)",
    citation="Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020, arXiv:1911.08731",
)
LAYOUT = Layout(
    files=("metadata.csv", "*/*.jpg"),
    folders=("waterbirds", "waterbird_complete95_forest2water2", "waterbirds_v1.0", "waterbird"),
    markers=("metadata.csv",),
    archives=("waterbird_complete95_forest2water2.tar.gz", "waterbirds_v1.0.tar.gz"),
    obtain="Get waterbird_complete95_forest2water2.tar.gz from the page of kohpangwei/group_DRO on GitHub, or the "
    "waterbirds of WILDS.",
)


@dataclass(frozen=True)
class WaterbirdsConfig(ImageFilesConfig):
    """Options of ``waterbirds``."""


def waterbirds(config: WaterbirdsConfig = WaterbirdsConfig()) -> Splits:
    """Read the three splits."""
    folder = find_folder(CARD.name, LAYOUT, config.root)
    paths, y, a, split = _read_metadata(folder)
    whole = read_image_split(paths, y, a, GROUPS, config)
    return split_examples(CARD, config, whole, split, PUBLISHED)


def _read_metadata(folder: Path) -> tuple[list[Path], Tensor, Tensor, Tensor]:
    path, root = folder / "metadata.csv", ImageRoot(folder)
    cells = read_columns(path, ("img_filename", "y", "place", "split"))
    paths = [root.file(name, f"{path}, row {row}") for row, name in enumerate(cells["img_filename"], start=2)]
    y, a = (encode_column(cells[name], BINARY_CODES, path, name) for name in ("y", "place"))
    split = encode_column(cells["split"], SPLIT_CODES, path, "split")
    check_duplicates(path, paths, cells["y"], split.tolist())
    return paths, y, a, split


WATERBIRDS = Dataset(card=CARD, config=WaterbirdsConfig, make=waterbirds, layout=LAYOUT)

WATERBIRDS_REBUILT_COUNTS = {
    "train": (3525, 186, 54, 1030),
    "val": (452, 452, 147, 148),
    "test": (2255, 2255, 642, 642),
}
MASK_SIDE = 128
WATERBIRDS_REBUILT_CARD = Card(
    name="waterbirds-rebuilt",
    summary="Waterbirds against landbirds, rebuilt; accuracies are not comparable with those of the official dataset.",
    input="RGB image, 3 x size x size, uint8",
    label="landbird or waterbird",
    attribute="the background, land or water",
    splits="train 4,795 (3525/186/54/1030 by group), val 1,199 (452/452/147/148), test 5,794 (2255/2255/642/642)",
    source="CUB-200-2011 birds cut out and placed on photographs of forest and sea, 128 pixels, WebP",
    licence="research use only (CUB-200-2011)",
    citation="After Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020, arXiv:1911.08731",
)
WATERBIRDS_REBUILT_LAYOUT = Layout(
    files=(("waterbirds128.npz", "waterbirds*.npz"), "masks128.npz"),
    folders=("waterbirds", "waterbirds_rebuilt", "waterbirds-rebuilt"),
    markers=("waterbirds128.npz",),
    obtain="This dataset is not published; for the official one use waterbirds.",
)


@dataclass(frozen=True)
class WaterbirdsRebuiltConfig(ImageConfig):
    """Options of ``waterbirds-rebuilt``."""

    size: PixelsOrZero = MASK_SIDE  # pixels; 0: as stored


def waterbirds_rebuilt(config: WaterbirdsRebuiltConfig = WaterbirdsRebuiltConfig()) -> Splits:
    """Read the three splits.

    A new sample of Waterbirds, with birds of CUB on photographs of forest and sea, in one file.

    It reads ``waterbirds128.npz``, or any file ``waterbirds*.npz`` with the columns ``y``, ``place`` and ``split`` (0
    train, 1 val, 2 test); the largest if there are several. ``masks128.npz`` in the same folder contains the pixels of
    the birds, see :func:`bird_masks`.

    Deviations:
        * The assignment of birds to backgrounds and the photographs of backgrounds differ from the official dataset.
          Accuracies are not comparable with published ones; rankings of methods are.
        * Images are stored as WebP of 128 pixels. Papers use 224.
    """
    pack = _open_pack(config.root)
    x = read_images(pack.images(config.size or None), None)
    augment = augmentation(config.augment, config.size or x[0].shape[-1])
    whole = Split(x, _read_codes(pack, "y", 1), _read_codes(pack, "place", 1), GROUPS, augment=augment)
    return split_examples(
        WATERBIRDS_REBUILT_CARD, config, whole, _read_codes(pack, "split", 2), WATERBIRDS_REBUILT_COUNTS
    )


def split_rows(root: str | None = None) -> dict[str, Tensor]:
    """Return the rows of the file in each split, in the order of its examples."""
    split = _read_codes(_open_pack(root), "split", 2)
    return {name: (split == k).nonzero().flatten() for k, name in enumerate(WATERBIRDS_REBUILT_COUNTS)}


def bird_masks(root: str | None = None) -> dict[str, Tensor]:
    """Return boolean masks of the bird for each split, ``(N, 128, 128)`` in the order of its examples.

    They fit the images at 128 pixels, and can be used to exchange backgrounds or to measure how much of an attribution
    is on the bird.

    Raises:
        InputError: ``masks128.npz`` is missing or does not match the images.
    """
    import numpy as np

    pack = _open_pack(root)
    path = require_file(pack.path.with_name("masks128.npz"), WATERBIRDS_REBUILT_CARD.name)
    packed = read_arrays(path).get("mask")
    if packed is None or packed.dtype != np.uint8 or packed.shape != (len(pack), MASK_SIDE * MASK_SIDE // 8):
        expected = f"'mask' of {len(pack)} rows of {MASK_SIDE * MASK_SIDE // 8} bytes"
        got = "no such array" if packed is None else f"{packed.dtype} {packed.shape}"
        raise InputError("the masks do not match the images", where=path, expected=expected, got=got)
    whole = torch.from_numpy(np.unpackbits(packed, axis=1)).view(-1, MASK_SIDE, MASK_SIDE).bool()
    return {name: whole[index] for name, index in split_rows(root).items()}


def _open_pack(root: str | None) -> Pack:
    """Open the largest file in the first folder that has one."""
    top = data_folder(root)
    for folder in (top, *(top / part for part in WATERBIRDS_REBUILT_LAYOUT.folders)):
        names = sort_naturally({path.name for path in folder.glob("waterbirds*.npz")})
        if names:
            return Pack.open(folder / names[-1])
    return Pack.open(
        find_folder(WATERBIRDS_REBUILT_CARD.name, WATERBIRDS_REBUILT_LAYOUT, root) / "waterbirds128.npz"
    )  # raises a helpful error


def _read_codes(pack: Pack, column: str, largest: int) -> Tensor:
    values = torch.from_numpy(pack.column(column)).long()
    bad = ((values < 0) | (values > largest)).nonzero().flatten()
    if len(bad):
        raise InputError(
            f"{int(values[bad[0]])} is not a valid value of column {column!r}",
            where=f"{pack.path}, image {int(bad[0])}",
            expected=f"0 to {largest}",
        )
    return values


WATERBIRDS_REBUILT = Dataset(
    card=WATERBIRDS_REBUILT_CARD,
    config=WaterbirdsRebuiltConfig,
    make=waterbirds_rebuilt,
    layout=WATERBIRDS_REBUILT_LAYOUT,
)
