"""Tests of the page of a repair: what came of it first, what decided, what was tried, then the old model; all text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.records import Record
from spurless.core.repairs import Accuracy, Attempt, Choice, Repair, RepairScore
from spurless.reporting import fix_html, fix_json, fix_page, write_fix, write_fix_json
from spurless.reporting.fix_page import render_fix

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
USE = Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "40 % of 12", "Repair the head.", shortcut="grass")
Make = Callable[..., Record]


def score(average: float, worst: float, group: float | None = 0.4, of: str = "cow, sand") -> RepairScore:
    def measure(value: float) -> Accuracy:
        return Accuracy(value, value - 0.1, value + 0.1, 50, of)

    known = None if group is None else measure(group)
    return RepairScore(measure(average), measure(average - 0.05), measure(worst + 0.1), measure(worst), known)


@pytest.fixture
def repair(make: Make) -> Repair:
    """A head that was tuned: 20 to 60 % in the worst inferred group, and two others that were tried."""
    old, new = score(0.8, 0.2), score(0.79, 0.6, 0.65)
    taken = Attempt(Choice("afr", "Its mistakes break the shortcut.", None, {"on": "val"}, "AFR"), "taken", 1.5, new)
    costly = Attempt(Choice("dfr", "Groups.", title="DFR"), "too costly", 2.0, score(0.5, 0.55))
    failed = Attempt(Choice("self", "Disagreement.", title="SELF"), "failed", 0.1, error="SELF has too few.")
    facts = {"model": "resnet18", "data": {"name": "cows"}}
    return Repair(
        True,
        ("Repaired by AFR: it rises.", "Before: leans.", "Its mistakes break the shortcut.", "Validation is cut."),
        make("before"),
        make("afr", worst=0.6, low=0.5, high=0.7),
        (old, new),
        Audit((USE,), facts=facts, limits=("Few were seen.",)),
        Audit((), limits=("Few were seen.", "It learnt from these.")),
        (taken, costly, failed),
    )


def words(text: str) -> str:
    return " ".join(text.replace("\u00a0", " ").split())


def in_order(text: str, *parts: str) -> None:
    place = 0
    for part in parts:
        place = text.index(part, place) + len(part)


def test_what_came_of_it_is_first_and_the_old_model_last(tmp_path: Path, repair: Repair) -> None:
    path = write_fix(tmp_path / "deep" / "f.html", repair)
    text = words(path.read_text(encoding="utf-8"))
    in_order(
        text[text.index("<main") :],
        "Repaired by AFR: it rises.",
        "This model uses a shortcut: “grass”.",
        "Its mistakes break the shortcut.",
        "This audit is inconclusive.",  # the new one was asked nothing
        "It learnt from these.",
        "Validation is cut.",
        "Hold-out accuracy",
        "80.0 %",
        "70.0 to 90.0 %",
        "Worst group",
        "+25.0 points",
        "Before and after",
        "digits 0-4, unmarked",
        "Methods tried",
        "AFR",
        "70.0 %",
        "DFR",
        "costs more average accuracy than you allow",
        "SELF has too few.",
        "Audit of the old model",
        "Mistakes share grass",
        "Limitations",
    )
    assert "Repair of resnet18 on cows" in text
    assert list(path.parent.iterdir()) == [path]


def test_where_the_old_model_is_kept_nothing_is_shown_as_after(repair: Repair) -> None:
    kept = replace(
        repair,
        fixed=False,
        summary=("The old model is kept: AFR costs.",),
        after=repair.before,
        holdout_scores=(repair.holdout_scores[0],) * 2,
        audit_after=None,
        attempts=(replace(repair.attempts[0], outcome="too costly"),),
    )
    text = words(render_fix(kept))
    decided = text[text.index('id="judged"') : text.index('id="repairs"')]
    assert "After" not in decided
    assert "<strong>kept</strong>" not in text
    assert 'class="panel suspicious"' in text
    assert "The old model is kept." in text


def test_a_model_that_is_kept_is_shown_once(repair: Repair, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[Record]] = []

    def render(*_: object, before_after: list[Record], **__: object) -> str:
        shown.append(before_after)
        return ""

    monkeypatch.setattr(fix_page, "render_audit", render)
    for fixed in (True, False):
        render_fix(replace(repair, fixed=fixed))
    assert [[record.method for record in records] for records in shown] == [["before", "afr"], ["before"]]


def test_without_attributes_there_is_no_oracle_and_the_worst_class_ranks_in_any_case(repair: Repair) -> None:
    def stripped(one: RepairScore) -> RepairScore:
        return replace(one, worst_group=None, inferred=None)

    tried = tuple(replace(a, score=stripped(a.score) if a.score is not None else None) for a in repair.attempts)
    blind = replace(repair, holdout_scores=tuple(map(stripped, repair.holdout_scores)), attempts=tried)  # type: ignore[arg-type]
    assert "oracle" in render_fix(repair)
    assert "Ranked by the accuracy of the worst class" in render_fix(repair)
    text = render_fix(blind)
    assert "oracle" not in text
    assert "Ranked by the accuracy of the worst class" in text


def test_hostile_names_stay_text_everywhere(repair: Repair, hostile: list[Record]) -> None:
    choice = Choice(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    bad = replace(
        repair,
        summary=(HOSTILE,) * 3,
        before=hostile[0],
        after=hostile[1],
        holdout_scores=(score(0.8, 0.2, 0.4, HOSTILE),) * 2,
        audit_before=Audit((replace(USE, title=HOSTILE, shortcut=HOSTILE),), facts={"model": HOSTILE, "data": HOSTILE}),
        audit_after=Audit((replace(USE, title=HOSTILE, shortcut=HOSTILE),), limits=(HOSTILE,)),
        attempts=(Attempt(choice, "failed", 1.0, error=HOSTILE),),
    )
    for text in (render_fix(bad), fix_html(bad)):
        assert "<script>alert(1)" not in text
        assert "<img src=x" not in text
        assert "&lt;/script&gt;" in text
    assert json.loads(fix_json(bad))["tried"][0]["error"] == HOSTILE


def test_json_has_the_same_keys_each_time_and_no_nan(tmp_path: Path, repair: Repair) -> None:
    nothing = replace(repair, fixed=False, attempts=(), audit_after=None)
    full, empty = json.loads(fix_json(repair)), json.loads(write_fix_json(tmp_path / "f.json", nothing).read_text())
    assert list(full) == list(empty)
    assert full["choice"] == {
        "method": "afr", "preset": None, "options": {"on": "val"}, "why": "Its mistakes break the shortcut.",
    }  # fmt: skip
    assert [row["criterion"] for row in full["tried"][:2]] == pytest.approx([0.7, 0.65])
    assert full["tried"][2]["criterion"] is None
    assert [row["oracle"] for row in full["tried"]] == [0.65, 0.4, None]
    assert empty["choice"] is None
    assert empty["audit_after"] is None
    assert full["judged"]["before"]["inferred"]["value"] == 0.2


def test_a_notebook_sees_the_outcome_and_the_tries_without_scripts(repair: Repair) -> None:
    text = words(fix_html(repair))
    in_order(text, "Repaired by AFR", "Before:", "What was done:", "After:", "Average", "80.0 %", "AFR", "SELF")
    assert "<script" not in text
    alone: Any = replace(repair, attempts=repair.attempts[:1])
    assert "Tried" not in fix_html(alone)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_in_a_browser_nothing_is_wider_than_the_page_and_nothing_goes_wrong(
    browser: Any, tmp_path: Path, repair: Repair, width: int, scheme: str
) -> None:
    path = write_fix(tmp_path / "f.html", repair)
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page, trouble = context.new_page(), []
    page.on("console", lambda m: trouble.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#tried ~ .scroll th button >> nth=2")  # sorted by the average
    assert page.locator("#tried ~ .scroll tbody th >> nth=0").inner_text().startswith(("AFR", "DFR", "SELF"))
    assert trouble == []
    context.close()
