"""CelebA: faces with 40 attributes; is the hair blond, where nearly all blond people are women?

Reads three layouts, each with the aligned images in ``img_align_celeba/``:

* torchvision's: ``list_attr_celeba.txt`` (a count, the 40 names, a row of -1 and 1 for each image) and
  ``list_eval_partition.txt``.
* Kaggle's: ``list_attr_celeba.csv`` and ``list_eval_partition.csv``.
* That of Kirichenko et al. (DFR): ``metadata.csv`` with ``img_filename``, ``y``, ``place`` and ``split``; it knows
  blond hair and gender alone.

The groups are numbered as in all papers (not blond 0, blond 1; female 0, male 1), so that here the aligned groups
are those whose numbers differ: men who are not blond, and blond women. The worst group is mostly blond men. Barsbey et
al. (large learning rates) write of it the other way round, gender as the core feature and hair as the spurious one:
that is ``label="Male", attribute="Blond_Hair"``.

``partition="imperfect"`` gives methods the two domains of Zhou et al. (GC-DRO) in place of the four groups: domain 0
has no blond man, and as many dark-haired as blond women; domain 1 is the rest. Evaluation stays on the four groups.

Deviations:
    * Who is in which domain is drawn by ``seed``; the authors draw with numpy's seed 1. Of a part of CelebA, each
      domain gets the published share of every group, rounded, and not the published number.
    * Test has no domains; the authors draw some that nothing reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput, UnknownName
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.images import ImageFiles, read
from spurless.data.layout import Layout, compare, find, need
from spurless.data.limits import check_choice, check_least
from spurless.data.names import Names
from spurless.data.rows import Inside, codes, columns
from spurless.data.splitting import assemble
from spurless.data.transforms import augmentation

ATTRIBUTES = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)  # fmt: skip
USUAL = ("Blond_Hair", "Male")
SPOKEN = {"Blond_Hair": ("not blond", "blond"), "Male": ("female", "male")}
PUBLISHED = {
    "train": (71629, 66874, 22880, 1387),
    "val": (8535, 8276, 2874, 182),
    "test": (9767, 7535, 2480, 180),
}
FIRST_DOMAIN = {"train": (22880, 65487, 22880, 0), "val": (2874, 8094, 2874, 0)}
"""How many of each group Zhou et al. put into domain 0."""
DOMAINS = ("domain 0", "domain 1")
PARTITIONS = ("clean", "imperfect")
SIGNS = {"-1": 0, "1": 1}
BINARY = {"0": 0, "1": 1}
SPLITS = {"0": 0, "1": 1, "2": 2}
CARD = Card(
    name="celeba",
    summary="Blond or not; of the blond people in training 94 % are women.",
    input="RGB image of a face, 3 x size x size, uint8",
    label="not blond or blond; any other of the 40 attributes by label=",
    attribute="female or male; any other of the 40 attributes by attribute=",
    splits="train 162,770 (71629/66874/22880/1387 by group), val 19,867, test 19,962",
    source="CelebA: photographs of celebrities, aligned and cropped",
    licence="non-commercial research only",
    citation="Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766",
)


def _download(folder: Path) -> None:
    from torchvision.datasets import CelebA

    CelebA(str(folder), split="all", download=True)


LAYOUT = Layout(
    files=(
        "list_attr_celeba.txt, list_eval_partition.txt or list_attr_celeba.csv, list_eval_partition.csv "
        "or metadata.csv or img_align_celeba/metadata.csv",
        "img_align_celeba/<image>.jpg or img_align_celeba/img_align_celeba/<image>.jpg or <image>.jpg",
    ),
    folders=("celeba", "CelebA", "celebA", "celebA/data", "celebA_v1.0"),
    markers=("list_attr_celeba.txt", "list_attr_celeba.csv", "img_align_celeba", "000001.jpg"),
    archives=("img_align_celeba.zip", "celeba-dataset.zip", "celebA_v1.0.tar.gz"),
    obtain=(
        "Get img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt from the page of CelebA at CUHK, "
        "or celeba-dataset (jessicali9530) from Kaggle."
    ),
    download=_download,
)


@dataclass(frozen=True)
class CelebAConfig:
    """Where the files are, what is told from what, and how large the images shall be."""

    root: str | None = None  # the data folder; None: $SPURLESS_DATA, else ./data
    size: int = 224  # pixels; the papers
    label: str = "Blond_Hair"  # any of the 40 attributes; Sagawa et al. 2020
    attribute: str = "Male"  # any other of the 40; Sagawa et al. 2020
    partition: str = "clean"  # or imperfect: methods are given two domains; Zhou et al. 2021
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    cache: bool | None = None  # keep decoded images for later runs; None: if there are many
    seed: int = 0  # draws the domains; the splits are published


DEFAULT = CelebAConfig()


def celeba(config: CelebAConfig = DEFAULT) -> Splits:
    """Read the three splits."""
    check_least(CARD, config, size=8)
    _check_names(config)
    augment = augmentation(config.augment, config.size)
    folder = find(CARD.name, LAYOUT, config.root)
    table = _table(folder, (config.label, config.attribute))
    paths = _images(folder, table)
    x = read(ImageFiles(paths, config.size), None, cache=config.cache)
    groups = Groups(spoken(config.label), spoken(config.attribute))
    whole = Grouped(x, table.y, table.a, groups, augment=augment, names=Names.of_files(paths))
    seeds = Seeds(config.seed)
    splits = assemble(whole, table.split, seeds=seeds, name=CARD.name, options=asdict(config))
    if config.partition == "imperfect":
        train, val = _divided(splits.train, "train", seeds), _divided(splits.val, "val", seeds)
        splits = replace(splits, train=train, val=val)
    totals = {name: sum(counts) for name, counts in PUBLISHED.items()}
    return compare(splits, PUBLISHED if (config.label, config.attribute) == USUAL else totals)


@dataclass(frozen=True)
class _Table:
    """What the lists say of every image; ``first`` is the number of the row of the first."""

    path: Path
    first: int
    files: list[str]
    y: Tensor
    a: Tensor
    split: Tensor


def _check_names(config: CelebAConfig) -> None:
    for name in (config.label, config.attribute):
        if name not in ATTRIBUTES:
            raise UnknownName("attribute of CelebA", name, ATTRIBUTES)
    if config.label == config.attribute:
        raise BadInput("the label is its own attribute", where=CARD.name, got=config.label)
    check_choice(CARD, config, "partition", PARTITIONS)
    if config.partition == "imperfect" and (config.label, config.attribute) != USUAL:
        raise BadInput(
            "the imperfect partition is one of hair and gender",
            where=CARD.name,
            expected="label=Blond_Hair, attribute=Male",
            got=f"label={config.label}, attribute={config.attribute}",
        )


def spoken(attribute: str) -> tuple[str, str]:
    """Return what people without and with an attribute are called."""
    word = attribute.replace("_", " ")
    return SPOKEN.get(attribute, (f"not {word}", word))


def _table(folder: Path, wanted: tuple[str, str]) -> _Table:
    """Read whichever lists are there; the list of attributes knows more than the metadata."""
    text, sheet = folder / "list_attr_celeba.txt", folder / "list_attr_celeba.csv"
    if text.is_file():
        files, y, a = _attributes(text, wanted)
        return _Table(text, 3, files, y, a, _partition(need(folder / "list_eval_partition.txt", CARD.name), files))
    if sheet.is_file():
        cells = columns(sheet, ("image_id", *wanted))
        y, a = (codes(cells[name], SIGNS, sheet, name) for name in wanted)
        files = cells["image_id"]
        return _Table(sheet, 2, files, y, a, _partition(need(folder / "list_eval_partition.csv", CARD.name), files))
    return _metadata(folder, wanted)


def _metadata(folder: Path, wanted: tuple[str, str]) -> _Table:
    places = (folder / "metadata.csv", folder / "img_align_celeba" / "metadata.csv")
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise BadInput("there is no list of attributes", where=folder, expected=LAYOUT.files[0], do=LAYOUT.obtain)
    if wanted != USUAL:
        raise BadInput(
            "the file knows Blond_Hair and Male alone",
            where=path,
            got=", ".join(wanted),
            do="For other attributes put list_attr_celeba.txt and list_eval_partition.txt beside it.",
        )
    cells = columns(path, ("img_filename", "y", "place", "split"))
    y, a = (codes(cells[name], BINARY, path, name) for name in ("y", "place"))
    return _Table(path, 2, cells["img_filename"], y, a, codes(cells["split"], SPLITS, path, "split"))


def _attributes(path: Path, wanted: tuple[str, str]) -> tuple[list[str], Tensor, Tensor]:
    """Read the published text file: how many images, the names, and a row for each image."""
    lines = _lines(path)
    (_, count), (_, names) = (next(lines, (0, [])) for _ in range(2))
    if len(count) != 1 or not count[0].isdigit():
        raise BadInput("line 1 is not the number of images", where=path, got=repr(" ".join(count)))
    for name in wanted:
        if name not in names:
            raise BadInput(f"no column is called {name!r}", where=f"{path}, line 2")
    places = [1 + names.index(name) for name in wanted]
    files, values = [], []
    for number, row in lines:
        if len(row) != 1 + len(names):
            raise BadInput("the row is cut off", where=f"{path}, line {number}", expected=f"{1 + len(names)} cells")
        marks = [row[place] for place in places]
        if not set(marks) <= set(SIGNS):
            raise BadInput("an attribute is neither -1 nor 1", where=f"{path}, line {number}", got=" and ".join(marks))
        files.append(row[0])
        values.append([SIGNS[mark] for mark in marks])
    if not files or len(files) != int(count[0]):
        raise BadInput("the file is cut off", where=path, expected=f"{count[0]} rows", got=len(files))
    y, a = torch.tensor(values).T.contiguous()
    return files, y, a


def _partition(path: Path, files: list[str]) -> Tensor:
    """Return the split of every image of the other list."""
    if path.suffix == ".csv":
        cells = columns(path, ("image_id", "partition"))
        known = dict(zip(cells["image_id"], cells["partition"], strict=True))
    else:
        known = {row[0]: row[-1] for _, row in _lines(path)}
    for name in files:
        if known.get(name) not in SPLITS:
            raise BadInput(f"the split of {name} is not there", where=path, expected="0, 1 or 2", got=known.get(name))
    return torch.tensor([SPLITS[known[name]] for name in files], dtype=torch.long)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the words of every line that is not blank."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if row := line.split():
                    yield number, row
    except UnicodeDecodeError as error:
        raise BadInput(f"the file is not text: {error}", where=path) from None


def _images(folder: Path, table: _Table) -> list[Path]:
    """Return the path of every image; Kaggle packs the folder of images into one of its name."""
    repeated = next((name for name, count in Counter(table.files).items() if count > 1), None)
    if repeated is not None:
        raise BadInput(f"the image {repeated} is listed twice", where=table.path)
    parts = ("img_align_celeba/img_align_celeba", "img_align_celeba", ".")
    homes = [folder / part for part in parts if (folder / part).is_dir()]
    home = next((home for home in homes if (home / table.files[0]).is_file()), homes[0])
    inside = Inside(home)
    return [inside.file(name, f"{table.path}, row {row}") for row, name in enumerate(table.files, start=table.first)]


def _divided(split: Grouped, name: str, seeds: Seeds) -> Grouped:
    """Put a part of every group into domain 0, as large as published, or its share of a part of CelebA."""
    g, domain = split.g, torch.ones_like(split.y)
    for group, (taken, published) in enumerate(zip(FIRST_DOMAIN[name], PUBLISHED[name], strict=True)):
        members = (g == group).nonzero().flatten()
        order = torch.randperm(len(members), generator=seeds.generator("domain", name, group))
        domain[members[order[: round(len(members) * taken / published)]]] = 0
    return replace(split, domain=domain, domains=DOMAINS)


DATASET = Dataset(card=CARD, config=CelebAConfig, make=celeba, layout=LAYOUT)
