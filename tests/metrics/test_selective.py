"""Selective classification: thresholds, tables and areas by hand and by brute force."""

import math
from itertools import pairwise, permutations
from statistics import fmean

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.metric_info import COVERAGES
from spurless.core.seeds import Seeds
from spurless.metrics.intervals import wilson_intervals
from spurless.metrics.selective import (
    CoverageRow,
    Selective,
    risk_coverage,
    selective_table,
    threshold_for,
    thresholds_for,
)

GROUPS = Groups(("no", "yes"), ("left", "right"))
# eight examples; group "no, right" has one, "yes, left" none
Y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
A = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
PRED = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0])
SCORES = torch.tensor([0.9, 0.8, 0.2, 0.1, 0.7, 0.6, 0.5, 0.3])


def table() -> Selective:
    return selective_table(SCORES, PRED, Y, A, GROUPS, {1.0: 0.1, 0.75: 0.3, 0.5: 0.6, 0.25: 0.8})


def areas(scores: list[float], wrong: list[int]) -> list[float]:
    """The area of every order that goes from high score to low."""
    return [
        fmean(sum(wrong[i] for i in order[:k]) / k for k in range(1, len(order) + 1))
        for order in permutations(range(len(scores)))
        if all(scores[i] >= scores[j] for i, j in pairwise(order))
    ]


def test_the_threshold_is_the_score_of_the_last_that_is_kept() -> None:
    scores = torch.tensor([0.4, 0.1, 0.3, 0.2])
    for coverage, kept in ((1.0, 4), (0.75, 3), (0.5, 2), (0.25, 1), (0.01, 1), (0.625, 3), (0.62, 2)):
        assert int((scores >= threshold_for(scores, coverage)).sum()) == kept


def test_the_share_that_is_asked_for_is_kept_of_any_scores_without_ties() -> None:
    for n in (7, 100, 1001):
        scores = torch.randperm(n, generator=Seeds(0).generator(n)).double()
        for coverage in (*COVERAGES, 0.37):
            kept = int((scores >= threshold_for(scores, coverage)).sum())
            assert abs(kept - coverage * n) <= 0.5


def test_halves_are_rounded_up_though_they_are_a_little_less() -> None:
    scores = torch.arange(45.0)
    assert int((scores >= threshold_for(scores, 0.7)).sum()) == 32  # of 31.5


def test_examples_that_are_tied_are_kept_or_refused_together_whichever_is_closer() -> None:
    floor = torch.tensor([0.0] * 21 + [1.0 + i for i in range(79)])  # a fifth at the bottom, indistinguishable
    assert int((floor >= threshold_for(floor, 0.8)).sum()) == 79
    ceiling = torch.tensor([1.0] * 85 + [-1.0 - i for i in range(15)])  # most at the top: refusing would keep none
    assert int((ceiling >= threshold_for(ceiling, 0.8)).sum()) == 85
    middle = torch.tensor([3.0, 2.0, 2.0, 1.0])
    assert threshold_for(middle, 0.5) == 2.0  # one too many or one too few: kept
    assert threshold_for(torch.full((5,), 0.5), 0.2) == 0.5


def test_a_threshold_in_single_precision_keeps_the_example_it_comes_from() -> None:
    scores = torch.rand(1000, generator=Seeds(0).generator("scores"))
    for coverage in (0.1, 0.333, 0.9):
        assert int((scores >= threshold_for(scores, coverage)).sum()) == round(1000 * coverage)


def test_a_threshold_that_cannot_be_chosen_is_refused() -> None:
    for coverage in (0.0, -0.1, 1.01, math.nan):
        with pytest.raises(InputError, match=r"the coverage must be a fraction \(expected above 0 and at most 1"):
            threshold_for(SCORES, coverage)
    with pytest.raises(InputError, match="scores is empty"):
        threshold_for(torch.zeros(0), 0.9)
    with pytest.raises(InputError, match="the score of example 1 is NaN"):
        threshold_for(torch.tensor([0.1, math.nan]), 0.9)
    with pytest.raises(InputError, match="scores must be one float per example"):
        threshold_for(torch.zeros(3, 2), 0.9)


