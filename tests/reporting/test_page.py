"""Tests of the page as a file: whole, self-contained, the same each time, and deaf to hostile strings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spurless.core.errors import InputError
from spurless.core.findings import Audit, Finding
from spurless.core.records import Record
from spurless.reporting import Figure, Picture, Section, report, write_sections
from spurless.reporting.page import embed_json, render, render_sections

Make = Callable[..., Record]
HOSTILE = "</script><script>alert(1)</script>"


class Page(HTMLParser):
    """The elements of a page, their addresses, and the text that a person sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside.removesuffix(tag)

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words += data


def test_the_page_starts_with_the_verdict_and_has_every_part(make: Make, tmp_path: Path, pixel: bytes) -> None:
    runs = [make(), make("jtt", worst=0.483, low=0.39, high=0.57, average=0.902, warnings=("mind the gap",))]
    path = report(tmp_path / "deep" / "r.html", runs, pictures=[Picture("A cow", "on sand", pixel, "a cow")])
    page = Page(path.read_text(encoding="utf-8"))
    words = " ".join(page.words.split())
    parts = [
        "JTT raises the worst group from 7.1 % to 48.3 %",
        "One seed only",
        "Before and after",
        "Groups",
        "All metrics",
        "Labels used",
        "A cow",
        "Training",
        "Runs",
        "Limitations",
        "mind the gap",
    ]
    main = words[words.index("Charts need JavaScript") :].replace("\u00a0", " ")
    places = [main.index(part) for part in parts]
    assert places == sorted(places)
    assert list((tmp_path / "deep").iterdir()) == [path]


def test_the_page_asks_nothing_of_a_network(make: Make) -> None:
    page = Page(render([make(), make("jtt")], pictures=[]))
    assert page.addresses
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert not {"iframe", "object", "embed", "form", "base"} & set(page.tags)
    head = render([make()]).split("</style>")[0]
    assert "default-src 'none'" in head
    assert "@import" not in head
    assert "url(" not in head


def test_the_same_records_give_the_same_page(make: Make, tmp_path: Path) -> None:
    first = report(tmp_path / "a.html", [make(), make("jtt")]).read_bytes()
    assert first == report(tmp_path / "b.html", [make(), make("jtt")]).read_bytes()


def test_hostile_strings_stay_text(make: Make, hostile: list[Record], pixel: bytes) -> None:
    pictures = [Picture(HOSTILE, HOSTILE, pixel, '" onerror="alert(3)')]
    calm, page = (
        Page(render([make(method) for method in ("erm", "a", "b", "c", "d")], pictures=pictures)),
        Page(render(hostile, title=HOSTILE, pictures=pictures)),
    )
    assert len(page.scripts) == len(calm.scripts) == 4
    assert page.tags.count("img") == 1
    assert "b" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on")]
    assert HOSTILE in page.words
    assert "<img src=x onerror=alert(2)>" in page.words
    assert len(page.words) < 60_000  # five runs with 10,000 characters in each name


def test_the_records_travel_in_the_page_unchanged(make: Make, hostile: list[Record]) -> None:
    records = [make(), *hostile]
    data = next(s for s in Page(render(records)).scripts if s.startswith('"'))
    lines = json.loads(data).split("\n")[:-1]
    assert [Record.from_json(line) for line in lines] == records


def test_embedded_json_cannot_leave_its_element() -> None:
    text = embed_json({"k": "</script><!--&\u2028\u2029"})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"k": "</script><!--&\u2028\u2029"}


def test_odd_characters_do_not_stop_the_writing(make: Make, tmp_path: Path) -> None:
    odd = make("\ud800 lone", command="\ud800", selection="\x00")
    assert "lone" in report(tmp_path / "r.html", [odd]).read_text(encoding="utf-8")


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing to report \(expected at least one record\)"):
        report(tmp_path / "r.html", [])
    assert not (tmp_path / "r.html").exists()


