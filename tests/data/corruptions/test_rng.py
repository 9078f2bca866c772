"""Random numbers by hashed counters: by hand, by distribution, and free of batch and order."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from spurless.core.seeds import Seeds
from spurless.data.corruptions.rng import ImageRng, poisson, poisson_table, rng_for_images

ALL = 2**64 - 1


def rng(n: int = 1, seed: int = 0) -> ImageRng:
    return rng_for_images(torch.arange(n), seed, "test")


def mixed(z: int) -> int:
    """splitmix64's finaliser with Python's unbounded numbers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & ALL
    return z ^ (z >> 31)


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_the_bits_are_those_of_hashed_counters_by_hand() -> None:
    number, golden = 12345678901, 0x9E3779B97F4A7C15
    key = mixed(mixed(number * golden & ALL) ^ Seeds(3).number("a", 5))
    start = mixed(key ^ Seeds(0).number("spots"))
    expected = []
    for counter in (1, 2, 3):
        hashed = mixed((start + counter * golden) & ALL)
        # low half first; signed 32-bit numbers are moved up by 2**31
        expected += [((half + 2**31) & 0xFFFFFFFF) for half in (hashed & 0xFFFFFFFF, hashed >> 32)]
    found = rng_for_images(torch.tensor([number]), 3, "a", 5).bits("spots", 5)
    assert found.tolist() == [expected[:5]]


def test_an_images_draws_depend_on_its_number_alone() -> None:
    index = torch.tensor([5, 0, 2**40, -3])
    together = rng_for_images(index, 7, "x").normal("noise", 3, 5)
    for k, number in enumerate(index):
        assert torch.equal(rng_for_images(number[None], 7, "x").normal("noise", 3, 5)[0], together[k])


def test_uniform_numbers_are_uniform() -> None:
    u = rng(20).uniform("u", 10_001)
    assert u.dtype == torch.float64
    assert u.shape == (20, 10_001)
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert stats.kstest(u.flatten().numpy(), "uniform").pvalue > 0.001


def test_normal_numbers_are_normal_to_the_fourth_moment() -> None:
    z = rng(20).normal("z", 10_001).flatten()
    assert stats.kstest(z.numpy(), "norm").pvalue > 0.001
    n = len(z)
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):  # spread: the variance of z ** power
        assert abs(float((z**power).mean()) - moment) < 4 * (spread / n) ** 0.5


def test_the_two_halves_of_a_normal_pair_are_independent() -> None:
    z = rng().normal("z", 200_000)[0]
    first, second = z[:100_000], z[100_000:]  # the cosines, then the sines of the same radii
    for a, b in ((first, second), (first**2, second**2)):
        assert abs(correlation(a, b)) < 4 / 100_000**0.5


def test_neighbours_are_independent() -> None:
    u, bound = rng(1000).uniform("u", 200), 4 / 199_000**0.5
    assert abs(correlation(u[1:], u[:-1])) < bound  # neighbouring images
    assert abs(correlation(u[:, 1:], u[:, :-1])) < bound  # the two halves of a hash, and neighbouring counters
    assert abs(correlation(u[:, 2:], u[:, :-2])) < bound
    for other in (rng(1000).uniform("v", 200), rng(1000, seed=1).uniform("u", 200)):
        assert abs(correlation(u, other)) < bound


def test_one_bit_of_the_number_changes_half_of_the_bits() -> None:
    bits = rng_for_images(torch.cat([torch.zeros(1, dtype=torch.long), 2 ** torch.arange(62)]), 0, "x").bits("b", 1000)
    changed = bits[1:] ^ bits[:1]
    share = torch.stack([(changed >> k) & 1 for k in range(32)]).double().mean()
    assert abs(float(share) - 0.5) < 4 * 0.5 / (62 * 1000 * 32) ** 0.5


@pytest.mark.parametrize("below", [1, 7, 1000])
def test_whole_numbers_are_equally_frequent(below: int) -> None:
    found = rng(20).integers("k", below, 100, 50).flatten()
    counts = torch.bincount(found, minlength=below)
    assert len(counts) == below
    if below > 1:
        assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_the_poisson_table_holds_the_distribution_function() -> None:
    rates = torch.tensor([0.0, 0.3, 3.0, 50.0, 500.0], dtype=torch.float64)
    table = poisson_table(rates, 500)
    for rate, cuts in zip(rates.tolist(), table, strict=True):
        assert abs(cuts.numpy() / 2**32 - stats.poisson.cdf(range(500), rate)).max() < 1e-9


def test_a_poisson_count_is_the_number_of_cuts_at_or_below_the_draw() -> None:
    table = torch.tensor([[10, 20, 30], [2**31, 2**32, 2**32]])
    bits = torch.tensor([0, 9, 10, 29, 30, 2**32 - 1, 0, 2**31 - 1, 2**31, 2**32 - 1])
    row = torch.tensor([0] * 6 + [1] * 4)
    assert poisson(bits, row, table).tolist() == [0, 0, 1, 2, 3, 3, 0, 0, 1, 1]


@pytest.mark.parametrize("rate", [0.4, 3.0, 120.0])
def test_poisson_counts_follow_their_law(rate: float) -> None:
    longest = int(rate + 10 * rate**0.5 + 10)
    table = poisson_table(torch.tensor([1.0, rate], dtype=torch.float64), longest)
    bits = rng(20).bits("photons", 10_000)
    found = poisson(bits, torch.ones_like(bits), table).flatten()
    n = len(found)
    assert abs(float(found.double().mean()) - rate) < 4 * (rate / n) ** 0.5
    assert abs(float(found.double().var()) - rate) < 4 * ((rate + 2 * rate**2) / n) ** 0.5  # the fourth moment's
    counts, expected = torch.bincount(found).numpy(), n * stats.poisson.pmf(range(int(found.max()) + 1), rate)
    often = expected > 20
    squares = ((counts[often] - expected[often]) ** 2 / expected[often]).sum()
    assert stats.chi2.sf(squares, often.sum()) > 0.001
