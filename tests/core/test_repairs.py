"""Tests of what a repair says of itself: by which number it is ranked, which it has to raise, and what was chosen."""

from typing import Any, cast

from spurless.core.repairs import OUTCOMES, Accuracy, Attempt, Choice, Repair, RepairScore


def measure(value: float) -> Accuracy:
    return Accuracy(value, value, value, 10)


AVERAGE, BALANCED, CLASS, INFERRED, GROUP = (measure(value) for value in (0.9, 0.85, 0.8, 0.3, 0.5))


def test_the_criterion_never_looks_at_attributes_and_the_aims_do_where_they_are_known() -> None:
    blind = RepairScore(AVERAGE, BALANCED, CLASS)
    assert (blind.criterion, blind.targets) == (CLASS, {"the worst class": 0.8, "the balanced accuracy": 0.85})
    suspected = RepairScore(AVERAGE, BALANCED, CLASS, INFERRED)
    assert suspected.criterion == CLASS
    assert suspected.targets == {**blind.targets, "the worst inferred group": 0.3}
    known = RepairScore(AVERAGE, BALANCED, CLASS, INFERRED, GROUP)
    assert (known.criterion, known.targets) == (CLASS, {"the worst group": 0.5})


def raised(average: float, balanced: float, worst: float, inferred: float) -> str | None:
    old = RepairScore(AVERAGE, BALANCED, CLASS, INFERRED)
    return RepairScore(measure(average), measure(balanced), measure(worst), measure(inferred)).best_improvement(
        old, 0.02
    )


def test_what_rises_is_the_aim_that_rises_most() -> None:
    assert raised(0.9, 0.85, 0.85, 0.9) == "the worst inferred group"
    assert raised(0.9, 0.85, 0.85, 0.1) == "the worst class"
    assert raised(0.9, 0.95, 0.85, 0.1) == "the balanced accuracy"
    assert raised(0.9, 0.85, 0.8, 0.3) is None


def test_a_rise_must_be_more_than_the_average_falls() -> None:
    assert raised(0.8, 0.94, 0.89, 0.39) is None  # 9 points gained, 10 paid
    assert raised(0.8, 0.85, 0.95, 0.3) == "the worst class"
    known = RepairScore(AVERAGE, BALANCED, CLASS, INFERRED, GROUP)
    assert RepairScore(AVERAGE, AVERAGE, measure(0.9), measure(0.9), measure(0.4)).best_improvement(known, 0.02) is None
    worse_without = RepairScore(AVERAGE, measure(0.1), measure(0.1), measure(0.1), measure(0.6))
    assert worse_without.best_improvement(known, 0.02) == "the worst group"


def test_what_stands_in_for_groups_may_not_rise_at_the_cost_of_a_class() -> None:
    assert raised(0.9, 0.85, 0.78, 0.5) == "the worst inferred group"  # within the tolerance
    assert raised(0.9, 0.85, 0.77, 0.5) is None  # may be wrong labels
    assert raised(0.9, 0.89, 0.77, 0.5) == "the balanced accuracy"  # 4 points gained, 3 lost
    assert raised(0.9, 0.87, 0.77, 0.5) is None


def test_the_choice_is_what_was_taken_else_what_came_first_else_nothing() -> None:
    first, second = (Attempt(Choice(name, f"because {name}"), "no better", 1.0) for name in ("afr", "dfr"))
    taken = Attempt(Choice("self", "because self"), "taken", 1.0)
    nothing = cast(Any, None)

    def repair(*tried: Attempt) -> Repair:
        return Repair(
            False, (), nothing, nothing, (RepairScore(AVERAGE, BALANCED, CLASS),) * 2, nothing, attempts=tried
        )

    assert repair(first, taken, second).why == "because self"
    assert repair(first, second).why == "because afr"
    assert repair().choice is None
    assert repair().why == ""


def test_every_fate_has_its_words() -> None:
    assert len(set(OUTCOMES.values())) == len(OUTCOMES) == 5
