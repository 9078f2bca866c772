"""Tests of the results of a repair: by which number it is ranked, which it has to raise, and what was chosen."""

from dataclasses import replace
from typing import Any, cast

import pytest

from spurless.core.repairs import OUTCOMES, SMALL_GROUP, Accuracy, Attempt, Change, Choice, Repair, RepairScore


def measure(value: float, count: int = 100, of: str = "") -> Accuracy:
    return Accuracy(value, value, value, count, of)


AVERAGE, BALANCED, CLASS, INFERRED, GROUP, MEAN, MOVED = (measure(v) for v in (0.9, 0.85, 0.8, 0.3, 0.5, 0.7, 0.6))
HIDDEN = RepairScore(AVERAGE, BALANCED, CLASS, INFERRED)


def test_the_targets_are_groups_then_transplants_then_their_substitutes() -> None:
    blind = replace(HIDDEN, inferred=None)
    assert blind.targets == {"the worst class": CLASS, "the balanced accuracy": BALANCED}
    assert HIDDEN.targets == {
        "the worst class": CLASS,
        "the worst inferred group": INFERRED,
        "the balanced accuracy": BALANCED,
    }
    followed = replace(HIDDEN, transplants=MOVED)
    assert followed.targets == {"the accuracy under transplants": MOVED}
    known = replace(followed, worst_group=GROUP, group_mean=MEAN)
    assert known.targets == {"the worst group": GROUP}
    few = {"the accuracy under transplants": MOVED, "the mean over groups": MEAN}
    assert replace(known, has_small_groups=True).targets == few
    assert replace(known, worst_group=None, transplants=None).targets == {"the mean over groups": MEAN}
    assert next(iter(few)) == "the accuracy under transplants"  # which ranks
    assert [score.evidence for score in (blind, followed, known)] == ["validation", "transplants", "groups"]


def test_the_criterion_never_uses_attributes() -> None:
    assert HIDDEN.criterion == replace(HIDDEN, worst_group=GROUP, group_mean=MEAN).criterion == CLASS
    assert replace(HIDDEN, transplants=MOVED, worst_group=GROUP).criterion == MOVED


def test_a_small_group_is_one_with_a_name_and_few_examples() -> None:
    assert measure(0.3, SMALL_GROUP - 1, "cow, sand").is_small
    assert not measure(0.3, SMALL_GROUP, "cow, sand").is_small
    assert not measure(0.3, 7).is_small  # an average


@pytest.mark.parametrize(("low", "better"), [(0.01, True), (0.0, False), (1e-12, False), (-0.1, False)])
def test_a_change_is_an_improvement_if_its_interval_is_above_0(low: float, better: bool) -> None:
    change = Change("the worst group", measure(0.2), measure(0.5), low, 0.4)
    assert change.difference == pytest.approx(0.3)
    assert change.is_improvement is better


def make_repair(*attempts: Attempt, **more: Any) -> Repair:
    nothing = cast(Any, None)
    settings: dict[str, Any] = {"fixed": False, "holdout_scores": (HIDDEN,) * 2, **more}
    return Repair(summary=(), before=nothing, after=nothing, audit_before=nothing, attempts=attempts, **settings)


def test_the_choice_is_what_was_taken_else_what_came_first_else_nothing() -> None:
    first, second = (Attempt(Choice(name, f"because {name}"), "no better", 1.0) for name in ("afr", "dfr"))
    taken = Attempt(Choice("self", "because self"), "taken", 1.0)
    assert make_repair(first, taken, second).why == "because self"
    assert make_repair(first, second).why == "because afr"
    assert make_repair().choice is None
    assert make_repair().why == ""


def test_a_repair_is_confirmed_by_test_groups_or_by_more_than_biased_validation_data() -> None:
    change = Change("the worst group", measure(0.2), measure(0.5), 0.1, 0.4)
    followed = (replace(HIDDEN, transplants=MOVED),) * 2
    assert not make_repair(fixed=True).is_confirmed
    assert make_repair(fixed=True, test_change=change).is_confirmed
    assert make_repair(fixed=True, holdout_scores=followed).is_confirmed
    assert not make_repair(fixed=True, holdout_scores=followed, test_change=replace(change, low=0.0)).is_confirmed
    assert not make_repair(holdout_scores=followed, test_change=change).is_confirmed  # the old model was kept


def test_every_outcome_has_its_words() -> None:
    assert len(set(OUTCOMES.values())) == len(OUTCOMES) == 6
