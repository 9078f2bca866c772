"""Tests of the page of an audit as a file: verdict first, self-contained, never too large, deaf to hostile strings."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture, Section
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.records import Record
from spurless.reporting import audit_html, write_audit
from spurless.reporting.audit_page import MAX_PAGE_BYTES, MAX_SUSPECTS, SUSPECTS_PER_STEP, render_audit
from spurless.reporting.audit_text import suspects_csv

USE = Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "40 % of 12", "Repair the head.", shortcut="grass")
PRESENT = replace(USE, audit="table", title="Grass goes with cows", severity=0.87, shows_use=False)
SMALL = replace(USE, audit="class", title="Camels are harder", severity=0.01, flagged=False)
QUIET = replace(USE, audit="tokens", title="No word matters", severity=0.1, flagged=False, p=0.4)
UNASKED = replace(USE, audit="swaps", title="No masks were given", severity=0.0, flagged=False, p=None)
SUSPECT = Suspect(7, "cow", "camel", 0.9, True, "sand", "images/7.jpg")
HOSTILE = "</script><script>alert(1)</script>"
ODD = [
    HOSTILE,
    "<img src=x onerror=alert(2)> \"a\" 'b' <b>bold</b>",
    "x" * 10_000,
    "مجموعة \u202e🐄\u2028",
    "\ud800 lone",
]


class Page(HTMLParser):
    """The elements of a page, what their attributes are, and the text that a person reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._inside = ""
        self.feed(text)
        self.words = " ".join(self.words.split()).replace("\u00a0", " ")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside.removesuffix(tag)
        self.words += " " * (tag in ("dt", "dd", "td", "th", "option"))

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words += data

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def chart(title: str = "Chart") -> Figure:
    return Figure(title, "caption", {"data": [{"y": [1, 2], "name": title}], "layout": {}}, "words for the chart")


def in_order(words: str, *parts: str) -> None:
    place = 0
    for part in parts:
        place = words.index(part, place) + len(part)


def main(page: Page) -> str:
    return page.words[page.words.index("Charts and filters need JavaScript") :]


def test_the_verdict_comes_first_and_every_part_is_there(tmp_path: Path, pixel: bytes) -> None:
    finding = replace(USE, items=(Picture("Six cows", "on sand", pixel, "cows"), chart()), numbers={"worst_gap": 0.4})
    audit = Audit((finding, QUIET), (SUSPECT,), {"model": "resnet18", "data": {"name": "cows"}}, ("Few were seen.",))
    path = write_audit(tmp_path / "deep" / "a.html", audit, sections=[Section("My part", "my text")])
    page = Page(path.read_text(encoding="utf-8"))
    assert page.words.index("Audit of resnet18 on cows") < page.words.index("Charts and filters")
    in_order(
        main(page),
        "This model uses a shortcut: “grass”.",
        "Certainty",
        "Next step Repair the head.",
        "Tests 2",
        "Findings",
        "Use confirmed",
        "40 % of 12 Chance alone gives this result in fewer than 1 of 100 cases (p = 0.002).",
        "Severity 0.40 of 1",
        "Six cows",
        "Worst gap 0.4",
        "Not flagged",
        "No word matters",
        "Suspected minority",
        "Row 7",
        "images/7.jpg",
        "My part",
        "Settings",
        "Limitations",
        "Few were seen.",
    )
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("findings", "headline", "panel"),
    [
        ((USE,), "This model uses a shortcut: “grass”.", "panel shortcut"),
        ((PRESENT,), "Suspicious, but use of a shortcut is not confirmed.", "panel suspicious"),
        ((QUIET,), "No sign of a shortcut.", "panel none-found"),
        ((UNASKED,), "This audit is inconclusive.", "panel inconclusive"),
        ((), "This audit is inconclusive.", "panel inconclusive"),
    ],
)
def test_each_verdict_has_its_words_and_its_shape(findings: Any, headline: str, panel: str) -> None:
    page = Page(render_audit(Audit(findings)))
    assert headline in main(page)
    assert panel in page.values("class")
    assert page.tags.count("article") == sum(finding.flagged for finding in findings)


def test_what_is_shown_comes_before_what_is_louder_and_only_present() -> None:
    faint = replace(USE, audit="faint", title="A fainter use", severity=0.2)
    page = Page(render_audit(Audit((PRESENT, UNASKED, SMALL, faint, USE, QUIET))))
    in_order(
        main(page)[main(page).index("Findings") :],
        "Mistakes share grass",
        "A fainter use",
        "Present, use not confirmed",
        "Grass goes with cows",
        "Not flagged",
        "Effect too small Camels are harder",
        "Not significant No word matters",
        "Not testable No masks were given",
        "There is no p-value.",
    )
    assert "The model uses it: significant after correction" in page.words


def test_the_counts_are_those_of_the_audit() -> None:
    words = main(
        Page(render_audit(Audit((USE, PRESENT, QUIET, UNASKED), (SUSPECT, replace(SUSPECT, suspected=False)))))
    )
    assert "Tests 3 1 were not possible" in words
    assert "Flagged 2 significant at level 0.05" in words
    assert "Use confirmed 1" in words
    assert "Suspected minority 1 " in words


