"""Tests of what a repair says of itself: by which number it is ranked, which it has to raise, and what was chosen."""

from typing import Any, cast

from spurless.core.repairs import FATES, Attempt, Choice, Measure, Repair, Score


def measure(value: float) -> Measure:
    return Measure(value, value, value, 10)


AVERAGE, CLASS, INFERRED, GROUP = (measure(value) for value in (0.9, 0.8, 0.3, 0.5))


def test_the_criterion_never_looks_at_attributes_and_the_aims_do_where_they_are_known() -> None:
    blind = Score(AVERAGE, CLASS)
    assert (blind.criterion, blind.aims) == (CLASS, {"the worst class": CLASS})
    suspected = Score(AVERAGE, CLASS, INFERRED)
    assert suspected.criterion == CLASS
    assert suspected.aims == {"the worst class": CLASS, "the worst inferred group": INFERRED}
    known = Score(AVERAGE, CLASS, INFERRED, GROUP)
    assert (known.criterion, known.aims) == (CLASS, {"the worst group": GROUP})


def test_what_rises_is_the_aim_that_rises_most() -> None:
    old = Score(AVERAGE, CLASS, INFERRED)
    assert Score(AVERAGE, measure(0.85), measure(0.9)).raised_over(old) == "the worst inferred group"
    assert Score(AVERAGE, measure(0.85), measure(0.1)).raised_over(old) == "the worst class"
    assert Score(AVERAGE, CLASS, INFERRED).raised_over(old) is None
    assert Score(measure(0.8), measure(0.85), INFERRED).raised_over(old) is None  # 5 points gained, 10 paid
    assert Score(measure(0.8), measure(0.95), INFERRED).raised_over(old) == "the worst class"
    known = Score(AVERAGE, CLASS, INFERRED, GROUP)
    assert Score(AVERAGE, measure(0.9), measure(0.9), measure(0.4)).raised_over(known) is None
    assert Score(AVERAGE, measure(0.1), measure(0.1), measure(0.6)).raised_over(known) == "the worst group"


def test_the_choice_is_what_was_taken_else_what_came_first_else_nothing() -> None:
    first, second = (Attempt(Choice(name, f"because {name}"), "no better", 1.0) for name in ("afr", "dfr"))
    taken = Attempt(Choice("self", "because self"), "taken", 1.0)
    nothing = cast(Any, None)

    def repair(*tried: Attempt) -> Repair:
        return Repair(False, (), nothing, nothing, (Score(AVERAGE, CLASS),) * 2, nothing, tried=tried)

    assert repair(first, taken, second).why == "because self"
    assert repair(first, second).why == "because afr"
    assert repair().choice is None
    assert repair().why == ""


def test_every_fate_has_its_words() -> None:
    assert len(set(FATES.values())) == len(FATES) == 5
