"""Tests of the page in a browser: it draws, it stays quiet, it can be read in any light and at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spurless.core.records import Record, read_records
from spurless.reporting import Figure, Picture, Section, report, write_sections

pytestmark = pytest.mark.slow

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")

Make = Callable[..., Record]
Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open records as a page; at the end no error, no dialog and no request may have happened."""
    contexts: list[Any] = []
    trouble: list[str] = []

    def refuse(dialog: Any) -> None:
        trouble.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def go(
        records: list[Record],
        *,
        pictures: tuple[Picture, ...] = (),
        sections: tuple[Section, ...] = (),
        width: int = 1280,
        **options: Any,
    ) -> Any:
        path = tmp_path / "r.html"
        if records:
            report(path, records, pictures=pictures, sections=sections)
        else:
            write_sections(path, "Sections alone", sections)
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", refuse)
        page.on("request", lambda r: None if r.url.startswith(("data:", path.as_uri())) else trouble.append(r.url))
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True) and page.locator(".draw").count():
            page.locator(".draw .main-svg").first.wait_for(state="attached")  # Plotly is unpacked after the load
        return page

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.fixture
def runs(make: Make) -> list[Record]:
    better = {"worst": 0.483, "low": 0.39, "high": 0.57, "average": 0.902}
    return [make(method, seed=s, **facts) for s in (0, 1) for method, facts in (("erm", {}), ("jtt", better))]


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def ink(page: Any) -> str:
    return str(page.evaluate("document.querySelector('.draw .annotation-text').style.fill"))


def until(page: Any, condition: str) -> None:
    """Wait for a condition; Playwright's own wait evaluates a string, which the page's policy forbids."""
    for _ in range(100):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {condition}")


def test_every_chart_is_drawn(visit: Open, runs: list[Record], grid: Make) -> None:
    for records, charts in ((runs, 3), ([grid(), grid("jtt")], 5)):
        page = visit(records)
        assert page.locator(".draw").count() == charts
        assert page.locator(".draw:has(svg .trace), .draw:has(svg .hm)").count() == charts


def test_dark_follows_the_system_and_the_button(visit: Open, runs: list[Record]) -> None:
    page = visit(runs, color_scheme="light")
    light, light_ink = background(page), ink(page)
    button = page.get_by_role("button", name="Dark mode")
    assert button.get_attribute("aria-pressed") == "false"
    page.emulate_media(color_scheme="dark")
    sync_api.expect(button).to_have_attribute("aria-pressed", "true")
    dark, dark_ink = background(page), ink(page)
    assert dark != light
    assert dark_ink != light_ink
    button.click()
    assert (background(page), ink(page)) == (light, light_ink)
    assert button.get_attribute("aria-pressed") == "false"
    page.emulate_media(color_scheme="light")
    button.focus()
    page.keyboard.press("Enter")
    assert (background(page), ink(page)) == (dark, dark_ink)
    page.reload()
    assert background(page) == dark


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_no_width_makes_the_page_scroll_sideways(
    visit: Open, runs: list[Record], hostile: list[Record], width: int
) -> None:
    for records in (runs, hostile):
        page = visit(records, width=width)
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.body.scrollWidth") <= width


def test_charts_follow_the_width(visit: Open, runs: list[Record]) -> None:
    page = visit(runs, width=1280)
    page.set_viewport_size({"width": 400, "height": 800})
    until(page, "document.querySelector('.draw svg').getBoundingClientRect().width < 400")


def test_hostile_names_make_no_elements(visit: Open, hostile: list[Record], pixel: bytes) -> None:
    page = visit(hostile, pictures=(Picture("t", "c", pixel, '" onerror="alert(3)'),))
    assert page.locator("script").count() == 4
    assert page.locator("main img").count() == 1
    assert page.locator("b").count() == 0
    assert page.locator("main a").count() == 0
    drawn = page.locator(".draw").first.text_content()
    assert "</script><script>alert(1)</script>" in drawn
    assert "@series0 %{x} $x$" in drawn


def test_the_table_sorts(visit: Open, runs: list[Record]) -> None:
    page = visit(runs)
    table = page.locator("table.sortable").first
    names = table.locator("tbody th")
    assert names.all_inner_texts() == ["digits 0-4, unmarked", "the rest"]
    head = table.get_by_role("columnheader", name="JTT")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert names.all_inner_texts() == ["digits 0-4, unmarked", "the rest"]
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert names.all_inner_texts() == ["the rest", "digits 0-4, unmarked"]
    table.get_by_role("columnheader", name="Group").get_by_role("button").click()
    assert head.get_attribute("aria-sort") is None
    assert names.all_inner_texts() == ["digits 0-4, unmarked", "the rest"]


def test_a_group_without_a_number_sorts_last(visit: Open, grid: Make) -> None:
    page = visit([grid()])
    page.locator("details summary").filter(has_text="All 36 groups").click()
    table = page.locator("table.sortable").nth(1)
    for _ in range(2):
        table.get_by_role("columnheader", name="ERM").get_by_role("button").click()
        assert set(table.locator("tbody th").all_inner_texts()[-2:]) == {"0 in 1", "1 in 0"}


def test_the_records_can_be_downloaded_and_read(visit: Open, hostile: list[Record], tmp_path: Path) -> None:
    page = visit(hostile, accept_downloads=True)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download records").click()
    waiting.value.save_as(tmp_path / "records.jsonl")
    assert waiting.value.suggested_filename == "records.jsonl"
    assert read_records(tmp_path / "records.jsonl") == hostile


