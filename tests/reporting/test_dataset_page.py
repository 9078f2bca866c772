"""The contact sheet as a file: every group with its numbers, whole, self-contained, and deaf to hostile strings."""

from __future__ import annotations

import base64
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.reporting.dataset_page import (
    MAX_GROUP_ROWS,
    DatasetPage,
    Example,
    GroupExamples,
    SplitExamples,
    render_dataset_page,
    write_dataset_page,
)

HOSTILE = "</style><script>alert(1)</script>\" onerror='alert(2)' <b>"


def words(text: str) -> str:
    body = text[text.index("<body>") :]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def attributes(text: str) -> set[str]:
    """Return the attributes of all elements, as a browser reads them."""
    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, _: str, attrs: list[tuple[str, str | None]]) -> None:
            found.update(name for name, _ in attrs)

    Reader().feed(text)
    return found


def birds(png: bytes) -> DatasetPage:
    def cell(label: str, place: str, count: int, aligned: bool | None) -> GroupExamples:
        shown = tuple(Example(f"example {i}", png) for i in range(min(count, 2)))
        return GroupExamples(label, place, count, shown, aligned)

    cells = (
        cell("landbird", "land", 75, True),
        cell("landbird", "water", 5, False),
        cell("waterbird", "land", 0, False),
        cell("waterbird", "water", 20, True),
    )
    return DatasetPage(
        "birds", "2 of each", (SplitExamples("train", 100, cells),), facts=(("Data", "birds"),), notes=("Not whole.",)
    )


def grid(n: int, png: bytes, **changes: int) -> SplitExamples:
    cells = tuple(
        GroupExamples(f"label {y}", f"colour {a}", changes.get(f"at_{y}_{a}", 1), (Example("example 7", png),), y == a)
        for y in range(n)
        for a in range(n)
    )
    return SplitExamples("train", n * n, cells)


def test_every_group_has_its_count_share_side_and_examples(pixel: bytes) -> None:
    text = render_dataset_page(birds(pixel))
    said = words(text)
    assert "landbird, land 75 examples, 75.0 % aligned" in said
    assert "landbird, water 5 examples, 5.0 % conflicting" in said
    assert "waterbird, land 0 examples, 0.0 % conflicting No examples." in said
    assert "waterbird, water 20 examples, 20.0 % aligned" in said
    assert text.count("<img ") == 6
    assert text.count('alt="example 0 of group landbird, water"') == 1
    assert f"data:image/png;base64,{base64.b64encode(pixel).decode()}" in text
    assert "Not whole." in said
    assert "In conflicting groups the shortcut is wrong." in said


def test_the_bar_is_as_long_as_the_share(pixel: bytes) -> None:
    assert re.findall(r"width: ([\d.]+)%", render_dataset_page(birds(pixel)).split("<body>")[1]) == [
        "75.0",
        "5.0",
        "0.0",
        "20.0",
    ]


def test_many_groups_are_a_table_of_labels_by_attributes(pixel: bytes) -> None:
    assert "<table" not in render_dataset_page(DatasetPage("t", "a", (grid(4, pixel),)))  # 16 groups
    text = render_dataset_page(DatasetPage("t", "a", (grid(5, pixel, at_1_3=12),)))
    table = text[text.index("<table>") : text.index("</table>")]
    rows = [words(f"<body>{row}") for row in table.split("<tr>")[1:]]
    assert rows[0] == "Label colour 0 colour 1 colour 2 colour 3 colour 4"
    assert len(rows) == 6
    assert (
        rows[2]
        == "label 1 1 4.0 % conflicting 1 4.0 % aligned 1 4.0 % conflicting 12 48.0 % conflicting 1 4.0 % conflicting"
    )
    assert table.count("<img ") == 25
    assert '<div class="scroll matrix" tabindex="0" role="region" aria-label="Train: labels by attributes">' in text


