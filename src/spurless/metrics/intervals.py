"""Confidence intervals and tests: of a group's accuracy, of the worst group, of differences, and over seeds.

:mod:`spurless.core.stats` has 95 % intervals without torch and scipy, for pages; here are tensors, any level and exact
quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, fmean, stdev

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError

MAX_EXACT_PAIRS = 12
"""Largest number of pairs for the exact sign-flip test, which tries all 4,096 sign patterns of 12 pairs."""


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation (ddof = 1) and t-interval over seeds; the latter two are NaN for a single seed."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class PairedDifference:
    """The mean of ``a - b`` over shared seeds, its t-interval, and p-values.

    ``p`` is that of the t-test, ``p_exact`` that of the sign-flip test (NaN for more than 12 pairs).
    """

    difference: float
    low: float
    high: float
    p: float
    p_exact: float
    n: int


def wilson_intervals(correct: Tensor | int, count: Tensor | int, level: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return the Wilson score interval of each fraction ``correct / count``; NaN if the count is 0.

    With :math:`p = k / n` and the normal quantile :math:`z`,

    .. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4n^2}}{1 + z^2 / n}.

    It stays within [0, 1], and has a width even at accuracy 1, unlike the usual :math:`\pm z \sqrt{p (1 - p) / n}`.

    Example:
        >>> low, high = wilson_intervals(torch.tensor([10, 0]), torch.tensor([10, 0]))
        >>> low, high
        (tensor([0.7225,    nan], dtype=torch.float64), tensor([1., nan], dtype=torch.float64))
    """
    check_arguments(wilson_intervals, locals())
    k, n = torch.as_tensor(correct).double(), torch.as_tensor(count).double()
    if k.dim() and n.dim() and k.shape != n.shape:
        raise InputError("correct and count differ in shape", expected=tuple(n.shape), got=tuple(k.shape))
    if bool(((k < 0) | (k > n)).any()):
        raise InputError("the number of correct examples must be between 0 and the number of examples")
    z = NormalDist().inv_cdf(1 - _tail(level))
    p = k / n
    scale = 1 + z**2 / n
    centre = (p + z**2 / (2 * n)) / scale
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt() / scale
    # rounding would be off by 1e-17 if the bound is exactly 0 or 1
    low = torch.where((k == 0) & (n > 0), 0.0, centre - half)
    high = torch.where((k == n) & (n > 0), 1.0, centre + half)
    return low, high


def bootstrap_worst(
    correct: Tensor, membership: Tensor, generator: torch.Generator, *, level: float = 0.95, n_resamples: int = 2000
) -> tuple[float, float]:
    """Return the percentile interval of the worst-group accuracy, resampling the examples of each group.

    The number of correct examples in a resample of a group with ``k`` of ``n`` correct has the distribution
    Binomial(n, k / n), from which it is sampled. The minimum of noisy accuracies is below the accuracy of the worst
    group; if several groups are nearly as bad, so is this interval. Overlapping groups are resampled independently.
    ``correct`` has shape ``(N,)``, ``membership`` ``(N, G)`` (see :meth:`Groups.membership`), and the generator
    is on the CPU. The bounds are NaN if every group is empty.
    """
    check_arguments(bootstrap_worst, locals())
    if correct.dim() != 1 or membership.dim() != 2 or len(correct) != len(membership):
        expected, got = "shapes (N,) and (N, G)", f"{tuple(correct.shape)} and {tuple(membership.shape)}"
        raise InputError("correct and membership must have the same number of examples", expected=expected, got=got)
    if n_resamples < 1:
        raise InputError("n_resamples must be at least 1", got=n_resamples)
    tail = _tail(level)
    count = membership.bool().sum(dim=0).cpu().double()
    n_correct = membership[correct.bool()].bool().sum(dim=0).cpu().double()
    occupied = count > 0
    if not bool(occupied.any()):
        return math.nan, math.nan
    n = count[occupied].expand(n_resamples, -1).contiguous()
    accuracy = (n_correct / count)[occupied].expand(n_resamples, -1).contiguous()
    worst = (torch.binomial(n, accuracy, generator=generator) / n).amin(dim=1)
    low, high = torch.quantile(worst, torch.tensor([tail, 1 - tail], dtype=worst.dtype)).tolist()
    return low, high


def over_seeds(values: Sequence[float], level: float = 0.95) -> Spread:
    """Return mean, standard deviation and t-interval of a metric over seeds.

    Example:
        >>> over_seeds([0.8])
        Spread(mean=0.8, sd=nan, low=nan, high=nan, n=1)
    """
    check_arguments(over_seeds, locals())
    values = list(map(float, values))
    if not values:
        raise InputError("values is empty", expected="one value per seed")
    tail, n = _tail(level), len(values)
    mean = fmean(values)
    if n == 1 or not math.isfinite(mean):
        return Spread(mean, math.nan, math.nan, math.nan, n)
    from scipy.stats import t

    sd = stdev(values)
    half = float(t.ppf(1 - tail, n - 1)) * sd / math.sqrt(n)
    return Spread(mean, sd, mean - half, mean + half, n)


def compare_paired(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> PairedDifference:
    """Compare two methods over the same seeds, in the same order.

    The t-test assumes that differences are normal, which a few seeds cannot confirm; the sign-flip test only assumes
    that both signs are equally likely if there is no difference. Its p-value is at least ``2 / 2**n``: with five seeds
    at least 0.0625, however large the difference.

    Example:
        >>> result = compare_paired([0.9, 0.8, 0.9], [0.8, 0.7, 0.7])
        >>> round(result.difference, 4), result.p_exact
        (0.1333, 0.25)
    """
    check_arguments(compare_paired, locals())
    a, b = list(map(float, a)), list(map(float, b))
    if len(a) != len(b) or not a:
        raise InputError("a and b must have one value per shared seed", got=f"{len(a)} and {len(b)} values")
    differences = [0.0 if math.isclose(x, y, rel_tol=1e-12) else x - y for x, y in zip(a, b, strict=True)]
    spread = over_seeds(differences, level)
    return PairedDifference(
        spread.mean, spread.low, spread.high, _t_test(a, b, spread), _sign_flip_test(differences), len(differences)
    )


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise InputError("the level of an interval is out of range", expected="a number between 0 and 1", got=level)
    return (1 - level) / 2


def _t_test(a: Sequence[float], b: Sequence[float], spread: Spread) -> float:
    from scipy.stats import ttest_rel

    if math.isnan(spread.sd):
        return math.nan
    if spread.sd <= 1e-9 * abs(spread.mean):  # all differences are equal: t is 0 / 0 or infinite, and scipy warns
        return 1.0 if spread.mean == 0 else 0.0
    return float(ttest_rel(a, b).pvalue)


def _sign_flip_test(differences: Sequence[float]) -> float:
    if len(differences) > MAX_EXACT_PAIRS or not all(map(math.isfinite, differences)):
        return math.nan
    d = torch.tensor(differences, dtype=torch.float64)
    signs = torch.tensor(list(product((1.0, -1.0), repeat=len(d))), dtype=torch.float64)
    tolerance = 1e-9 * d.abs().sum()  # a tie must count as a tie after rounding
    return float(((signs @ d).abs() >= d.sum().abs() - tolerance).double().mean())
