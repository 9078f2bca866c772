"""Tests of what runs say together: means, spreads, intervals, and differences."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spurless.core.records import GroupRow, Record
from spurless.reporting.arms import Arm, Change, Estimate, average_of, size_of, wilson

Make = Callable[..., Record]


def test_mean_spread_and_interval_over_seeds(make: Make) -> None:
    arm = Arm("ERM", tuple(make(seed=s, worst=w, low=w - 0.1, high=w + 0.2) for s, w in enumerate((0.2, 0.4, 0.6))))
    assert arm.worst.mean == pytest.approx(0.4)
    assert arm.worst.spread == pytest.approx(0.2)  # sample deviation of 0.2, 0.4, 0.6
    assert arm.worst.low == pytest.approx(0.3)  # seeds share the test split: they do not narrow it
    assert arm.worst.high == pytest.approx(0.6)
    assert arm.group("the rest").mean == pytest.approx(0.99)
    assert arm.group("no such group").mean is None


def test_one_run_has_no_spread(make: Make) -> None:
    assert Arm("ERM", (make(),)).worst.spread is None


def test_an_empty_group_is_never_the_worst(make: Make) -> None:
    groups = (GroupRow("empty", 0, 0.0, None, None), GroupRow("nan", 5, float("nan"), None, None))
    arm = Arm("ERM", (make(groups=(*groups, GroupRow("real", 10, 0.5, 0.2, 0.8))),))
    assert arm.worst_names == ("real",)
    assert arm.worst.mean == 0.5


def test_a_worst_group_of_zero_is_the_worst(make: Make) -> None:
    assert Arm("ERM", (make(worst=0.0, low=0.0, high=0.03),)).worst.mean == 0.0


def test_the_average_falls_back_on_the_groups(make: Make) -> None:
    assert average_of(make(metrics={})) == pytest.approx((121 * 0.071 + 1000 * 0.99) / 1121)
    assert average_of(make(metrics={}, groups=())) is None


@pytest.mark.parametrize(
    ("counts", "size"),
    [({"test": 7}, 7), ({"test": [3, 4]}, 7), ({"test": {"a": 3, "b": 4}}, 7), ({}, 1121), (None, 1121)],
)
def test_the_size_of_the_test_split(make: Make, counts: object, size: int) -> None:
    assert size_of(make(data={"name": "d", "counts": counts})) == size


def test_wilson_against_the_textbook() -> None:
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)  # z^2 / (n + z^2)
    assert wilson(1.0, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)
    assert wilson(None, 10) == wilson(0.5, 0) == (None, None)


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
