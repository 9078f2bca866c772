"""CIFAR: the readers of CIFAR-10 and CIFAR-100; the sets that are made of them all go through these.

Three layouts are read, from the data folder or a folder in it. The official Python batches are pickles, which run code
when they are opened: torchvision opens them, and only if their checksums are the published ones. The official binary
batches are plain bytes. ``cifar10_jpeg.npz`` holds CIFAR-10 as JPEG files one after another (``jpg_train``) between
offsets (``off_train``), with labels (``y_train``), and the same for ``test``; it is a lossy copy, so that the form that
was read is always told in the options of the splits, and a note says so.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.provenance import digest
from spurless.core.seeds import Seeds
from spurless.data.grouped import Splits
from spurless.data.images import decode_all, decode_image
from spurless.data.layout import Layout, find, need
from spurless.data.made import kept
from spurless.data.raw import Labelled, Raw, Three, check_labelled, hold_out, read_arrays

FORMS = ("auto", "official", "jpeg")
TRAIN, TEST = 50_000, 10_000
SHAPE = (3, 32, 32)
SOURCE = "CIFAR-10: 60,000 photographs of 32 x 32 pixels"
LICENCE = "none stated (CIFAR; free for research)"
CITATION = "Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LOSSY = "The images of CIFAR-10 were read from a lossy JPEG copy: numbers are near those of the originals, not equal."

JPEG = "cifar10_jpeg.npz"


@dataclass(frozen=True)
class Kind:
    """The two official layouts of a CIFAR."""

    name: str
    n_classes: int
    pickles: str
    """the folder of the Python batches"""
    binary: str
    """the folder of the binary batches"""
    files: tuple[tuple[str, ...], tuple[str, ...]]
    """the binary files of train and of test"""
    label_bytes: int
    """before each image; the last is the label"""


TEN = Kind(
    "CIFAR10",
    10,
    "cifar-10-batches-py",
    "cifar-10-batches-bin",
    (tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)),
    1,
)
HUNDRED = Kind("CIFAR100", 100, "cifar-100-python", "cifar-100-binary", (("train.bin",), ("test.bin",)), 2)


def download_cifar10(root: Path) -> None:
    """Fetch the Python batches of CIFAR-10; torchvision checks the checksum."""
    from torchvision.datasets import CIFAR10

    CIFAR10(str(root), download=True)


def download_cifar100(root: Path) -> None:
    """Fetch the Python batches of CIFAR-100; torchvision checks the checksum."""
    from torchvision.datasets import CIFAR100

    CIFAR100(str(root), download=True)


LAYOUT10 = Layout(
    files=(f"{TEN.pickles}/ or {TEN.binary}/ or {JPEG}",),
    folders=("cifar10", "cifar-10", "CIFAR10", "CIFAR-10"),
    markers=(TEN.pickles, TEN.binary, JPEG),
    archives=("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    obtain="Get CIFAR-10 with torchvision.datasets.CIFAR10(FOLDER, download=True).",
    download=download_cifar10,
)
LAYOUT100 = Layout(
    files=(f"{HUNDRED.pickles}/ or {HUNDRED.binary}/",),
    folders=("cifar100", "cifar-100", "CIFAR100", "CIFAR-100"),
    markers=(HUNDRED.pickles, HUNDRED.binary),
    archives=("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
    obtain="Get CIFAR-100 with torchvision.datasets.CIFAR100(FOLDER, download=True).",
    download=download_cifar100,
)


@dataclass(frozen=True)
class Cifar:
    """The two official splits, and the form they were read from: ``official`` or ``jpeg``."""

    train: Labelled
    test: Labelled
    form: str

    def cut(self, name: str, n_val: int, seeds: Seeds) -> Raw:
        """Cut a val split from train."""
        return hold_out(name, self.train, self.test, n_val, seeds)

    def splits(self, name: str, parts: Three, config: Any) -> Splits:
        """Put splits together that say which form they were made of."""
        options = asdict(config)
        if "form" in options:
            options["form"] = self.form
        return Splits(*parts, name=name, options=options, notes=(LOSSY,) if self.form == "jpeg" else ())


def read_cifar10(root: str | Path | None, form: str = "auto", name: str = "cifar10") -> Cifar:
    """Read CIFAR-10 in the official order: uint8 ``(N, 3, 32, 32)``, and whole numbers.

    Args:
        root: the data folder; see :func:`spurless.core.places.data_folder`.
        form: ``official`` or ``jpeg``; ``auto`` takes the official files where they are, and else the JPEGs.
        name: the dataset that asks, for errors.

    Raises:
        BadInput: a file is missing, cut off, or not the published one.
    """
    folder, form = _folder(root, form, name)
    if form == "official":
        return _official(TEN, folder, name)
    return Cifar(_jpegs(folder / JPEG, "train"), _jpegs(folder / JPEG, "test"), form)


def read_cifar100(root: str | Path | None, name: str = "cifar100") -> Cifar:
    """Read CIFAR-100 with its 100 fine labels; see :func:`read_cifar10`."""
    return _official(HUNDRED, find(name, LAYOUT100, root), name)


def _folder(root: str | Path | None, form: str, name: str) -> tuple[Path, str]:
    """Return where CIFAR-10 is, and in which form."""
    if form == "jpeg":
        return find(name, replace(LAYOUT10, markers=(JPEG,)), root), form
    try:
        return find(name, replace(LAYOUT10, markers=(TEN.pickles, TEN.binary)), root), "official"
    except BadInput:
        if form == "official":
            raise
        return find(name, LAYOUT10, root), "jpeg"


def _official(kind: Kind, folder: Path, name: str) -> Cifar:
    if (folder / kind.binary).exists():  # these are safe to open, whoever made them
        train, test = (_records([folder / kind.binary / file for file in files], kind, name) for files in kind.files)
    else:
        train, test = (_pickles(kind, folder, is_train) for is_train in (True, False))
    return Cifar(train, test, "official")


def _pickles(kind: Kind, folder: Path, train: bool) -> Labelled:
    """Let torchvision open the Python batches, which it does only where their checksums are right."""
    from torchvision import datasets

    official = getattr(datasets, kind.name)
    try:
        found = official(str(folder), train=train, download=False)
    except RuntimeError:
        raise BadInput(
            f"the file {_wrong(official, folder / kind.pickles)!r} is missing or not the published one, and it is a "
            "pickle, which may run code",
            where=folder / kind.pickles,
            do="Get the published archive again, or its binary version.",
        ) from None
    x = torch.from_numpy(found.data).permute(0, 3, 1, 2).contiguous()
    return check_labelled(x, torch.tensor(found.targets), kind.n_classes, folder / kind.pickles)


def _wrong(official: Any, folder: Path) -> str:
    """Return the first file whose checksum is not the published one."""
    from torchvision.datasets.utils import check_integrity

    files = [*official.train_list, *official.test_list, (official.meta["filename"], official.meta["md5"])]
    return next((str(file) for file, md5 in files if not check_integrity(str(folder / file), md5)), folder.name)


def _records(paths: list[Path], kind: Kind, name: str) -> Labelled:
    """Read binary batches: the label bytes of an image, then its red, green and blue pixels, row by row."""
    length, parts = kind.label_bytes + 3 * 32 * 32, []
    for path in paths:
        content = bytearray(need(path, name).read_bytes())
        if not content or len(content) % length:
            raise BadInput(
                "the file is cut off, or no batch of CIFAR",
                where=path,
                expected=f"a multiple of {length} bytes",
                got=len(content),
            )
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, length)
        x, y = rows[:, kind.label_bytes :].reshape(-1, *SHAPE), rows[:, kind.label_bytes - 1]
        parts.append(check_labelled(x, y, kind.n_classes, path))
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


@dataclass(frozen=True)
class _Jpegs:
    """JPEG files one after another, decoded on demand."""

    content: Any
    offsets: list[int]
    where: str

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Tensor:
        return decode_image(self.content[self.offsets[i] : self.offsets[i + 1]].tobytes(), f"{self.where}, image {i}")

    def fingerprint(self) -> str:
        return digest(self.content.tobytes(), self.offsets)


def _jpegs(path: Path, split: str) -> Labelled:
    content, offsets, y = read_arrays(path, (f"jpg_{split}", f"off_{split}", f"y_{split}"))
    if content.ndim != 1 or content.dtype != "uint8" or offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise BadInput(f"jpg_{split} must be bytes, and off_{split} whole numbers", where=path)
    bounds = [int(offset) for offset in offsets]
    if bounds != sorted(bounds) or not bounds or bounds[0] < 0 or bounds[-1] > len(content):
        raise BadInput(f"off_{split} must rise from 0 to the number of bytes", where=path, expected=len(content))
    source = _Jpegs(content, bounds, f"{path}, {split}")
    if len(source) != len(y) or len(y) == 0:
        raise BadInput(f"jpg_{split} and y_{split} differ in number", where=path, got=f"{len(source)} and {len(y)}")
    x = kept(digest("cifar jpeg", 1, source.fingerprint()), lambda: {"x": decode_all(source)})["x"]
    if x.shape[1:] != SHAPE:
        raise BadInput("these are no images of CIFAR", where=path, expected=SHAPE, got=tuple(x.shape[1:]))
    return check_labelled(x, torch.from_numpy(y), 10, path)
