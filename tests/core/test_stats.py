"""The page's intervals are those of scipy and of the metrics room, which it may not import."""

import pytest
import torch
from scipy import stats

from spurless.core.stats import T_975, intervals_overlap, student_interval, wilson_interval
from spurless.metrics.intervals import wilson_intervals as room_wilson


@pytest.mark.parametrize("n", range(2, 17))
def test_the_points_of_student_are_scipy_s(n: int) -> None:
    assert T_975[n - 2] == pytest.approx(stats.t.ppf(0.975, n - 1), abs=5e-4)


def test_student_is_scipy_s_interval_of_the_mean() -> None:
    values = [0.11, 0.17, 0.51, 0.2]
    expected = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert student_interval(values) == pytest.approx(expected, abs=1e-3)
    assert student_interval([0.5] * 40) == (0.5, 0.5)  # more values than the table has


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 7), (124, 125), (5, 5)])
def test_wilson_is_that_of_the_metrics_room(k: int, n: int) -> None:
    low, high = room_wilson(torch.tensor([k]), torch.tensor([n]))
    assert wilson_interval(k / n, n) == pytest.approx((float(low[0]), float(high[0])), abs=1e-9)


def test_wilson_against_the_textbook() -> None:
    assert wilson_interval(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)  # z^2 / (n + z^2)
    assert wilson_interval(1.0, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)
    assert wilson_interval(None, 10) == wilson_interval(0.5, 0) == (None, None)


def test_intervals_meet_at_their_ends_and_an_unknown_one_meets_all() -> None:
    assert intervals_overlap((0.0, 0.5), (0.5, 1.0))
    assert not intervals_overlap((0.0, 0.49), (0.5, 1.0))
    assert not intervals_overlap((0.5, 1.0), (0.0, 0.49))
    assert intervals_overlap((None, None), (0.0, 0.1))
