"""BFFHQ: tiny copies in the released layouts are read as named; wrong ones are refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.bffhq import CARD, GROUPS, PUBLISHED, BffhqConfig, bffhq
from spurless.data.split import Splits


def image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 20, 3), grey, dtype=np.uint8)).save(path)


def write(root: Path, percent: str = "0.5pct", valid: str = "valid") -> Path:
    """Train: 4 aligned of each age, 1 conflicting. Val: aligned alone. Test: all four groups. Grey says which."""
    folder = root / "bffhq"
    for age in (0, 1):
        for i in range(4):
            image(folder / percent / "align" / str(age) / f"{age}{i}_{age}_{age}.png", 10 * age)
        image(folder / percent / "conflict" / str(age) / f"{age}9_{age}_{1 - age}.png", 50 + 10 * age)
        image(folder / valid / f"{age}7_{age}_{age}.png", 100 + age)
        for gender in (0, 1):
            image(folder / "test" / f"{age}{gender}8_{age}_{gender}.png", 200 + 10 * age + gender)
    return folder


def load(root: Path, **options: Any) -> Splits:
    return bffhq(BffhqConfig(root=str(root), size=8, **options))


def greys(x: Any) -> list[int]:
    return [int(value) for value in x[:, 0, 0, 0]]


@pytest.mark.parametrize("valid", ["valid", "0.5pct/valid"])
def test_the_released_layouts_are_read_as_named(tmp_path: Path, valid: str) -> None:
    write(tmp_path, valid=valid)
    with pytest.warns(
        IncompleteDataWarning, match=r"bffhq is not complete as published: train has 10 instead of 19,200"
    ):
        data = load(tmp_path)
    assert data.train.counts.tolist() == [4, 1, 1, 4]
    assert greys(data.train.x) == [0, 0, 0, 0, 10, 10, 10, 10, 50, 60]
    assert data.train.y.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 1]
    aligned = data.train.a == data.train.y
    assert aligned.tolist() == [True] * 8 + [False] * 2  # an attribute of its own number is where the shortcut is right
    assert greys(data.val.x) == [100, 101]
    assert data.val.counts.tolist() == [1, 0, 0, 1]
    assert greys(data.test.x) == [200, 201, 210, 211]
    assert data.test.g.tolist() == [0, 1, 2, 3]


def test_young_women_and_old_men_are_aligned() -> None:
    assert [GROUPS.name(g) for g in (0, 3)] == ["young, female", "old, male"]
    assert PUBLISHED["0.5pct"]["train"] == 19104 + 96
    assert "19,104" in CARD.splits


def test_another_percentage_is_another_folder(tmp_path: Path) -> None:
    folder = write(tmp_path, percent="2pct")
    assert len(load(tmp_path, percent="2pct").train) == 10
    assert torch.equal(load(folder, percent="2pct").train.y, load(tmp_path, percent="2pct").train.y)
    with pytest.raises(InputError, match=r"0.5pct: a file of bffhq is missing"):
        load(tmp_path)
    with pytest.raises(InputError, match=r"option 'percent' is unknown \(expected 0.5pct, 1pct, 2pct, 5pct, got 2\)"):
        load(tmp_path, percent="2")


@pytest.mark.parametrize("name", ["00.png", "00_0.png", "00_0_2.png", "00_y_o.png", "0_0_0_0.png"])
def test_a_name_that_does_not_say_age_and_gender_is_refused(tmp_path: Path, name: str) -> None:
    image(write(tmp_path) / "test" / name, 0)
    with pytest.raises(InputError, match=rf"test/{name}: the file name lacks age and gender \(expected <id>_"):
        load(tmp_path)


@pytest.mark.parametrize("part", ["0.5pct/align", "0.5pct/conflict", "valid", "test"])
def test_a_missing_or_empty_part_is_named(tmp_path: Path, part: str) -> None:
    folder = write(tmp_path)
    for path in (folder / part).rglob("*.png"):
        path.unlink()
    with pytest.raises(InputError, match=rf"{part}: the folder contains no images"):
        load(tmp_path)
    (folder / part).rename(folder / "elsewhere")
    with pytest.raises(InputError, match=rf"{part}: a file of bffhq is missing"):
        load(tmp_path)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    path = next((write(tmp_path) / "valid").glob("*.png"))
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(InputError, match=rf"{path.name}: the image cannot be read"):
        load(tmp_path)


def test_nothing_there_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of bffhq are missing \(expected 0.5pct.*kakaoenterprise"):
        load(tmp_path)
