r"""Separation: how much nearer the representations of one class lie to each other than to all.

Kornblith et al., "Why Do Better Loss Functions Lead to Less Transferable Features?", NeurIPS 2021, as used by Barsbey
et al. 2025, section 3.3. With cosine distances and classes that count alike,

.. math:: R^2 = 1 - \bar d_{within} / \bar d_{total},

where within is the mean over classes of their mean distance over all pairs (an example with itself among them), and
total the mean over all :math:`K \times K` pairs of classes. The mean of products is the product of means: with
:math:`m_k` the mean of the normalised representations of class :math:`k`,

.. math::
    \bar d_{within} = 1 - \frac1K \sum_k \lVert m_k \rVert^2, \qquad
    \bar d_{total} = 1 - \Big\lVert \frac1K \sum_k m_k \Big\rVert^2,

so that no pair is ever visited.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput

ROWS = 8192  # rows that are normalised at a time: 32 MB at 512 numbers
ALIKE = 1e-12  # a total distance below is rounding: all representations point the same way


@dataclass(frozen=True)
class Separation:
    """Mean cosine distances, and what they say."""

    within: float
    """between examples of one class"""
    total: float
    """between examples of any two classes"""

    @property
    def r2(self) -> float:
        """1 where each class is one direction of its own, 0 where classes mean nothing; NaN where all is one."""
        return 1 - self.within / self.total if self.total > ALIKE else math.nan


def separation(z: Tensor, y: Tensor) -> Separation:
    """Return how well the classes are separated, in time and memory linear in the data.

    Args:
        z: representations, ``(N, d)``; the learning-rate study takes their sizes. A row of zeros has no direction and
            is left out.
        y: labels, ``(N,)``; attributes, to see how well the shortcut is separated. Classes that do not occur do not
            count.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> found = separation(z, torch.tensor([0, 0, 1, 1]))  # class 0 agrees, class 1 is half and half
        >>> found.within, found.total, found.r2
        (0.25, 0.375, 0.33333333333333337)

    Raises:
        BadInput: the shapes differ, a label is unknown, or every row is zero.
    """
    check_labelled(z, y)
    seen = (z != 0).any(dim=1)
    if not bool(seen.any()):
        raise BadInput("every representation is zero, so none has a direction")
    number = torch.full_like(y, -1)
    number[seen] = torch.unique(y[seen], return_inverse=True)[1]
    k = int(number.max()) + 1
    sums = torch.zeros(k, z.shape[1], dtype=torch.float64, device=z.device)
    for start in range(0, len(z), ROWS):
        here = seen[start : start + ROWS]
        rows = z[start : start + ROWS][here].double()
        rows = rows / rows.abs().amax(dim=1, keepdim=True)  # squares of what is tiny or huge are 0 or infinite
        sums.index_add_(0, number[start : start + ROWS][here], rows / rows.norm(dim=1, keepdim=True))
    means = sums / torch.bincount(number[seen], minlength=k)[:, None]
    within, total = 1 - means.square().sum(dim=1).mean(), 1 - means.mean(dim=0).square().sum()
    return Separation(float(within), float(total))


def check_labelled(z: Tensor, y: Tensor) -> None:
    """Say what is wrong with representations and labels that do not go together.

    Raises:
        BadInput: a shape, a type or a number does not fit.
    """
    if z.dim() != 2 or not z.numel() or not z.is_floating_point():
        raise BadInput(
            "representations must be numbers, one row per example",
            expected="float, (N, d)",
            got=f"{z.dtype} of shape {tuple(z.shape)}",
        )
    if y.shape != z.shape[:1] or y.dtype != torch.long:
        raise BadInput(
            "there must be one label (int64) per representation",
            expected=f"({len(z)},)",
            got=f"{y.dtype} of shape {tuple(y.shape)}",
        )
    if int(y.min()) < 0:
        raise BadInput(
            "a label or attribute is hidden or unknown", got=int(y.min()), do="Leave these examples out of both."
        )
