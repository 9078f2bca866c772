"""Intervals against scipy, literal resampling, and tables of sign patterns."""

import math

import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.stats import newcombe_interval
from spurless.metrics.intervals import bootstrap_worst, compare_paired, over_seeds, wilson_intervals


def test_wilson_by_hand() -> None:
    # k = n = 10: z^2 = 3.8415, low = n / (n + z^2) = 10 / 13.8415
    low, high = wilson_intervals(10, 10)
    assert float(low) == pytest.approx(10 / 13.841459, abs=1e-7)
    assert float(high) == 1.0
    # k = 5 of 10: 1/2 -+ z sqrt(1/40 + z^2/400) / (1 + z^2/10) = 1/2 -+ 0.263405
    low, high = wilson_intervals(5, 10)
    assert (float(low), float(high)) == pytest.approx((0.236593, 0.763407), abs=1e-5)


@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_wilson_agrees_with_scipy(level: float) -> None:
    from scipy.stats import binomtest

    correct, count = torch.tensor([0, 1, 7, 30, 1000]), torch.tensor([3, 2, 9, 30, 4000])
    low, high = wilson_intervals(correct, count, level)
    for i in range(5):
        theirs = binomtest(int(correct[i]), int(count[i])).proportion_ci(level, method="wilson")
        assert (float(low[i]), float(high[i])) == pytest.approx((theirs.low, theirs.high))


def test_wilson_of_nothing_is_nan() -> None:
    low, high = wilson_intervals(torch.tensor([0, 1]), torch.tensor([0, 1]))
    assert low.isnan().tolist() == high.isnan().tolist() == [True, False]


def test_wilson_bounds_are_exact_at_the_ends_for_any_count() -> None:
    n = torch.arange(1, 2000)
    assert bool((wilson_intervals(torch.zeros_like(n), n)[0] == 0).all())
    assert bool((wilson_intervals(n, n)[1] == 1).all())


@pytest.mark.parametrize(("correct", "count"), [(3, 2), (-1, 2)])
def test_wilson_refuses_impossible_hits(correct: int, count: int) -> None:
    with pytest.raises(InputError, match="between 0 and the number of examples"):
        wilson_intervals(correct, count)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(InputError, match="expected a number between 0 and 1"):
        wilson_intervals(1, 2, level)


