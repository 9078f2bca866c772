"""Waterbirds rebuilt: a tiny pack is read as it is, with its masks; a wrong one is refused by name."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.waterbirds import (
    WATERBIRDS_REBUILT_CARD as CARD,
)
from spurless.data.datasets.waterbirds import (
    WATERBIRDS_REBUILT_COUNTS as COUNTS,
)
from spurless.data.datasets.waterbirds import (
    WaterbirdsRebuiltConfig,
    bird_masks,
    split_rows,
    waterbirds_rebuilt,
)

N = 24


def image(shade: int, side: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), shade, np.uint8)).save(file, "webp", lossless=True)
    return file.getvalue()


def write(folder: Path, name: str = "waterbirds128.npz", side: int = 16, **changed: Any) -> Path:
    """Two examples of every group in every split; the grey of an image is ten times its number."""
    number = np.arange(N)
    columns: dict[str, Any] = {"y": number % 2, "place": number // 2 % 2, "split": number // 4 % 3, **changed}
    columns |= {"img_id": number + 1, "species": number % 2 + 1}
    columns = {key: value for key, value in columns.items() if value is not None}
    write_pack(folder / name, [image(10 * i, side) for i in range(N)], columns)
    return folder / name


def write_pack(path: Path, images: list[bytes], columns: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    offsets = np.cumsum([0, *map(len, images)]).astype(np.int64)
    np.savez(path, img=np.frombuffer(b"".join(images), np.uint8), off=offsets, **columns)


def write_masks(folder: Path, n: int = N) -> None:
    """The mask of image ``i`` is its row ``i``."""
    mask = np.zeros((n, 128, 128), np.uint8)
    mask[np.arange(n), np.arange(n)] = 1
    np.savez_compressed(folder / "masks128.npz", mask=np.packbits(mask.reshape(n, -1), axis=1), shape=mask.shape)


@pytest.mark.parametrize("inner", ["waterbirds", ""])
def test_the_pack_is_read_as_it_is(inner: str, tmp_path: Path) -> None:
    write(tmp_path / inner)
    with pytest.warns(
        IncompleteDataWarning, match=r"waterbirds-rebuilt is not complete.*train has 2/2/2/2 instead of 3,525/186/54/1,"
    ):
        data = waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path), size=0))
    for split in (data.train, data.val, data.test):
        assert split.counts.tolist() == [2, 2, 2, 2]
    assert data.train.x.shape == (8, 3, 16, 16)  # type: ignore[union-attr]
    greys = data.train.x[:, 0, 0, 0].long() // 10  # type: ignore[index]
    assert greys.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]  # rows 4 to 7 are val, 8 to 11 test
    assert torch.equal(data.train.y, greys % 2)
    assert torch.equal(data.train.a, greys // 2 % 2)
    assert data.groups.names == ("landbird, land", "landbird, water", "waterbird, land", "waterbird, water")
    assert data.name == "waterbirds-rebuilt"
    assert data.options["size"] == 0


def test_any_size_of_pack_will_do_and_the_largest_is_taken(tmp_path: Path) -> None:
    write(tmp_path, "waterbirds96.npz", 12)
    with pytest.warns(IncompleteDataWarning):
        assert waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path), size=0)).test.x[0].shape == (3, 12, 12)  # type: ignore[index]
    write(tmp_path, "waterbirds128.npz", 16)
    with pytest.warns(IncompleteDataWarning):
        assert waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path), size=0)).test.x[0].shape == (3, 16, 16)  # type: ignore[index]
    with pytest.warns(IncompleteDataWarning):
        assert waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path), size=9)).test.x[0].shape == (3, 9, 9)  # type: ignore[index]


def test_masks_lie_in_the_order_of_the_split(tmp_path: Path) -> None:
    write(tmp_path / "waterbirds")
    write_masks(tmp_path / "waterbirds")
    found, index = bird_masks(str(tmp_path)), split_rows(str(tmp_path))
    assert index["val"].tolist() == [4, 5, 6, 7, 16, 17, 18, 19]
    for name in ("train", "val", "test"):
        assert found[name].dtype == torch.bool
        assert found[name].shape == (8, 128, 128)
        assert found[name].sum(dim=(1, 2)).tolist() == [128] * 8
        assert found[name][:, :, 5].int().argmax(dim=1).tolist() == index[name].tolist()


def test_masks_of_other_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(InputError, match=r"masks128.npz: a file of waterbirds-rebuilt is missing"):
        bird_masks(str(tmp_path))
    write_masks(tmp_path, N - 1)
    with pytest.raises(InputError, match=r"the masks do not match the images \(expected 'mask' of 24 rows of 2048"):
        bird_masks(str(tmp_path))
    np.savez(tmp_path / "masks128.npz", other=np.zeros(3))
    with pytest.raises(InputError, match=r"masks128.npz: the masks do not match .*got no such array"):
        bird_masks(str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"place": None}, r"waterbirds128.npz: no column is called 'place'"),
        ({"y": np.full(N, 2)}, r"waterbirds128.npz, image 0: 2 is not a valid value of column 'y' \(expected 0 to 1\)"),
        ({"split": np.arange(N) % 4}, r"waterbirds128.npz, image 3: 3 is not a valid value of column 'split'"),
    ],
)
def test_wrong_columns_are_refused(changed: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, **changed)
    with pytest.raises(InputError, match=said):
        waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path)))


def test_a_folder_without_it_and_a_cut_pack_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of waterbirds-rebuilt are missing.*use waterbirds.*--root"):
        waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path)))
    with pytest.raises(InputError, match=r"size must not be negative"):
        waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path), size=-1))
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"waterbirds128.npz: the file is not an npz archive, or damaged"):
        waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=str(tmp_path)))


def test_the_card_names_the_counts() -> None:
    for counts in COUNTS.values():
        assert f"{sum(counts):,}" in CARD.splits
        assert "/".join(map(str, counts)) in CARD.splits


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="needs the pack")
def test_the_real_pack_has_these_counts() -> None:
    data = waterbirds_rebuilt(WaterbirdsRebuiltConfig(root=os.environ["SPURLESS_DATA"], size=8))
    assert {name: tuple(getattr(data, name).counts.tolist()) for name in COUNTS} == COUNTS
