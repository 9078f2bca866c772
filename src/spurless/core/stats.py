"""Confidence intervals of fractions (Wilson), their differences (Newcombe) and means (Student's t), without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z_975 = 1.959963984540054  # 97.5 % quantile of the normal distribution
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""97.5 % quantiles of Student's t for 1 to 15 degrees of freedom; the last is used for more, which is slightly wide."""


def wilson_interval(fraction: float | None, n: int) -> tuple[float | None, float | None]:
    """Return the 95 % Wilson interval of a fraction of ``n``; None if it is unknown.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.5, 4)]
        [0.15, 0.85]
    """
    if fraction is None or n <= 0:
        return None, None
    z2 = Z_975 * Z_975
    center = (fraction + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_975 / (1 + z2 / n) * math.sqrt(max(fraction * (1 - fraction), 0.0) / n + z2 / (4 * n * n))
    return max(0.0, center - half), min(1.0, center + half)


def newcombe_interval(one: tuple[int, int], two: tuple[int, int]) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two independent fractions; NaN if one has no examples.

    Newcombe, "Interval estimation for the difference between independent proportions", Statistics in Medicine 17,
    1998, method 10, which combines the Wilson intervals of both.

    Each fraction is a number of successes and of examples; the second is subtracted.

    Example:
        >>> low, high = newcombe_interval((56, 70), (48, 80))  # the worked example of that paper
        >>> round(low, 4), round(high, 4)
        (0.0524, 0.3339)
    """
    if not one[1] or not two[1]:
        return math.nan, math.nan
    first, second = one[0] / one[1], two[0] / two[1]
    low1, high1 = (end or 0.0 for end in wilson_interval(first, one[1]))
    low2, high2 = (end or 0.0 for end in wilson_interval(second, two[1]))
    gap = first - second
    return gap - math.hypot(first - low1, high2 - second), gap + math.hypot(high1 - first, second - low2)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of two or more values by Student's t.

    Example:
        >>> [round(end, 2) for end in student_interval([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt(3)
        [-0.48, 4.48]
    """
    n = len(values)
    mean = sum(values) / n
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = T_975[min(n - 1, len(T_975)) - 1] * error
    return mean - half, mean + half


def intervals_overlap(one: tuple[float | None, float | None], other: tuple[float | None, float | None]) -> bool:
    """Return whether two intervals overlap; unknown ends count as overlapping."""
    (a, b), (c, d) = one, other
    return a is None or b is None or c is None or d is None or (a <= d and c <= b)
