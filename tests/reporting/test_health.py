"""Tests of the general health on the page of an audit: tables, charts, first view, phone and paper."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.figures import Picture
from spurless.core.findings import Audit, Finding, Suspect
from spurless.reporting import write_audit
from spurless.reporting.audit_page import MAX_PAGE_BYTES, render_audit
from spurless.reporting.audit_text import audit_stats, read_audit, write_json
from spurless.reporting.health import MAX_MATRIX, health_context


def class_row(label: str, recall: float) -> dict[str, Any]:
    return {
        **{"label": label, "count": 10, "predicted": 10, "precision": 0.5, "f1": 0.5},
        **{"recall": recall, "recall_low": 0.2, "recall_high": 0.9},
    }


@pytest.fixture
def audit(pixel: bytes) -> Audit:
    """Two classes, eight findings with a long text, 48 suspects, and a typical example."""
    picture = Picture("", "", pixel, "a cow")
    finding = Finding("slices", "Errors share grass", 0.4, True, 0.002, "because " * 60, "remedy", shortcut="grass")
    suspects = tuple(
        Suspect(i, "cow", "camel", 1 - i / 60, True, picture=picture, heat=picture, file=f"{i}.jpg") for i in range(48)
    )
    part = {"value": 0.6, "low": 0.4, "high": 0.8, "count": 20}
    health = {
        "accuracy": part,
        "worst_group": None,
        "classes": [class_row("cow", 0.7), class_row("camel", 0.3)],
        "confusion": [[7, 3], [7, 3]],
        "confused": [{"label": "camel", "predicted": "cow", "count": 7}],
        "calibration": {"error": 0.2, "bins": [part | {"confidence": 0.8}]},
        "duplicates": {
            **{"compared": 20, "compared_train": 30, "within": 1, "in_train": 2},
            **{"within_rows": [[3, 1]], "train_rows": [[4, 8], [5, 9]]},
        },
        "map": {
            **{"rows": [0, 1, 2], "x": [0.0, 1.0, 2.0], "y": [0.0, 1.0, 0.0]},
            **{"label": [0, 0, 1], "predicted": [0, 1, 1], "suspected": [False, True, False]},
        },
    }
    typical = (Suspect(60, "cow", "cow", 0.1, False, picture=picture),)
    facts = {"model": "net", "notes": ["Skipped images that cannot be read (1 of 9): a.png.", "Another note."]}
    findings = tuple(replace(finding, audit=f"audit-{i}") for i in range(8))
    return Audit(findings, suspects, facts, ("a limit",), typical=typical, health=health)


def test_the_numbers_are_on_the_page(audit: Audit) -> None:
    text = re.sub(r"<[^>]+>", " ", render_audit(audit).replace("\xa0", " "))
    for words in ("General health", "Confusion matrix", "2 have the same content as one of 30 training examples"):
        assert words in text
    context = health_context(audit)
    assert [row["name"] for row in context["classes"]] == ["camel", "cow"]
    assert [cell["percent"] for cell in context["matrix"][0]["cells"]] == [70, 30]
    assert context["unreadable"] == ["Skipped images that cannot be read (1 of 9): a.png."]
    assert next(part["title"] for part in context["parts"]) == "Calibration"


def test_of_many_classes_the_confusions_are_listed(audit: Audit) -> None:
    rows = [class_row(f"class {i}", 0.5) for i in range(MAX_MATRIX + 1)]
    context = health_context(replace(audit, health={**audit.health, "classes": rows, "confusion": None}))
    assert context["matrix"] == []
    assert context["confused"] == [("camel", "cow", "7")]


def test_accuracy_and_worst_class_are_the_first_numbers(audit: Audit) -> None:
    label, value, note = audit_stats(audit)[0]
    assert (label, value) == ("Accuracy", "60.0 %")
    assert "40.0 to 80.0 %" in note
    assert "“camel”: 30.0 % of 10" in note
    group = {"name": "cow, sand", "value": 0.1, "low": 0.0, "high": 0.4, "count": 9}
    assert (
        "“cow, sand”: 10.0 % of 9" in audit_stats(replace(audit, health={**audit.health, "worst_group": group}))[0][2]
    )
    assert audit_stats(replace(audit, health={}))[0][0] == "Tests"


def test_an_audit_without_health_has_no_such_part(audit: Audit) -> None:
    assert 'id="health"' not in render_audit(replace(audit, health={}))


def test_the_numbers_are_in_the_json(audit: Audit, tmp_path: Path) -> None:
    assert read_audit(write_json(tmp_path / "a.json", audit)).health == audit.health


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_first_screen_has_both_kinds_of_examples(browser: Any, audit: Audit, tmp_path: Path, width: int) -> None:
    path = write_audit(tmp_path / "a.html", audit)
    assert path.stat().st_size < MAX_PAGE_BYTES
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(path.as_uri())
    page.locator(".draw .main-svg").first.wait_for(state="attached")
    for kind in ("Typical", "Suspected"):
        box = page.locator(".pairs li").filter(has_text=kind).first.bounding_box()
        assert box["y"] + box["height"] < 800
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.mark.slow
def test_a_point_of_the_map_leads_to_its_example(browser: Any, audit: Audit, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(write_audit(tmp_path / "a.html", audit).as_uri())
    page.locator(".draw .main-svg").first.wait_for(state="attached")
    page.locator("details.health").evaluate("one => { one.open = true; }")
    chart = page.locator(".draw").last
    chart.evaluate("one => one.emit('plotly_click', { points: [{ customdata: 99 }] })")
    assert "#row" not in page.url
    chart.evaluate("one => one.emit('plotly_click', { points: [{ customdata: 1 }] })")
    assert page.url.endswith("#row-1")
    page.close()


@pytest.mark.slow
def test_paper_is_brief(browser: Any, audit: Audit, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(write_audit(tmp_path / "a.html", audit).as_uri())
    page.locator(".draw .main-svg").first.wait_for(state="attached")
    paper = page.pdf(format="A4")
    assert 1 <= len(re.findall(rb"/Type\s*/Page[^s]", paper)) <= 8
    page.close()