def test_examples_link_to_the_gallery_where_they_are_in_it() -> None:
    finding = replace(USE, rows=(7, 9, *range(100, 120)))
    page = Page(render_audit(Audit((finding,), (SUSPECT,))))
    assert [v for v in page.values("href") if v.startswith("#row")] == ["#row-7"]
    assert "7, 9, 100, 101" in page.words
    assert "109 and 10 more" in page.words


def test_a_suspect_is_shown_with_all_that_is_known() -> None:
    right = replace(SUSPECT, row=8, predicted="cow", attribute=None, file=None, suspected=False, text="moo moo")
    words = main(Page(render_audit(Audit((USE,), (SUSPECT, right)))))
    first, second = words[words.index("Row 7") : words.index("Row 8")], words[words.index("Row 8") :]
    for part in ("suspected", "Label cow", "Predicted camel ✕, wrong", "Attribute sand", "Score 0.90", "images/7.jpg"):
        assert part in first
    assert "moo moo" in second
    assert "Predicted cow ✓, right" in second
    assert not re.search("suspected|Attribute|File", second[: second.index("Limitations")])


def test_filters_offer_every_label_with_its_count() -> None:
    suspects = [replace(SUSPECT, row=i, label=f"label {i % 3}", predicted="p") for i in range(7)]
    page = Page(render_audit(Audit((), tuple(suspects))))
    assert "All labels label 0 (3) label 1 (2) label 2 (2)" in page.words
    numbers = [value for name, value in page.attributes if name == "data-label"]
    assert numbers == ["0", "1", "2", "0", "1", "2", "0"]


def test_very_many_suspects_are_left_to_the_list() -> None:
    suspects = tuple(replace(SUSPECT, row=i) for i in range(MAX_SUSPECTS + 60))
    page = Page(render_audit(Audit((USE,), suspects)))
    assert sum(value.startswith("row-") for value in page.values("id")) == MAX_SUSPECTS
    assert f"The first {MAX_SUSPECTS} are shown; 60 more are in the CSV." in page.words
    assert [suspects_csv(Audit((), suspects))] == [json.loads(s) for s in page.scripts if s.startswith('"row,')]
    endless = tuple(replace(SUSPECT, row=i, file="f" * 10_000) for i in range(100))
    assert '""' in Page(render_audit(Audit((), endless))).scripts


def test_facts_are_written_for_people() -> None:
    facts = {
        "model": {"name": "net", "parameters": 12},
        "labels_used": ["val labels", "attributes"],
        "seconds": 75.4,
        "classes": [str(i) for i in range(20)],
        "train": None,
        "on": True,
        "seed": 0,
        "stages": {"features": 1.5},
    }
    words = main(Page(render_audit(Audit((), facts=facts))))
    for part in (
        "Model name = net, parameters = 12",
        "Labels used val labels and attributes",
        "Time 1 min 15 s",
        "10, 11 and 8 more",
        "Train none",
        "On yes",
        "Seed 0",
        "Stages features = 1.5",
    ):
        assert part in words
    assert "Time features = 2.0 s" in main(Page(render_audit(Audit((), facts={"seconds": {"features": 2}}))))


def test_before_and_after_has_a_chart_and_a_group_table(make: Callable[..., Record]) -> None:
    records = [make(), make("jtt", worst=0.483, low=0.39, high=0.57, average=0.902)]
    page = Page(render_audit(Audit((USE,)), before_after=records))
    in_order(
        main(page),
        "Findings",
        "Before and after",
        "JTT raises the worst group from 7.1 % to 48.3 %",
        "Worst group and average",
        "digits 0-4, unmarked 7.1 % worst group3.7 to 13.2 % 48.3 %",
        "Limitations",
    )
    assert "Before and after" not in Page(render_audit(Audit((USE,)))).words


def test_charts_of_findings_repairs_and_sections_are_all_numbered(make: Callable[..., Record]) -> None:
    findings = (replace(USE, items=(chart(),)), replace(QUIET, items=(chart(),)))
    text = render_audit(Audit(findings), before_after=[make()], sections=[Section("s", "", [chart()])])
    page = Page(text)
    specs = json.loads(next(s for s in page.scripts if s.startswith('{"chart-0"')))
    assert sorted(specs) == [f"chart-{i}" for i in range(4)]
    assert [i for i in page.values("id") if i.startswith("chart-")] == ["chart-0", "chart-1", "chart-2", "chart-3"]


def test_the_page_asks_nothing_of_a_network_and_is_light_where_nothing_is_drawn(pixel: bytes) -> None:
    audit = Audit((replace(USE, items=(Picture("t", "c", pixel, "a"),)),), (SUSPECT,))
    text = render_audit(audit)
    page = Page(text)
    assert all(address.startswith(("#", "data:")) for address in page.values("src", "href", "action", "srcset"))
    assert not {"iframe", "object", "embed", "form", "base"} & set(page.tags)
    assert "default-src 'none'" in text
    assert "url(" not in text.split("</head>")[0]
    assert "@import" not in text.split("</head>")[0]
    assert len(text) < 60_000
    assert text == render_audit(audit)


