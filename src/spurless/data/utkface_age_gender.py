"""UTKFace by age and gender: young against old faces, where in training the young are women and the old are men.

The construction of Biased FFHQ on faces that fit in 25 MB. Young is 10 to 29 years old, old is 40 to 59; the others
are left out. In training, all but ``round(conflicting * n)`` of the ``n`` images of a class have the gender that
goes with it. Val and test have as many images of every group. The attributes are numbered such that ``a == y``
where gender tells the age. Reads ``utkface80.npz``: the images, ``age`` and ``gender`` (0 male, 1 female).

Deviations:
    * Biased FFHQ has 19,200 train images, 96 of which conflict, and its accuracy is that of the conflicting test
      images. Here old men are few: 2,400 train images per class leave 700 of the rarest aligned group for val and
      test.
    * UTKFace holds 375 images twice or more, mostly under different ages. Of copies that agree on the group one is
      kept, of others none: 5,012 young women, 3,619 young men, 1,346 old women and 3,107 old men are left.
    * Persons are not named, so that one may be met in two splits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import read
from spurless.data.layout import Layout, find
from spurless.data.limits import check_least, check_shares
from spurless.data.packed import Pack
from spurless.data.transforms import augmentation

N = 23_704
YOUNG, OLD = (10, 29), (40, 59)
NOBODY = -1  # the group of those who are neither young nor old
GROUPS = Groups(labels=("young", "old"), attributes=("female", "male"))
CARD = Card(
    name="utkface-age-gender",
    summary="Young against old faces; in training 99.5 % of the young are women and of the old are men.",
    input="RGB image, 3 x 80 x 80, or 3 x size x size, uint8",
    label="young (10 to 29 years) or old (40 to 59)",
    attribute="female (goes with young) or male (goes with old)",
    splits="train 4,800 (2388/12/12/2388 by group), val 800 and test 2,000 (even over the groups)",
    source="UTKFace, aligned and cropped, 80 pixels, WebP; drawn as Biased FFHQ is",
    licence="non-commercial research only (UTKFace)",
    citation="Zhang et al., Age Progression/Regression by Conditional Adversarial Autoencoder, CVPR 2017, "
    "arXiv:1702.08423; after Kim et al., BiaSwap, ICCV 2021, arXiv:2108.10008",
)
LAYOUT = Layout(
    files=("utkface80.npz",),
    folders=("utkface", "UTKFace"),
    markers=("utkface80.npz",),
    obtain="Get the aligned and cropped faces from the page of UTKFace, and pack them with "
    "spurless.data.packing.pack_images, size 80 and the columns age and gender.",
)


@dataclass(frozen=True)
class UtkfaceConfig:
    """How rarely gender misleads, and how many images there are."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    conflicting: float = 0.005  # share of each train class in the other gender; Biased FFHQ (others .01, .02, .05)
    n_train: int = 4800  # half of each class; so that all shares above are whole numbers of images
    n_val: int = 800  # a quarter of each group; ours
    n_test: int = 2000  # a quarter of each group; ours
    size: int = 0  # pixels; 0: as they are stored, 80
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: int = 0  # who is in which split


DEFAULT = UtkfaceConfig()


def utkface_age_gender(config: UtkfaceConfig = DEFAULT) -> Splits:
    """Draw the three splits; val and test are the same whatever conflicts in training."""
    check_shares(CARD, config, "conflicting")
    check_least(CARD, config, size=0, n_train=2, n_val=4, n_test=4)
    pack = Pack.open(find(CARD.name, LAYOUT, config.root) / "utkface80.npz")
    notes = pack.expect(CARD.name, N)
    group = _without_copies(pack, _groups(pack))
    kept = (group != NOBODY).nonzero().flatten()
    x = read(pack.images(config.size or None, rows=kept), None)  # the same for every seed, so it is decoded once
    y, a = GROUPS.decode(group[kept])
    whole = Grouped(x, y, a, GROUPS, augment=augmentation(config.augment, config.size or x[0].shape[-1]))
    train, val, test = (whole.select(part) for part in _draw(group[kept], config))
    return Splits(train, val, test, CARD.name, asdict(config), notes)


def _groups(pack: Pack) -> Tensor:
    """Return the group of every image of the pack."""
    age, gender = (torch.from_numpy(pack.column(name)).long() for name in ("age", "gender"))
    bad = ((gender != 0) & (gender != 1)).nonzero().flatten()
    if len(bad):
        raise BadInput(
            f"{int(gender[bad[0]])} is not a gender",
            where=f"{pack.path}, image {int(bad[0])}",
            expected="0 (male) or 1 (female)",
        )
    young, old = ((low <= age) & (age <= high) for low, high in (YOUNG, OLD))
    return torch.where(young | old, GROUPS.encode(old.long(), 1 - gender), NOBODY)


def _without_copies(pack: Pack, group: Tensor) -> Tensor:
    """Leave nobody but the first of equal images, and nobody at all where their groups differ."""
    first: dict[bytes, int] = {}
    left = group.clone()
    for i in range(len(pack)):
        data = pack.encoded(i)
        original = first.setdefault(data, i)
        if original != i:
            left[i] = NOBODY
            if group[original] != group[i]:
                left[original] = NOBODY
    return left


def _draw(group: Tensor, config: UtkfaceConfig) -> list[Tensor]:
    """Deal every group out to train, val and test, in this order of numbers and in the other of chance."""
    per_class, seeds = config.n_train // 2, Seeds(config.seed)
    wrong = round(config.conflicting * per_class)
    parts: list[list[Tensor]] = [[], [], []]
    for g, name in enumerate(GROUPS.names):
        y, a = divmod(g, 2)
        counts = [config.n_test // 4, config.n_val // 4, per_class - wrong if a == y else wrong]
        members = (group == g).nonzero().flatten()
        if sum(counts) > len(members):
            raise BadInput(
                f"the group {name!r} is too small for the three splits",
                where=CARD.name,
                expected=f"{sum(counts):,} images",
                got=f"{len(members):,}",
                do="Lower 'conflicting', 'n_train', 'n_val' or 'n_test'.",
            )
        members = members[torch.randperm(len(members), generator=seeds.generator("split", name))]
        for part, piece in zip(reversed(parts), torch.split(members[: sum(counts)], counts), strict=True):
            part.append(piece)
    return [torch.cat(part).sort().values for part in parts]


DATASET = Dataset(card=CARD, config=UtkfaceConfig, make=utkface_age_gender, layout=LAYOUT)
