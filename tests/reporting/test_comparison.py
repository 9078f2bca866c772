"""Tests of comparing two audits: what is gained and lost, with unpaired intervals, on a page that anyone can read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.records import GroupRow
from spurless.core.stats import newcombe_interval, wilson_interval
from spurless.reporting.comparison import UNPAIRED, compare, comparison_json, render_comparison, write_comparison

USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair.")
CLEAR = replace(USE, flagged=False, p=0.4, severity=0.05)
HOSTILE = "</script><script>alert(1)</script>"


def group(name: str, correct: int, count: int) -> GroupRow:
    return GroupRow(name, count, correct / count, *wilson_interval(correct / count, count))


def audit(*findings: Finding, rows: tuple[GroupRow, ...] = (), **facts: Any) -> Audit:
    return Audit(findings, (), {"data": "birds", "part": "val", "accuracy": 0.9, "examples": 200, **facts}, groups=rows)


BEFORE = audit(USE, rows=(group("a", 20, 100), group("b", 95, 100), group("c", 50, 100), group("old", 1, 2)))
AFTER = audit(CLEAR, rows=(group("a", 80, 100), group("b", 60, 100), group("c", 52, 100), group("new", 1, 2)))


def test_groups_are_gained_or_lost_if_the_interval_excludes_0() -> None:
    rows = {row.name: row for row in compare(BEFORE, AFTER).groups}
    assert {name: row.outcome for name, row in rows.items()} == {
        "b": "lost",
        "c": "same",
        "a": "gained",
        "old": "unknown",
        "new": "unknown",
    }
    assert next(iter(rows)) == "b"  # losses first
    assert rows["a"].difference == pytest.approx(0.6)
    assert (rows["a"].low, rows["a"].high) == newcombe_interval((80, 100), (20, 100))


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (USE, CLEAR, "gained"),
        (CLEAR, USE, "lost"),
        (USE, USE, "same"),
        (CLEAR, CLEAR, "same"),
        (USE, replace(CLEAR, p=None), "unknown"),  # not tested is not gained
        (USE, None, "unknown"),
        (replace(CLEAR, p=None), USE, "unknown"),
    ],
)
def test_a_flag_is_gone_only_if_it_was_tested_again(before: Finding, after: Finding | None, outcome: str) -> None:
    (change,) = compare(audit(before), audit(*filter(None, [after]))).findings
    assert change.outcome == outcome


def test_the_summary_names_verdicts_gains_losses_and_worst_groups() -> None:
    verdict, gained, lost, worst = compare(BEFORE, AFTER).summary
    assert "“shortcut” to “none-found”" in verdict
    assert "transplants" in gained
    assert "“a”" in gained
    assert "“b”" in lost
    assert ("20.0 % (“a”" in worst, "50.0 % (“new”" in worst) == (True, True)


def test_what_limits_the_comparison_is_noted() -> None:
    assert compare(BEFORE, BEFORE).notes[0] == UNPAIRED
    other = replace(BEFORE, facts={**BEFORE.facts, "data": "dogs"}, groups=())
    notes = " ".join(compare(BEFORE, other).notes)
    assert "not the same: data differs" in notes
    assert "older version" in notes
    assert compare(BEFORE, audit(USE, accuracy="x")).average.outcome == "unknown"


def test_json_has_what_the_page_has() -> None:
    content = json.loads(comparison_json(compare(BEFORE, AFTER)))
    assert content["verdicts"] == ["shortcut", "none-found"]
    assert [row["outcome"] for row in content["groups"]][:3] == ["lost", "same", "gained"]
    assert content["findings"][0]["before"]["severity"] == 0.4
    assert content["average"]["difference"] == 0.0


def test_names_stay_text() -> None:
    hostile = audit(replace(USE, audit=HOSTILE, title=HOSTILE), rows=(group(HOSTILE, 1, 2),), model=HOSTILE)
    assert "<script>alert" not in render_comparison(compare(hostile, hostile))


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_loads_nothing(browser: Any, tmp_path: Path, width: int, scheme: str) -> None:
    path = write_comparison(tmp_path / "c.html", compare(BEFORE, AFTER))
    trouble: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith(("data:", path.as_uri())) else trouble.append(r.url))
    page.goto(path.as_uri())
    page.locator(".draw .main-svg").first.wait_for(state="attached")  # Plotly is unpacked after the load
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.get_by_role("row").count() == 6 + 1 + 2
    context.close()
    assert trouble == []
