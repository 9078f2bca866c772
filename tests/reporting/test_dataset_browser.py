"""Tests of the contact sheet in a browser: it stays quiet, and can be read in any light and at any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spurless.reporting.dataset_page import DatasetPage, Example, GroupExamples, SplitExamples, write_dataset_page

Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a sheet; at the end no error, no dialog and no request may have happened."""
    contexts: list[Any] = []
    trouble: list[str] = []

    def go(sheet: DatasetPage, width: int = 1280, **options: Any) -> Any:
        path = write_dataset_page(tmp_path / "s.html", sheet)
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
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
def few(pixel: bytes) -> DatasetPage:
    names = ("<img src=x onerror=alert(1)>", "x" * 300, "مجموعة \u202e🐄")
    cells = [
        GroupExamples(name, "sand", 5, tuple(Example(f"example {i}", pixel) for i in range(5)), False) for name in names
    ]
    cells += [GroupExamples("words", "", 1, (Example("example 1", text="y" * 2000),)), GroupExamples("nobody", "", 0)]
    cells += [GroupExamples("numbers", "", 1, (Example("example 2", values=("1.234",) * 12),))]
    parts = tuple(SplitExamples(name, 30, tuple(cells)) for name in ("train", "test"))
    return DatasetPage(
        "few", "about", parts, tuple(f"feature {i}" for i in range(12)), (("Data", "z" * 500),), ("A note.",)
    )


@pytest.fixture
def many(pixel: bytes) -> DatasetPage:
    cells = [
        GroupExamples(f"label {y}", f"colour {a}", 1, (Example("example 3", pixel),), y == a)
        for y in range(10)
        for a in range(10)
    ]
    return DatasetPage("many", "about", (SplitExamples("train", 100, tuple(cells)),))


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 400, 1280])
def test_no_width_makes_the_page_scroll_sideways(visit: Open, few: DatasetPage, many: DatasetPage, width: int) -> None:
    for sheet in (few, many):
        page = visit(sheet, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.body.scrollWidth") <= width


def test_every_picture_is_drawn_and_has_words(visit: Open, few: DatasetPage, many: DatasetPage) -> None:
    for sheet, n in ((few, 30), (many, 100)):
        page = visit(sheet)
        widths = page.locator("main img").evaluate_all("all => all.map(one => one.naturalWidth * one.alt.length)")
        assert len(widths) == n
        assert all(widths)


def test_dark_follows_the_system(visit: Open, few: DatasetPage) -> None:
    page = visit(few, color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(colour) != light


@pytest.mark.slow
def test_landmarks_headings_and_links(visit: Open, few: DatasetPage) -> None:
    page = visit(few)
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.get_by_role("heading", name="<img src=x onerror=alert(1)>, sand").count() == 2
    targets = page.locator("nav a").evaluate_all("all => all.map(one => Boolean(document.querySelector(one.hash)))")
    assert targets == [True, True]


def test_what_scrolls_can_be_reached_with_the_keyboard(visit: Open, many: DatasetPage) -> None:
    page = visit(many, 400)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the examples"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Train: labels by attributes"
    region = "document.activeElement.scrollLeft"
    assert page.evaluate(region) == 0
    for _ in range(20):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(30)
        if page.evaluate(region):
            break
    assert page.evaluate(region) > 0
