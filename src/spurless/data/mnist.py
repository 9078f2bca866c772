"""MNIST: the reader of its files; the sets that are drawn onto its digits all go through it.

Reads, from the data folder or from ``MNIST`` or ``mnist`` in it, whichever is there first: ``mnist.npz`` with the
keys of Keras (``x_train``, ``y_train``, ``x_test``, ``y_test``), or the four published IDX files, plain or as
``.gz``, in the folder itself, in ``raw`` or in ``MNIST/raw`` (where torchvision puts them).
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.layout import Layout, find, need
from spurless.data.raw import Labelled, Raw, check_labelled, hold_out, read_arrays

TRAIN, TEST = 60_000, 10_000
SOURCE = "MNIST: 70,000 handwritten digits of 28 x 28 pixels"
LICENCE = "CC BY-SA 3.0 (MNIST)"
CITATION = "LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, IEEE 1998"

ARCHIVE = "mnist.npz"
PLACES = ("", "raw", "MNIST/raw")
KINDS = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def download(root: Path) -> None:
    """Fetch the four files into ``MNIST/raw``; torchvision checks their checksums."""
    from torchvision.datasets import MNIST

    MNIST(str(root), download=True)


LAYOUT = Layout(
    files=(f"{ARCHIVE} or {', '.join(file for files in KINDS.values() for file in files)} (plain or .gz)",),
    folders=("MNIST", "mnist"),
    markers=(ARCHIVE, *(str(Path(place, KINDS["train"][0] + end)) for place in PLACES for end in ("", ".gz"))),
    obtain="Get MNIST with torchvision.datasets.MNIST(FOLDER, download=True), or mnist.npz from Keras.",
    download=download,
)


def read_mnist(root: str | Path | None, name: str = "mnist") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``x_train, y_train, x_test, y_test`` in the official order: uint8 ``(N, 28, 28)`` and whole numbers.

    Args:
        root: the data folder; see :func:`spurless.core.places.data_folder`.
        name: the dataset that asks, for errors.

    Raises:
        BadInput: a file is missing, cut off, or not what its name says.
    """
    folder = find(name, LAYOUT, root)
    if (folder / ARCHIVE).exists():
        path = folder / ARCHIVE
        arrays = read_arrays(path, ("x_train", "y_train", "x_test", "y_test"))
        x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
        return *_checked(x_train, y_train, path), *_checked(x_test, y_test, path)
    raw = next(folder / place for place in PLACES if any((folder / place).glob(KINDS["train"][0] + "*")))
    return *_read_split(raw, "train", name), *_read_split(raw, "test", name)


def raw_mnist(name: str, root: str | None, val_part: int, seeds: Seeds) -> Raw:
    """Return the digits with val cut from train at random: one in ``val_part`` images, each class alike."""
    x_train, y_train, x_test, y_test = read_mnist(root, name)
    return hold_out(name, (x_train, y_train), (x_test, y_test), len(y_train) // val_part, seeds)


def published(val: int) -> dict[str, int]:
    """Return the sizes of the splits of the whole MNIST, given that of val."""
    return {"train": TRAIN - val, "val": val, "test": TEST}


def _read_split(folder: Path, kind: str, name: str) -> Labelled:
    images, labels = (_idx(folder, file, name) for file in KINDS[kind])
    return _checked(images, labels, folder / KINDS[kind][0])


def _idx(folder: Path, file: str, name: str) -> Tensor:
    """Read one IDX file; a packed one is unpacked to a place of its own first."""
    path, packed = folder / file, folder / f"{file}.gz"
    if path.exists() or not packed.exists():
        return _idx_plain(need(path, name), path)
    with TemporaryDirectory() as scratch:
        plain = Path(scratch) / file
        try:
            with gzip.open(packed, "rb") as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadInput(f"the file cannot be unpacked: {error}", where=packed, do="Get it again.") from None
        return _idx_plain(plain, packed)


def _idx_plain(path: Path, shown: Path) -> Tensor:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    images = "images" in path.name
    try:
        read: Tensor = (read_image_file if images else read_label_file)(str(path))
    except (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        what = "images" if images else "labels"
        raise BadInput(f"this is no whole IDX file of {what}", where=shown, do="Get it again.") from None
    return read


def _checked(x: Tensor, y: Tensor, path: Path) -> Labelled:
    if x.dtype != torch.uint8 or x.shape[1:] != (28, 28):
        raise BadInput(
            "these are no images of MNIST",
            where=path,
            expected="uint8 of shape (N, 28, 28)",
            got=f"{x.dtype} of shape {tuple(x.shape)}",
        )
    return check_labelled(x, y, 10, path)
