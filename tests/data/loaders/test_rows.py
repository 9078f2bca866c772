"""Rows: whatever a spreadsheet exports is read, and whatever it got wrong is named."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
import torch

from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.loaders.csv import ImageRoot, check_duplicates, encode_column, read_columns


def test_columns_are_read_whole_by_name(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_text("id,kind,place\n1, land bird ,wood\n2,água,\n")
    assert read_columns(path, ("place", "kind")) == {"place": ["wood", ""], "kind": ["land bird", "água"]}


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_bytes("\ufeffkind,place\r\nland bird,wood\r\n".encode())
    assert read_columns(path, ("kind", "place")) == {"kind": ["land bird"], "place": ["wood"]}


def test_a_packed_table_reads_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv.gz"
    path.write_bytes(gzip.compress("\ufeffkind\r\nland\r\nsea\r\n".encode()))
    assert read_columns(path, ("kind",)) == {"kind": ["land", "sea"]}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"birds.csv.gz: the file cannot be unpacked"):
        read_columns(path, ("kind",))
    path.write_bytes(b"kind\nland\n")
    with pytest.raises(InputError, match=r"birds.csv.gz: the file cannot be unpacked"):
        read_columns(path, ("kind",))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_text("kind\n")
    with pytest.raises(InputError, match=r"birds.csv: the file has no rows below the header"):
        read_columns(path, ("kind",))


def test_values_are_numbered_by_a_table_and_others_named_with_their_row() -> None:
    known = {"land": 0, "sea": 1}
    assert torch.equal(encode_column(["sea", "land"], known, Path("b.csv"), "kind"), torch.tensor([1, 0]))
    with pytest.raises(
        InputError, match=r"b.csv, row 3: 'air' is not a valid value of column 'kind' \(expected land, sea\)"
    ):
        encode_column(["sea", "air"], known, Path("b.csv"), "kind")


def test_a_file_that_is_listed_twice_is_refused_where_it_would_tell_two_stories() -> None:
    a, b = Path("a.jpg"), Path("b.jpg")
    check_duplicates(Path("t.csv"), [a, b], ["cat", "cat"], [0, 2])
    with pytest.raises(
        InputError, match=r"t.csv, rows 2 and 4: the file 'a.jpg' is listed with two labels \(got 'cat'"
    ):
        check_duplicates(Path("t.csv"), [a, b, a], ["cat", "cat", "dog"], [0, 0, 0])
    with pytest.raises(InputError, match=r"t.csv, rows 2 and 7: the file 'a.jpg' is listed with two labels"):
        check_duplicates(Path("t.csv"), [a, b, a], ["cat", "cat", "dog"], [0, 0, 0], [2, 5, 7])  # others are blank
    with pytest.raises(InputError, match=r"rows 3 and 4: the file 'b.jpg' is listed twice and is in two splits"):
        check_duplicates(Path("t.csv"), [a, b, b], ["cat", "dog", "dog"], [0, 0, 2])
    with pytest.raises(InputError, match=r"the file 'b.jpg' is listed twice and would be in train and in test"):
        check_duplicates(Path("t.csv"), [a, b, b], ["cat", "dog", "dog"], [])
    with pytest.warns(SpurlessWarning, match=r"t.csv lists 2 files more than once; each listing is an example"):
        check_duplicates(Path("t.csv"), [a, a, a], ["cat"] * 3, [0] * 3)


@pytest.mark.slow
def test_a_million_rows_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    with path.open("w") as file:
        file.write("name,kind,place\n")
        for block in range(100):
            file.writelines(
                f"a name that nobody reads {i},land bird,wood\n" for i in range(block * 10_000, block * 10_000 + 10_000)
            )
    tracemalloc.start()
    found = read_columns(path, ("kind", "place"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found["kind"]) == 1_000_000
    assert peak < 60e6  # two lists of pointers; the file has 53 MB, a million short strings would take another 60


def test_a_file_outside_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.jpg").touch()
    (tmp_path / "root" / "own.jpg").touch()
    (tmp_path / "root" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    inside = ImageRoot(tmp_path / "root")
    assert inside.file("own.jpg", "row 2").name == "own.jpg"
    assert inside.file(str(tmp_path / "root" / "own.jpg"), "row 2").name == "own.jpg"
    up = f"{tmp_path}/root/../secret.jpg"
    for name in ("../secret.jpg", str(tmp_path / "secret.jpg"), up, str(tmp_path / "root" / "link.jpg"), "link.jpg"):
        with pytest.raises(InputError, match=r"row 2: the path .* leaves the root folder"):
            inside.file(name, "row 2")
    with pytest.raises(InputError, match=r"row 2: no such image file: .*none.jpg"):
        inside.file("none.jpg", "row 2")
    with pytest.raises(InputError, match=r"row 2: the file name is empty"):
        inside.file("", "row 2")
    with pytest.raises(InputError, match=r"no such folder"):
        ImageRoot(tmp_path / "nowhere")
