"""MNIST: every layout gives the same digits in the official order; broken files are refused by name."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets._mnist import LAYOUT, expected_sizes, load_base_mnist, read_mnist

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def arrays() -> list[np.ndarray]:
    """Twelve train and six test images, each with its own grey."""
    out = []
    for n, start in ((12, 0), (6, 100)):
        grey = np.arange(start, start + n, dtype=np.uint8)
        out += [np.broadcast_to(grey[:, None, None], (n, 28, 28)).copy(), (np.arange(n) * 7 % 10).astype(np.uint8)]
    return out


def idx(array: np.ndarray) -> bytes:
    """The published format: 0, 0, 8 for bytes, the number of dimensions, their sizes, the bytes."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path, packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(NAMES, arrays(), strict=True):
        content = idx(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    return folder


def check(root: Path) -> None:
    for found, expected in zip(read_mnist(root), arrays(), strict=True):
        assert found.tolist() == expected.tolist()
        assert found.dtype == (torch.uint8 if found.dim() == 3 else torch.long)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("place", ["", "raw", "MNIST/raw", "mnist", "mnist/raw", "mnist/MNIST/raw"])
def test_idx_files_are_read_wherever_they_lie(tmp_path: Path, place: str, packed: bool) -> None:
    write(tmp_path / place, packed)
    check(tmp_path)


@pytest.mark.parametrize("place", ["", "mnist"])
def test_the_archive_of_keras_is_read(tmp_path: Path, place: str) -> None:
    (tmp_path / place).mkdir(exist_ok=True)
    keys = ("x_train", "y_train", "x_test", "y_test")
    found: dict[str, Any] = dict(zip(keys, arrays(), strict=True))
    np.savez(tmp_path / place / "mnist.npz", **found)
    check(tmp_path)


def test_what_torchvision_reads_is_read_alike(tmp_path: Path) -> None:
    from torchvision.datasets import MNIST

    write(tmp_path / "MNIST" / "raw")
    theirs = MNIST(str(tmp_path), train=False)
    assert torch.equal(read_mnist(tmp_path)[2], theirs.data)
    assert torch.equal(read_mnist(tmp_path)[3], theirs.targets)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, name: str, packed: bool) -> None:
    path = write(tmp_path, packed) / (f"{name}.gz" if packed else name)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=f"{path.name}: (the file cannot be decompressed|not a complete IDX file)"):
        read_mnist(tmp_path)


def test_what_is_no_idx_file_is_refused_by_name(tmp_path: Path) -> None:
    (write(tmp_path) / NAMES[0]).write_bytes(b"<html>not here</html>")
    with pytest.raises(InputError, match=f"{NAMES[0]}: not a complete IDX file of images"):
        read_mnist(tmp_path)
    (write(tmp_path) / NAMES[1]).write_bytes(idx(arrays()[0]))
    with pytest.raises(InputError, match=f"{NAMES[1]}: not a complete IDX file of labels"):
        read_mnist(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / NAMES[3]).unlink()
    with pytest.raises(InputError, match=f"{NAMES[3]}: a file of colored-mnist is missing"):
        read_mnist(tmp_path, "colored-mnist")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "x_train",
            np.zeros((12, 32, 32), np.uint8),
            "not images of MNIST .*got torch.uint8 of shape .12, 32",
        ),
        ("x_test", np.zeros((6, 28, 28), np.float32), "not images of MNIST .*got torch.float32"),
        ("y_train", np.zeros(11, np.uint8), "images and labels must have the same length"),
        ("y_test", np.full(6, 10, np.uint8), "the label of image 0 is out of range"),
        ("y_test", None, "the archive has no key 'y_test'"),
    ],
)
def test_a_foreign_archive_is_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    found: dict[str, Any] = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays(), strict=True))
    found.pop(key)
    np.savez(tmp_path / "mnist.npz", **(found if value is None else {**found, key: value}))
    with pytest.raises(InputError, match=f"mnist.npz: {said}"):
        read_mnist(tmp_path)


def test_a_folder_without_it_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the files of double-mnist are missing .*mnist.npz.*Get MNIST with"):
        read_mnist(tmp_path, "double-mnist")


def test_an_incomplete_copy_has_a_proportional_val_split(small_mnist: str) -> None:
    raw = load_base_mnist("x", small_mnist, 5000, Seeds(0))
    assert [len(part) for part in raw.indices.values()] == [550, 50, 100]
    assert expected_sizes(5000) == {"train": 55_000, "val": 5_000, "test": 10_000}


def test_the_download_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("torchvision.datasets.MNIST", lambda root, download: asked.append((root, download)))
    assert LAYOUT.download is not None
    LAYOUT.download(tmp_path)
    assert asked == [(str(tmp_path), True)]
