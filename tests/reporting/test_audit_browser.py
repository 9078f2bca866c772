"""Tests of the page of an audit in a browser: filters by mouse and keyboard, any light, any width, paper, no script."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from spurless.core.figures import Figure, Picture, Section
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.records import Record
from spurless.reporting import write_audit

pytestmark = pytest.mark.slow

sync_api = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")

Open = Callable[..., Any]
UNSIZED = """new MutationObserver((_, me) => {
  if (!document.body) return;
  const style = document.createElement("style");
  style.textContent = "details:not([open]) > :not(summary) { display: none; }";
  document.head.append(style);
  me.disconnect();
}).observe(document, { childList: true, subtree: true });"""
"""as in browsers that give no size to what is folded"""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture
def visit(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open an audit as a page; at the end no error, no dialog and no request may have happened."""
    contexts: list[Any] = []
    trouble: list[str] = []

    def refuse(dialog: Any) -> None:
        trouble.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def go(audit: Audit, *, width: int = 1280, place: str = "", script: str = "", **options: Any) -> Any:
        extra = {key: options.pop(key) for key in ("before_after", "sections") if key in options}
        path = write_audit(tmp_path / "a.html", audit, **extra)
        context = browser.new_context(viewport={"width": width, "height": 800}, **options)
        contexts.append(context)
        page = context.new_page()
        page.add_init_script(script)
        page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", refuse)
        allowed = ("data:", "blob:", path.as_uri())
        page.on("request", lambda r: None if r.url.startswith(allowed) else trouble.append(r.url))
        page.goto(path.as_uri() + place)
        if options.get("java_script_enabled", True) and page.locator(".draw").count():
            page.locator(".draw .main-svg").first.wait_for(state="attached")  # Plotly is unpacked after the load
        return page

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


@pytest.fixture
def audit(pixel: bytes) -> Audit:
    """51 suspects: 17 of each label, every second one suspected; a finding of each kind, and nothing to draw."""
    picture, heat = Picture("", "", pixel, "a cow"), Picture("", "", pixel, "where it looked")
    use = Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "b", "r", shortcut="grass", rows=(3, 50, 999))
    findings = (
        replace(use, items=(picture,), numbers={"gap": 0.4}),
        replace(use, audit="table", title="Grass goes with cows", shows_use=False),
        replace(use, audit="tokens", title="No word matters", flagged=False, p=0.4),
        replace(use, audit="swaps", title="No masks", flagged=False, p=None),
    )
    labels = ("cow", "camel", "<b>goat</b>")
    suspects = tuple(
        Suspect(
            i, labels[i % 3], labels[i % 2], 1 - i / 60, i % 2 == 0, "sand", f"images/{i:03}.jpg", None, picture, heat
        )
        for i in range(51)
    )
    return Audit(findings, suspects, {"model": "net", "seed": 0}, ("a limit",))


@pytest.fixture
def drawn(audit: Audit) -> Audit:
    """The same with a chart that is shown, and one that is folded."""
    bars = Figure("Bars", "c", {"data": [{"type": "bar", "x": ["a", "b"], "y": [1, 2]}], "layout": {}}, "two bars")
    first, second, third, last = audit.findings
    findings = (replace(first, items=(*first.items, bars)), second, replace(third, items=(bars,)), last)
    return replace(audit, findings=findings)


def shown(page: Any) -> list[str]:
    """Return the rows that can be seen."""
    return page.locator(".card:visible .row").all_inner_texts()  # type: ignore[no-any-return]  # playwright's own


def told(page: Any) -> str:
    return str(page.get_by_role("status").inner_text())


def test_every_chart_is_drawn_and_every_picture_has_words(visit: Open, drawn: Audit) -> None:
    page = visit(drawn)
    assert page.locator(".draw:has(svg .trace)").count() == 2
    widths = page.locator("main img").evaluate_all("all => all.map(one => one.naturalWidth * one.alt.length)")
    assert len(widths) == 103
    assert all(widths)


def test_a_folded_chart_has_its_size_when_it_is_opened(visit: Open, drawn: Audit) -> None:
    page = visit(drawn, script=UNSIZED)
    fold = page.locator("details.fold").first
    fold.locator("summary").first.click()
    chart = fold.locator(".draw")
    chart.scroll_into_view_if_needed()
    page.wait_for_timeout(300)
    box, svg = chart.bounding_box(), fold.locator(".main-svg").first.bounding_box()
    assert (svg["height"], round(svg["width"])) == (320, round(box["width"]))
    assert box["width"] > 600


