"""CelebA 10k: the first 10,000 faces of CelebA at half their size, in one pack; hair against gender.

Reads ``celeba10k.npz``: the images, ``attr`` (40 bits per image) and ``names`` (of the 40 attributes). Any of them
can be the label, and any other the attribute.

Deviations:
    * These images are all from the official train split. They are split here at random by ``seed``, stratified by
      group; val and test get 20 % each, since there are only 81 blond men.
    * The official splits share no person. Persons are not named here, so that one may be met in two splits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput, UnknownName
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.celeba import spoken
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import read
from spurless.data.layout import Layout, find
from spurless.data.limits import check_least, check_shares
from spurless.data.packed import Pack
from spurless.data.splitting import assemble, stratified
from spurless.data.transforms import augmentation

N = 10_000
CARD = Card(
    name="celeba10k",
    summary="Blond hair or not, of 10,000 faces; of the blond ones one in 18 is a man.",
    input="RGB image, 3 x 109 x 89, or 3 x size x size, uint8",
    label="any of the 40 attributes; by default not blond or blond",
    attribute="any other of the 40 attributes; by default female or male",
    splits="train 6,001 (2647/2482/823/49 by group), val 2,000 (883/827/274/16), test 1,999 (882/827/274/16)",
    source="CelebA, images 1 to 10,000, 89 x 109, JPEG",
    licence="non-commercial research only (CelebA)",
    citation="Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766",
)
LAYOUT = Layout(
    files=("celeba10k.npz",),
    folders=("celeba10k", "celeba"),
    markers=("celeba10k.npz",),
    obtain="This pack is not published; for the whole set use celeba.",
)


@dataclass(frozen=True)
class Celeba10kConfig:
    """Which attribute is the label and which the shortcut."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    label: str = "Blond_Hair"  # Sagawa et al.
    attribute: str = "Male"  # Sagawa et al.
    val: float = 0.2  # share of every group; ours
    test: float = 0.2  # share of every group; ours
    size: int = 0  # pixels of the square cut from the centre; 0: as they are stored, 109 high and 89 wide
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: int = 0  # of the split


DEFAULT = Celeba10kConfig()


def celeba10k(config: Celeba10kConfig = DEFAULT) -> Splits:
    """Read the images and split them."""
    check_least(CARD, config, size=0)
    check_shares(CARD, config, "val", "test")
    if config.label == config.attribute:
        raise BadInput("option 'attribute' must differ from the label", where=CARD.name, got=config.attribute)
    pack = Pack.open(find(CARD.name, LAYOUT, config.root) / "celeba10k.npz")
    notes = pack.expect(CARD.name, N)
    has = _attributes(pack)
    y, a = (_column(has, config, option) for option in ("label", "attribute"))
    seeds = Seeds(config.seed)
    shares = (1 - config.val - config.test, config.val, config.test)
    split = torch.zeros_like(y)
    for k, part in enumerate(stratified(2 * y + a, shares, seeds=seeds, classes=y)):
        split[part] = k
    groups = Groups(spoken(config.label), spoken(config.attribute))
    x = read(pack.images(config.size or None), None)
    whole = Grouped(x, y, a, groups, augment=augmentation(config.augment, config.size or x[0].shape[-1]))
    return replace(assemble(whole, split, seeds=seeds, name=CARD.name, options=asdict(config)), notes=notes)


def _attributes(pack: Pack) -> dict[str, Tensor]:
    """Return which images have an attribute, by its name."""
    import numpy as np

    names, bits = pack.arrays.get("names"), pack.column("attr")
    if names is None or bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != -(-len(names) // 8):
        raise BadInput(
            "the attributes are not bits with a name each",
            where=pack.path,
            expected="'attr' of uint8, a row per image, and 'names'",
            got=f"{bits.dtype} {bits.shape} and {'no' if names is None else len(names)} names",
        )
    table = torch.from_numpy(np.unpackbits(bits, axis=1)).long()
    return {str(name): table[:, k] for k, name in enumerate(names)}


def _column(has: dict[str, Tensor], config: Any, option: str) -> Tensor:
    name = getattr(config, option)
    if name not in has:
        raise UnknownName(f"{option} of {CARD.name}", name, has)
    return has[name]


DATASET = Dataset(card=CARD, config=Celeba10kConfig, make=celeba10k, layout=LAYOUT)
