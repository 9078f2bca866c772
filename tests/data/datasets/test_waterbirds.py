"""Waterbirds: a tiny copy in the official layout is read as published; a wrong one is refused by name."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data import load
from spurless.data.datasets.waterbirds import CARD, PUBLISHED

HEADER = ("img_id", "img_filename", "y", "split", "place", "place_filename")


def write(root: Path) -> Path:
    """Two examples of every group in every split; the grey of an image is its number."""
    folder = root / "waterbird_complete95_forest2water2"
    rows = []
    for number in range(24):
        y, place, split = number % 2, number // 2 % 2, number // 4 % 3
        name = f"{number:03}.Species_{y}/Bird_{number:04}.jpg"
        (folder / name).parent.mkdir(parents=True)
        Image.fromarray(np.full((40, 60, 3), 10 * number, dtype=np.uint8)).save(folder / name)
        rows.append((number + 1, name, y, split, place, f"/o/ocean/{number:08}.jpg"))
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *rows])
    return folder


def edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new, 1))


def test_the_official_layout_is_read_as_published(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.warns(
        IncompleteDataWarning, match=r"waterbirds is not complete.*train has 2/2/2/2 instead of 3,498/184/56/1,057"
    ):
        data = load("waterbirds", root=str(tmp_path), size=16)
    for split in (data.train, data.val, data.test):
        assert split.counts.tolist() == [2, 2, 2, 2]
    assert data.train.x.shape == (8, 3, 16, 16)  # type: ignore[union-attr]
    greys = (data.train.x.float().mean(dim=(1, 2, 3)) / 10).round().long()  # type: ignore[union-attr]
    assert greys.tolist() == [0, 1, 2, 3, 12, 13, 14, 15]  # rows 4 to 7 are val, 8 to 11 test
    assert torch.equal(data.train.y, greys % 2)
    assert torch.equal(data.train.a, greys // 2 % 2)
    assert data.groups.name(1) == "landbird, water"


def test_the_folder_itself_may_be_named(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with pytest.warns(IncompleteDataWarning):
        assert len(load("waterbirds", root=str(folder), size=8).test) == 8


def test_the_published_counts_are_those_of_the_card() -> None:
    assert [sum(counts) for counts in PUBLISHED.values()] == [4795, 1199, 5794]
    assert "4,795" in CARD.splits
    agreeing = PUBLISHED["train"][0] + PUBLISHED["train"][3]
    assert agreeing / 4795 == pytest.approx(0.95, abs=0.001)


def test_a_folder_without_it_says_what_was_looked_for_and_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of waterbirds are missing \(expected metadata.csv.*group_DRO.*--root"):
        load("waterbirds", root=str(tmp_path))
    with pytest.raises(InputError, match=r"nowhere: the data folder of waterbirds does not exist"):
        load("waterbirds", root="nowhere")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("place,place_filename", "ground,place_filename", r"metadata.csv: no column is called 'place'"),
        ("Bird_0003.jpg,1,0", "Bird_0003.jpg,7,0", r"metadata.csv, row 5: '7' is not a valid value of column 'y'"),
        ("Bird_0003.jpg,1,0", "Bird_0003.jpg,1,3", r"metadata.csv, row 5: '3' is not a valid value of column 'split'"),
        ("Bird_0002", "Bird_9999", r"metadata.csv, row 4: no such image file: .*Bird_9999"),
        (
            "002.Species_0/Bird_0002",
            "../002.Species_0/Bird_0002",
            r"metadata.csv, row 4: the path .* leaves the root folder",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_row_and_column(tmp_path: Path, old: str, new: str, said: str) -> None:
    edit(write(tmp_path) / "metadata.csv", old, new)
    with pytest.raises(InputError, match=said):
        load("waterbirds", root=str(tmp_path), size=8)


def test_a_truncated_image_is_refused_by_name(tmp_path: Path) -> None:
    path = next(write(tmp_path).glob("005*/*.jpg"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"Bird_0005.jpg: the image cannot be read"):
        load("waterbirds", root=str(tmp_path), size=8)