def test_a_cell_that_no_group_fills_stays_empty(pixel: bytes) -> None:
    part = grid(5, pixel)
    text = render_dataset_page(DatasetPage("t", "a", (SplitExamples("train", 25, part.groups[1:]),)))
    assert text.count('<td class="void">\u2013</td>') == 1


def test_many_groups_without_attributes_are_cards(pixel: bytes) -> None:
    cells = tuple(GroupExamples(f"class {y}", "", 1, (Example("example 1", pixel),)) for y in range(MAX_GROUP_ROWS + 1))
    text = render_dataset_page(DatasetPage("t", "a", (SplitExamples("train", MAX_GROUP_ROWS + 1, cells),)))
    assert "<table" not in text
    assert '<div class="cards">' in text
    assert text.count("<h3") == MAX_GROUP_ROWS + 1
    assert "conflicting" not in text.split("<body>")[1]


def test_words_and_numbers_are_shown_too() -> None:
    texts = GroupExamples("toxic", "male", 3, (Example("example 4, 2 tokens", text="you there"),))
    numbers = GroupExamples("minus", "left", 3, (Example("example 9", values=("0.5", "-1")),))
    said = words(
        render_dataset_page(
            DatasetPage("t", "a", (SplitExamples("train", 9, (texts, numbers)),), columns=("core", "spurious"))
        )
    )
    assert "you there example 4, 2 tokens" in said
    assert "Example core spurious example 9 0.5 -1" in said


def test_groups_that_overlap_are_said_to() -> None:
    cells = (GroupExamples("a", "x", 6), GroupExamples("a", "y", 6))
    assert "an example may be in several groups" in render_dataset_page(
        DatasetPage("t", "a", (SplitExamples("train", 9, cells),))
    )
    assert "an example may be in several groups" not in render_dataset_page(
        DatasetPage("t", "a", (SplitExamples("train", 12, cells),))
    )


def test_hostile_strings_stay_text(pixel: bytes) -> None:
    def cells(n: int) -> tuple[GroupExamples, ...]:
        shown = (Example(HOSTILE, pixel), Example(HOSTILE, text=HOSTILE), Example(HOSTILE, values=(HOSTILE,)))
        return tuple(GroupExamples(HOSTILE + str(i), HOSTILE, 1, shown[i % 3 :], False) for i in range(n))

    parts = (SplitExamples(HOSTILE, 3, cells(3)), SplitExamples("test", 20, cells(20)))
    text = render_dataset_page(DatasetPage(HOSTILE, HOSTILE, parts, (HOSTILE,), ((HOSTILE, HOSTILE),), (HOSTILE,)))
    assert "<script" not in text
    assert "<b>" not in text
    assert not [name for name in attributes(text) if name.startswith("on")]
    assert text.count("</style>") == 2
    assert "alert(1)" in words(text)


def test_the_page_asks_nothing_of_a_network_and_runs_no_code(pixel: bytes) -> None:
    text = render_dataset_page(birds(pixel))
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:" in text
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", text)
    assert "url(" not in text
    assert render_dataset_page(birds(pixel)) == text


def test_the_file_appears_whole_or_not_at_all(pixel: bytes, tmp_path: Path) -> None:
    path = write_dataset_page(tmp_path / "deep" / "sheet.html", birds(pixel))
    assert path.read_text(encoding="utf-8") == render_dataset_page(birds(pixel))
    assert list(path.parent.iterdir()) == [path]
    bad = DatasetPage(
        "t", "a", (SplitExamples("train", 1, (GroupExamples("cow", "", 1, (Example("example 3", b"GIF89a"),)),)),)
    )
    with pytest.raises(InputError, match=r"cow, example 3: the picture is not a PNG"):
        write_dataset_page(tmp_path / "bad.html", bad)
    with pytest.raises(InputError, match=r"cannot write"):
        write_dataset_page(path / "under", birds(pixel))
    assert not (tmp_path / "bad.html").exists()
