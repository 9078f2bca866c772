"""Tests of model cards: valid front matter, all groups and findings, nothing invented, and text that stays text."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.records import GroupRow
from spurless.reporting.card import card_text, escape_markdown, write_card

yaml = pytest.importorskip("yaml")

USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 % follow.", "Repair it.")
GROUPS = (GroupRow("cow, grass", 90, 0.9, 0.82, 0.95), GroupRow("cow, sand", 50, 0.62, 0.48, 0.74))
FACTS = {"model": "resnet18", "data": "birds", "accuracy": 0.8, "examples": 140, "seed": 3, "labels": ["cow", "camel"]}
AUDIT = Audit((USE, replace(USE, audit="tokens", flagged=False, p=0.5)), (), FACTS, ("A limit.",), groups=GROUPS)


def front_matter(text: str) -> dict[str, Any]:
    """Return the front matter, as the Hugging Face Hub reads it."""
    _, front, _ = text.split("---\n", 2)
    content = yaml.safe_load(front)
    assert isinstance(content, dict)
    return content


def test_the_front_matter_has_the_metrics() -> None:
    front = front_matter(card_text(AUDIT, license="mit"))
    assert front["license"] == "mit"
    (entry,) = front["model-index"]
    assert entry["name"] == "resnet18"
    (result,) = entry["results"]
    assert result["dataset"]["name"] == "birds"
    assert [(metric["name"], metric["value"]) for metric in result["metrics"]] == [
        ("Accuracy", 0.8),
        ("Accuracy of the worst group: cow, sand", 0.62),
    ]


def test_a_license_is_not_invented() -> None:
    text = card_text(AUDIT)
    assert "license" not in front_matter(text)
    assert "license: not stated" in text


def test_the_card_has_groups_findings_limits_and_what_was_used() -> None:
    lines = card_text(AUDIT).splitlines()
    assert "| cow, sand | 62.0 % | 48.0 to 74.0 % | 50 |" in lines
    assert lines.index("| cow, sand | 62.0 % | 48.0 to 74.0 % | 50 |") < lines.index(
        "| cow, grass | 90.0 % | 82.0 to 95.0 % | 90 |"
    )
    assert "| transplants | Use confirmed | The corner is followed | 0.40 | 0.002 |" in lines
    assert "| tokens | Not significant | The corner is followed | 0.40 | 0.5 |" in lines
    for line in ("* A limit.", "* Seed: 3", "* Labels: cow and camel"):
        assert line in lines


def test_a_repair_is_described() -> None:
    after = replace(AUDIT, findings=(replace(USE, flagged=False, p=0.5),))
    for brief in (False, True):
        text = card_text(after, before=AUDIT, brief=brief)
        assert "from “shortcut” to “none-found”" in text
    assert "unpaired" in card_text(after, before=AUDIT)


def test_a_summary_fits_a_page_whatever_the_audit_contains(tmp_path: Path) -> None:
    findings = tuple(replace(USE, audit=f"a{i}", title="long " * 400, because="b " * 2000) for i in range(30))
    groups = tuple(replace(GROUPS[0], name=f"group {i}") for i in range(200))
    audit = replace(AUDIT, findings=findings, groups=groups, limits=("limit " * 400,) * 9, gaps=("gap " * 400,) * 9)
    text = write_card(tmp_path / "s.md", audit, before=AUDIT, brief=True).read_text()
    assert not text.startswith("---")
    assert len(text.splitlines()) < 60
    assert len(text) < 6000


def test_names_stay_text() -> None:
    name = 'a|b\n# x <script>alert(1)</script> ![i](u) [l](u) `c` \x1b[2J \ufffe \ud800 مجموعة": -'
    hostile = replace(USE, audit=name, title=name, because=name)
    audit = replace(AUDIT, findings=(hostile,), groups=(replace(GROUPS[0], name=name),), facts=FACTS | {"model": name})
    text = card_text(audit, license=name)
    assert front_matter(text)["model-index"][0]["name"].startswith("a|b # x <script>")
    body = text.split("---\n", 2)[2]
    for part in ("<script>", "![", "[l]", " `c`", "\x1b", "\n# x"):
        assert part not in body.replace(f"\\{part}", "")
    rows = [line for line in body.splitlines() if line.startswith("| ") and "script" in line]
    assert [row.replace("\\|", "").count("|") for row in rows] == [5, 6]


def test_an_audit_of_an_older_version_has_no_accuracies() -> None:
    text = card_text(Audit((USE,)))
    assert "contains no accuracies" in text
    assert "model-index" not in front_matter(text)


def test_markdown_is_escaped() -> None:
    assert escape_markdown("*a*") == r"\*a\*"
