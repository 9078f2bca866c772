"""UTKFace by age and gender: young or old faces; in training the young are women and the old are men.

The construction is that of Biased FFHQ, on faces that fit in 25 MB. Young is 10 to 29 years old, old is 40 to 59; the
others are dropped. In training, all but ``round(conflicting * n)`` of the ``n`` images of a class have the gender that
goes with it. Val and test have equally many images of every group. Attributes are numbered such that ``a == y`` if
gender predicts the age correctly. It reads ``utkface80.npz``: the images, ``age`` and ``gender`` (0 male, 1 female).

Deviations:
    * Biased FFHQ has 19,200 train images, 96 of which conflict, and its accuracy is that of the conflicting test
      images. UTKFace has few old men: 2,400 train images per class leave 700 of the rarest aligned group for val and
      test.
    * UTKFace contains 375 images twice or more, mostly with different ages. Duplicates are dropped; all copies are
      dropped if their groups differ: 5,012 young women, 3,619 young men, 1,346 old women and 3,107 old men remain.
    * The file does not identify persons, so one may occur in two splits.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

import torch
from torch import Tensor

from spurless.core.config import Fraction, Range
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.dataset import Card, Dataset, Layout, find_folder
from spurless.data.datasets._common import MAX_EXAMPLES, ImageConfig, PixelsOrZero
from spurless.data.loaders.images import read_images
from spurless.data.loaders.pack import Pack
from spurless.data.split import Split, Splits
from spurless.data.transforms import augmentation

N_IMAGES = 23_704
YOUNG_AGES, OLD_AGES = (10, 29), (40, 59)
NO_GROUP = -1  # neither young nor old, or a duplicate
GROUPS = Groups(labels=("young", "old"), attributes=("female", "male"))
CARD = Card(
    name="utkface-age-gender",
    summary="Young against old faces; in training 99.5 % of the young are women and of the old are men.",
    input="RGB image, 3 x 80 x 80, or 3 x size x size, uint8",
    label="young (10 to 29 years) or old (40 to 59)",
    attribute="female (goes with young) or male (goes with old)",
    splits="train 4,800 (2388/12/12/2388 by group), val 800 and test 2,000 (even over the groups)",
    source="UTKFace, aligned and cropped, 80 pixels, WebP; sampled as Biased FFHQ",
    licence="non-commercial research only (UTKFace)",
    citation="Zhang et al., Age Progression/Regression by Conditional Adversarial Autoencoder, CVPR 2017, "
    "arXiv:1702.08423; after Kim et al., BiaSwap, ICCV 2021, arXiv:2108.10008",
)
LAYOUT = Layout(
    files=("utkface80.npz",),
    folders=("utkface", "UTKFace"),
    markers=("utkface80.npz",),
    obtain="Get the aligned and cropped faces from the page of UTKFace, resize them to 80 pixels, and write their "
    "encoded bytes to utkface80.npz: img, off, age and gender, as spurless.data.loaders.pack describes.",
)


@dataclass(frozen=True)
class UtkfaceConfig(ImageConfig):
    """Options of ``utkface-age-gender``."""

    conflicting: Fraction = 0.005
    """fraction of each train class with the other gender; Biased FFHQ (also .01, .02, .05)"""
    n_train: Annotated[int, Range(2, MAX_EXAMPLES)] = (
        4800  # half of each class; all fractions above give an integer number of images
    )
    n_val: Annotated[int, Range(4, MAX_EXAMPLES)] = 800  # a quarter of each group; ours
    n_test: Annotated[int, Range(4, MAX_EXAMPLES)] = 2000  # a quarter of each group; ours
    size: PixelsOrZero = 0  # pixels; 0: as stored, 80


def utkface_age_gender(config: UtkfaceConfig = UtkfaceConfig()) -> Splits:
    """Sample the three splits; val and test do not depend on ``conflicting``."""
    pack = Pack.open(find_folder(CARD.name, LAYOUT, config.root) / "utkface80.npz")
    notes = pack.check_count(CARD.name, N_IMAGES)
    group = _drop_duplicates(pack, _read_groups(pack))
    rows = (group != NO_GROUP).nonzero().flatten()
    x = read_images(pack.images(config.size or None, rows=rows), None)  # the same for every seed, so decoded only once
    y, a = GROUPS.decode(group[rows])
    whole = Split(x, y, a, GROUPS, augment=augmentation(config.augment, config.size or x[0].shape[-1]))
    train, val, test = (whole.select(part) for part in _sample_splits(group[rows], config))
    return Splits(train, val, test, CARD.name, asdict(config), notes)


def _read_groups(pack: Pack) -> Tensor:
    age, gender = (torch.from_numpy(pack.column(name)).long() for name in ("age", "gender"))
    bad = ((gender != 0) & (gender != 1)).nonzero().flatten()
    if len(bad):
        raise InputError(
            f"{int(gender[bad[0]])} is not a gender",
            where=f"{pack.path}, image {int(bad[0])}",
            expected="0 (male) or 1 (female)",
        )
    young, old = ((low <= age) & (age <= high) for low, high in (YOUNG_AGES, OLD_AGES))
    return torch.where(young | old, GROUPS.encode(old.long(), 1 - gender), NO_GROUP)


def _drop_duplicates(pack: Pack, group: Tensor) -> Tensor:
    """Drop duplicate images; drop all copies if their groups differ."""
    first: dict[bytes, int] = {}
    unique = group.clone()
    for i in range(len(pack)):
        data = pack.encoded(i)
        original = first.setdefault(data, i)
        if original != i:
            unique[i] = NO_GROUP
            if group[original] != group[i]:
                unique[original] = NO_GROUP
    return unique


def _sample_splits(group: Tensor, config: UtkfaceConfig) -> list[Tensor]:
    """Return the indices of train, val and test; test is sampled first, so it does not depend on the others."""
    per_class, seeds = config.n_train // 2, Seeds(config.seed)
    n_conflicting = round(config.conflicting * per_class)
    parts: list[list[Tensor]] = [[], [], []]
    for g, name in enumerate(GROUPS.names):
        y, a = divmod(g, 2)
        n_train = per_class - n_conflicting if a == y else n_conflicting
        counts = [config.n_test // 4, config.n_val // 4, n_train]
        members = (group == g).nonzero().flatten()
        if sum(counts) > len(members):
            raise InputError(
                f"the group {name!r} is too small for the three splits",
                where=CARD.name,
                expected=f"{sum(counts):,} images",
                got=f"{len(members):,}",
                hint="Lower 'conflicting', 'n_train', 'n_val' or 'n_test'.",
            )
        members = members[torch.randperm(len(members), generator=seeds.generator("split", name))]
        for part, piece in zip(reversed(parts), torch.split(members[: sum(counts)], counts), strict=True):
            part.append(piece)
    return [torch.cat(part).sort().values for part in parts]


DATASET = Dataset(card=CARD, config=UtkfaceConfig, make=utkface_age_gender, layout=LAYOUT)
