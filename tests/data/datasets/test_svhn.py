"""SVHN: the official matrices, label 10 for the digit 0."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.checks import check_splits
from spurless.data.datasets.svhn import CARD, LAYOUT, N_TRAIN, SvhnConfig, read_mat, svhn


def write(root: Path, n: int = 200) -> Path:
    """Labels 1 to 10 in turn; the red of an image is its number, green its row, blue its column."""
    root.mkdir(exist_ok=True)
    for file, count in (("train_32x32.mat", n), ("test_32x32.mat", 50)):
        x = np.zeros((32, 32, 3, count), np.uint8)
        x[:, :, 0] = np.arange(count)
        x[:, :, 1], x[:, :, 2] = np.arange(32)[:, None, None], np.arange(32)[None, :, None]
        savemat(root / file, {"X": x, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]})
    return root


def test_the_matrices_are_turned_channels_first_and_ten_is_zero(tmp_path: Path) -> None:
    x, y = read_mat(write(tmp_path) / "train_32x32.mat")
    assert x.shape == (200, 3, 32, 32)
    assert x[7, :, 3, 5].tolist() == [7, 3, 5]  # number, row, column
    assert y[:12].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]


@pytest.mark.parametrize("place", ["", "svhn"])
def test_val_is_cut_from_train_class_by_class(tmp_path: Path, place: str) -> None:
    write(tmp_path / place)
    with pytest.warns(
        IncompleteDataWarning,
        match=r"svhn is not complete.*train has 180 instead of 73,237; test has 50 instead of 26,032",
    ):
        data = check_splits(svhn(SvhnConfig(root=str(tmp_path), val=20)))
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[18] * 10, [2] * 10, [5] * 10]
    assert isinstance(data.val.x, torch.Tensor)
    assert torch.equal((data.val.x[:, 0, 0, 0].long() + 1) % 10, data.val.y)


def test_the_counts_of_the_card_add_up() -> None:
    assert f"train {N_TRAIN - SvhnConfig().val:,} and val {SvhnConfig().val:,}" in CARD.splits
    assert SvhnConfig().val == round(0.1 * N_TRAIN)


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path) / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"train_32x32.mat: the file cannot be read"):
        svhn(SvhnConfig(root=str(tmp_path)))
    savemat(path, {"X": np.zeros((32, 32, 3, 4), np.uint8)})
    with pytest.raises(InputError, match=r"train_32x32.mat: there is no matrix 'y'"):
        svhn(SvhnConfig(root=str(tmp_path)))
    savemat(path, {"X": np.zeros((4, 32, 32, 3), np.uint8), "y": np.ones((4, 1))})
    with pytest.raises(InputError, match=r"train_32x32.mat: not images of SVHN"):
        svhn(SvhnConfig(root=str(tmp_path)))
    savemat(path, {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.array([[1], [2], [11], [3]])})
    with pytest.raises(InputError, match=r"train_32x32.mat: the label of image 2 is out of range"):
        svhn(SvhnConfig(root=str(tmp_path)))
    write(tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(InputError, match=r"test_32x32.mat: a file of svhn is missing"):
        svhn(SvhnConfig(root=str(tmp_path)))


def test_the_download_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("torchvision.datasets.SVHN", lambda _, split, download: asked.append((split, download)))
    assert LAYOUT.download is not None
    LAYOUT.download(tmp_path)
    assert asked == [("train", True), ("test", True)]
