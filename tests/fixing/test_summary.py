"""Tests of the sentences: the outcome first, with the numbers it follows from, and no repair by chance."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.repairs import Accuracy, Attempt, Change, Choice, Outcome, RepairScore
from spurless.fitting.comparison import HINT
from spurless.fixing.summary import BIASED_DATA, describe_change, summarize
from spurless.fixing.trials import REFITTED
from spurless.methods import method_named

FOUND = Audit((Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "b", "r", shortcut="grass"),))
HELD: Any = SimpleNamespace(
    description="Validation is split.", data=SimpleNamespace(notes=("a note of the data",)), word=None, word_note=""
)


def measure(value: float, count: int = 100, of: str = "") -> Accuracy:
    return Accuracy(value, 0.0, 1.0, count, of)


def score(average: float, worst: float, group: float | None = None, moved: float | None = None) -> RepairScore:
    known = None if group is None else measure(group, 50, "cow, sand")
    return RepairScore(
        measure(average),
        measure(0.7),
        measure(0.5, of="cow"),
        measure(worst, of="cow, suspected"),
        known,
        None if group is None else measure(0.6),
        None if moved is None else measure(moved, of="the frame"),
    )


def change(
    target: str, before: float, after: float, low: float, high: float = 0.9, of: str = "cow, sand", n: int = 50
) -> Change:
    return Change(target, measure(before, n, of), measure(after, n, of), low, high)


RISE = change("the worst inferred group", 0.2, 0.6, 0.3, 0.5, "cow, suspected", 100)


def attempt(
    outcome: Outcome,
    judged: RepairScore | None = None,
    method: str = "afr",
    error: str = "",
    rise: Change | None = RISE,
    cost: Change | None = None,
) -> Attempt:
    texts = ("a note of the data", "Few features are left.", f"The average fell. {HINT}")
    return Attempt(
        Choice(method, "Because.", title=method_named(method).info.title),
        outcome,
        1.0,
        judged,
        None if judged is None else cast(Any, SimpleNamespace(warnings=texts)),
        error,
        None if judged is None else rise,
        cost,
    )


OLD, NEW = score(0.9, 0.2), score(0.895, 0.6)


def test_without_groups_and_properties_nothing_is_called_repaired() -> None:
    lines = summarize(FOUND, [attempt("taken", NEW)], (OLD, NEW), HELD, 0.02)
    assert lines == (
        "Improved on these validation data by AFR: the worst inferred group rises from 20.0 % of 100 examples to "
        "60.0 % of 100 examples.",
        "Measured on 100 held-out validation examples: +40.0 points (95 % interval 30.0 to 50.0 points).",
        BIASED_DATA,
        "The average accuracy of the 100 held-out examples changes from 90.0 % to 89.5 %.",
        "Before: This model uses a shortcut: “grass”.",
        "Because.",
        "Validation is split.",
        "Few features are left.",
    )


def test_with_attributes_it_is_the_worst_group_that_rose() -> None:
    judged = score(0.9, 0.2, 0.4), score(0.9, 0.6, 0.7)
    rise = change("the worst group", 0.4, 0.7, 0.2)
    lines = summarize(FOUND, [attempt("taken", judged[1], rise=rise)], judged, HELD, 0.02)
    assert lines[0] == ("Repaired by AFR: the worst group rises from 40.0 % of 50 examples to 70.0 % of 50 examples.")


def test_with_transplants_the_property_is_named_and_a_falling_average_is_explained() -> None:
    judged = score(0.99, 0.2, moved=0.3), score(0.9, 0.2, moved=0.8)
    rise = change("the accuracy under transplants", 0.3, 0.8, 0.4, of="the frame", n=148)
    lines = summarize(FOUND, [attempt("taken", judged[1], rise=rise)], judged, HELD, 0.02)
    assert lines[0] == (
        "Repaired by AFR: the accuracy with the frame of random other examples rises from 30.0 % to 80.0 %."
    )
    (average,) = [line for line in lines if line.startswith("The average accuracy")]
    assert "changes from 99.0 % to 90.0 %. Most of these examples may agree with the shortcut" in average
    assert BIASED_DATA not in lines


@pytest.mark.parametrize("kind", ["groups", "transplants", "validation"])
def test_the_headline_is_that_of_test_if_test_has_groups(kind: str) -> None:
    more = {"groups": {"group": 0.4}, "transplants": {"moved": 0.4}, "validation": {}}[kind]
    judged = score(0.9, 0.2, **more), score(0.9, 0.6, **more)
    test = change("the worst group", 0.1, 0.5, 0.3, n=7)
    lines = summarize(FOUND, [attempt("taken", judged[1])], judged, HELD, 0.02, test_change=test)
    assert (
        lines[0] == "Repaired by AFR: on the test split, the worst group rises from 1 of 7 examples to 4 of 7 examples."
    )
    assert (BIASED_DATA in lines) is (kind == "validation")
    assert lines[1].startswith("On 100 held-out validation examples, the worst inferred group rises from 20.0 %")
    chance = replace(test, low=-0.01, high=0.6)
    kept = summarize(FOUND, [attempt("taken", judged[1])], judged, HELD, 0.02, test_change=chance)
    assert "Repaired" not in kept[0]
    assert kept[0].startswith("AFR is kept for the held-out examples, but the test split does not confirm it: ")
    assert "(95 % interval of the difference -1.0 to 60.0 points)" in kept[0]


def test_an_average_that_does_not_change_stays() -> None:
    lines = summarize(FOUND, [attempt("taken", NEW)], (OLD, score(0.9, 0.6)), HELD, 0.02)
    assert "The average accuracy of the 100 held-out examples stays at 90.0 %." in lines


def test_a_model_that_learned_from_all_of_validation_is_announced() -> None:
    lines = summarize(FOUND, [attempt("taken", NEW)], (OLD, NEW), HELD, 0.02, refitted=True)
    assert REFITTED in lines
    assert REFITTED not in summarize(FOUND, [attempt("taken", NEW)], (OLD, NEW), HELD, 0.02)


def test_what_was_kept_has_a_reason() -> None:
    cost = change("the mean over inferred groups", 0.9, 0.8, -0.2)
    costly = summarize(FOUND, [attempt("too costly", score(0.8, 0.6), cost=cost)], (OLD, OLD), HELD, 0.01)
    assert costly[0].startswith(
        "The old model is kept: AFR costs 10.0 points of the accuracy with inferred groups or classes weighted alike "
        "on the held-out examples, and you allow 1.0 point."
    )
    assert costly[2].startswith("Label the attribute of the validation examples")
    fallen = change("the worst class", 0.5, 0.4, -0.2)
    useless = summarize(FOUND, [attempt("no better", score(0.9, 0.1), rise=fallen)], (OLD, OLD), HELD, 0.01)
    assert useless[0].startswith("The old model is kept: AFR does not improve it.")
    assert useless[1] == (
        "A repair must improve the worst class (50.0 % of 100 examples), the worst inferred group (20.0 % of 100 "
        "examples) or the balanced accuracy (70.0 %) by more than chance explains."
    )
    failed = summarize(FOUND, [attempt("failed", error="It cannot.")], (OLD, OLD), HELD, 0.01)
    assert failed[0] == "The old model is kept: no method could be run. AFR: It cannot."
    several = [attempt("no better", OLD), attempt("too costly", NEW, "dfr"), attempt("failed", method="self")]
    assert summarize(FOUND, several, (OLD, OLD), HELD, 0.01)[0] == (
        "The old model is kept: none of 2 methods improves it beyond chance at a cost of at most 1.0 point of the "
        "accuracy with inferred groups or classes weighted alike."
    )


def test_a_rise_by_chance_is_shown_with_its_interval_and_a_small_group_as_a_count() -> None:
    rise = change("the worst class", 0.0, 2 / 7, -0.05, 0.6, "cow", 7)
    lines = summarize(FOUND, [attempt("no better", NEW, rise=rise)], (OLD, OLD), HELD, 0.01)
    assert lines[0].startswith(
        "The old model is kept: with AFR the worst class rises from 0 of 7 examples to 2 of 7 examples, which chance "
        "or a cost elsewhere explains (95 % interval of the difference -5.0 to 60.0 points)."
    )


def test_with_known_attributes_labels_are_not_requested() -> None:
    known = score(0.9, 0.2, 0.4)
    lines = summarize(FOUND, [attempt("no better", known)], (known, known), HELD, 0.01)
    assert not any(line.startswith("Label the attribute") for line in lines)


def test_nothing_found_is_nothing_done() -> None:
    lines = summarize(Audit(()), [], (OLD, OLD), HELD, 0.01)
    assert lines[0].startswith("The old model is kept. Nothing is flagged that a repair could improve")


def test_a_property_that_may_contain_the_object_is_left_to_the_user() -> None:
    numbers = {"flagged: the periphery": 0.3}
    finding = Finding("transplants", "It follows the periphery", 0.3, True, 0.002, "b", "r", doubt="d", numbers=numbers)
    lines = summarize(Audit((finding,)), [], (OLD, OLD), HELD, 0.01)
    assert "--property 'the periphery'" in lines[-1]
    tried = summarize(Audit((finding,)), [attempt("no better", OLD)], (OLD, OLD), HELD, 0.01)
    assert sum("--property 'the periphery'" in line for line in tried) == 1
    certain = Audit((replace(finding, doubt=""),))
    assert not any("--property" in line for line in summarize(certain, [], (OLD, OLD), HELD, 0.01))


def test_methods_that_were_not_tried_are_listed() -> None:
    attempts = [attempt("no better", OLD), attempt("not tried", method="jtt"), attempt("not tried", method="dcwp")]
    lines = summarize(FOUND, attempts, (OLD, OLD), HELD, 0.01)
    assert "Not tried, because there was not enough time: JTT and DCWP. Allow more minutes with --budget." in lines
    none = summarize(FOUND, attempts[1:], (OLD, OLD), HELD, 0.01)
    assert none[0] == "The old model is kept: no method could be run. There was not enough time for any."


def test_several_are_listed_with_their_ranking() -> None:
    tried = [attempt("taken", NEW), attempt("no better", OLD, "dfr")]
    assert any("ranked by the worst class" in line for line in summarize(FOUND, tried, (OLD, NEW), HELD, 0))
    moved = (score(0.9, 0.2, moved=0.3), score(0.9, 0.2, moved=0.8))
    assert any("ranked by the accuracy under transplants" in line for line in summarize(FOUND, tried, moved, HELD, 0))
    known = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    best = "The best method is the one with the {} of the held-out examples."
    assert best.format("highest accuracy of the worst group, by true groups") in summarize(FOUND, tried, known, HELD, 0)
    small = (replace(known[0], has_small_groups=True), replace(known[1], has_small_groups=True))
    assert best.format("highest mean over groups, by true groups") in summarize(FOUND, tried, small, HELD, 0)
    assert summarize(FOUND, tried, known, HELD, 0, ignore_attributes=True)[-2].endswith(
        "no attributes. The worst true group is shown for comparison."
    )


def test_a_named_word_is_mentioned_once_and_never_called_true() -> None:
    named: Any = SimpleNamespace(**{**vars(HELD), "word": "a negation", "word_note": "Few features are left."})
    both = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    rise = change("the worst group", 0.1, 0.5, 0.2)
    tried = [attempt("taken", both[1], rise=rise), attempt("no better", both[0])]
    lines = summarize(FOUND, tried, both, named, 0.02)
    assert lines[0] == "Repaired by AFR: the worst group rises from 10.0 % of 50 examples to 50.0 % of 50 examples."
    # its note is in the description
    assert lines[-1].endswith("by groups by a negation of the held-out examples.")
    assert "true group" not in " ".join(lines)


def test_a_fall_and_no_change_are_described_as_such() -> None:
    assert describe_change(change("the worst class", 0.5, 0.25, -0.4, of="cow")).startswith(
        "the worst class falls from "
    )
    assert (
        describe_change(change("the mean over groups", 0.5, 0.5, -0.1, of="")) == "the mean over groups stays at 50.0 %"
    )
    two = change("the accuracy under transplants", 0.3, 0.8, 0.4, of="the frame")
    other = replace(two, after=replace(two.after, of="the color"))
    assert describe_change(other).startswith("the accuracy under transplants rises from 30.0 %")