def members(sizes: list[int], hits: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    correct = torch.cat([torch.arange(n) < k for n, k in zip(sizes, hits, strict=True)])
    return correct, torch.nn.functional.one_hot(g, len(sizes)).bool()


def test_bootstrap_agrees_with_literal_resampling() -> None:
    sizes, hits = [20, 30], [12, 20]
    correct, membership = members(sizes, hits)
    draw = torch.Generator().manual_seed(0)
    worst = []
    for _ in range(4000):
        accuracies = []
        for inside in membership.unbind(dim=1):
            group = correct[inside].double()
            accuracies.append(float(group[torch.randint(len(group), (len(group),), generator=draw)].mean()))
        worst.append(min(accuracies))
    literal = torch.quantile(torch.tensor(worst, dtype=torch.float64), torch.tensor([0.1, 0.9], dtype=torch.float64))
    ours = bootstrap_worst(correct, membership, torch.Generator().manual_seed(1), level=0.8, n_resamples=4000)
    # the accuracies step by 1/20 and 1/30, so a quantile may fall one step beside
    assert ours == pytest.approx(tuple(literal.tolist()), abs=1 / 20)


def test_bootstrap_of_one_group_is_the_binomial_quantile() -> None:
    from scipy.stats import binom

    correct, membership = members([1000], [700])
    low, high = bootstrap_worst(correct, membership, torch.Generator().manual_seed(0), n_resamples=20_000)
    # Binomial(1000, 0.7) / 1000; 20,000 draws place a quantile within 2 steps
    assert low == pytest.approx(binom.ppf(0.025, 1000, 0.7) / 1000, abs=0.002)
    assert high == pytest.approx(binom.ppf(0.975, 1000, 0.7) / 1000, abs=0.002)


def test_bootstrap_ignores_empty_groups_and_is_certain_of_certain_ones() -> None:
    correct, membership = members([5, 0, 8], [0, 0, 8])
    assert bootstrap_worst(correct, membership, torch.Generator()) == (0.0, 0.0)
    correct, membership = members([5, 0], [5, 0])
    assert bootstrap_worst(correct, membership, torch.Generator()) == (1.0, 1.0)
    nothing = bootstrap_worst(torch.zeros(0).bool(), torch.zeros(0, 2).bool(), torch.Generator())
    assert all(map(math.isnan, nothing))


def test_bootstrap_is_decided_by_its_generator() -> None:
    correct, membership = members([40, 30], [20, 20])
    seeds = (3, 3, 4)
    a, b, c = (bootstrap_worst(correct, membership, torch.Generator().manual_seed(s), n_resamples=51) for s in seeds)
    assert a == b != c


def test_bootstrap_says_what_is_wrong() -> None:
    with pytest.raises(InputError, match=r"expected shapes \(N,\) and \(N, G\), got \(3,\) and \(2, 2\)"):
        bootstrap_worst(torch.ones(3), torch.ones(2, 2), torch.Generator())
    with pytest.raises(InputError, match=r"n_resamples must be at least 1 \(got 0\)"):
        bootstrap_worst(torch.ones(2), torch.ones(2, 2), torch.Generator(), n_resamples=0)


def test_over_seeds_by_hand() -> None:
    found = over_seeds([1.0, 2.0, 3.0])
    assert (found.mean, found.sd, found.n) == (2.0, 1.0, 3)
    # t(0.975, 2) = 4.302653; 4.302653 / sqrt(3) = 2.484138
    assert (found.low, found.high) == pytest.approx((-0.484138, 4.484138), abs=1e-5)


def test_one_seed_has_no_interval_and_equal_seeds_have_none_to_speak_of() -> None:
    alone = over_seeds([0.7])
    assert alone.mean == 0.7
    assert all(map(math.isnan, (alone.sd, alone.low, alone.high)))
    alike = over_seeds([0.5, 0.5, 0.5])
    assert (alike.sd, alike.low, alike.high) == (0.0, 0.5, 0.5)


def test_a_seed_without_a_number_leaves_no_number() -> None:
    found = over_seeds([0.5, math.nan])
    assert all(map(math.isnan, (found.mean, found.sd, found.low, found.high)))


def test_no_seed_is_an_error() -> None:
    with pytest.raises(InputError, match="values is empty"):
        over_seeds([])


def test_paired_by_hand() -> None:
    found = compare_paired([3.0, 5.0, 4.0], [2.0, 3.0, 1.0])  # differences 1, 2, 3
    assert (found.difference, found.n) == (2.0, 3)
    assert (found.low, found.high) == pytest.approx((-0.484138, 4.484138), abs=1e-5)
    # t = 2 sqrt(3), and for 2 degrees p = 1 - t / sqrt(t^2 + 2) = 1 - sqrt(12 / 14)
    assert found.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert found.p_exact == 0.25  # of 8 patterns only +++ and --- reach 6


def test_the_exact_test_agrees_with_scipy() -> None:
    from scipy.stats import permutation_test

    a, b = [0.81, 0.79, 0.90, 0.66, 0.71, 0.80], [0.75, 0.80, 0.83, 0.61, 0.74, 0.70]
    theirs = permutation_test(
        (a, b), lambda x, y: sum(x - y) / 6, permutation_type="samples", n_resamples=math.inf, vectorized=False
    )
    assert compare_paired(a, b).p_exact == pytest.approx(theirs.pvalue)


def test_the_order_of_the_methods_turns_only_the_sign() -> None:
    a, b = [0.8, 0.7, 0.9, 0.85], [0.6, 0.72, 0.7, 0.8]
    forward, backward = compare_paired(a, b), compare_paired(b, a)
    assert forward.difference == pytest.approx(-backward.difference)
    assert (forward.p, forward.p_exact) == pytest.approx((backward.p, backward.p_exact))


@pytest.mark.parametrize(
    ("a", "b", "p", "p_exact"),
    [
        ([0.5, 0.6], [0.5, 0.6], 1.0, 1.0),  # nothing differs
        ([0.5, 0.6, 0.7], [0.4, 0.5, 0.6], 0.0, 0.25),  # t is infinite; three signs cannot show it
    ],
)
def test_equal_differences_need_no_warning(a: list[float], b: list[float], p: float, p_exact: float) -> None:
    found = compare_paired(a, b)
    assert (found.p, found.p_exact) == (p, p_exact)
    assert found.low == pytest.approx(found.high)


def test_one_pair_shows_nothing_and_many_pairs_are_not_enumerated() -> None:
    alone = compare_paired([0.9], [0.1])
    assert math.isnan(alone.p)
    assert alone.p_exact == 1.0
    twelve = [float(i) for i in range(1, 13)]
    assert compare_paired(twelve, [0.0] * 12).p_exact == 2 / 4096
    assert math.isnan(compare_paired([*twelve, 13.0], [0.0] * 13).p_exact)


def test_pairs_must_be_pairs() -> None:
    with pytest.raises(InputError, match=r"one value per shared seed \(got 2 and 1 values\)"):
        compare_paired([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="got 0 and 0 values"):
        compare_paired([], [])


@pytest.mark.parametrize(
    ("one", "two", "low", "high"),
    [
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 20), 0.6791, 1.0),
    ],
)
def test_newcombe_as_published(one: tuple[int, int], two: tuple[int, int], low: float, high: float) -> None:
    """Worked examples of Newcombe 1998 (his method 10), at second hand: the paper was not at hand."""
    assert newcombe_interval(one, two) == pytest.approx((low, high), abs=6e-5)


def test_a_difference_by_rounding_is_none() -> None:
    found = compare_paired([0.1 + 0.2] * 4, [0.3] * 4)
    assert (found.difference, found.p) == (0.0, 1.0)


def test_newcombe_of_nothing_is_nan() -> None:
    assert all(math.isnan(bound) for bound in newcombe_interval((0, 0), (1, 2)))


def test_arrays_of_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="differ in shape") as caught:
        wilson_intervals(torch.zeros(3), torch.zeros(2))
    assert (caught.value.expected, caught.value.got) == ((2,), (3,))
    with pytest.raises(InputError, match="values is empty"):
        over_seeds(torch.zeros(0))  # type: ignore[arg-type]  # tensors are accepted too
    with pytest.raises(InputError, match="'a' has the wrong type"):
        compare_paired(torch.zeros(2, 2), torch.zeros(2, 2))  # type: ignore[arg-type]
