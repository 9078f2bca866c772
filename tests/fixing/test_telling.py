"""Tests of the sentences: the outcome first, with the numbers it follows from."""

from types import SimpleNamespace
from typing import Any, cast

from spurless.core.findings import Audit, Finding
from spurless.core.repairs import Attempt, Choice, Fate, Measure, Score
from spurless.fixing.telling import tell

FOUND = Audit((Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "b", "r", shortcut="grass"),))
HELD: Any = SimpleNamespace(said="Validation is cut.", data=SimpleNamespace(notes=("a note of the data",)), named=None)


def score(average: float, worst: float, group: float | None = None) -> Score:
    def measure(value: float) -> Measure:
        return Measure(value, 0.0, 1.0, 100)

    return Score(
        measure(average), measure(0.7), measure(0.5), measure(worst), None if group is None else measure(group)
    )


def attempt(fate: Fate, judged: Score | None = None, method: str = "afr", error: str = "") -> Attempt:
    record = cast(Any, SimpleNamespace(warnings=("a note of the data", "Few features are left.")))
    return Attempt(Choice(method, "Because."), fate, 1.0, judged, None if judged is None else record, error)


OLD, NEW = score(0.9, 0.2), score(0.88, 0.6)


def test_a_repair_says_what_rose_and_what_it_cost() -> None:
    said = tell(FOUND, [attempt("taken", NEW)], (OLD, NEW), HELD, 0.02)
    assert said == (
        "Repaired by AFR: the worst inferred group rises from 20.0 % to 60.0 %.",
        "That is on 100 examples that nothing has learnt from; their average goes from 90.0 % to 88.0 %.",
        "Before: This model leans on a shortcut: “grass”.",
        "Because.",
        "Validation is cut.",
        "Few features are left.",
    )


def test_with_attributes_it_is_the_worst_group_that_rose() -> None:
    judged = score(0.9, 0.2, 0.4), score(0.9, 0.6, 0.7)
    said = tell(FOUND, [attempt("taken", judged[1])], judged, HELD, 0.02)
    assert said[0] == "Repaired by AFR: the worst group rises from 40.0 % to 70.0 %."


def test_what_was_kept_says_why() -> None:
    costly = tell(FOUND, [attempt("too costly", score(0.8, 0.6))], (OLD, OLD), HELD, 0.01)
    assert costly[0].startswith(
        "The old model is kept: AFR costs 10.0 points of average accuracy on the judging examples, and you allow 1.0 "
        "point."
    )
    assert costly[2].startswith("Label the attribute of the validation examples")
    useless = tell(FOUND, [attempt("no better", score(0.9, 0.1))], (OLD, OLD), HELD, 0.01)
    assert useless[0].startswith("The old model is kept: AFR does not help.")
    assert useless[1] == (
        "To help is to raise the worst class (50.0 %), the worst inferred group (20.0 %) or the balanced accuracy "
        "(70.0 %)."
    )
    failed = tell(FOUND, [attempt("failed", error="It cannot.")], (OLD, OLD), HELD, 0.01)
    assert failed[0] == "The old model is kept: no method could be run. AFR says: It cannot."
    several = [attempt("no better", OLD), attempt("too costly", NEW, "dfr"), attempt("failed", method="self")]
    assert tell(FOUND, several, (OLD, OLD), HELD, 0.01)[0] == (
        "The old model is kept: none of 2 methods helps at a cost of at most 1.0 point of average accuracy."
    )


def test_with_known_attributes_nobody_is_told_to_label_them() -> None:
    known = score(0.9, 0.2, 0.4)
    said = tell(FOUND, [attempt("no better", known)], (known, known), HELD, 0.01)
    assert not any(line.startswith("Label the attribute") for line in said)


def test_nothing_found_is_said_to_be_nothing_done() -> None:
    said = tell(Audit(()), [], (OLD, OLD), HELD, 0.01)
    assert said[0].startswith("The old model is kept. Nothing that a repair could help with is flagged")


def test_several_say_how_they_are_ranked() -> None:
    tried = [attempt("taken", NEW), attempt("no better", OLD, "dfr")]
    assert any("of the worst class of" in line for line in tell(FOUND, tried, (OLD, NEW), HELD, 0))
    known = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    assert "The best of them is the one with the best worst true group of the judging examples." in tell(
        FOUND, tried, known, HELD, 0
    )
    assert tell(FOUND, tried, known, HELD, 0, blind=True)[-2].endswith(
        "no attributes. The worst true group stands beside it."
    )


def test_a_named_word_is_said_once_and_never_called_true() -> None:
    named: Any = SimpleNamespace(
        **{**vars(HELD), "named": SimpleNamespace(word="a negation", said="Few features are left.")}
    )
    both = (score(0.9, 0.2, 0.1), score(0.88, 0.6, 0.5))
    said = tell(FOUND, [attempt("taken", both[1]), attempt("no better", both[0])], both, named, 0.02)
    assert said[0] == "Repaired by AFR: the worst group rises from 10.0 % to 50.0 %."
    # its note is in held.said
    assert said[-1] == "The best of them is the one with the best worst group by a negation of the judging examples."
    assert "true group" not in " ".join(said)
