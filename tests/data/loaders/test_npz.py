"""Archives: arrays keep their values, images turn the right way, and no pickle is ever opened."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.loaders.npz import from_npz
from spurless.data.split import Split, Splits

X = np.arange(40, dtype=np.float32)[:, None]
Y = np.arange(40) % 2
A = np.arange(40) // 2 % 2


def save(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "d.npz", **arrays)
    return folder / "d.npz"


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def rows(split: Split) -> list[int]:
    assert isinstance(split.x, Tensor)
    return [int(v) for v in split.x.flatten(1)[:, 0]]


def test_one_set_of_arrays_is_split_by_seed(tmp_path: Path) -> None:
    data = from_npz(save(tmp_path, x=X, y=Y, a=A, notes=np.array(["free text"])), seed=3, labels=("no", "yes"))
    assert data.name == "archive d.npz"
    assert data.options == {"path": str(tmp_path / "d.npz"), "seed": 3, "labels": ["no", "yes"]}
    assert data.groups.labels == ("no", "yes")
    assert [split.counts.tolist() for split in every(data)] == [[7] * 4, [2] * 4, [1] * 4]
    for split in every(data):
        assert split.y.tolist() == Y[rows(split)].tolist()
        assert split.a.tolist() == A[rows(split)].tolist()
    assert rows(from_npz(tmp_path / "d.npz", seed=3).val) == rows(data.val)


def test_a_split_array_says_where_each_goes(tmp_path: Path) -> None:
    data = from_npz(save(tmp_path, x=X, y=Y, split=np.repeat([2, 0, 1], [10, 20, 10])))
    assert [rows(split) for split in every(data)] == [list(range(10, 30)), list(range(30, 40)), list(range(10))]


def test_named_splits_are_taken_as_they_are(tmp_path: Path) -> None:
    parts: dict[str, Any] = {}
    for name, place in (("test", slice(32, 40)), ("valid", slice(20, 32)), ("train", slice(0, 20))):
        parts |= {f"x_{name}": X[place], f"y_{name}": Y[place, None], f"a_{name}": A[place]}
    data = from_npz(save(tmp_path, **parts))
    assert [rows(split) for split in every(data)] == [list(range(20)), list(range(20, 32)), list(range(32, 40))]
    assert all(split.a.tolist() == A[rows(split)].tolist() for split in every(data))


def test_a_missing_val_is_cut_from_train_and_attributes_may_be_in_test_alone(tmp_path: Path) -> None:
    data = from_npz(save(tmp_path, x_train=X[:32], y_train=Y[:32], x_test=X[32:], y_test=Y[32:], a_test=A[32:]))
    assert rows(data.test) == list(range(32, 40))
    assert sorted(rows(data.train) + rows(data.val)) == list(range(32))
    assert data.val.class_counts.tolist() == [2, 2]  # 16 of each class: 13.6 and 2.4
    assert [split.has_attributes for split in every(data)] == [False, False, True]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 9), (1, 8, 9)),
        ((8, 9, 1), (1, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),
        ((8, 9, 4), (3, 8, 9)),
        ((3, 8, 9), (3, 8, 9)),
    ],
)
def test_images_come_out_channels_first(shape: tuple[int, ...], expected: tuple[int, ...], tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, *shape), dtype=np.uint8)
    train = from_npz(save(tmp_path, x=x, y=Y, split=np.repeat([0, 1, 2], [20, 10, 10]))).train.x
    assert isinstance(train, Tensor)
    assert train.shape == (20, *expected)
    assert train.dtype == torch.uint8
    last = x[0] if shape[0] != 3 else x[0].transpose(1, 2, 0)
    assert torch.equal(train[0].permute(1, 2, 0), torch.from_numpy(last.reshape(8, 9, -1)[..., :3]))


def test_fractions_are_never_taken_for_images(tmp_path: Path) -> None:
    train = from_npz(save(tmp_path, x=np.zeros((40, 5, 6, 3)), y=Y)).train.x
    assert isinstance(train, Tensor)
    assert train.shape == (28, 5, 6, 3)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, r"d.npz: the archive has no key 'y' \(got x\)"),
        ({"y": Y}, r"the archive has neither 'x' nor 'x_train' \(got y\)"),
        ({"images": X}, r"the archive has neither 'x' nor 'x_train' \(got images\)"),
        ({"x": X, "y": Y, "x_test": X}, r"the archive has both 'x' and keys of splits"),
        ({"x_train": X, "y_train": Y, "x_tset": X}, r"key 'x_tset': the split 'tset' is unknown"),
        ({"x_train": X, "y_train": Y, "x_test": X}, r"the archive has no key 'y_test'"),
        ({"x_train": X, "y_train": Y[:3]}, r"x_train and y_train differ in number \(got 40 and 3\)"),
        (
            {"x_train": X, "y_train": Y, "x_test": np.zeros((2, 3)), "y_test": Y[:2]},
            r"the splits differ in the shape or type of an example",
        ),
        ({"x": X, "y": Y + 0.5}, r"the labels must be integers"),
        ({"x": np.array([{}, None]), "y": Y}, r"d.npz: the array 'x' contains Python objects, which are never loaded"),
    ],
)
def test_a_bad_archive_is_answered_with_a_sentence(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        from_npz(save(tmp_path, **arrays))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no.npz: no such file \(expected an npz archive\)"):
        from_npz(tmp_path / "no.npz")
    (tmp_path / "t.npz").write_text("hello")
    with pytest.raises(InputError, match=r"t.npz: the file is not an npz archive"):
        from_npz(tmp_path / "t.npz")
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(InputError, match=r"one.npy: the file contains one array instead of an archive"):
        from_npz(tmp_path / "one.npy")
    whole = save(tmp_path, x=X, y=Y).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut.npz: the file is not an npz archive"):
        from_npz(tmp_path / "cut.npz")
