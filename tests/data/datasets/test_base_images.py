"""Raw: exact sizes, alike in every class, and archives that are never unpickled."""

from pathlib import Path

import numpy as np
import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets._base_images import check_image_labels, hold_out_val, read_npz, stratified_split


def labelled(n: int, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose one pixel is their number."""
    return torch.arange(start, start + n).view(n, 1, 1), torch.arange(n) % 3


def test_the_sizes_are_exact_and_every_class_is_shared_alike() -> None:
    y = torch.tensor([0] * 70 + [1] * 20 + [2] * 10)
    parts = stratified_split(y, (50, 30, 20), torch.Generator().manual_seed(0))
    assert [len(part) for part in parts] == [50, 30, 20]
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(100))
    assert [torch.bincount(y[part]).tolist() for part in parts] == [[35, 10, 5], [21, 6, 3], [14, 4, 2]]


def test_val_is_cut_from_train_and_test_is_left_alone() -> None:
    raw = hold_out_val("set", labelled(30), labelled(9, start=30), 6, Seeds(0))
    assert [len(part) for part in raw.indices.values()] == [24, 6, 9]
    assert raw.x[raw.test].flatten().tolist() == list(range(30, 39))
    assert torch.cat([raw.train, raw.val]).sort().values.tolist() == list(range(30))
    assert torch.bincount(raw.y[raw.val]).tolist() == [2, 2, 2]
    other = hold_out_val("set", labelled(30), labelled(9, start=30), 6, Seeds(1))
    assert not torch.equal(raw.val, other.val)


@pytest.mark.parametrize("n_val", [0, 30, 31])
def test_a_val_split_that_leaves_nothing_is_refused(n_val: int) -> None:
    with pytest.raises(InputError, match=rf"set: the val split must be smaller .*expected 1 to 29, got {n_val}"):
        hold_out_val("set", labelled(30), labelled(9), n_val, Seeds(0))


def test_plain_splits_have_no_attribute() -> None:
    raw = hold_out_val("set", labelled(30), labelled(9, start=30), 6, Seeds(0))
    train, val, test = raw.to_splits(Groups(("a", "b", "c")))
    assert train.counts.tolist() == [8, 8, 8]
    assert not train.has_attributes
    assert torch.equal(val.y, raw.y[raw.val])
    assert test.x.flatten().tolist() == list(range(30, 39))  # type: ignore[union-attr]


def test_arrays_are_read_by_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.ones(2), z=np.zeros(1))
    y, x = read_npz(tmp_path / "a.npz", ("y", "x"))
    assert x.tolist() == [0, 1, 2]
    assert y.tolist() == [1, 1]
    with pytest.raises(InputError, match=r"a.npz: the archive has no key 'w' \(got x\)"):
        read_npz(tmp_path / "a.npz", ("x", "w"))


def test_an_archive_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"a.npz: the file is not an npz archive"):
        read_npz(tmp_path / "a.npz", ("x",))
    np.save(tmp_path / "b.npy", np.zeros(3))
    with pytest.raises(InputError, match=r"b.npy: the file contains one array"):
        read_npz(tmp_path / "b.npy", ("x",))
    np.savez(tmp_path / "c.npz", x=np.zeros(1000))
    (tmp_path / "c.npz").write_bytes((tmp_path / "c.npz").read_bytes()[:900])
    with pytest.raises(InputError, match=r"c.npz: the file is not an npz archive"):
        read_npz(tmp_path / "c.npz", ("x",))


def test_python_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match=r"a.npz: the array .x. contains Python objects"):
        read_npz(tmp_path / "a.npz", ("x",))


@pytest.mark.parametrize(
    ("n", "y", "said"),
    [
        (3, [0, 1], "images and labels must have the same length"),
        (0, [], "images and labels must have the same length, at least 1"),
        (3, [0, 1, 10], r"f: the label of image 2 is out of range \(expected 0 to 9, got 10\)"),
        (2, [0, -1], r"f: the label of image 1 is out of range \(expected 0 to 9, got -1\)"),
    ],
)
def test_labels_that_do_not_belong_are_refused(n: int, y: list[int], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_image_labels(torch.zeros(n, 2, 2), torch.tensor(y, dtype=torch.int16), 10, "f")
