"""Waterbirds rebuilt: the birds of CUB on forest and sea, in one pack; another draw than the official Waterbirds.

Reads ``waterbirds128.npz``, or any pack called ``waterbirds*.npz`` with the columns ``y``, ``place`` and ``split``
(0 train, 1 val, 2 test). The largest is taken where there are several. ``masks128.npz`` beside it says which pixels
are the bird, see :func:`masks`.

Deviations:
    * Chance gave other birds other backgrounds, and the backgrounds are other photographs, than in the official set.
      Accuracies are not comparable with published ones; which method is better than which is.
    * Images are stored as WebP of 128 pixels. Papers use 224.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.places import data_folder
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_least
from spurless.data.packed import Pack, read_arrays
from spurless.data.splitting import assemble, sort_naturally
from spurless.data.transforms import augmentation
from spurless.data.waterbirds import GROUPS

COUNTS = {"train": (3525, 186, 54, 1030), "val": (452, 452, 147, 148), "test": (2255, 2255, 642, 642)}
SIDE = 128
CARD = Card(
    name="waterbirds-rebuilt",
    summary="Waterbirds against landbirds, built anew: not the official draw, so not its numbers.",
    input="RGB image, 3 x size x size, uint8",
    label="landbird or waterbird",
    attribute="the background, land or water",
    splits="train 4,795 (3525/186/54/1030 by group), val 1,199 (452/452/147/148), test 5,794 (2255/2255/642/642)",
    source="CUB-200-2011 birds cut out and placed on photographs of forest and sea, 128 pixels, WebP",
    licence="research use only (CUB-200-2011)",
    citation="After Sagawa et al., Distributionally Robust Neural Networks, ICLR 2020, arXiv:1911.08731",
)
LAYOUT = Layout(
    files=("waterbirds128.npz or another waterbirds*.npz", "masks128.npz (for masks alone)"),
    folders=("waterbirds", "waterbirds_rebuilt", "waterbirds-rebuilt"),
    markers=("waterbirds128.npz",),
    obtain="This set is not published; for the official one use waterbirds.",
)


@dataclass(frozen=True)
class WaterbirdsRebuiltConfig:
    """Where the pack is, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = SIDE  # pixels; 0: as they are stored
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: int = 0  # decides nothing: the splits are in the pack


DEFAULT = WaterbirdsRebuiltConfig()


def waterbirds_rebuilt(config: WaterbirdsRebuiltConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, size=0)
    pack = _open(config.root)
    x = read(pack.images(config.size or None), None)
    augment = augmentation(config.augment, config.size or x[0].shape[-1])
    whole = Grouped(x, _numbers(pack, "y", 1), _numbers(pack, "place", 1), GROUPS, augment=augment)
    split = _numbers(pack, "split", 2)
    return compare(assemble(whole, split, seeds=Seeds(config.seed), name=CARD.name, options=asdict(config)), COUNTS)


def rows(root: str | None = None) -> dict[str, Tensor]:
    """Return, for every split, which row of the pack each of its examples is."""
    split = _numbers(_open(root), "split", 2)
    return {name: (split == k).nonzero().flatten() for k, name in enumerate(COUNTS)}


def masks(root: str | None = None) -> dict[str, Tensor]:
    """Return, for every split, where the bird is: booleans ``(N, 128, 128)`` in the order of its examples.

    They fit the images at 128 pixels. With them birds and backgrounds can be exchanged, and one can ask how much
    of an explanation lies on the bird.

    Raises:
        BadInput: ``masks128.npz`` is not beside the pack, or does not belong to it.
    """
    import numpy as np

    pack = _open(root)
    path = need(pack.path.with_name("masks128.npz"), CARD.name)
    packed = read_arrays(path).get("mask")
    if packed is None or packed.dtype != np.uint8 or packed.shape != (len(pack), SIDE * SIDE // 8):
        raise BadInput(
            "the masks do not belong to the pack",
            where=path,
            expected=f"'mask' of {len(pack)} rows of {SIDE * SIDE // 8} bytes",
            got="no such array" if packed is None else f"{packed.dtype} {packed.shape}",
        )
    whole = torch.from_numpy(np.unpackbits(packed, axis=1)).view(-1, SIDE, SIDE).bool()
    return {name: whole[index] for name, index in rows(root).items()}


def _open(root: str | None) -> Pack:
    """Open the largest pack of the first folder that has one."""
    top = data_folder(root)
    for folder in (top, *(top / part for part in LAYOUT.folders)):
        names = sort_naturally({path.name for path in folder.glob("waterbirds*.npz")})
        if names:
            return Pack.open(folder / names[-1])
    return Pack.open(find(CARD.name, LAYOUT, root) / "waterbirds128.npz")  # which says that there is none


def _numbers(pack: Pack, column: str, largest: int) -> Tensor:
    values = torch.from_numpy(pack.column(column)).long()
    bad = ((values < 0) | (values > largest)).nonzero().flatten()
    if len(bad):
        raise BadInput(
            f"{int(values[bad[0]])} is not a value of column {column!r}",
            where=f"{pack.path}, image {int(bad[0])}",
            expected=f"0 to {largest}",
        )
    return values


DATASET = Dataset(card=CARD, config=WaterbirdsRebuiltConfig, make=waterbirds_rebuilt, layout=LAYOUT)
