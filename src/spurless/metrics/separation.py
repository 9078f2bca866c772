r"""Class separation: R squared of the classes among representations, by cosine distance.

Kornblith et al., "Why Do Better Loss Functions Lead to Less Transferable Features?", NeurIPS 2021, as used by Barsbey
et al. 2025, section 3.3. With cosine distances and classes of equal weight,

.. math:: R^2 = 1 - \bar d_{within} / \bar d_{total},

where within is the mean over classes of their mean distance over all pairs (including an example with itself), and
total the mean over all :math:`K \times K` pairs of classes. The mean of products is the product of means: with
:math:`m_k` the mean of the normalised representations of class :math:`k`,

.. math::
    \bar d_{within} = 1 - \frac1K \sum_k \lVert m_k \rVert^2, \qquad
    \bar d_{total} = 1 - \Big\lVert \frac1K \sum_k m_k \Big\rVert^2,

so that no pairs need to be enumerated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import InputError

ROWS_PER_BATCH = 8192  # rows normalised at a time: 32 MB at 512 features
MIN_DISTANCE = 1e-12  # below, a total distance is rounding: all representations have the same direction


@dataclass(frozen=True)
class Separation:
    """Mean cosine distances within classes and in total."""

    within_class: float  # between examples of one class
    total: float  # between examples of any two classes

    @property
    def r2(self) -> float:
        """1 if each class has a single direction, 0 if classes do not differ; NaN if all directions are equal."""
        return 1 - self.within_class / self.total if self.total > MIN_DISTANCE else math.nan


def separation(z: Tensor, y: Tensor) -> Separation:
    """Return how well the classes are separated, in time and memory linear in the data.

    Args:
        z: representations, ``(N, d)``; the learning-rate study uses absolute values. Rows of zeros are skipped.
        y: labels, ``(N,)``; or attributes, to measure how well the shortcut is separated.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        >>> result = separation(z, torch.tensor([0, 0, 1, 1]))  # class 0 has one direction, class 1 has two
        >>> result.within_class, result.total, result.r2
        (0.25, 0.375, 0.33333333333333337)
    """
    check_labelled(z, y)
    nonzero = (z != 0).any(dim=1)
    if not bool(nonzero.any()):
        raise InputError("every representation is zero, so none has a direction")
    number = torch.full_like(y, -1)
    number[nonzero] = torch.unique(y[nonzero], return_inverse=True)[1]
    k = int(number.max()) + 1
    sums = torch.zeros(k, z.shape[1], dtype=torch.float64, device=z.device)
    for start in range(0, len(z), ROWS_PER_BATCH):
        mask = nonzero[start : start + ROWS_PER_BATCH]
        rows = z[start : start + ROWS_PER_BATCH][mask].double()
        rows = rows / rows.abs().amax(dim=1, keepdim=True)  # so that squares neither underflow nor overflow
        sums.index_add_(0, number[start : start + ROWS_PER_BATCH][mask], rows / rows.norm(dim=1, keepdim=True))
    means = sums / torch.bincount(number[nonzero], minlength=k)[:, None]
    within_class, total = 1 - means.square().sum(dim=1).mean(), 1 - means.mean(dim=0).square().sum()
    return Separation(float(within_class), float(total))


def check_representations(z: Tensor) -> None:
    """Raise an InputError if representations are not floats of shape ``(N, d)``."""
    if z.dim() != 2 or not z.numel() or not z.is_floating_point():
        got = f"{z.dtype} of shape {tuple(z.shape)}"
        raise InputError("representations must be floats, one row per example", expected="float, (N, d)", got=got)


def check_labelled(z: Tensor, y: Tensor) -> None:
    """Raise an InputError if representations or labels have a wrong shape, dtype or value."""
    check_representations(z)
    if y.shape != z.shape[:1] or y.dtype != torch.long:
        got = f"{y.dtype} of shape {tuple(y.shape)}"
        raise InputError("there must be one label (int64) per representation", expected=f"({len(z)},)", got=got)
    if (lowest := int(y.min())) < 0:
        hint = "Remove these examples from both."
        raise InputError("a label or attribute is negative, that is unknown", got=lowest, hint=hint)
