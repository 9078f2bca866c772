"""Reader of the MNIST files, for the datasets that are made of its digits.

It searches the data folder, then ``MNIST`` and ``mnist`` in it, for ``mnist.npz`` with the keys of Keras (``x_train``,
``y_train``, ``x_test``, ``y_test``), or the four published IDX files, plain or as ``.gz``, in the folder itself, in
``raw`` or in ``MNIST/raw`` (the folder of torchvision).
"""

from __future__ import annotations

import gzip
import shutil
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.limits import open_gzip
from spurless.core.seeds import Seeds
from spurless.data.dataset import Layout, find_folder, require_file
from spurless.data.datasets._base_images import BaseImages, LabelledImages, check_image_labels, hold_out_val, read_npz

N_TRAIN, N_TEST = 60_000, 10_000
SIZE = 28
SOURCE = "MNIST: 70,000 handwritten digits of 28 x 28 pixels"
LICENCE = "CC BY-SA 3.0 (MNIST)"
CITATION = "LeCun, Bottou, Bengio and Haffner, Gradient-Based Learning Applied to Document Recognition, IEEE 1998"

ARCHIVE = "mnist.npz"
SUBFOLDERS = ("", "raw", "MNIST/raw")
IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def download(root: Path) -> None:
    """Download the four files into ``MNIST/raw`` with torchvision, which checks their checksums."""
    from torchvision.datasets import MNIST

    MNIST(str(root), download=True)


LAYOUT = Layout(
    files=tuple((ARCHIVE, file) for files in IDX_FILES.values() for file in files),
    folders=("MNIST", "mnist"),
    markers=(
        ARCHIVE,
        *(str(Path(folder, IDX_FILES["train"][0] + end)) for folder in SUBFOLDERS for end in ("", ".gz")),
    ),
    obtain="Get MNIST with torchvision.datasets.MNIST(FOLDER, download=True), or mnist.npz from Keras.",
    download=download,
)


def read_mnist(root: str | Path | None, name: str = "mnist") -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``x_train, y_train, x_test, y_test`` in the official order: uint8 ``(N, 28, 28)`` and int64.

    Errors contain the ``name`` of the dataset that is loaded.
    """
    folder = find_folder(name, LAYOUT, root)
    if (folder / ARCHIVE).exists():
        path = folder / ARCHIVE
        arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"))
        x_train, y_train, x_test, y_test = (torch.from_numpy(array) for array in arrays)
        return *_check_mnist(x_train, y_train, path), *_check_mnist(x_test, y_test, path)
    idx_folder = next(folder / sub for sub in SUBFOLDERS if any((folder / sub).glob(IDX_FILES["train"][0] + "*")))
    return *_read_split(idx_folder, "train", name), *_read_split(idx_folder, "test", name)


def load_base_mnist(name: str, root: str | None, n_val: int, seeds: Seeds) -> BaseImages:
    """Return the digits with ``n_val`` of the 60,000 train images as val (stratified, fewer of an incomplete copy)."""
    x_train, y_train, x_test, y_test = read_mnist(root, name)
    return hold_out_val(name, (x_train, y_train), (x_test, y_test), len(y_train) // (N_TRAIN // n_val), seeds)


def expected_sizes(n_val: int) -> dict[str, int]:
    """Return the split sizes of the complete MNIST with ``n_val`` validation images."""
    return {"train": N_TRAIN - n_val, "val": n_val, "test": N_TEST}


def _read_split(folder: Path, split: str, name: str) -> LabelledImages:
    images, labels = (_read_idx(folder, file, name) for file in IDX_FILES[split])
    return _check_mnist(images, labels, folder / IDX_FILES[split][0])


def _read_idx(folder: Path, file: str, name: str) -> Tensor:
    path, packed = folder / file, folder / f"{file}.gz"
    if path.exists() or not packed.exists():
        return _parse_read_idx(require_file(path, name), path)
    with TemporaryDirectory() as scratch:
        plain = Path(scratch) / file
        try:
            with packed.open("rb") as opened, open_gzip(packed, opened) as source, plain.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"the file cannot be decompressed: {error}", where=packed, hint="Download it again."
            ) from None
        return _parse_read_idx(plain, packed)


def _parse_read_idx(path: Path, original: Path) -> Tensor:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    images = "images" in path.name
    try:
        content: Tensor = (read_image_file if images else read_label_file)(str(path))
    except (AssertionError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
        what = "images" if images else "labels"
        raise InputError(f"not a complete IDX file of {what}", where=original, hint="Download it again.") from None
    return content


def _check_mnist(x: Tensor, y: Tensor, path: Path) -> LabelledImages:
    if x.dtype != torch.uint8 or x.shape[1:] != (28, 28):
        got = f"{x.dtype} of shape {tuple(x.shape)}"
        raise InputError("not images of MNIST", where=path, expected="uint8 of shape (N, 28, 28)", got=got)
    return check_image_labels(x, y, 10, path)
