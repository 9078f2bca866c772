"""Tests of the sentences: the outcome first, with the numbers it follows from."""

from types import SimpleNamespace
from typing import Any, cast

from spurless.core.findings import Audit, Finding
from spurless.core.repairs import Accuracy, Attempt, Choice, Outcome, RepairScore
from spurless.fixing.summary import summarize
from spurless.methods import method_named

FOUND = Audit((Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "b", "r", shortcut="grass"),))
HELD: Any = SimpleNamespace(
    description="Validation is split.", data=SimpleNamespace(notes=("a note of the data",)), word=None, word_note=""
)


def score(average: float, worst: float, group: float | None = None) -> RepairScore:
    def measure(value: float) -> Accuracy:
        return Accuracy(value, 0.0, 1.0, 100)

    return RepairScore(
        measure(average), measure(0.7), measure(0.5), measure(worst), None if group is None else measure(group)
    )


def attempt(outcome: Outcome, judged: RepairScore | None = None, method: str = "afr", error: str = "") -> Attempt:
    record = cast(Any, SimpleNamespace(warnings=("a note of the data", "Few features are left.")))
    return Attempt(
        Choice(method, "Because.", title=method_named(method).info.title),
        outcome,
        1.0,
        judged,
        None if judged is None else record,
        error,
    )


OLD, NEW = score(0.9, 0.2), score(0.88, 0.6)


def test_a_repair_says_what_rose_and_what_it_cost() -> None:
    said = summarize(FOUND, [attempt("taken", NEW)], (OLD, NEW), HELD, 0.02)
    assert said == (
        "Repaired by AFR: the worst inferred group rises from 20.0 % to 60.0 %.",
        "This is measured on 100 held-out examples, whose average accuracy changes from 90.0 % to 88.0 %.",
        "Before: This model uses a shortcut: “grass”.",
        "Because.",
        "Validation is split.",
        "Few features are left.",
    )


def test_with_attributes_it_is_the_worst_group_that_rose() -> None:
    judged = score(0.9, 0.2, 0.4), score(0.9, 0.6, 0.7)
    said = summarize(FOUND, [attempt("taken", judged[1])], judged, HELD, 0.02)
    assert said[0] == "Repaired by AFR: the worst group rises from 40.0 % to 70.0 %."


def test_what_was_kept_says_why() -> None:
    costly = summarize(FOUND, [attempt("too costly", score(0.8, 0.6))], (OLD, OLD), HELD, 0.01)
    assert costly[0].startswith(
        "The old model is kept: AFR costs 10.0 points of average accuracy on the held-out examples, and you allow 1.0 "
        "point."
    )
    assert costly[2].startswith("Label the attribute of the validation examples")
    useless = summarize(FOUND, [attempt("no better", score(0.9, 0.1))], (OLD, OLD), HELD, 0.01)
    assert useless[0].startswith("The old model is kept: AFR does not improve it.")
    assert useless[1] == (
        "A repair must improve the worst class (50.0 %), the worst inferred group (20.0 %) or the balanced accuracy "
        "(70.0 %)."
    )
    failed = summarize(FOUND, [attempt("failed", error="It cannot.")], (OLD, OLD), HELD, 0.01)
    assert failed[0] == "The old model is kept: no method could be run. AFR: It cannot."
    several = [attempt("no better", OLD), attempt("too costly", NEW, "dfr"), attempt("failed", method="self")]
    assert summarize(FOUND, several, (OLD, OLD), HELD, 0.01)[0] == (
        "The old model is kept: none of 2 methods improves it at a cost of at most 1.0 point of average accuracy."
    )


def test_with_known_attributes_nobody_is_told_to_label_them() -> None:
    known = score(0.9, 0.2, 0.4)
    said = summarize(FOUND, [attempt("no better", known)], (known, known), HELD, 0.01)
    assert not any(line.startswith("Label the attribute") for line in said)


def test_nothing_found_is_said_to_be_nothing_done() -> None:
    said = summarize(Audit(()), [], (OLD, OLD), HELD, 0.01)
    assert said[0].startswith("The old model is kept. Nothing is flagged that a repair could improve")


def test_several_say_how_they_are_ranked() -> None:
    tried = [attempt("taken", NEW), attempt("no better", OLD, "dfr")]
    assert any("ranked by the worst class" in line for line in summarize(FOUND, tried, (OLD, NEW), HELD, 0))
    known = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    assert (
        "The best method is the one with the highest accuracy of the worst true group of the held-out examples."
        in summarize(FOUND, tried, known, HELD, 0)
    )
    assert summarize(FOUND, tried, known, HELD, 0, ignore_attributes=True)[-2].endswith(
        "no attributes. The worst true group is shown for comparison."
    )


def test_a_named_word_is_said_once_and_never_called_true() -> None:
    named: Any = SimpleNamespace(**{**vars(HELD), "word": "a negation", "word_note": "Few features are left."})
    both = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    said = summarize(FOUND, [attempt("taken", both[1]), attempt("no better", both[0])], both, named, 0.02)
    assert said[0] == "Repaired by AFR: the worst group rises from 10.0 % to 50.0 %."
    # its note is in the description
    assert said[-1].endswith("the worst group by a negation of the held-out examples.")
    assert "true group" not in " ".join(said)