def test_a_few_are_shown_at_first_and_more_on_demand(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    assert (len(shown(page)), told(page)) == (24, "Showing 24 of 51")
    more = page.locator("#more")
    assert more.inner_text() == "Show 24 more"
    more.click()
    assert (len(shown(page)), told(page)) == (48, "Showing 48 of 51")
    assert page.evaluate("document.activeElement.id") == "row-24"  # reading goes on where it stopped
    assert more.inner_text() == "Show 3 more"
    more.focus()
    page.keyboard.press("Enter")
    assert told(page) == "Showing 51 of 51"
    assert not more.is_visible()


def test_filters_by_click(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    page.get_by_label("Label").select_option(label="camel (17)")
    assert told(page) == "Showing 17 of 17 that match, 51 in total"
    assert shown(page)[:3] == ["Row 1", "Row 4", "Row 7"]
    page.get_by_label("Predicted").select_option(label="cow (26)")
    assert shown(page) == [f"Row {i}" for i in range(4, 51, 6)]
    only = page.get_by_role("button", name="Suspected only (26)")
    only.click()
    assert only.get_attribute("aria-pressed") == "true"
    assert shown(page) == [f"Row {i}" for i in range(4, 51, 6)]  # all of these are suspected
    page.get_by_role("searchbox", name="Find").fill("images/010")
    assert shown(page) == ["Row 10"]
    page.get_by_role("searchbox", name="Find").fill("no such thing")
    assert page.get_by_text("No example matches these filters.").is_visible()
    page.get_by_role("button", name="Clear filters").click()
    assert told(page) == "Showing 24 of 51"
    assert only.get_attribute("aria-pressed") == "false"
    assert not page.locator("#clear").is_visible()


def test_suspected_only_leaves_the_others_out(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    page.locator("#more").click()
    page.locator("#only").click()  # a new choice begins with a few again
    assert told(page) == "Showing 24 of 26 that match, 51 in total"
    assert all(int(row.split()[1]) % 2 == 0 for row in shown(page))
    assert page.locator(".card:visible .badge").count() == 24


def test_filters_by_keyboard_alone(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    page.get_by_label("Label").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert told(page).startswith("Showing 17 of 17")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type(" SAND ")
    assert told(page).startswith("Showing 17 of 17")
    page.keyboard.type("pit")
    assert told(page) == "Showing 0 of 0 that match, 51 in total"
    for _ in range(4):
        page.keyboard.press("Backspace")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "only"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    assert told(page) == "Showing 8 of 8 that match, 51 in total"


def test_a_picture_gives_way_to_its_heat_map(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    card, every = page.locator("#row-0"), page.get_by_role("button", name="Heat maps", exact=True)
    switch = card.get_by_role("button", name="Row 0: heat map")
    assert (card.locator(".photo").is_visible(), card.locator(".heat").is_visible()) == (True, False)
    switch.click()
    assert switch.get_attribute("aria-pressed") == "true"
    assert (card.locator(".photo").is_visible(), card.locator(".heat").is_visible()) == (False, True)
    assert not page.locator("#row-1 .heat").is_visible()
    assert every.get_attribute("aria-pressed") == "false"
    every.focus()
    page.keyboard.press("Enter")
    assert page.locator(".heat:visible").count() == 24
    switch.focus()
    page.keyboard.press("Space")
    assert card.locator(".photo").is_visible()
    assert every.get_attribute("aria-pressed") == "false"


def test_a_link_from_a_finding_finds_its_example(visit: Open, audit: Audit) -> None:
    page = visit(audit)
    page.get_by_role("searchbox", name="Find").fill("images/001")
    page.locator("article .rows a").get_by_text("50").first.click()
    sync_api.expect(page.locator("#row-50")).to_be_in_viewport()
    sync_api.expect(page.locator("#row-50")).to_be_focused()
    assert told(page) == "Showing 51 of 51"
    page.get_by_role("searchbox", name="Find").fill("images/001")
    page.locator("article .rows a").get_by_text("50").first.click()  # the address stays the same
    sync_api.expect(page.locator("#row-50")).to_be_focused()
    assert visit(audit, place="#row-30").locator("#row-30").is_visible()


def test_the_list_can_be_downloaded(visit: Open, audit: Audit, tmp_path: Path) -> None:
    page = visit(audit, accept_downloads=True)
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download list (CSV)").click()
    waiting.value.save_as(tmp_path / "s.csv")
    assert waiting.value.suggested_filename == "suspects.csv"
    with (tmp_path / "s.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["row"] for row in rows] == [str(i) for i in range(51)]
    assert rows[2]["label"] == "<b>goat</b>"


def test_a_list_that_is_too_long_offers_no_download(visit: Open, audit: Audit) -> None:
    long = tuple(replace(suspect, file="f" * 20_000) for suspect in audit.suspects)
    assert visit(replace(audit, suspects=long)).get_by_role("button", name="Download").count() == 0


def test_dark_follows_the_system_and_the_button(visit: Open, audit: Audit) -> None:
    page = visit(audit, color_scheme="light")
    colours = "[document.body, document.querySelector('.panel'), document.querySelector('.card')]"
    colours += ".map(one => getComputedStyle(one).backgroundColor).join()"
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    button = page.get_by_role("button", name="Dark mode")
    sync_api.expect(button).to_have_attribute("aria-pressed", "true")
    dark = page.evaluate(colours)
    assert not set(light.split("),")) & set(dark.split("),"))
    button.click()
    assert page.evaluate(colours) == light


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_no_width_makes_the_page_scroll_sideways(
    visit: Open, audit: Audit, make: Callable[..., Record], width: int
) -> None:
    long, records = "x" * 3000, [make(), make("jtt")]
    worse = replace(
        audit.findings[0], audit=long, title=long, because=long, remedy=long, shortcut=long, numbers={long: 1}
    )
    suspects = (replace(audit.suspects[0], label=long, predicted=long, attribute=long, file=long, text=long),)
    hostile = Audit((worse, replace(worse, flagged=False)), suspects, {long: long}, (long,))
    bare = replace(hostile, suspects=(replace(suspects[0], picture=None, heat=None),))
    for one, extra in (
        (audit, {}),
        (hostile, {"before_after": records}),
        (bare, {"sections": [Section("Part", long)]}),
    ):
        page = visit(one, width=width, **extra)
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.body.scrollWidth") <= width


def test_hostile_strings_make_no_elements(visit: Open, audit: Audit) -> None:
    finding = replace(audit.findings[0], title=HOSTILE, because=HOSTILE, shortcut=HOSTILE, numbers={HOSTILE: 1})
    suspect = replace(audit.suspects[0], label=HOSTILE, predicted=HOSTILE, file=HOSTILE, text=HOSTILE)
    page = visit(Audit((finding,), (suspect,), {HOSTILE: HOSTILE}, (HOSTILE,)))
    assert page.locator("script").count() == 4  # none draws, so that Plotly is not here
    assert page.locator("main img").count() == 3
    assert page.get_by_role("heading", name=HOSTILE).count() == 2
    page.get_by_role("searchbox", name="Find").fill("onerror=alert(2)>")
    assert told(page) == "Showing 1 of 1"


def test_without_javascript_there_is_a_plain_grid(visit: Open, drawn: Audit) -> None:
    page = visit(drawn, java_script_enabled=False)
    assert page.get_by_role("heading", name="This model uses a shortcut").is_visible()
    assert len(shown(page)) == 51
    assert page.locator(".heat:visible").count() == 51
    assert told(page) == "51 examples"
    for hidden in (".filters", ".heat-toggle", "#theme", "#more", ".chart"):
        assert not page.locator(hidden).first.is_visible()
    assert page.locator(".no-script").filter(has_text="two bars").first.is_visible()
    page.locator("details.fold summary").first.click()
    assert page.get_by_text("Chance alone explains it.").is_visible()


def test_paper_is_light_and_brief_and_the_screen_comes_back(visit: Open, drawn: Audit) -> None:
    page = visit(drawn, color_scheme="dark")
    looks = "({cards: [...document.querySelectorAll('.card')].filter(one => one.offsetHeight).length,"
    looks += " heat: [...document.querySelectorAll('.heat')].filter(one => one.offsetHeight).length,"
    looks += " open: document.querySelectorAll('details[open]').length,"
    looks += " filters: document.querySelector('.filters').offsetHeight > 0,"
    looks += " told: document.getElementById('count').textContent, ink: getComputedStyle(document.body).color})"
    screen = page.evaluate(looks)
    assert (screen["cards"], screen["heat"], screen["open"], screen["filters"]) == (24, 0, 0, True)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    paper = page.evaluate(looks)
    assert (paper["cards"], paper["heat"], paper["open"], paper["filters"]) == (8, 0, 0, False)
    assert paper["ink"] != screen["ink"]
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate(looks) == screen
    assert len(page.pdf()) > 10_000


def test_landmarks_headings_and_links(visit: Open, audit: Audit, make: Callable[..., Record]) -> None:
    for one in (audit, Audit(())):
        page = visit(one, before_after=[make()], sections=[Section("Own part", "text")])
        assert page.locator("html").get_attribute("lang") == "en"
        for role in ("banner", "navigation", "main", "contentinfo"):
            assert page.get_by_role(role).count() == 1
        assert page.get_by_role("heading", level=1).count() == 1
        levels = page.locator("h1, h2, h3, h4").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
        assert all(b - a <= 1 for a, b in pairwise(levels))
        targets = page.locator("nav a").evaluate_all("all => all.map(one => Boolean(document.querySelector(one.hash)))")
        assert targets
        assert all(targets)
        names = page.locator("[id]:not(.draw *)").evaluate_all("all => all.map(one => one.id)")
        assert len(names) == len(set(names))
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the verdict"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
