"""Cats vs. Dogs: both layouts are read, split by class; the two empty files are passed over, no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.cats_vs_dogs import (
    KAGGLE_COUNTS,
    MICROSOFT_COUNTS,
    SPLIT_FRACTIONS,
    CatsVsDogsConfig,
    cats_vs_dogs,
)
from spurless.data.split import Splits
from spurless.data.splitting import split_stratified

N = 25


def image(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((20, 26, 3), grey, dtype=np.uint8)).save(path, format="JPEG")


def kaggle(root: Path) -> Path:
    folder = root / "dogs-vs-cats"
    for i in range(N):
        image(folder / "train" / f"cat.{i}.jpg", 4 * i)
        image(folder / "train" / f"dog.{i}.jpg", 128 + 4 * i)
    return folder


def microsoft(root: Path) -> Path:
    folder = root / "PetImages"
    for i in range(N):
        image(folder / "Cat" / f"{i}.jpg", 4 * i)
        image(folder / "Dog" / f"{i}.jpg", 128 + 4 * i)
    (folder / "Cat" / "Thumbs.db").write_bytes(b"no image")
    for name in ("Cat/666.jpg", "Dog/11702.jpg"):
        (folder / name).write_bytes(b"")
    return folder


def load(root: Path, **options: Any) -> Splits:
    return cats_vs_dogs(CatsVsDogsConfig(root=str(root), **options))


def greys(x: Any) -> list[int]:
    return [round(float(value)) for value in x.float().mean(dim=(1, 2, 3))]


@pytest.mark.parametrize(("layout", "train"), [(kaggle, "16,000"), (microsoft, "15,998")])
def test_both_layouts_are_split_by_class(tmp_path: Path, layout: Any, train: str) -> None:
    layout(tmp_path)
    with pytest.warns(
        IncompleteDataWarning,
        match=rf"train has 32 instead of {train}; val has 8 instead of 4,000; test has 10 instead of",
    ):
        data = load(tmp_path)
    assert data.groups.names == ("cat", "dog")
    assert [split.class_counts.tolist() for split in (data.train, data.val, data.test)] == [[16, 16], [4, 4], [5, 5]]
    shown = [grey for split in (data.train, data.val, data.test) for grey in greys(split.x)]
    assert sorted(shown) == [128 * kind + 4 * i for kind in (0, 1) for i in range(N)]  # each once
    for split in (data.train, data.val, data.test):
        assert split.y.tolist() == [grey // 128 for grey in greys(split.x)]
    assert isinstance(data.train.x, torch.Tensor)
    assert data.train.x.shape[1:] == (3, 64, 64)


def test_the_seed_draws_the_splits(tmp_path: Path) -> None:
    kaggle(tmp_path)
    with pytest.warns(IncompleteDataWarning):
        first, again, other = (load(tmp_path, size=8, seed=seed) for seed in (0, 0, 1))
    assert greys(first.test.x) == greys(again.test.x) != greys(other.test.x)


@pytest.mark.parametrize(("per_class", "published"), [(12500, KAGGLE_COUNTS), (12499, MICROSOFT_COUNTS)])
def test_the_published_counts_are_what_a_whole_copy_gives(per_class: int, published: dict[str, int]) -> None:
    y = torch.repeat_interleave(torch.arange(2), per_class)
    assert [len(part) for part in split_stratified(y, SPLIT_FRACTIONS, seeds=Seeds(0))] == list(published.values())


def test_another_broken_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = microsoft(tmp_path)
    (folder / "Cat" / "7.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"Cat/7.jpg: the image cannot be read"):
        load(tmp_path)


def test_kaggles_own_number_666_is_read(tmp_path: Path) -> None:
    folder = kaggle(tmp_path)
    image(folder / "train" / "cat.666.jpg", 0)
    with pytest.warns(IncompleteDataWarning):
        data = load(tmp_path, size=8)
    assert sum(int(split.class_counts[0]) for split in (data.train, data.val, data.test)) == N + 1


@pytest.mark.parametrize("name", ["bird.1.jpg", "cat1.jpg", "cat.one.jpg"])
def test_a_name_that_says_nothing_is_refused(tmp_path: Path, name: str) -> None:
    image(kaggle(tmp_path) / "train" / name, 0)
    with pytest.raises(InputError, match=rf"train/{name}: the file name is neither"):
        load(tmp_path)


def test_half_a_copy_is_refused(tmp_path: Path) -> None:
    folder = kaggle(tmp_path / "a")
    for path in (folder / "train").glob("dog*"):
        path.unlink()
    with pytest.raises(InputError, match=r"train: there are no images of dogs"):
        load(tmp_path / "a")
    folder = microsoft(tmp_path / "b")
    (folder / "Cat").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"PetImages/Cat: a file of cats-vs-dogs is missing"):
        load(tmp_path / "b")
    (folder / "Cat").mkdir()
    with pytest.raises(InputError, match=r"PetImages: there are no images of cats"):
        load(tmp_path / "b")


def test_nothing_there_says_where_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"files of cats-vs-dogs are missing \(expected PetImages.*Microsoft"):
        load(tmp_path)