def test_coverage_and_error_by_hand() -> None:
    found = table()
    assert [row.target for row in found.rows] == [1.0, 0.75, 0.5, 0.25]
    assert [row.coverage for row in found.rows] == [1.0, 0.75, 0.5, 0.25]
    assert [row.error for row in found.rows] == pytest.approx([4 / 8, 2 / 6, 0.0, 0.0])


def test_every_group_has_its_own_coverage_and_error() -> None:
    row = table().at(0.75)  # the two below 0.3 are refused: a "no, left" and the only "no, right"
    assert row.count.tolist() == [2, 0, 0, 4]
    torch.testing.assert_close(
        row.group_coverage, torch.tensor([2 / 3, 0.0, math.nan, 1.0]).double(), equal_nan=True, atol=1e-7, rtol=0
    )
    torch.testing.assert_close(
        row.group_error, torch.tensor([0.0, math.nan, math.nan, 0.5]).double(), equal_nan=True, atol=1e-7, rtol=0
    )


def test_a_group_of_which_nothing_is_kept_is_never_the_worst() -> None:
    found = table()
    assert found.at(1.0).worst == (1.0, "no, right")
    assert found.at(0.75).worst == (0.5, "yes, right")  # "no, right" is refused whole


def test_the_interval_is_that_of_the_mistakes_among_the_kept() -> None:
    row = table().at(0.75)
    low, high = wilson_intervals(torch.tensor([0, 0, 0, 2]), torch.tensor([2, 0, 0, 4]))
    torch.testing.assert_close(row.low, low, equal_nan=True)
    torch.testing.assert_close(row.high, high, equal_nan=True)


def test_nothing_kept_has_no_error() -> None:
    row = selective_table(SCORES, PRED, Y, A, GROUPS, {0.8: 2.0}).rows[0]
    assert row.coverage == 0.0
    assert math.isnan(row.error)
    assert math.isnan(row.worst[0])


def test_parts_add_up_to_the_whole() -> None:
    parts: list[CoverageRow] = [
        selective_table(SCORES[p], PRED[p], Y[p], A[p], GROUPS, {0.75: 0.3}).rows[0] for p in (slice(0, 3), slice(3, 8))
    ]
    whole, row = parts[0] + parts[1], table().at(0.75)
    assert (whole.coverage, whole.error, whole.worst) == (row.coverage, row.error, row.worst)
    assert whole.count.tolist() == row.count.tolist()
    with pytest.raises(InputError, match="tables at different thresholds cannot be added"):
        table().at(0.75) + table().at(0.5)


def test_overlapping_groups_are_counted_each() -> None:
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female"))
    y, a = torch.tensor([0, 0, 1, 1]), torch.tensor([[1, 1], [1, 0], [0, 1], [0, 0]])
    scores, pred = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1, 0, 1, 0])
    row = selective_table(scores, pred, y, a, talk, {0.5: 0.8}).rows[0]
    assert row.count.tolist() == [2, 1, 0, 0]
    assert row.group_error[:2].tolist() == [0.5, 1.0]
    assert row.worst == (1.0, "civil, female")
    assert row.error == 0.5  # over examples, of which the first is in two groups


@pytest.mark.parametrize(
    ("scores", "wrong"),
    [
        ([0.9, 0.8, 0.7, 0.6, 0.5], [0, 1, 0, 0, 1]),
        ([0.9, 0.5, 0.5, 0.5, 0.1, 0.1], [1, 0, 1, 0, 1, 1]),
        ([0.5] * 5, [1, 0, 0, 1, 0]),
        ([0.1, 0.2, 0.3], [0, 0, 0]),
        ([0.1, 0.2, 0.3], [1, 1, 1]),
    ],
)
def test_the_area_is_the_mean_over_all_orders_that_the_scores_allow(scores: list[float], wrong: list[int]) -> None:
    curve = risk_coverage(torch.tensor(scores), torch.tensor(wrong).bool())
    assert curve.area == pytest.approx(fmean(areas(scores, wrong)))
    every_order = areas([0.0] * len(wrong), wrong)
    assert curve.oracle_area == pytest.approx(min(every_order))
    assert curve.excess_area == pytest.approx(fmean(areas(scores, wrong)) - min(every_order))


