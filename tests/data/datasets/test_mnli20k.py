"""MNLI20k: the table is read, each pair once, and val is cut in two."""

import csv
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError
from spurless.data.datasets.multinli import MNLI20kConfig, mnli20k

LABELS = ("contradiction", "entailment", "neutral")
COLUMNS = ("premise", "hypothesis", "label", "split", "neg_gdro", "neg_wide")


def row(i: int) -> tuple[object, ...]:
    """Pair i: every sixth is one group, and the first 36 are train."""
    return (f"p {i}", f"h {i}", LABELS[i % 3], "train" if i < 36 else "val", i // 3 % 2, i // 6 % 2)


def write(root: Path, packed: bool = True) -> Path:
    """72 pairs; nine rows of val repeat one that was there, of which one was in train."""
    (root / "text").mkdir()
    text, seen = io.StringIO(), tuple("val" if cell == "train" else cell for cell in row(0))
    csv.writer(text).writerows([COLUMNS, *map(row, range(72)), *map(row, range(60, 68)), seen])
    path = root / "text" / ("mnli20k.csv.gz" if packed else "mnli20k.csv")
    path.write_bytes(gzip.compress(text.getvalue().encode()) if packed else text.getvalue().encode())
    return path


def load(root: Path, tokenizer: str, **options: Any) -> Any:
    return mnli20k(MNLI20kConfig(root=str(root), tokenizer=tokenizer, **options))


@pytest.mark.parametrize("packed", [True, False])
def test_each_pair_is_read_once_and_val_is_cut_in_two(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str], packed: bool
) -> None:
    write(tmp_path, packed)
    with pytest.warns(IncompleteDataWarning, match="train has 36 instead of 9,888"):
        data = load(tmp_path, speller)
    assert [split.counts.tolist() for split in (data.train, data.val, data.test)] == [[6] * 6, [3] * 6, [3] * 6]
    said = []
    for split in (data.train, data.val, data.test):
        for ids, y, a in zip(split.x["input_ids"], split.y, split.a, strict=True):
            premise, hypothesis = spoken(ids).split(" | ")
            i = int(premise.removeprefix("p "))
            assert hypothesis == f"h {i}"
            assert (int(y), int(a), i < 36) == (i % 3, i // 3 % 2, split is data.train)
            said.append(i)
    assert sorted(said) == list(range(72))


def test_the_wide_words_are_another_column(tmp_path: Path, speller: str) -> None:
    write(tmp_path)
    with pytest.warns(IncompleteDataWarning):
        data = load(tmp_path, speller, negation="wide")
    assert data.train.a.tolist() == [i // 6 % 2 for i in range(36)]


def test_a_test_split_that_is_there_stays(tmp_path: Path, speller: str) -> None:
    path = write(tmp_path, packed=False)
    path.write_text(path.read_text().replace("contradiction,val", "contradiction,test"))
    with pytest.warns(IncompleteDataWarning):
        data = load(tmp_path, speller)
    assert data.test.y.tolist() == [0] * 12
    assert len(data.val) == 24


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("neg_gdro", "neg", r"mnli20k.csv: no column is called 'neg_gdro'. Did you mean"),
        ("neutral,train", "unsure,train", r"mnli20k.csv, row 4: 'unsure' is not a valid value of column 'label'"),
        ("neutral,train", "neutral,trial", r"mnli20k.csv, row 4: 'trial' is not a valid value of column 'split'"),
        ("train,0", "train,2", r"mnli20k.csv, row 2: '2' is not a valid value of column 'neg_gdro'"),
    ],
)
def test_a_wrong_table_is_refused_by_row_and_column(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = write(tmp_path, packed=False)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=said):
        load(tmp_path, "none")


def test_a_truncated_file_and_a_wrong_option_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"mnli20k.csv.gz: the file cannot be unpacked"):
        load(tmp_path, "none")
    with pytest.raises(InputError, match=r"option 'negation' is unknown .expected gdro, wide, got broad"):
        load(tmp_path, "none", negation="broad")


@pytest.mark.data
@pytest.mark.skipif("SPURLESS_DATA" not in os.environ, reason="SPURLESS_DATA is not set")
def test_the_real_table(speller: str) -> None:
    data = load(Path(os.environ["SPURLESS_DATA"]), speller)
    assert data.train.counts.tolist() == [2805, 544, 3164, 49, 3223, 103]
    assert data.test.counts.tolist() == [866, 164, 1063, 28, 971, 26]
