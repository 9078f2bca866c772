"""FDCL18: the published table, with and without dialects, and the files of GC-DRO."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from spurless.core.errors import IncompleteDataWarning, InputError, SpurlessWarning
from spurless.data.datasets.fdcl18 import PUBLISHED_FILE, FDCL18Config, fdcl18

LABELS = ("abusive", "spam", "normal", "hateful")
DIALECTS = ("other", "aav", "hispanic", "white")


def write(root: Path, n: int = 64, header: str = "", dialects: bool = True) -> Path:
    """The published table: tweet, label and votes, and the dialects beside it; tweet 3 has a line break."""
    folder = root / "fdcl18"
    folder.mkdir()
    lines = [f"{header}\n"] if header else []
    for i in range(n):
        tweet = f'"tweet\n{i}"' if i == 3 else f"tweet {i}"
        lines.append(f"{tweet}\t{LABELS[i % 4]}\t{i % 5}\n")
    (folder / PUBLISHED_FILE).write_text("".join(lines))
    if dialects:
        names = "".join(f"{i},{DIALECTS[i // 4 % 4]}\n" for i in reversed(range(n)))
        (folder / "dialect.csv").write_text("row,dialect\n" + names)
    return folder


def write_parts(root: Path) -> Path:
    """The files of GC-DRO; a quotation mark belongs to the tweet."""
    folder = root / "founta" / "raw"
    folder.mkdir(parents=True)
    for k, part in enumerate(("train", "valid", "test")):
        rows = [f'{LABELS[i % 4]}\t{DIALECTS[i // 4 % 4]}\t0.5\t"tweet {i + 100 * k}\n' for i in range(16 * (3 - k))]
        (folder / f"{part}.tsv").write_text("label\tdialect\tscore\ttext\n" + "".join(rows))
    return folder


def load(root: Path, tokenizer: str, **options: Any) -> Any:
    return fdcl18(FDCL18Config(root=str(root), tokenizer=tokenizer, **options))


def numbers(split: Any, spoken: Callable[[Tensor], str]) -> list[int]:
    return [int(spoken(ids).split()[-1]) for ids in split.x["input_ids"]]


@pytest.mark.parametrize("header", ["", "Tweet text\tLabel\tNumber of votes"])
def test_the_published_table_with_dialects_beside_it(
    tmp_path: Path, speller: str, spoken: Callable[[Tensor], str], header: str
) -> None:
    write(tmp_path, header=header)
    with pytest.warns(IncompleteDataWarning, match="there are 64 tweets instead of 99,996"):
        data = load(tmp_path, speller)
    found = []
    for split in (data.train, data.val, data.test):
        for i, y, a in zip(numbers(split, spoken), split.y, split.a, strict=True):
            assert (int(y), int(a)) == (i % 4, i // 4 % 4)
            found.append(i)
    assert sorted(found) == list(range(64))
    assert all(split.has_attributes for split in (data.train, data.val, data.test))
    assert len(data.groups) == 16
    assert data.groups.name(1) == "abusive, African-American-aligned"


def test_without_dialects_the_attributes_are_unknown_and_it_is_said(tmp_path: Path, speller: str) -> None:
    write(tmp_path, dialects=False)
    said = r"The dialect of 64 of 64 tweets is unknown.*dialect.csv \(row,dialect\)"
    with pytest.warns(IncompleteDataWarning), pytest.warns(SpurlessWarning, match=said):
        data = load(tmp_path, speller)
    assert not data.train.has_attributes
    assert set(data.train.a.tolist()) == {-1}
    assert len(data.notes) == 2
    with pytest.raises(InputError, match="needs the dialect of every tweet"):
        load(tmp_path, speller, partition="imperfect")


def test_an_empty_cell_is_an_unknown_dialect(tmp_path: Path, speller: str) -> None:
    path = write(tmp_path) / "dialect.csv"
    path.write_text(path.read_text().replace("\n9,hispanic\n", "\n9,\n"))
    with (
        pytest.warns(IncompleteDataWarning),
        pytest.warns(SpurlessWarning, match="The dialect of 1 of 64 tweets is unknown"),
    ):
        load(tmp_path, speller)


def test_the_files_of_gc_dro_give_their_split(tmp_path: Path, speller: str, spoken: Callable[[Tensor], str]) -> None:
    write_parts(tmp_path)
    data = load(tmp_path, speller)
    for k, split in enumerate((data.train, data.val, data.test)):
        assert numbers(split, spoken) == [i + 100 * k for i in range(16 * (3 - k))]
        assert split.y.tolist() == [i % 4 for i in range(16 * (3 - k))]
        assert split.a.tolist() == [i // 4 % 4 for i in range(16 * (3 - k))]
    assert spoken(data.train.x["input_ids"][0]) == '" tweet 0'


def test_the_imperfect_partition_is_the_dialects_alone(tmp_path: Path, speller: str) -> None:
    write_parts(tmp_path)
    data = load(tmp_path, speller, partition="imperfect")
    for split in (data.train, data.val):
        assert split.given.groups.names == data.groups.attributes
        assert split.given.g.tolist() == split.a.tolist()
    assert data.test.domain is None


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            PUBLISHED_FILE,
            "spam",
            "junk",
            r"100K.csv, row 2: 'junk' is unknown .expected abusive, spam, normal, hateful",
        ),
        (PUBLISHED_FILE, "tweet 9\tspam\t4", "tweet 9 spam 4", r"100K.csv, row 10: '' is unknown"),
        (
            "dialect.csv",
            "hispanic",
            "spanish",
            r"dialect.csv, row \d+: 'spanish' is not a valid value of column 'dialect'",
        ),
        ("dialect.csv", "63,", "64,", r"dialect.csv, row 2: '64' is not a valid value of column 'row'"),
    ],
)
def test_a_wrong_table_is_refused_by_row(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    path = write(tmp_path) / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=said) as caught:
        load(tmp_path, "none")
    assert len(str(caught.value)) < 500


def test_wrong_files_of_gc_dro_are_refused(tmp_path: Path) -> None:
    folder = write_parts(tmp_path)
    path = folder / "valid.tsv"
    content = path.read_text()
    path.write_text(content.replace("aav", "aae", 1))
    with pytest.raises(InputError, match=r"valid.tsv, row 6: 'aae' is unknown .expected other, aav, hispanic, white"):
        load(tmp_path, "none")
    path.write_text(content + "spam\taav\n")
    with pytest.raises(InputError, match=r"valid.tsv, row 34: the row lacks label, dialect or tweet"):
        load(tmp_path, "none")
    path.unlink()
    with pytest.raises(InputError, match=r"valid.tsv: a file of fdcl18 is missing"):
        load(tmp_path, "none")


def test_a_table_of_headers_has_no_tweets(tmp_path: Path) -> None:
    folder = write(tmp_path, n=1)
    (folder / PUBLISHED_FILE).write_text("Tweet text\tLabel\n")
    with pytest.raises(InputError, match=r"100K.csv: there are no tweets in the file"):
        load(tmp_path, "none")
