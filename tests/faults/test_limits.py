"""Files that claim or contain more than fits: refused before the memory is allocated, with a way to raise the limit."""

import gzip
import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.data.datasets._mnist import read_mnist
from spurless.data.loaders.pack import read_arrays


def claim(shape: str, dtype: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """Return an npy file with this shape in its header."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def write_archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


LABELS = io.BytesIO()
np.save(LABELS, np.array([0, 1] * 8))
CLAIMS = (
    "(1000000000000, 4)", "(100000, 100000, 100000)", "(9223372036854775807, 2)", f"({10**30},)", "(-1, 4)",
     "(((((16,)", "(" * 500 + ")" * 500, "16", "('a',)", "(1e3,)", "(True, 16)",
)  # fmt: skip


@pytest.mark.parametrize("shape", CLAIMS, ids=range(len(CLAIMS)))
@pytest.mark.parametrize("key", ["x", "y"])
def test_headers_that_claim_another_size_are_refused(shape: str, key: str, tmp_path: Path) -> None:
    members = {"x": claim("(16, 1)"), "y": LABELS.getvalue()} | {key: claim(shape)}
    path = write_archive(tmp_path / "a.npz", **members)
    with pytest.raises(InputError) as caught:
        sp.from_npz(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", ["|O", "<U999999999", "|V9999999999", "<M8[s]", "x", "<f99", "[('a', '<f4')]"])
def test_other_types_of_arrays_are_refused(dtype: str, tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.npz", x=claim("(16, 1)", dtype), y=LABELS.getvalue())
    with pytest.raises(InputError):
        sp.from_npz(path)


def test_an_array_that_unpacks_to_much_more_is_refused_unless_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spurless.core.limits.MIN_UNPACKED", 1000)
    path = write_archive(tmp_path / "a.npz", x=claim("(100000, 2)", data=bytes(800_000)))
    with pytest.raises(InputError) as caught:
        read_arrays(path)
    assert (caught.value.what, caught.value.where) == ("the array 'x' is too large", path)
    assert "SPURLESS_MAX_BYTES" in caught.value.hint
    monkeypatch.setenv("SPURLESS_MAX_BYTES", "1000000")
    assert read_arrays(path)["x"].shape == (100_000, 2)


def test_a_gzip_file_that_unpacks_to_much_more_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"y,x\n" + b"0,1\n1,2\n" * 100_000))
    monkeypatch.setattr("spurless.core.limits.MIN_UNPACKED", 100_000)
    monkeypatch.setattr("spurless.core.limits.MAX_RATIO", 2)
    with pytest.raises(InputError) as caught:
        sp.from_csv(path, label="y")
    assert caught.value.where == path
    monkeypatch.setenv("SPURLESS_MAX_BYTES", "1000000")
    assert len(sp.from_csv(path, label="y").train) == 140_000


def test_a_gzip_file_of_zeros_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(bytes(10**7)))
    monkeypatch.setattr("spurless.core.limits.MIN_UNPACKED", 10**6)
    with pytest.raises(InputError, match="too large"):
        read_mnist(tmp_path)


def test_sixty_thousand_columns_are_read(tmp_path: Path) -> None:
    """The time limit of the tests would be reached if the header were compared column by column."""
    path, n = tmp_path / "wide.csv", 60_000
    row = ",".join(["0.5"] * n)
    path.write_text("y," + ",".join(f"c{i}" for i in range(n)) + "\n" + "".join(f"{i % 2},{row}\n" for i in range(8)))
    train: Any = sp.from_csv(path, label="y").train.x
    assert train.shape[1] == n
    with pytest.raises(InputError) as caught:
        sp.from_csv(path, label="z")
    assert "59,9" in caught.value.hint
    path.write_text(path.read_text().replace("c59999", "c3", 1))
    with pytest.raises(InputError, match="two columns are called 'c3'"):
        sp.from_csv(path, label="y")


def test_a_hundred_thousand_classes_are_read() -> None:
    y = torch.arange(100_000).repeat(3)
    split = [name for name in ("train", "val", "test") for _ in range(100_000)]
    data = sp.from_tensors(torch.zeros(len(y), 1), y, split=split)
    assert len(data.groups.labels) == 100_000
    assert data.train.counts.tolist() == [1] * 100_000


def test_more_classes_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_MAX_GROUPS", "9")
    path = tmp_path / "many.csv"
    path.write_text("y,a,x\n" + "".join(f"class {i % 10},{i % 2},1\n" for i in range(40)))
    with pytest.raises(InputError) as caught:
        sp.from_csv(path, label="y")
    assert caught.value.got == 10
    monkeypatch.setenv("SPURLESS_MAX_GROUPS", "19")
    with pytest.raises(InputError):
        sp.from_csv(path, label="y", attribute="a")
