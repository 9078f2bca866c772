r"""Selectivity: how much each neuron prefers one class.

Barsbey et al. 2025, section 3.3, after Leavitt and Morcos 2021. With :math:`\pi_{max}` a neuron's highest mean over
the examples of a class, :math:`\pi_{-max}` the mean of its means over the other classes and :math:`\rho_{max}` the
share of the examples of its preferred class that activate it,

.. math:: CSI = \rho_{max} \frac{\pi_{max} - \pi_{-max}}{\pi_{max} + \pi_{-max} + 10^{-6}} .

With attributes in place of labels it is the bias-selectivity index, BSI. On data where the attribute says nothing about
the label, a high CSI is use of the core feature, a high BSI use of the shortcut. Elsewhere, as on a biased train split,
each would show the other too: ``balance`` lets every pair of label and attribute count the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.metrics.separation import check_labelled

EPSILON = 1e-6


@dataclass(frozen=True)
class Selectivity:
    """What every neuron prefers, and how much; all of shape ``(d,)``."""

    contrast: Tensor
    """The fraction without its weight; 0 for a silent neuron."""
    coverage: Tensor
    """rho: the share of the examples of the preferred class that activate the neuron."""
    preferred: Tensor
    """The label with the highest mean; of several the first."""
    active: Tensor
    """Whether any example activates the neuron."""

    @property
    def index(self) -> Tensor:
        """The index of every neuron: contrast times coverage."""
        return self.contrast * self.coverage

    @property
    def mean(self) -> float:
        """The mean index of the active neurons, which the study plots; NaN where all are silent."""
        return _mean(self.index[self.active])

    @property
    def unweighted(self) -> float:
        """The mean contrast of the neurons that have any, without coverage, as in earlier work; NaN where none has."""
        return _mean(self.contrast[self.contrast != 0])


def selectivity(z: Tensor, y: Tensor, balance: Tensor | None = None) -> Selectivity:
    """Return the class-selectivity of every neuron; with attributes in place of labels, its bias-selectivity.

    Args:
        z: sizes of activations, ``(N, d)``, none below 0.
        y: labels or attributes, ``(N,)``; at least two must occur.
        balance: the other of the two, ``(N,)``. Every mean over a class is then that of the means over its pairs with
            the values here, as far as they occur, so that no pair counts for more because it is frequent.

    Example:
        >>> z = torch.tensor([[4.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
        >>> found = selectivity(z, torch.tensor([0, 0, 1, 1]))  # one neuron fires for half of class 0, one for all
        >>> [round(i, 4) for i in found.index.tolist()], round(found.mean, 4), round(found.unweighted, 4)
        ([0.5, 0.0, 0.0], 0.25, 1.0)

    Raises:
        BadInput: the shapes differ, a label is unknown or the only one, or an activation is below 0.
    """
    check_labelled(z, y)
    if balance is not None:
        check_labelled(z, balance)
    if float(z.min()) < 0:
        raise BadInput("an activation is below 0", got=float(z.min()), do="Pass their sizes: z.abs().")
    labels, number = torch.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise BadInput("selectivity compares classes, and there is one", got=f"only label {int(labels[0])}")
    cells = torch.zeros_like(number) if balance is None else torch.unique(balance, return_inverse=True)[1]
    means, fires = (_class_means(part, number, cells) for part in (z, z > 0))
    highest, at = means.max(dim=0)
    rest = (means.sum(dim=0) - highest) / (len(labels) - 1)
    return Selectivity(
        contrast=(highest - rest) / (highest + rest + EPSILON),
        coverage=fires.gather(0, at[None])[0],
        preferred=labels[at],
        active=(z > 0).any(dim=0),
    )


def _class_means(values: Tensor, number: Tensor, cell: Tensor) -> Tensor:
    """Return the mean of every neuron over the cells of every class, ``(n_classes, d)``, float64."""
    (n, m), pair = (int(part.max()) + 1 for part in (number, cell)), number * (int(cell.max()) + 1) + cell
    sums = torch.zeros(n * m, values.shape[1], dtype=torch.double, device=values.device)
    counts = torch.bincount(pair, minlength=n * m).double()[:, None]
    means = sums.index_add_(0, pair, values.double()) / counts.clamp(min=1)
    there = (counts > 0).double().view(n, m, 1)
    return means.view(n, m, -1).sum(dim=1) / there.sum(dim=1)


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
