"""Intervals: how far a number may lie from the truth, for one group, for the worst group, and over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, fmean, stdev

import torch
from torch import Tensor

from spurless.core.errors import BadInput

EXACT_UP_TO = 12
"""Pairs for which every pattern of signs is tried: 4,096 of them."""


@dataclass(frozen=True)
class Spread:
    """A number over seeds: its mean, standard deviation (ddof = 1) and t-interval; one seed has neither of the two."""

    mean: float
    sd: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Paired:
    """The mean of ``a - b`` over shared seeds, its t-interval, and how surprising it is if neither is better.

    ``p`` is that of the t-test, ``p_exact`` that of all sign patterns (NaN for more than 12 pairs).
    """

    difference: float
    low: float
    high: float
    p: float
    p_exact: float
    n: int


def wilson(correct: Tensor | int, count: Tensor | int, level: float = 0.95) -> tuple[Tensor, Tensor]:
    r"""Return the Wilson score interval of each share ``correct / count``; NaN where the count is 0.

    With :math:`p = k / n` and the normal quantile :math:`z`,

    .. math:: \frac{p + z^2 / 2n \pm z \sqrt{p (1 - p) / n + z^2 / 4n^2}}{1 + z^2 / n}.

    It stays within [0, 1] and has a width for a group that is all right, where the usual
    :math:`\pm z \sqrt{p (1 - p) / n}` has none.

    Example:
        >>> low, high = wilson(torch.tensor([10, 0]), torch.tensor([10, 0]))
        >>> low, high
        (tensor([0.7225,    nan], dtype=torch.float64), tensor([1., nan], dtype=torch.float64))
    """
    k, n = torch.as_tensor(correct).double(), torch.as_tensor(count).double()
    if bool(((k < 0) | (k > n)).any()):
        raise BadInput("the number of hits must lie between 0 and the number of examples")
    z = _quantile(level)
    p = k / n
    scale = 1 + z**2 / n
    centre = (p + z**2 / (2 * n)) / scale
    half = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt() / scale
    # rounding would leave 1e-17 where the bound is exactly 0 or 1
    low = torch.where((k == 0) & (n > 0), 0.0, centre - half)
    high = torch.where((k == n) & (n > 0), 1.0, centre + half)
    return low, high


def newcombe(one: tuple[int, int], two: tuple[int, int]) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two independent shares, each as hits and examples; NaN without any.

    Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17,
    1998, method 10: of Wilson's intervals of both.

    Example:
        >>> low, high = newcombe((56, 70), (48, 80))  # the worked example of that paper
        >>> round(low, 4), round(high, 4)
        (0.0524, 0.3339)
    """
    if not one[1] or not two[1]:
        return math.nan, math.nan
    (low1, high1), (low2, high2) = (map(float, wilson(*side)) for side in (one, two))
    first, second = one[0] / one[1], two[0] / two[1]
    gap = first - second
    return gap - math.hypot(first - low1, high2 - second), gap + math.hypot(high1 - first, second - low2)


