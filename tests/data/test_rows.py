"""Rows: whatever a spreadsheet exports is read, and whatever it got wrong is named."""

import gzip
import tracemalloc
from pathlib import Path

import pytest
import torch

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.data.rows import Inside, check_repeats, codes, columns


def test_columns_are_read_whole_by_name(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_text("id,kind,place\n1, land bird ,wood\n2,água,\n")
    assert columns(path, ("place", "kind")) == {"place": ["wood", ""], "kind": ["land bird", "água"]}


def test_a_byte_order_mark_and_windows_line_ends_are_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_bytes("\ufeffkind,place\r\nland bird,wood\r\n".encode())
    assert columns(path, ("kind", "place")) == {"kind": ["land bird"], "place": ["wood"]}


def test_a_packed_table_reads_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv.gz"
    path.write_bytes(gzip.compress("\ufeffkind\r\nland\r\nsea\r\n".encode()))
    assert columns(path, ("kind",)) == {"kind": ["land", "sea"]}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(BadInput, match=r"birds.csv.gz: the file cannot be unpacked"):
        columns(path, ("kind",))
    path.write_bytes(b"kind\nland\n")
    with pytest.raises(BadInput, match=r"birds.csv.gz: the file cannot be unpacked"):
        columns(path, ("kind",))


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "birds.csv"
    path.write_text("kind\n")
    with pytest.raises(BadInput, match=r"birds.csv: there are no rows under the header"):
        columns(path, ("kind",))


def test_values_are_numbered_by_a_table_and_others_named_with_their_row() -> None:
    known = {"land": 0, "sea": 1}
    assert torch.equal(codes(["sea", "land"], known, Path("b.csv"), "kind"), torch.tensor([1, 0]))
    with pytest.raises(BadInput, match=r"b.csv, row 3: 'air' is not a value of column 'kind' \(expected land, sea\)"):
        codes(["sea", "air"], known, Path("b.csv"), "kind")


def test_a_file_that_is_listed_twice_is_refused_where_it_would_tell_two_stories() -> None:
    a, b = Path("a.jpg"), Path("b.jpg")
    check_repeats(Path("t.csv"), [a, b], ["cat", "cat"], [0, 2])
    with pytest.raises(BadInput, match=r"t.csv, rows 2 and 4: the file 'a.jpg' is listed with two labels \(got 'cat'"):
        check_repeats(Path("t.csv"), [a, b, a], ["cat", "cat", "dog"], [0, 0, 0])
    with pytest.raises(BadInput, match=r"t.csv, rows 2 and 7: the file 'a.jpg' is listed with two labels"):
        check_repeats(Path("t.csv"), [a, b, a], ["cat", "cat", "dog"], [0, 0, 0], [2, 5, 7])  # others are blank
    with pytest.raises(BadInput, match=r"rows 3 and 4: the file 'b.jpg' is listed twice and is in two splits"):
        check_repeats(Path("t.csv"), [a, b, b], ["cat", "dog", "dog"], [0, 0, 2])
    with pytest.raises(BadInput, match=r"the file 'b.jpg' is listed twice and would be in train and in test"):
        check_repeats(Path("t.csv"), [a, b, b], ["cat", "dog", "dog"], [])
    with pytest.warns(SpurlessWarning, match=r"t.csv lists 2 files more than once; they count as often"):
        check_repeats(Path("t.csv"), [a, a, a], ["cat"] * 3, [0] * 3)


def test_a_million_rows_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    with path.open("w") as file:
        file.write("name,kind,place\n")
        for block in range(100):
            file.writelines(
                f"a name that nobody reads {i},land bird,wood\n" for i in range(block * 10_000, block * 10_000 + 10_000)
            )
    tracemalloc.start()
    found = columns(path, ("kind", "place"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found["kind"]) == 1_000_000
    assert peak < 60e6  # two lists of pointers; the file has 53 MB, a million short strings would take another 60


def test_a_file_outside_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.jpg").touch()
    (tmp_path / "root" / "own.jpg").touch()
    (tmp_path / "root" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    inside = Inside(tmp_path / "root")
    assert inside.file("own.jpg", "row 2").name == "own.jpg"
    assert inside.file(str(tmp_path / "root" / "own.jpg"), "row 2").name == "own.jpg"
    up = f"{tmp_path}/root/../secret.jpg"
    for name in ("../secret.jpg", str(tmp_path / "secret.jpg"), up, str(tmp_path / "root" / "link.jpg"), "link.jpg"):
        with pytest.raises(BadInput, match=r"row 2: the path .* leaves its root"):
            inside.file(name, "row 2")
    with pytest.raises(BadInput, match=r"row 2: no such image file: .*none.jpg"):
        inside.file("none.jpg", "row 2")
    with pytest.raises(BadInput, match=r"row 2: the file name is empty"):
        inside.file("", "row 2")
    with pytest.raises(BadInput, match=r"no such folder"):
        Inside(tmp_path / "nowhere")