def hostile(word: str, pixel: bytes) -> Audit:
    """Return an audit whose every string is the same attack."""
    figure = Figure(word, word, {"data": [{"y": [1], "name": word}], "layout": {"title": word}}, word)
    picture = Picture(word, word, pixel, f'" onerror="alert(3)" {word}')
    finding = Finding(
        word, word, 0.5, True, 0.001, word, word, shortcut=word, numbers={word: 1.0}, items=(picture, figure)
    )
    folded = replace(finding, flagged=False, p=0.5, items=())
    suspect = Suspect(1, word, word + "!", 0.5, True, word, word, word, picture, picture)
    return Audit((finding, folded), (suspect,), {word: word, "model": word, "x": {word: [word]}, "y": [word]}, (word,))


@pytest.mark.parametrize("word", ODD, ids=("script", "img", "long", "right to left", "lone"))
def test_hostile_strings_stay_text(word: str, pixel: bytes, tmp_path: Path) -> None:
    calm = Page(render_audit(hostile("calm", pixel), title="calm"))
    path = write_audit(tmp_path / "a.html", hostile(word, pixel), title=word)
    page = Page(path.read_text(encoding="utf-8"))
    assert page.tags == calm.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert len(page.scripts) == len(calm.scripts) == 5
    assert len(page.words) < 40_000
    if word == HOSTILE:
        assert page.words.count(HOSTILE) >= 20


def test_the_page_stays_under_its_size_and_says_what_is_left_out() -> None:
    def heavy(number: int) -> Picture:
        return Picture(
            "", "", b"\x89PNG\r\n\x1a\n" + bytes(12) + b"\1" + number.to_bytes(2) + os.urandom(50_000), "alt"
        )

    evidence = replace(USE, items=(heavy(0), chart()))
    suspects = [replace(SUSPECT, row=i, picture=heavy(2 * i), heat=heavy(2 * i + 1)) for i in range(60)]
    text = render_audit(Audit((evidence,), tuple(suspects)))
    assert MAX_PAGE_BYTES - 200_000 < len(text.encode()) < MAX_PAGE_BYTES == 8_000_000
    page = Page(text)
    left = int(re.search(r"To keep this page small, (\d+) pictures are left out", page.words)[1])  # type: ignore[index]  # it is there
    assert page.tags.count("img") == 121 - left
    shown = set(page.values("src"))
    first = [s.picture for s in suspects[:SUSPECTS_PER_STEP]] + [evidence.items[0]]
    for picture in first:
        assert isinstance(picture, Picture)
        assert isinstance(picture.png, bytes)
        assert f"data:image/png;base64,{b64encode(picture.png).decode()}" in shown  # what is seen first is never lost


def test_a_page_with_room_leaves_nothing_out(pixel: bytes) -> None:
    picture = Picture("", "", pixel, "alt")
    text = render_audit(Audit((USE,), (replace(SUSPECT, picture=picture, heat=picture),)))
    assert "left out" not in Page(text).words
    assert Page(text).tags.count("img") == 2
    assert "photo pixelated" in text  # one pixel wide


def test_a_wide_picture_is_not_shown_in_squares(pixel: bytes) -> None:
    wide = pixel[:16] + (65).to_bytes(4) + pixel[20:]
    for png, tiny in ((wide, False), (pixel[:16] + (64).to_bytes(4) + pixel[20:], True)):
        text = render_audit(Audit((), (replace(SUSPECT, picture=Picture("", "", png, "alt")),)))
        assert ("photo pixelated" in text) is tiny


def test_a_picture_that_is_no_png_is_an_error_and_an_old_page_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text("old")
    for audit in (
        Audit((), (replace(SUSPECT, picture=Picture("t", "c", b"GIF89a", "a")),)),
        Audit((replace(USE, items=(Picture("t", "c", b"GIF89a", "a"),)),)),
    ):
        with pytest.raises(InputError, match="not a PNG"):
            write_audit(path, audit)
    assert path.read_text() == "old"


def test_in_brief_there_is_the_verdict_and_a_table_and_no_script() -> None:
    text = audit_html(Audit((PRESENT, QUIET, USE, UNASKED), (SUSPECT,)))
    page = Page(text)
    in_order(
        page.words,
        "This model uses a shortcut: “grass”.",
        "Next step: Repair the head.",
        "Mistakes share grass Use confirmed 0.40 0.002",
        "Grass goes with cows Present, use not confirmed 0.87 0.002",
        "2 other tests are not flagged. 1 suspected example.",
    )
    assert not {"script", "style", "link", "img", "html", "body"} & set(page.tags)
    assert len(text) < 6000
    assert "table" not in Page(audit_html(Audit((QUIET,)))).tags
    assert "1 other test is not flagged." in Page(audit_html(Audit((USE, QUIET)))).words


@pytest.mark.parametrize("word", ODD)
def test_in_brief_hostile_strings_stay_text(word: str, pixel: bytes) -> None:
    page = Page(audit_html(hostile(word, pixel)))
    assert page.tags == Page(audit_html(hostile("calm", pixel))).tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
