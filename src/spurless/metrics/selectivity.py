r"""Selectivity: how much each neuron prefers one class.

Barsbey et al. 2025, section 3.3, after Leavitt and Morcos 2021. With :math:`\pi_{max}` a neuron's highest mean over
the examples of a class, :math:`\pi_{-max}` the mean of its means over the other classes and :math:`\rho_{max}` the
share of the examples of its preferred class that activate it,

.. math:: CSI = \rho_{max} \frac{\pi_{max} - \pi_{-max}}{\pi_{max} + \pi_{-max} + 10^{-6}} .

With attributes in place of labels it is the bias-selectivity index, BSI. On data where the attribute says nothing about
the label, a high CSI is use of the core feature, a high BSI use of the shortcut.
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


def selectivity(z: Tensor, y: Tensor) -> Selectivity:
    """Return the class-selectivity of every neuron; with attributes in place of labels, its bias-selectivity.

    Args:
        z: sizes of activations, ``(N, d)``, none below 0.
        y: labels or attributes, ``(N,)``; at least two must occur.

    Example:
        >>> z = torch.tensor([[4.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
        >>> found = selectivity(z, torch.tensor([0, 0, 1, 1]))  # one neuron fires for half of class 0, one for all
        >>> [round(i, 4) for i in found.index.tolist()], round(found.mean, 4), round(found.unweighted, 4)
        ([0.5, 0.0, 0.0], 0.25, 1.0)

    Raises:
        BadInput: the shapes differ, a label is unknown or the only one, or an activation is below 0.
    """
    check_labelled(z, y)
    if float(z.min()) < 0:
        raise BadInput("an activation is below 0", got=float(z.min()), do="Pass their sizes: z.abs().")
    labels, number = torch.unique(y, return_inverse=True)
    if len(labels) < 2:
        raise BadInput("selectivity compares classes, and there is one", got=f"only label {int(labels[0])}")
    means, fires = (_class_means(part, number, len(labels)) for part in (z, z > 0))
    highest, at = means.max(dim=0)
    rest = (means.sum(dim=0) - highest) / (len(labels) - 1)
    return Selectivity(
        contrast=(highest - rest) / (highest + rest + EPSILON),
        coverage=fires.gather(0, at[None])[0],
        preferred=labels[at],
        active=(z > 0).any(dim=0),
    )


def _class_means(values: Tensor, number: Tensor, n_classes: int) -> Tensor:
    """Return the mean of every neuron over the examples of every class, ``(n_classes, d)``, float64."""
    return torch.stack([values[number == k].double().mean(dim=0) for k in range(n_classes)])


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else math.nan