def test_the_curve_ends_at_the_error_of_all_and_the_best_order_has_no_excess() -> None:
    wrong = torch.rand(1000, generator=Seeds(0).generator("wrong")) < 0.3
    curve = risk_coverage(torch.where(wrong, 0.0, 1.0), wrong)
    assert float(curve.risk[-1]) == pytest.approx(float(wrong.double().mean()))
    assert float(curve.coverage[-1]) == 1.0
    assert curve.excess_area == pytest.approx(0.0, abs=1e-12)
    worst = risk_coverage(torch.where(wrong, 1.0, 0.0), wrong)
    assert worst.area > float(wrong.double().mean()) > curve.area


def test_the_curve_says_which_threshold_keeps_how_many() -> None:
    curve = risk_coverage(SCORES, PRED != Y)
    for k in range(1, 9):
        kept = curve.threshold[k - 1] <= SCORES
        assert int(kept.sum()) == k
        assert float(curve.risk[k - 1]) == pytest.approx(float((PRED != Y)[kept].double().mean()))


def test_the_area_of_a_group_is_that_of_its_examples_alone() -> None:
    found = table()
    member = GROUPS.membership(Y, A)
    for g in range(len(GROUPS)):
        alone = risk_coverage(SCORES[member[:, g]], (PRED != Y)[member[:, g]])
        same(found.group_area[g], alone.area)
        same(found.group_excess_area[g], alone.excess_area)
    assert math.isnan(float(found.group_area[2]))
    assert found.worst_area == (1.0, "no, right")


def same(found: Tensor, expected: float) -> None:
    assert float(found) == pytest.approx(expected, nan_ok=True)


def test_the_summary_names_every_number() -> None:
    thresholds = thresholds_for(SCORES)
    assert tuple(thresholds) == COVERAGES
    numbers = selective_table(SCORES, PRED, Y, A, GROUPS, thresholds).summary()
    assert list(numbers)[:6] == [
        "aurc", "excess_aurc", "worst_group_aurc", "coverage_at_100", "error_at_100", "worst_group_error_at_100",
    ]  # fmt: skip
    assert len(numbers) == 3 + 3 * len(COVERAGES)
    assert numbers["error_at_100"] == 0.5
    assert numbers["worst_group_error_at_100"] == 1.0
    assert numbers["coverage_at_80"] == 6 / 8
    assert numbers["error_at_80"] == pytest.approx(2 / 6)
    assert numbers["aurc"] == risk_coverage(SCORES, PRED != Y).area
    assert numbers["worst_group_aurc"] == 1.0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"no row for the coverage 0\.9 \(expected 1, 0\.75, 0\.5, 0\.25\)"):
        table().at(0.9)
    with pytest.raises(InputError, match=r"scores and labels differ in shape \(got \(7,\) and \(8,\)\)"):
        selective_table(SCORES[1:], PRED, Y, A, GROUPS, {1.0: 0.0})
    with pytest.raises(InputError, match="thresholds is empty"):
        selective_table(SCORES, PRED, Y, A, GROUPS, {})
    with pytest.raises(InputError, match="scores and incorrect differ in shape"):
        risk_coverage(SCORES, torch.zeros(3).bool())


def test_no_example_at_all_has_no_area() -> None:
    curve = risk_coverage(torch.zeros(0), torch.zeros(0).bool())
    assert math.isnan(curve.area)
    assert math.isnan(curve.excess_area)
