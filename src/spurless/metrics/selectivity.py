r"""Class and bias selectivity: how much each neuron prefers one class, or one attribute value.

Barsbey et al. 2025, section 3.3, after Leavitt and Morcos 2021. With :math:`\pi_{max}` a neuron's highest mean over
the examples of a class, :math:`\pi_{-max}` the mean of its means over the other classes and :math:`\rho_{max}` the
fraction of the examples of its preferred class that activate it,

.. math:: CSI = \rho_{max} \frac{\pi_{max} - \pi_{-max}}{\pi_{max} + \pi_{-max} + 10^{-6}} .

With attributes instead of labels it is the bias-selectivity index, BSI. On data with independent attribute and label, a
high CSI means use of the core feature, a high BSI use of the shortcut. On a biased split each would show the other too:
``balance`` gives every pair of label and attribute the same weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.separation import check_labelled

EPSILON = 1e-6


@dataclass(frozen=True)
class Selectivity:
    """The preferred class of every neuron, and how strong the preference is; all of shape ``(d,)``."""

    contrast: Tensor  # the quotient of the formula without rho; 0 for an inactive neuron
    coverage: Tensor  # rho: the fraction of the examples of the preferred class that activate the neuron
    preferred: Tensor  # the label with the highest mean; the first in a tie
    active: Tensor  # whether any example activates the neuron

    @property
    def index(self) -> Tensor:
        """The index of every neuron: contrast times coverage."""
        return self.contrast * self.coverage

    @property
    def mean(self) -> float:
        """The mean index of the active neurons, which the study plots; NaN if none is active."""
        return _mean(self.index[self.active])

    @property
    def unweighted(self) -> float:
        """The mean contrast of the neurons with a nonzero one, as in earlier work; NaN if there are none."""
        return _mean(self.contrast[self.contrast != 0])


def selectivity(z: Tensor, y: Tensor, balance: Tensor | None = None) -> Selectivity:
    """Return the class selectivity of every neuron or, with attributes instead of labels, its bias selectivity.

    Args:
        z: absolute activations, ``(N, d)``.
        y: labels or attributes, ``(N,)``, with at least two values.
        balance: the other of the two, ``(N,)``; the mean over a class is then the mean over its pairs with these.

    Example:
        >>> z = torch.tensor([[4.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
        >>> result = selectivity(z, torch.tensor([0, 0, 1, 1]))  # active for half of class 0, for all, for none
        >>> [round(i, 4) for i in result.index.tolist()], round(result.mean, 4), round(result.unweighted, 4)
        ([0.5, 0.0, 0.0], 0.25, 1.0)
    """
    check_labelled(z, y)
    if balance is not None:
        check_labelled(z, balance)
    if float(z.min()) < 0:
        raise InputError("an activation is negative", got=float(z.min()), hint="Pass absolute values: z.abs().")
    labels, number = torch.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise InputError("selectivity needs at least two classes", got=f"only label {int(labels[0])}")
    cells = torch.zeros_like(number) if balance is None else torch.unique(balance, return_inverse=True)[1]
    means, active_fraction = (_class_means(part, number, cells) for part in (z, z > 0))
    highest, at = means.max(dim=0)
    rest = (means.sum(dim=0) - highest) / (len(labels) - 1)
    return Selectivity(
        contrast=(highest - rest) / (highest + rest + EPSILON),
        coverage=active_fraction.gather(0, at[None])[0],
        preferred=labels[at],
        active=(z > 0).any(dim=0),
    )


def _class_means(values: Tensor, number: Tensor, cell: Tensor) -> Tensor:
    """Return the mean of every neuron over the cells of every class, ``(n_classes, d)``, float64."""
    (n, m), pair = (int(part.max()) + 1 for part in (number, cell)), number * (int(cell.max()) + 1) + cell
    sums = torch.zeros(n * m, values.shape[1], dtype=torch.double, device=values.device)
    counts = torch.bincount(pair, minlength=n * m).double()[:, None]
    means = sums.index_add_(0, pair, values.double()) / counts.clamp(min=1)
    present = (counts > 0).double().view(n, m, 1)
    return means.view(n, m, -1).sum(dim=1) / present.sum(dim=1)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
