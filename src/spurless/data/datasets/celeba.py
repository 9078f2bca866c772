"""CelebA: faces with 40 attributes; the usual label is blond hair, and nearly all blond people are women.

It reads three layouts, each with the aligned images in ``img_align_celeba/``:

* torchvision's: ``list_attr_celeba.txt`` (a count, the 40 names, a row of -1 and 1 for each image) and
  ``list_eval_partition.txt``.
* Kaggle's: ``list_attr_celeba.csv`` and ``list_eval_partition.csv``.
* That of Kirichenko et al. (DFR): ``metadata.csv`` with ``img_filename``, ``y``, ``place`` and ``split``, which has
  blond hair and gender only.

The groups are numbered as in all papers (not blond 0, blond 1; female 0, male 1), so the aligned groups are those whose
numbers differ: men who are not blond, and blond women. The worst group is usually blond men. Barsbey et al. (large
learning rates) use gender as the label and hair as the attribute: ``label="Male", attribute="Blond_Hair"``.

``partition="imperfect"`` gives methods the two domains of Zhou et al. (GC-DRO) instead of the four groups: domain 0
has no blond men, and as many dark-haired as blond women; domain 1 is the rest. Evaluation uses the four groups.

Deviations:
    * The domains are sampled by ``seed``; the authors use numpy's seed 1. For a part of CelebA, each domain gets the
      published fraction of every group, rounded.
    * Test has no domains; the authors sample some that are not used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spurless.core.config import Fraction
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, find_folder, require_file
from spurless.data.datasets._common import (
    BINARY_CODES,
    SPLIT_CODES,
    ImageConfig,
    ImageFilesConfig,
    PixelsOrZero,
    read_image_split,
    sample_split_numbers,
    split_examples,
    total_counts,
)
from spurless.data.loaders.csv import ImageRoot, encode_column, read_columns
from spurless.data.loaders.images import read_images
from spurless.data.loaders.pack import Pack
from spurless.data.split import Split, Splits
from spurless.data.transforms import augmentation

ATTRIBUTES = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)  # fmt: skip
DEFAULT_PAIR = ("Blond_Hair", "Male")
VALUE_NAMES = {"Blond_Hair": ("not blond", "blond"), "Male": ("female", "male")}
PUBLISHED = {"train": (71629, 66874, 22880, 1387), "val": (8535, 8276, 2874, 182), "test": (9767, 7535, 2480, 180)}
FIRST_DOMAIN = {"train": (22880, 65487, 22880, 0), "val": (2874, 8094, 2874, 0)}
"""Number of examples of each group in domain 0 of Zhou et al."""
DOMAINS = ("domain 0", "domain 1")
PARTITIONS = ("clean", "imperfect")
SIGN_CODES = {"-1": 0, "1": 1}
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
        ("list_attr_celeba.txt", "list_attr_celeba.csv", "metadata.csv", "img_align_celeba/metadata.csv"),
        ("list_eval_partition.txt", "list_eval_partition.csv", "metadata.csv", "img_align_celeba/metadata.csv"),
        ("img_align_celeba/*.jpg", "img_align_celeba/img_align_celeba/*.jpg", "*.jpg"),
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
class CelebAConfig(ImageFilesConfig):
    """Options of ``celeba``."""

    label: str = "Blond_Hair"  # any of the 40 attributes; Sagawa et al. 2020
    attribute: str = "Male"  # any other of the 40; Sagawa et al. 2020
    partition: str = "clean"  # or imperfect: methods are given two domains; Zhou et al. 2021


def celeba(config: CelebAConfig = CelebAConfig()) -> Splits:
    """Read the three splits."""
    _check_names(config)
    folder = find_folder(CARD.name, LAYOUT, config.root)
    table = _read_lists(folder, (config.label, config.attribute))
    groups = Groups(value_names(config.label), value_names(config.attribute))
    whole = read_image_split(_find_images(folder, table), table.y, table.a, groups, config)
    published = PUBLISHED if (config.label, config.attribute) == DEFAULT_PAIR else total_counts(PUBLISHED)
    splits = split_examples(CARD, config, whole, table.split, published)
    if config.partition == "imperfect":
        seeds = Seeds(config.seed)
        train, val = _assign_domains(splits.train, "train", seeds), _assign_domains(splits.val, "val", seeds)
        splits = replace(splits, train=train, val=val)
    return splits


@dataclass(frozen=True)
class _ImageList:
    """File names, labels, attributes and splits of all images; ``first_row`` is the row of the first in the file."""

    path: Path
    first_row: int
    files: list[str]
    y: Tensor
    a: Tensor
    split: Tensor


def _check_names(config: CelebAConfig) -> None:
    for name in (config.label, config.attribute):
        if name not in ATTRIBUTES:
            raise UnknownNameError("attribute of CelebA", name, ATTRIBUTES)
    if config.label == config.attribute:
        raise InputError("label and attribute must differ", where=CARD.name, got=config.label)
    check_choice(CARD, config, "partition", PARTITIONS)
    if config.partition == "imperfect" and (config.label, config.attribute) != DEFAULT_PAIR:
        raise InputError(
            "the imperfect partition is defined only for hair and gender",
            where=CARD.name,
            expected="label=Blond_Hair, attribute=Male",
            got=f"label={config.label}, attribute={config.attribute}",
        )


def value_names(attribute: str) -> tuple[str, str]:
    """Return the names of the two values of an attribute."""
    name = attribute.replace("_", " ")
    return VALUE_NAMES.get(attribute, (f"not {name}", name))


def _read_lists(folder: Path, columns: tuple[str, str]) -> _ImageList:
    """Read the lists that are present; a list of attributes is preferred to the metadata."""
    text, sheet = folder / "list_attr_celeba.txt", folder / "list_attr_celeba.csv"
    if text.is_file():
        files, y, a = _read_attributes(text, columns)
        return _ImageList(
            text, 3, files, y, a, _read_partition(require_file(folder / "list_eval_partition.txt", CARD.name), files)
        )
    if sheet.is_file():
        cells = read_columns(sheet, ("image_id", *columns))
        y, a = (encode_column(cells[name], SIGN_CODES, sheet, name) for name in columns)
        files = cells["image_id"]
        return _ImageList(
            sheet, 2, files, y, a, _read_partition(require_file(folder / "list_eval_partition.csv", CARD.name), files)
        )
    return _read_metadata(folder, columns)


def _read_metadata(folder: Path, columns: tuple[str, str]) -> _ImageList:
    paths = (folder / "metadata.csv", folder / "img_align_celeba" / "metadata.csv")
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise InputError(
            "there is no list of attributes", where=folder, expected=LAYOUT.file_names[0], hint=LAYOUT.obtain
        )
    if columns != DEFAULT_PAIR:
        hint = "For other attributes, add list_attr_celeba.txt and list_eval_partition.txt to the folder."
        raise InputError("the file has only Blond_Hair and Male", where=path, got=", ".join(columns), hint=hint)
    cells = read_columns(path, ("img_filename", "y", "place", "split"))
    y, a = (encode_column(cells[name], BINARY_CODES, path, name) for name in ("y", "place"))
    return _ImageList(path, 2, cells["img_filename"], y, a, encode_column(cells["split"], SPLIT_CODES, path, "split"))


def _read_attributes(path: Path, columns: tuple[str, str]) -> tuple[list[str], Tensor, Tensor]:
    """Read the published text file: the number of images, the attribute names, and a row for each image."""
    lines = _read_lines(path)
    (_, count), (_, names) = (next(lines, (0, [])) for _ in range(2))
    if len(count) != 1 or not count[0].isdigit():
        raise InputError("line 1 is not the number of images", where=path, got=repr(" ".join(count)))
    for name in columns:
        if name not in names:
            raise InputError(f"no column is called {name!r}", where=f"{path}, line 2")
    positions = [1 + names.index(name) for name in columns]
    files, values = [], []
    for number, row in lines:
        if len(row) != 1 + len(names):
            raise InputError("the row is truncated", where=f"{path}, line {number}", expected=f"{1 + len(names)} cells")
        signs = [row[position] for position in positions]
        if not set(signs) <= set(SIGN_CODES):
            raise InputError(
                "an attribute is neither -1 nor 1", where=f"{path}, line {number}", got=" and ".join(signs)
            )
        files.append(row[0])
        values.append([SIGN_CODES[sign] for sign in signs])
    if not files or len(files) != int(count[0]):
        raise InputError("the file is truncated", where=path, expected=f"{count[0]} rows", got=len(files))
    y, a = torch.tensor(values).T.contiguous()
    return files, y, a


def _read_partition(path: Path, files: list[str]) -> Tensor:
    if path.suffix == ".csv":
        cells = read_columns(path, ("image_id", "partition"))
        known = dict(zip(cells["image_id"], cells["partition"], strict=True))
    else:
        known = {row[0]: row[-1] for _, row in _read_lines(path)}
    for name in files:
        if known.get(name) not in SPLIT_CODES:
            raise InputError(f"the split of {name} is missing", where=path, expected="0, 1 or 2", got=known.get(name))
    return torch.tensor([SPLIT_CODES[known[name]] for name in files], dtype=torch.long)


def _read_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if row := line.split():
                    yield number, row
    except UnicodeDecodeError as error:
        raise InputError(f"the file is not text: {error}", where=path) from None


def _find_images(folder: Path, table: _ImageList) -> list[Path]:
    """Return the path of every image; Kaggle nests the folder of images in one of the same name."""
    repeated = next((name for name, count in Counter(table.files).items() if count > 1), None)
    if repeated is not None:
        raise InputError(f"the image {repeated} is listed twice", where=table.path)
    candidates = [
        folder / part
        for part in ("img_align_celeba/img_align_celeba", "img_align_celeba", ".")
        if (folder / part).is_dir()
    ]
    image_folder = next((path for path in candidates if (path / table.files[0]).is_file()), candidates[0])
    root = ImageRoot(image_folder)
    return [root.file(name, f"{table.path}, row {row}") for row, name in enumerate(table.files, start=table.first_row)]


def _assign_domains(split: Split, name: str, seeds: Seeds) -> Split:
    """Assign the published fraction of every group to domain 0, and the rest to domain 1."""
    g, domain = split.g, torch.ones_like(split.y)
    for group, (in_first, published) in enumerate(zip(FIRST_DOMAIN[name], PUBLISHED[name], strict=True)):
        members = (g == group).nonzero().flatten()
        order = torch.randperm(len(members), generator=seeds.generator("domain", name, group))
        domain[members[order[: round(len(members) * in_first / published)]]] = 0
    return replace(split, domain=domain, domains=DOMAINS)


CELEBA = Dataset(card=CARD, config=CelebAConfig, make=celeba, layout=LAYOUT)

CELEBA10K_N_IMAGES = 10_000
CELEBA10K_CARD = Card(
    name="celeba10k",
    summary="Blond hair or not in 10,000 faces; one in 18 of the blond people is a man.",
    input="RGB image, 3 x 109 x 89, or 3 x size x size, uint8",
    label="any of the 40 attributes; by default not blond or blond",
    attribute="any other of the 40 attributes; by default female or male",
    splits="train 6,001 (2647/2482/823/49 by group), val 2,000 (883/827/274/16), test 1,999 (882/827/274/16)",
    source="CelebA, images 1 to 10,000, 89 x 109, JPEG",
    licence="non-commercial research only (CelebA)",
    citation="Liu et al., Deep Learning Face Attributes in the Wild, ICCV 2015, arXiv:1411.7766",
)
CELEBA10K_LAYOUT = Layout(
    files=("celeba10k.npz",),
    folders=("celeba10k", "celeba"),
    markers=("celeba10k.npz",),
    obtain="This file is not published; for the whole dataset use celeba.",
)


@dataclass(frozen=True)
class Celeba10kConfig(ImageConfig):
    """Options of ``celeba10k``."""

    label: str = "Blond_Hair"  # Sagawa et al.
    attribute: str = "Male"  # Sagawa et al.
    val: Fraction = 0.2  # fraction of every group; ours
    test: Fraction = 0.2  # fraction of every group; ours
    size: PixelsOrZero = 0  # pixels of the square cropped from the centre; 0: as stored, 109 high and 89 wide


def celeba10k(config: Celeba10kConfig = Celeba10kConfig()) -> Splits:
    """Read the images and split them.

    The first 10,000 faces of CelebA at half their size, in one file.

    It reads ``celeba10k.npz``: the images, ``attr`` (40 bits per image) and ``names`` (of the 40 attributes). Any of
    them can be the label, and any other the attribute.

    Deviations:
        * All images are from the official train split. They are split here at random by ``seed``, stratified by group;
          val
          and test are 20 % each, since there are only 81 blond men.
        * The official splits share no person. The file does not identify persons, so one may occur in two splits.
    """
    if config.label == config.attribute:
        raise InputError(
            "option 'attribute' must differ from the label", where=CELEBA10K_CARD.name, got=config.attribute
        )
    pack = Pack.open(find_folder(CELEBA10K_CARD.name, CELEBA10K_LAYOUT, config.root) / "celeba10k.npz")
    notes = pack.check_count(CELEBA10K_CARD.name, CELEBA10K_N_IMAGES)
    columns = _read_attributes_celeba10k(pack)
    y, a = (_get_column(columns, config, option) for option in ("label", "attribute"))
    fractions = (1 - config.val - config.test, config.val, config.test)
    split = sample_split_numbers(2 * y + a, fractions, Seeds(config.seed), classes=y)
    groups = Groups(value_names(config.label), value_names(config.attribute))
    x = read_images(pack.images(config.size or None), None)
    whole = Split(x, y, a, groups, augment=augmentation(config.augment, config.size or x[0].shape[-1]))
    return replace(split_examples(CELEBA10K_CARD, config, whole, split), notes=notes)


def _read_attributes_celeba10k(pack: Pack) -> dict[str, Tensor]:
    """Return a column of 0 and 1 for each attribute, by name."""
    import numpy as np

    names, bits = pack.arrays.get("names"), pack.column("attr")
    if names is None or bits.dtype != np.uint8 or bits.ndim != 2 or bits.shape[1] != -(-len(names) // 8):
        expected = "'attr' of uint8, a row per image, and 'names'"
        got = f"{bits.dtype} {bits.shape} and {'no' if names is None else len(names)} names"
        raise InputError("the attributes are malformed", where=pack.path, expected=expected, got=got)
    table = torch.from_numpy(np.unpackbits(bits, axis=1)).long()
    return {str(name): table[:, k] for k, name in enumerate(names)}


def _get_column(columns: dict[str, Tensor], config: Any, option: str) -> Tensor:
    name = getattr(config, option)
    if name not in columns:
        raise UnknownNameError(f"{option} of {CELEBA10K_CARD.name}", name, columns)
    return columns[name]


CELEBA10K = Dataset(card=CELEBA10K_CARD, config=Celeba10kConfig, make=celeba10k, layout=CELEBA10K_LAYOUT)