def bootstrap_worst(
    correct: Tensor,
    membership: Tensor,
    generator: torch.Generator,
    *,
    level: float = 0.95,
    n_resamples: int = 2000,
) -> tuple[float, float]:
    """Return the percentile interval of the worst-group accuracy, resampling the examples of each group.

    Resampling a group of ``n`` examples with ``k`` hits and counting the hits is a draw from
    Binomial(n, k / n), so the draws are made that way. The minimum of noisy accuracies lies below the
    accuracy of the worst group: where several groups are nearly as bad, so does this interval.
    Groups that overlap are resampled as if they did not share examples.

    Args:
        correct: whether each example is right, shape ``(N,)``.
        membership: who is in which group, shape ``(N, G)``; see :meth:`Groups.membership`.
        generator: where the draws come from, on the CPU.
        level: the share of resamples inside the interval.
        n_resamples: how many resamples to draw.

    Returns:
        The two bounds; NaN where every group is empty.
    """
    if correct.dim() != 1 or membership.dim() != 2 or len(correct) != len(membership):
        raise BadInput(
            "hits and membership do not describe the same examples",
            expected="shapes (N,) and (N, G)",
            got=f"{tuple(correct.shape)} and {tuple(membership.shape)}",
        )
    if n_resamples < 1:
        raise BadInput("there must be a resample to look at", expected="n_resamples of at least 1", got=n_resamples)
    tail = _tail(level)
    count = membership.bool().sum(dim=0).cpu().double()
    hits = membership[correct.bool()].bool().sum(dim=0).cpu().double()
    seen = count > 0
    if not bool(seen.any()):
        return math.nan, math.nan
    n = count[seen].expand(n_resamples, -1).contiguous()
    share = (hits / count)[seen].expand(n_resamples, -1).contiguous()
    worst = (torch.binomial(n, share, generator=generator) / n).amin(dim=1)
    low, high = torch.quantile(worst, torch.tensor([tail, 1 - tail], dtype=worst.dtype)).tolist()
    return low, high


def over_seeds(values: Sequence[float], level: float = 0.95) -> Spread:
    """Return mean, standard deviation and t-interval of a number over seeds.

    Example:
        >>> over_seeds([0.8])
        Spread(mean=0.8, sd=nan, low=nan, high=nan, n=1)
    """
    if not values:
        raise BadInput("there is no value to average", expected="one value per seed")
    tail, n = _tail(level), len(values)
    mean = fmean(values)
    if n == 1 or not math.isfinite(mean):
        return Spread(mean, math.nan, math.nan, math.nan, n)
    sd = stdev(values)
    half = _t_quantile(tail, n) * sd / math.sqrt(n)
    return Spread(mean, sd, mean - half, mean + half, n)


def paired(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Paired:
    """Compare two methods over the same seeds, in the same order.

    The t-test trusts that differences are normal, which a few seeds cannot show; the exact test only
    that under no difference each sign is as likely as the other. It cannot go below ``2 / 2**n``: with
    five seeds not below 0.0625, however large the difference.

    Example:
        >>> found = paired([0.9, 0.8, 0.9], [0.8, 0.7, 0.7])
        >>> round(found.difference, 4), found.p_exact
        (0.1333, 0.25)
    """
    if len(a) != len(b) or not a:
        raise BadInput("two methods are compared over the same seeds", got=f"{len(a)} and {len(b)} values")
    differences = [0.0 if math.isclose(x, y, rel_tol=1e-12) else x - y for x, y in zip(a, b, strict=True)]
    spread = over_seeds(differences, level)
    return Paired(
        spread.mean, spread.low, spread.high, _t_test(a, b, spread), _sign_flips(differences), len(differences)
    )


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf(1 - _tail(level))


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise BadInput("the level of an interval is a share", expected="a number between 0 and 1", got=level)
    return (1 - level) / 2


def _t_quantile(tail: float, n: int) -> float:
    from scipy.stats import t

    return float(t.ppf(1 - tail, n - 1))


def _t_test(a: Sequence[float], b: Sequence[float], spread: Spread) -> float:
    from scipy.stats import ttest_rel

    if math.isnan(spread.sd):
        return math.nan
    if spread.sd <= 1e-9 * abs(spread.mean):  # all differences alike: t is 0 / 0 or infinite, and scipy warns
        return 1.0 if spread.mean == 0 else 0.0
    return float(ttest_rel(a, b).pvalue)


def _sign_flips(differences: Sequence[float]) -> float:
    if len(differences) > EXACT_UP_TO or not all(map(math.isfinite, differences)):
        return math.nan
    d = torch.tensor(differences, dtype=torch.float64)
    signs = torch.tensor(list(product((1.0, -1.0), repeat=len(d))), dtype=torch.float64)
    slack = 1e-9 * d.abs().sum()  # a tie must count as a tie after rounding
    return float(((signs @ d).abs() >= d.sum().abs() - slack).double().mean())