def test_without_javascript_the_text_and_tables_are_there(visit: Open, runs: list[Record]) -> None:
    page = visit(runs, java_script_enabled=False)
    assert page.get_by_role("heading", name="JTT raises the worst group from").is_visible()
    assert page.locator(".no-script").is_visible()
    assert page.get_by_role("rowheader", name="digits 0-4, unmarked").is_visible()
    assert not page.locator(".chart").first.is_visible()
    assert not page.get_by_role("button", name="Dark mode").is_visible()


def test_paper_is_light_and_the_screen_comes_back(visit: Open, runs: list[Record]) -> None:
    page = visit(runs, color_scheme="dark")
    dark = ink(page)
    fill = "document.querySelector('.annotation-text').style.fill"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = {fill}; }})")
    assert len(page.pdf()) > 10_000
    assert page.evaluate("window.printed") not in (None, dark)
    assert ink(page) == dark


def test_landmarks_headings_and_words_for_pictures(visit: Open, runs: list[Record], pixel: bytes) -> None:
    page = visit(runs, pictures=(Picture("A cow", "on sand", pixel, "a cow"),))
    assert page.locator("html").get_attribute("lang") == "en"
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.get_by_role("img", name="a cow", exact=True).count() == 1
    assert all(page.locator(".draw").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))"))
    targets = page.locator("nav a").evaluate_all("all => all.map(one => Boolean(document.querySelector(one.hash)))")
    assert targets
    assert all(targets)


@pytest.fixture
def sections(pixel: bytes) -> tuple[Section, ...]:
    """A section with a chart of two lines, whose names are an attack, and a picture."""
    lines = [{"x": ["<b>a</b>", "b"], "y": [1, 2], "name": f"<b>{n}</b>", "mode": "lines"} for n in "xy"]
    chart = Figure("A chart", "a caption", {"data": lines, "layout": {"yaxis": {"title": "depth"}}}, "two lines")
    return (
        Section("Own part", "text", [chart, Picture("Map", "1: a\n2: b", pixel, "a map")]),
        Section("Other part", "", [chart]),
    )


@pytest.fixture
def refusing(make: Make) -> list[Record]:
    """Two methods that may abstain."""
    points = [{"coverage": c / 10, "error": c / 40, "worst_group_error": 0.6 - c / 40} for c in range(1, 11)]
    row = {"target": 0.5, "coverage": 0.5, "error": 0.1, "worst_group_error": 0.5, "worst_group": "x" * 50}
    return [make(m, selective={"score": "softmax", "rows": [row], "curve": points}) for m in ("erm", "jtt")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_sections_and_abstaining_are_drawn_in_any_light_and_width(
    visit: Open, refusing: list[Record], sections: tuple[Section, ...], scheme: str, width: int
) -> None:
    for records, charts in ((refusing, 6), ([], 2)):
        page = visit(records, sections=sections, width=width, color_scheme=scheme)
        assert page.locator(".draw:has(svg .trace)").count() == charts
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        drawn = page.locator("section[aria-labelledby=section-0] .draw")
        assert drawn.bounding_box()["width"] <= width
        assert "<b>x</b>" in drawn.text_content()
        assert "<b>a</b>" in drawn.text_content()
        assert "depth" in drawn.text_content()
        assert page.locator("b").count() == 0


def test_colours_that_no_caller_gave_follow_the_theme(visit: Open, sections: tuple[Section, ...]) -> None:
    page = visit([], sections=sections, color_scheme="light")
    stroke = "document.querySelector('.draw .js-line').style.stroke"
    light = page.evaluate(stroke)
    page.emulate_media(color_scheme="dark")
    until(page, f"{stroke} !== '{light}'")
    page.get_by_role("button", name="Dark mode").click()
    assert page.evaluate(stroke) == light


def test_sections_have_headings_links_and_words(
    visit: Open, refusing: list[Record], sections: tuple[Section, ...]
) -> None:
    for records in (refusing, []):
        page = visit(records, sections=sections)
        levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
        assert all(b - a <= 1 for a, b in pairwise(levels))
        assert page.get_by_role("img", name="two lines", exact=True).count() == 2
        assert page.get_by_role("img", name="a map", exact=True).count() == 1
        hrefs = page.locator("nav a").evaluate_all("all => all.map(one => one.hash)")
        assert hrefs[-2:] == ["#section-0", "#section-1"]
        assert page.evaluate(f"{hrefs}.every(hash => Boolean(document.querySelector(hash)))")
        assert page.locator(".picture figcaption").evaluate("one => getComputedStyle(one).whiteSpace") == "pre-line"


def test_the_keyboard_goes_through_the_page_from_top_to_bottom(
    visit: Open, refusing: list[Record], sections: tuple[Section, ...]
) -> None:
    page = visit(refusing, sections=sections)
    told = "[document.activeElement.getAttribute('aria-label'), document.activeElement.hash]"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(told))
    links, regions = list(dict.fromkeys(link for _, link in seen if link)), [label for label, _ in seen if label]
    assert links[-2:] == ["#section-0", "#section-1"]
    assert regions[:4] == ["Accuracy by group", "All metrics", "Errors by coverage", "Labels used"]


def test_without_javascript_a_chart_is_told_in_words(visit: Open, sections: tuple[Section, ...]) -> None:
    page = visit([], sections=sections, java_script_enabled=False)
    told = page.locator(".no-script").first
    assert told.is_visible()
    assert told.text_content() == "A chart two lines"
    assert page.get_by_role("img", name="a map", exact=True).is_visible()
