"""Tests of the page of a repair: what came of it first, what decided, what was tried, then the old model; all text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.figures import Figure
from spurless.core.findings import Audit, Finding
from spurless.core.records import Record
from spurless.core.repairs import Accuracy, Attempt, Change, Choice, Repair, RepairScore
from spurless.reporting import fix_html, fix_json, fix_page, write_fix, write_fix_json
from spurless.reporting.fix_page import compare_follow_rates, format_paired_change, render_fix

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
        "costs more accuracy than you allow",
        "SELF has too few.",
        "Audit of the old model",
        "Mistakes share grass",
        "Limitations",
    )
    assert "Repair of resnet18 on cows" in text
    assert list(path.parent.iterdir()) == [path]


def change(target: str, before: float, after: float, low: float, count: int = 50, of: str = "cow, sand") -> Change:
    one, two = (Accuracy(value, 0.0, 1.0, count, of) for value in (before, after))
    return Change(target, one, two, low, 2 * (after - before) - low)


def with_transplants(repair: Repair) -> Repair:
    """The same repair, decided without attributes by the accuracy under transplants."""
    moved = Accuracy(0.31, 0.25, 0.37, 148, "the frame"), Accuracy(0.62, 0.55, 0.69, 148, "the frame")
    scores = tuple(
        replace(one, worst_group=None, transplants=part) for one, part in zip(repair.holdout_scores, moved, strict=True)
    )
    rise = change("the accuracy under transplants", 0.31, 0.62, 0.2, 148, "the frame")
    taken = replace(repair.attempts[0], score=scores[1], change=rise)
    left = Attempt(Choice("jtt", "Trains.", title="JTT"), "not tried", 0.0)
    return replace(
        repair,
        holdout_scores=scores,  # type: ignore[arg-type]
        attempts=(taken, *repair.attempts[1:], left),
        properties=("the frame", "the color"),
        change=rise,
        test_change=change("the worst group", 2 / 7, 5 / 7, 0.05, 7),
        refitted=True,
    )


def test_the_page_shows_what_decided_with_intervals_and_what_was_not_tried(repair: Repair) -> None:
    text = words(render_fix(with_transplants(repair)))
    in_order(
        text[text.index("<main") :],
        "A repair is kept if the accuracy under transplants rises by more than chance explains",
        "The accuracy under transplants may fall by at most 1.0 point.",
        "The average of all examples may fall",
        "The audit flags the frame, the color;",
        "the returned model was trained on all of it",
        "Under transplants",
        "31.0 %",
        "the frame",
        "On the hold-out examples: the accuracy under transplants 31.0 % before, 62.0 % after, +31.0 points",
        "On the test split, which decides nothing: the worst group 2 of 7 before, 5 of 7 after",
        "Ranked by the accuracy under transplants",
        "Under transplants",
        "Average",
        "Worst class",
        "Change",
        "AFR",
        "+31.0 points (+20.0 to +42.0)",
        "JTT",
        "not tried: not enough time",
    )
    assert "(oracle)" not in text
    assert "of 7 %" not in text
    plain = words(render_fix(repair))
    assert "The audit flags" not in plain
    assert "was trained on all of it" not in plain
    assert "if the worst group rises by more than chance explains" in plain


def test_a_change_is_shown_with_signs() -> None:
    assert format_paired_change(change("x", 0.5, 0.49, -0.031)) == "\u22121.0 point (\u22123.1 to +1.1)"
    assert format_paired_change(None) == ""


@pytest.mark.parametrize(("low", "kind"), [(0.1, "none-found"), (-0.01, "suspicious")])
def test_only_a_change_that_chance_does_not_explain_gets_a_tick(repair: Repair, low: float, kind: str) -> None:
    one = replace(repair, test_change=change("the worst group", 0.2, 0.5, low))
    assert f'class="panel {kind}"' in render_fix(one)
    assert ("✓" in fix_html(one)) is (kind == "none-found")


def test_a_judgement_on_data_that_may_be_biased_gets_no_tick(repair: Repair) -> None:
    scores = tuple(replace(one, worst_group=None) for one in repair.holdout_scores)
    assert 'class="panel suspicious"' in render_fix(replace(repair, holdout_scores=scores))  # type: ignore[arg-type]


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
    assert repair.why
    assert repair.why not in text  # the method that was rejected did nothing
    assert "Nothing was changed: 1 method tried or considered, none is kept." in text


def test_a_method_that_trained_on_validation_is_compared_with_the_old_model(repair: Repair) -> None:
    other = replace(repair.after, data=repair.after.data | {"fingerprint": "another"})
    assert render_fix(replace(repair, after=other)) == render_fix(repair)
    assert "(fingerprint " not in render_fix(replace(repair, after=other))


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


def test_json_contains_the_changes_that_decided_and_every_key_of_before(repair: Repair) -> None:
    found = json.loads(fix_json(with_transplants(repair)))
    assert (found["schema"], found["evidence"], found["refitted"]) == (1, "transplants", True)
    assert found["properties"] == ["the frame", "the color"]
    assert found["change"]["target"] == "the accuracy under transplants"
    assert (found["change"]["change"], found["change"]["low"]) == pytest.approx((0.31, 0.2))
    assert found["test_change"]["before"]["count"] == 7
    assert found["judged"]["after"]["transplants"]["of"] == "the frame"
    assert [row["transplants"] for row in found["tried"]] == [0.62, None, None, None]
    assert found["tried"][-1]["fate"] == "not tried"
    assert {"said", "named", "choice", "judged", "tried", "before", "after", "audit_before", "audit_after"} <= set(
        found
    )


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
    if page.locator(".draw").count():
        page.locator(".draw .main-svg").first.wait_for(state="attached")  # Plotly is unpacked after the load
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.click("#tried ~ .scroll th button >> nth=2")  # sorted by the average
    assert page.locator("#tried ~ .scroll tbody th >> nth=0").inner_text().startswith(("AFR", "DFR", "SELF"))
    assert trouble == []
    context.close()


def test_what_both_models_follow_is_shown_side_by_side(repair: Repair) -> None:
    def audit(**rates: float) -> Audit:
        numbers = {"screened: the frame": 0.5, **{f"follow rate: the {name}": rate for name, rate in rates.items()}}
        return Audit((replace(USE, audit="transplants", numbers=numbers),))

    followed = replace(repair, audit_before=audit(corner=0.9, frame=0.7), audit_after=audit(corner=0.1))
    (section,) = compare_follow_rates(followed)
    (figure,) = section.items
    assert isinstance(figure, Figure)
    old, new = figure.spec["data"]
    assert (old["y"], old["x"], new["x"]) == (["the corner", "the frame"], [90.0, 70.0], [10.0, 50.0])
    assert "the corner: old model 90 %, new model 10 %" in figure.alt
    assert "What the model follows" in render_fix(followed)
    assert compare_follow_rates(replace(followed, audit_after=None)) == ()
    assert compare_follow_rates(repair) == ()  # no transplants
