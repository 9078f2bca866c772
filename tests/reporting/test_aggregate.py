"""Tests of what runs say together: means, spreads, intervals, and differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spurless.core.records import GroupRow, Record
from spurless.reporting.aggregate import Change, Comparison, Estimate, MethodRuns, average_accuracy, count_test_examples

Make = Callable[..., Record]


def test_mean_spread_and_interval_over_seeds(make: Make) -> None:
    arm = MethodRuns(
        "ERM", tuple(make(seed=s, worst=w, low=w - 0.1, high=w + 0.2) for s, w in enumerate((0.2, 0.4, 0.6)))
    )
    assert arm.worst.mean == pytest.approx(0.4)
    assert arm.worst.spread == pytest.approx(0.2)  # sample deviation of 0.2, 0.4, 0.6
    assert arm.worst.sampling == pytest.approx((0.3, 0.6))  # seeds share the test split: they do not narrow it
    assert arm.worst.low == 0.0  # 0.4 - 4.303 * 0.2 / sqrt(3) = -0.1: the luck of three such seeds is wider
    assert arm.worst.high == pytest.approx(0.4 + 4.303 * 0.2 / 3**0.5)
    assert arm.group("the rest").mean == pytest.approx(0.99)
    assert arm.group("no such group").mean is None


def test_one_run_has_no_spread(make: Make) -> None:
    assert MethodRuns("ERM", (make(),)).worst.spread is None


def test_an_empty_group_is_never_the_worst(make: Make) -> None:
    groups = (GroupRow("empty", 0, 0.0, None, None), GroupRow("nan", 5, float("nan"), None, None))
    arm = MethodRuns("ERM", (make(groups=(*groups, GroupRow("real", 10, 0.5, 0.2, 0.8))),))
    assert arm.worst_names == ("real",)
    assert arm.worst.mean == 0.5


def test_of_groups_as_bad_the_largest_is_named(make: Make) -> None:
    groups = (
        GroupRow("one", 1, 0.0, 0.0, 0.79),
        GroupRow("seven", 7, 0.0, 0.0, 0.35),
        GroupRow("rest", 90, 0.6, 0.5, 0.7),
    )
    arm = MethodRuns("ERM", (make(groups=groups),))
    assert arm.worst_names == ("seven",)  # 0 of 7 is behind an average of 0.6 beyond doubt, and 0 of 1 is not
    assert arm.worst.sampling == (0.0, 0.35)


def test_a_worst_group_of_zero_is_the_worst(make: Make) -> None:
    assert MethodRuns("ERM", (make(worst=0.0, low=0.0, high=0.03),)).worst.mean == 0.0


def test_the_average_falls_back_on_the_groups(make: Make) -> None:
    assert average_accuracy(make(metrics={})) == pytest.approx((121 * 0.071 + 1000 * 0.99) / 1121)
    assert average_accuracy(make(metrics={}, groups=())) is None


@pytest.mark.parametrize(
    ("counts", "size"),
    [({"test": 7}, 7), ({"test": [3, 4]}, 7), ({"test": {"a": 3, "b": 4}}, 7), ({}, 1121), (None, 1121)],
)
def test_the_size_of_the_test_split(make: Make, counts: object, size: int) -> None:
    assert count_test_examples(make(data={"name": "d", "counts": counts})) == size
    assert (
        count_test_examples(make(data={"name": "d", "counts": counts, "sizes": {"test": 9}})) == 9
    )  # groups may overlap


def test_seeds_that_agree_pair_by_pair_leave_only_the_luck_of_the_test_examples(make: Make) -> None:
    # ERM 11, 17, 51 and another 48, 59, 90: far apart between seeds, yet 37, 42 and 39 better seed by seed
    arms = [
        MethodRuns(name, tuple(make(seed=s, worst=w, low=w - 0.07, high=w + 0.07) for s, w in enumerate(values)))
        for name, values in (("ERM", (0.11, 0.17, 0.51)), ("other", (0.48, 0.59, 0.90)))
    ]
    change = Comparison("d", tuple(arms)).change(arms[1])
    assert change.before.high is not None
    assert change.after.low is not None
    assert change.before.high > change.after.low  # the intervals over seeds overlap
    assert change.paired
    assert change.clear
    lone = Comparison("d", (MethodRuns("ERM", arms[0].records[:2]), MethodRuns("other", arms[1].records[:2])))
    assert not lone.change(lone.methods[1]).paired  # two pairs are not enough


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [(0.1, 0.2, "better"), (0.2, 0.1, "worse"), (0.1, 0.1, "same"), (0.1, 0.1004, "same"), (None, 0.1, "unknown")],
)
def test_directions(before: float | None, after: float, direction: str) -> None:
    assert Change(Estimate(before), Estimate(after)).direction == direction


def test_exactly_one_example_is_a_change_and_less_is_none() -> None:
    assert Change(Estimate(8 / 121), Estimate(9 / 121), floor=1 / 121).direction == "better"
    assert Change(Estimate(8 / 121), Estimate(8.7 / 121), floor=1 / 121).direction == "same"


def test_points_are_the_difference_of_the_printed_numbers() -> None:
    assert Change(Estimate(0.07149), Estimate(0.48251)).points == 41.2  # printed 7.1 and 48.3; the truth is 41.1


def test_clear_needs_intervals_and_seeds() -> None:
    low, high = Estimate(0.1, 0.05, 0.15), Estimate(0.5, 0.4, 0.6)
    assert Change(low, high).clear
    assert Change(high, low).clear
    assert not Change(low, Estimate(0.2, 0.14, 0.3)).clear
    assert not Change(low, high, pairs=((0.1, 0.9), (0.1, 0.1))).clear
    assert Change(low, high, pairs=((0.1, 0.9), (0.1, 0.2))).clear
