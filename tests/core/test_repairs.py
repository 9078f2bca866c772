"""Tests of what a repair says of itself: by which number it is ranked, which it has to raise, and what was chosen."""

from typing import Any, cast

from spurless.core.repairs import FATES, Attempt, Choice, Measure, Repair, Score


def measure(value: float) -> Measure:
    return Measure(value, value, value, 10)


AVERAGE, CLASS, INFERRED, GROUP = (measure(value) for value in (0.9, 0.8, 0.3, 0.5))


def test_the_criterion_never_looks_at_attributes_and_the_aim_does_where_they_are_known() -> None:
    blind = Score(AVERAGE, CLASS)
    assert (blind.criterion, blind.aim) == (CLASS, CLASS)
    suspected = Score(AVERAGE, CLASS, INFERRED)
    assert (suspected.criterion, suspected.aim) == (INFERRED, INFERRED)
    known = Score(AVERAGE, CLASS, INFERRED, GROUP)
    assert (known.criterion, known.aim) == (INFERRED, GROUP)


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