def test_what_is_no_run_is_a_sentence(make: Make, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the runs must be a list \(got Record\)\. Write runs=\[run\]\."):
        report(tmp_path / "r.html", make("erm"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"this is not a run \(expected the result of sp\.fit, or a record, got str\)"):
        report(tmp_path / "r.html", "runs")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_an_error_and_leaves_nothing(make: Make, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(InputError, match="cannot write"):
        report(tmp_path / "taken", [make()])
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write"):
        report(tmp_path / "file" / "r.html", [make()])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken"]


def test_an_old_page_survives_a_failed_write(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    path.write_text("old")
    with pytest.raises(InputError, match="not a PNG"):
        report(path, [make()], pictures=[Picture("t", "c", b"GIF89a", "a")])
    assert path.read_text() == "old"


def test_pictures_may_be_paths(make: Make, tmp_path: Path, pixel: bytes) -> None:
    (tmp_path / "p.png").write_bytes(pixel)
    page = Page(render([make()], pictures=[Picture("t", "c", tmp_path / "p.png", "alt words")]))
    assert any(address.startswith("data:image/png;base64,iVBOR") for address in page.addresses)
    with pytest.raises(InputError, match="the picture cannot be read: No such file"):
        render([make()], pictures=[Picture("t", "c", tmp_path / "none.png", "a")])


def test_many_groups_show_the_worst_and_keep_the_rest(grid: Make) -> None:
    words = " ".join(Page(render([grid()])).words.split())
    assert "The 15 groups with the lowest accuracy with any method, of 36." in words
    assert "Labels and attributes" in words
    assert "All 36 groups" in words


def test_many_comparisons_are_folded(make: Make) -> None:
    runs = [make(), *(make(f"m{i}", worst=0.1 * i) for i in range(1, 7))]
    assert "All 6 comparisons with ERM" in Page(render(runs)).words
    assert "comparisons with" not in Page(render(runs[:6])).words


def test_several_datasets_become_chapters(make: Make, grid: Make) -> None:
    page = Page(render([make(), grid()]))
    words = " ".join(page.words.split())
    assert "Shortcuts in marked-digits and grid" in words
    assert page.tags.count("h1") == 1
    assert page.tags.index("h2") < page.tags.index("h3")


def test_a_bare_record_still_makes_a_page(make: Make) -> None:
    bare = make(groups=(), metrics={}, history=(), data={}, model={}, seconds={}, command="", time="", selection="")
    words = Page(render([bare])).words
    assert "n/a" in words
    assert "None" not in words


def chart(title: str = "Chart") -> Figure:
    return Figure(title, "caption", {"data": [{"y": [1, 2]}], "layout": {}}, "words for the chart")


def test_sections_come_after_the_chapters_in_their_order(make: Make, grid: Make, pixel: bytes) -> None:
    sections = [
        Section("First part", "some text\nmore text", [Picture("A heat map", "row 1\nrow 2", pixel, "a map"), chart()]),
        Section("Second part", "other text", [chart("Last chart")]),
    ]
    for records in ([make()], [make(), grid()]):
        words = Page(render(records, sections=sections)).words
        parts = ["Unknown groups.", "First part", "some text", "more text", "A heat map", "row 1\nrow 2"]
        parts += ["Chart", "Second part", "other text", "Last chart", "Written by Spurless"]
        main = words[words.index("need JavaScript") :]
        places = [main.index(part) for part in parts]
        assert places == sorted(places)
        assert words.index("First part") < words.index("Charts need JavaScript")  # in the navigation


def test_charts_of_sections_are_numbered_after_those_of_the_records(make: Make) -> None:
    page = Page(render([make()], sections=[Section("s", "", [chart()])]))
    specs = json.loads(next(s for s in page.scripts if s.startswith('{"chart-0"')))
    assert list(specs) == [f"chart-{i}" for i in range(4)]
    assert specs["chart-3"]["data"] == [{"y": [1, 2]}]


def test_report_takes_sections(make: Make, tmp_path: Path) -> None:
    path = report(tmp_path / "r.html", [make()], sections=[Section("My own part", "")])
    assert "My own part" in Page(path.read_text(encoding="utf-8")).words


def test_hostile_sections_stay_text(make: Make, pixel: bytes) -> None:
    figure = Figure(HOSTILE, HOSTILE, {"data": [{"y": [1], "name": HOSTILE}], "layout": {"title": HOSTILE}}, HOSTILE)
    section = Section(HOSTILE, HOSTILE, [Picture(HOSTILE, HOSTILE, pixel, '" onerror="alert(3)'), figure])
    for page, scripts in (
        (Page(render([make()], sections=[section])), 4),
        (Page(render_sections(HOSTILE, [section])), 3),
    ):
        assert len(page.scripts) == scripts
        assert page.tags.count("img") == 1
        assert not [name for name in page.attributes if name.startswith("on")]
        assert page.words.count(HOSTILE) >= 5


def test_a_page_of_sections_alone_is_whole(pixel: bytes, tmp_path: Path) -> None:
    picture = Picture("A heat map", "of a cow", pixel, "a cow")
    path = write_sections(tmp_path / "deep" / "s.html", "Maps", [Section("Part", "text", [picture])], about="of cows")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    assert "default-src 'none'" in text
    assert [word in page.words for word in ("Maps", "of cows", "Part", "text", "A heat map")] == [True] * 5
    assert len(text) < 40_000  # nothing to draw, so nothing to draw with
    assert 1_000_000 < len(render_sections("t", [Section("s", "", [chart()])])) < 2_500_000  # Plotly, compressed


def test_no_sections_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is nothing to show \(expected at least one section\)"):
        write_sections(tmp_path / "s.html", "t", [])
    assert not list(tmp_path.iterdir())


def test_report_does_not_need_torch() -> None:
    code = "import sys, spurless.reporting; assert 'torch' not in sys.modules and 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_audits_are_on_the_page_after_the_chapters(make: Make, tmp_path: Path) -> None:
    found = Finding("slices", f"Mistakes share {HOSTILE}", 0.4, True, 0.002, "40 %", "Repair.", items=(chart(),))
    quiet = replace(found, audit="b", title="No word matters", flagged=False, p=0.4)
    audit = Audit((found, quiet), facts={"model": "cnn"})
    one = report(tmp_path / "one.html", [make()], audits=audit).read_text(encoding="utf-8")
    words = Page(one).words
    assert words.index("Limitations") < words.index("This model uses a shortcut")
    assert words.index("This model uses a shortcut") < words.index("No word matters (not significant)")
    assert HOSTILE not in one
    two = report(tmp_path / "two.html", [make()], audits=[audit, audit]).read_text(encoding="utf-8")
    identities = re.findall(r'<[a-z]\w* [^>]*?\bid="([^"]+)"', two)
    assert len(identities) == len(set(identities))
    assert {"audit-0", "audit-1"} <= set(identities)
    assert ".finding-title" not in render([make()])  # a page without audits does not carry their style


def test_what_is_no_audit_is_a_sentence(make: Make, tmp_path: Path) -> None:
    wrong: Any
    for wrong in (3, ["audit.json"], [make()]):
        with pytest.raises(InputError, match="this is not an audit"):
            report(tmp_path / "page.html", [make()], audits=wrong)
