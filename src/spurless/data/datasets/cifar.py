"""CIFAR-10 and CIFAR-100: small photographs without an attribute, so the groups are the classes.

A val split is taken from the 50,000 train images (random, stratified); the 10,000 test images are unchanged. CIFAR-100
has its fine labels. :mod:`~spurless.data.datasets.corrupted` and :mod:`~spurless.data.datasets.dominoes` use the
readers of this module too.

Three layouts are read, from the data folder or a folder in it. The official Python batches are pickles, which can run
code when they are opened: torchvision opens them, and only if their checksums are the published ones. The official
binary batches are plain bytes. ``cifar10_jpeg.npz`` contains CIFAR-10 as concatenated JPEG files (``jpg_train``) with
offsets (``off_train``) and labels (``y_train``), and the same for ``test``. It is a lossy copy, so the options of the
splits state which form was read, and a note warns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spurless.core.cache import cached_tensors
from spurless.core.config import SeedNumber
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.hashing import content_hash
from spurless.core.seeds import Seeds
from spurless.data.checks import check_choice
from spurless.data.dataset import Card, Dataset, Layout, check_published_counts, find_folder, require_file
from spurless.data.datasets._base_images import BaseImages, LabelledImages, check_image_labels, hold_out_val, read_npz
from spurless.data.datasets._common import Examples, FilesConfig, join_splits
from spurless.data.loaders.images import decode_all, decode_image
from spurless.data.split import Split, Splits
from spurless.data.transforms import augmentation

FORMS = ("auto", "official", "jpeg")
N_TRAIN, N_TEST = 50_000, 10_000
IMAGE_SHAPE = (3, 32, 32)
CIFAR10_SOURCE = "CIFAR-10: 60,000 photographs of 32 x 32 pixels"
LICENCE = "none stated (CIFAR; free for research)"
CITATION = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
_CIFAR100_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(name.replace("_", " ") for name in _CIFAR100_NAMES.split())
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LOSSY_NOTE = (
    "The images of CIFAR-10 were read from a lossy JPEG copy: results are close to those of the originals, not equal."
)

JPEG_ARCHIVE = "cifar10_jpeg.npz"


@dataclass(frozen=True)
class OfficialFiles:
    """The official files of CIFAR-10 or CIFAR-100, as pickles or as binary batches."""

    torchvision_class: str
    n_classes: int
    pickle_folder: str
    binary_folder: str
    binary_files: tuple[tuple[str, ...], tuple[str, ...]]  # the binary files of train and of test
    label_bytes: int  # number of bytes before each image; the last one is the label


CIFAR10_FILES = OfficialFiles(
    "CIFAR10",
    10,
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    (tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)),
    1,
)
CIFAR100_FILES = OfficialFiles(
    "CIFAR100", 100, "cifar-100-python", "cifar-100-binary", (("train.bin",), ("test.bin",)), 2
)


def download_cifar(name: str, root: Path) -> None:
    """Download the Python batches of CIFAR10 or CIFAR100 with torchvision, which checks the checksum."""
    from torchvision import datasets

    getattr(datasets, name)(str(root), download=True)


CIFAR10_LAYOUT = Layout(
    files=((CIFAR10_FILES.pickle_folder, CIFAR10_FILES.binary_folder, JPEG_ARCHIVE),),
    folders=("cifar10", "cifar-10", "CIFAR10", "CIFAR-10"),
    markers=(CIFAR10_FILES.pickle_folder, CIFAR10_FILES.binary_folder, JPEG_ARCHIVE),
    archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    obtain="Get CIFAR-10 with torchvision.datasets.CIFAR10(FOLDER, download=True).",
    download=partial(download_cifar, "CIFAR10"),
)
CIFAR100_LAYOUT = Layout(
    files=((CIFAR100_FILES.pickle_folder, CIFAR100_FILES.binary_folder),),
    folders=("cifar100", "cifar-100", "CIFAR100", "CIFAR-100"),
    markers=(CIFAR100_FILES.pickle_folder, CIFAR100_FILES.binary_folder),
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    obtain="Get CIFAR-100 with torchvision.datasets.CIFAR100(FOLDER, download=True).",
    download=partial(download_cifar, "CIFAR100"),
)


@dataclass(frozen=True)
class Cifar:
    """The two official splits, and the form they were read from: ``official`` or ``jpeg``."""

    train: LabelledImages
    test: LabelledImages
    form: str

    def hold_out_val(self, name: str, n_val: int, seeds: Seeds) -> BaseImages:
        """Split a val split of ``n_val`` images off train."""
        return hold_out_val(name, self.train, self.test, n_val, seeds)

    def make_splits(self, card: Card, parts: Sequence[Split], config: Any) -> Splits:
        """Return the splits with the form that was read in their options, and a note if it is lossy."""
        config = replace(config, form=self.form) if hasattr(config, "form") else config
        return replace(join_splits(card, config, parts), notes=(LOSSY_NOTE,) if self.form == "jpeg" else ())


def read_cifar10(root: str | Path | None, form: str = "auto", name: str = "cifar10") -> Cifar:
    """Read CIFAR-10 in the official order: uint8 ``(N, 3, 32, 32)`` and int64 labels.

    ``form`` is ``official`` or ``jpeg``; ``auto`` prefers the official files. Errors contain the ``name``.
    """
    folder, form = _find_cifar10(root, form, name)
    if form == "official":
        return _read_official(CIFAR10_FILES, folder, name)
    return Cifar(_read_jpegs(folder / JPEG_ARCHIVE, "train"), _read_jpegs(folder / JPEG_ARCHIVE, "test"), form)


def read_cifar100(root: str | Path | None, name: str = "cifar100") -> Cifar:
    """Read CIFAR-100 with its 100 fine labels; see :func:`read_cifar10`."""
    return _read_official(CIFAR100_FILES, find_folder(name, CIFAR100_LAYOUT, root), name)


def _find_cifar10(root: str | Path | None, form: str, name: str) -> tuple[Path, str]:
    if form == "jpeg":
        return find_folder(name, replace(CIFAR10_LAYOUT, markers=(JPEG_ARCHIVE,)), root), form
    try:
        official = replace(CIFAR10_LAYOUT, markers=(CIFAR10_FILES.pickle_folder, CIFAR10_FILES.binary_folder))
        return find_folder(name, official, root), "official"
    except InputError:
        if form == "official":
            raise
        return find_folder(name, CIFAR10_LAYOUT, root), "jpeg"


def _read_official(files: OfficialFiles, folder: Path, name: str) -> Cifar:
    binary = folder / files.binary_folder
    if binary.exists():  # preferred: plain bytes cannot run code
        train, test = (_read_binary([binary / file for file in part], files, name) for part in files.binary_files)
    else:
        train, test = (_read_pickles(files, folder, is_train) for is_train in (True, False))
    return Cifar(train, test, "official")


def _read_pickles(files: OfficialFiles, folder: Path, is_train: bool) -> LabelledImages:
    """Let torchvision open the Python batches, which it does only if their checksums are the published ones."""
    from torchvision import datasets

    torchvision_class = getattr(datasets, files.torchvision_class)
    path = folder / files.pickle_folder
    try:
        content = torchvision_class(str(folder), train=is_train, download=False)
    except RuntimeError:
        raise InputError(
            f"the file {_first_wrong_file(torchvision_class, path)!r} is missing or not the published one, and it is "
            "a pickle, which may run code",
            where=path,
            hint="Download the published archive again, or its binary version.",
        ) from None
    x = torch.from_numpy(content.data).permute(0, 3, 1, 2).contiguous()
    return check_image_labels(x, torch.tensor(content.targets), files.n_classes, path)


def _first_wrong_file(torchvision_class: Any, folder: Path) -> str:
    from torchvision.datasets.utils import check_integrity

    meta = (torchvision_class.meta["filename"], torchvision_class.meta["md5"])
    files = [*torchvision_class.train_list, *torchvision_class.test_list, meta]
    return next((str(file) for file, md5 in files if not check_integrity(str(folder / file), md5)), folder.name)


def _read_binary(paths: list[Path], files: OfficialFiles, name: str) -> LabelledImages:
    """Read binary batches: the label bytes of an image, then its red, green and blue pixels, row by row."""
    length, parts = files.label_bytes + 3 * 32 * 32, []
    for path in paths:
        content = bytearray(require_file(path, name).read_bytes())
        if not content or len(content) % length:
            expected, got = f"a multiple of {length} bytes", len(content)
            raise InputError("the file is truncated or not a batch of CIFAR", where=path, expected=expected, got=got)
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, length)
        x, y = rows[:, files.label_bytes :].reshape(-1, *IMAGE_SHAPE), rows[:, files.label_bytes - 1]
        parts.append(check_image_labels(x, y, files.n_classes, path))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@dataclass(frozen=True)
class _Jpegs:
    """Concatenated JPEG files, decoded on access."""

    content: Any
    offsets: list[int]
    where: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Tensor:
        return decode_image(self.content[self.offsets[i] : self.offsets[i + 1]].tobytes(), f"{self.where}, image {i}")

    def fingerprint(self) -> str:
        return content_hash(self.content.tobytes(), self.offsets)


def _read_jpegs(path: Path, split: str) -> LabelledImages:
    content, offsets, y = read_npz(path, (f"jpg_{split}", f"off_{split}", f"y_{split}"))
    if content.ndim != 1 or content.dtype != "uint8" or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise InputError(f"jpg_{split} must be uint8, and off_{split} integers", where=path)
    bounds = [int(offset) for offset in offsets]
    if bounds != sorted(bounds) or not bounds or bounds[0] < 0 or bounds[-1] > len(content):
        raise InputError(f"off_{split} must increase from 0 to the number of bytes", where=path, expected=len(content))
    source = _Jpegs(content, bounds, f"{path}, {split}")
    if len(source) != len(y) or len(y) == 0:
        raise InputError(f"jpg_{split} and y_{split} differ in length", where=path, got=f"{len(source)} and {len(y)}")
    x = cached_tensors(content_hash("cifar jpeg", 1, source.fingerprint()), lambda: {"x": decode_all(source)})["x"]
    if x.shape[1:] != IMAGE_SHAPE:
        raise InputError("not images of CIFAR", where=path, expected=IMAGE_SHAPE, got=tuple(x.shape[1:]))
    return check_image_labels(x, torch.from_numpy(y), 10, path)


CIFAR10_CARD = Card(
    name="cifar10",
    summary="Small photographs of ten classes; no attribute is known.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the object, 10 classes",
    attribute="none",
    splits="train 45,000 and val 5,000 (of the official 50,000), test 10,000",
    source=CIFAR10_SOURCE,
    licence=LICENCE,
    citation=CITATION,
)
CIFAR100_CARD = Card(
    name="cifar100",
    summary="Small photographs of a hundred classes; no attribute is known.",
    input="RGB image, 3 x 32 x 32, uint8",
    label="the object, 100 classes",
    attribute="none",
    splits="train 45,000 and val 5,000 (of the official 50,000), test 10,000",
    source="CIFAR-100: 60,000 photographs of 32 x 32 pixels",
    licence=LICENCE,
    citation=CITATION,
)


@dataclass(frozen=True)
class Cifar100Config(FilesConfig):
    """Options of ``cifar100``."""

    val: Examples = 5000  # images of the official train split; usual
    augment: str = "none"  # none, flip, crop-flip or turn, in training
    seed: SeedNumber = 0


@dataclass(frozen=True)
class Cifar10Config(Cifar100Config):
    """Options of ``cifar10``."""

    form: str = "auto"  # official, or jpeg (a lossy copy); auto: official files if present


def cifar10(config: Cifar10Config) -> Splits:
    """Read CIFAR-10."""
    check_choice(CIFAR10_CARD, config, "form", FORMS)
    return _load(CIFAR10_CARD, config, CIFAR10_CLASSES, lambda name: read_cifar10(config.root, config.form, name))


def cifar100(config: Cifar100Config) -> Splits:
    """Read CIFAR-100."""
    return _load(CIFAR100_CARD, config, CIFAR100_CLASSES, lambda name: read_cifar100(config.root, name))


def _load(card: Card, config: Cifar100Config, classes: tuple[str, ...], read: Callable[[str], Cifar]) -> Splits:
    augment = augmentation(config.augment, 32)
    cifar = read(card.name)
    base = cifar.hold_out_val(card.name, config.val, Seeds(config.seed))
    splits = cifar.make_splits(card, base.to_splits(Groups(labels=classes), augment), config)
    return check_published_counts(splits, {"train": N_TRAIN - config.val, "val": config.val, "test": N_TEST})


CIFAR10 = Dataset(CIFAR10_CARD, Cifar10Config, cifar10, CIFAR10_LAYOUT)
CIFAR100 = Dataset(CIFAR100_CARD, Cifar100Config, cifar100, CIFAR100_LAYOUT)
