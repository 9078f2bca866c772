"""Intervals: how far luck can carry a share or a mean; without torch, so that the page needs none."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z = 1.959963984540054
"""the 97.5 % point of the normal distribution"""
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""the 97.5 % points of Student's t for 1 to 15 degrees of freedom; beyond, the last, which is a little too wide"""


def wilson(share: float | None, n: int) -> tuple[float | None, float | None]:
    """Return the 95 % Wilson interval of a share of ``n``.

    Example:
        >>> [round(end, 4) for end in wilson(0.5, 4)]
        [0.15, 0.85]
    """
    if share is None or n <= 0:
        return None, None
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(max(share * (1 - share), 0.0) / n + Z * Z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def student(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean of at least two values by Student's t.

    Example:
        >>> [round(end, 2) for end in student([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt(3)
        [-0.48, 4.48]
    """
    n = len(values)
    mean = sum(values) / n
    error = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = STUDENT[min(n - 1, len(STUDENT)) - 1] * error
    return mean - half, mean + half


def meet(one: tuple[float | None, float | None], other: tuple[float | None, float | None]) -> bool:
    """Say whether two intervals share a value; an unknown end rules nothing out."""
    (a, b), (c, d) = one, other
    return a is None or b is None or c is None or d is None or (a <= d and c <= b)
