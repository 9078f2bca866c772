r"""Utilisation: how much each neuron uses the core feature and how much the shortcut, while the two go together.

Barsbey et al. 2025, section 6 and figure 13: under large learning rates an early focus on the shortcut is given up as
conflicting examples come to own the loss. The figure shows "model statistics" through training and does not say which;
section 3.3 takes selectivity for the use of a feature. We take both indices of :mod:`spurless.metrics.selectivity`, on
train examples. There label and attribute nearly coincide, so that every pair of the two counts the same: a neuron that
knows the label alone has no spurious utilisation, one that knows the attribute alone has nothing else.

The appendix's figure 28 has the utilisation of one neuron "computed via attribution methods", which needs pixels that
are the shortcut's own: that is :func:`spurless.metrics.attribution_share.spurious_utilisation`. A colour has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.metrics.selectivity import selectivity

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Utilisation:
    """How much every neuron uses either feature, from 0 to 1; all of shape ``(d,)``."""

    spurious: Tensor
    core: Tensor
    active: Tensor
    """Whether any example activates the neuron."""

    def numbers(self) -> dict[str, float]:
        """Return the means over active neurons, and how those spread that use the shortcut; nothing if all are silent.

        The last word of a key is a percentile.
        """
        if not bool(self.active.any()):
            return {}
        spurious, core = self.spurious[self.active], self.core[self.active]
        spread = torch.quantile(spurious, torch.tensor(QUANTILES, dtype=spurious.dtype, device=spurious.device))
        named = {f"spurious_utilisation_{100 * q:.0f}": float(v) for q, v in zip(QUANTILES, spread, strict=True)}
        return {"spurious_utilisation": float(spurious.mean()), **named, "core_utilisation": float(core.mean())}


def utilisation(z: Tensor, y: Tensor, a: Tensor) -> Utilisation:
    """Return how much every neuron uses label and attribute, each on its own.

    Args:
        z: sizes of activations, ``(N, d)``, none below 0.
        y: labels, ``(N,)``.
        a: attributes, ``(N,)``. With every pair the two are told apart exactly; a pair that does not occur is in no
            mean.

    Example:
        >>> y, a = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> z = torch.stack([y, a], dim=1).float()  # a neuron that knows the label, and one that knows the attribute
        >>> found = utilisation(z, y, a)  # they agree in 6 of 8 examples
        >>> found.spurious.round(decimals=4).tolist(), found.core.round(decimals=4).tolist()
        ([0.0, 1.0], [1.0, 0.0])

    Raises:
        BadInput: as of ``selectivity``; or each attribute occurs with one label alone, or the other way round.
    """
    spurious, core = selectivity(z, a, balance=y), selectivity(z, y, balance=a)
    pairs = len(torch.unique(torch.stack([y, a]), dim=1).T)
    for one, other, given in (("attribute", "label", a), ("label", "attribute", y)):
        if pairs == len(torch.unique(given)):
            raise BadInput(
                f"each {one} occurs with one {other} alone, so that no neuron can be told to use either",
                do="Pass examples that conflict too.",
            )
    return Utilisation(spurious.index, core.index, core.active)
