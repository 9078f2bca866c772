"""The page's intervals are those of scipy and of the metrics room, which it may not import."""

import pytest
import torch
from scipy import stats

from spurless.metrics.intervals import wilson as room_wilson
from spurless.reporting.intervals import STUDENT, meet, student, wilson


@pytest.mark.parametrize("n", range(2, 17))
def test_the_points_of_student_are_scipy_s(n: int) -> None:
    assert STUDENT[n - 2] == pytest.approx(stats.t.ppf(0.975, n - 1), abs=5e-4)


def test_student_is_scipy_s_interval_of_the_mean() -> None:
    values = [0.11, 0.17, 0.51, 0.2]
    expected = stats.t.interval(0.95, 3, loc=sum(values) / 4, scale=stats.sem(values))
    assert student(values) == pytest.approx(expected, abs=1e-3)
    assert student([0.5] * 40) == (0.5, 0.5)  # more values than the table has


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 7), (124, 125), (5, 5)])
def test_wilson_is_that_of_the_metrics_room(k: int, n: int) -> None:
    low, high = room_wilson(torch.tensor([k]), torch.tensor([n]))
    assert wilson(k / n, n) == pytest.approx((float(low[0]), float(high[0])), abs=1e-9)


def test_wilson_against_the_textbook() -> None:
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)  # z^2 / (n + z^2)
    assert wilson(1.0, 10) == pytest.approx((0.72247, 1.0), abs=1e-5)
    assert wilson(None, 10) == wilson(0.5, 0) == (None, None)


def test_intervals_meet_at_their_ends_and_an_unknown_one_meets_all() -> None:
    assert meet((0.0, 0.5), (0.5, 1.0))
    assert not meet((0.0, 0.49), (0.5, 1.0))
    assert not meet((0.5, 1.0), (0.0, 0.49))
    assert meet((None, None), (0.0, 0.1))
