r"""Utilisation: how much each neuron uses the core feature and the shortcut on biased training data.

Barsbey et al. 2025, section 6 and figure 13: with large learning rates an early focus on the shortcut is given up once
conflicting examples dominate the loss. The figure shows "model statistics" during training without defining them;
section 3.3 measures the use of a feature by selectivity. We compute both indices of
:mod:`spurless.metrics.selectivity` on train examples. Label and attribute nearly coincide there, so every pair of the
two has the same weight: a neuron that depends on the label alone has no spurious utilisation, and one that depends on
the attribute alone has no core utilisation.

The appendix's figure 28 shows the utilisation of one neuron "computed via attribution methods", which requires that the
shortcut has its own pixels (a colour has none): :func:`spurless.metrics.attribution_share.spurious_utilisation`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.selectivity import selectivity

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Utilisation:
    """How much every neuron uses each feature, from 0 to 1; all of shape ``(d,)``."""

    spurious: Tensor
    core: Tensor
    active: Tensor  # whether any example activates the neuron

    def numbers(self) -> dict[str, float]:
        """Return means over active neurons and percentiles (at the end of a key); empty if none is active."""
        if not bool(self.active.any()):
            return {}
        spurious, core = self.spurious[self.active], self.core[self.active]
        spread = torch.quantile(spurious, torch.tensor(QUANTILES, dtype=spurious.dtype, device=spurious.device))
        named = {f"spurious_utilisation_{100 * q:.0f}": float(v) for q, v in zip(QUANTILES, spread, strict=True)}
        return {"spurious_utilisation": float(spurious.mean()), **named, "core_utilisation": float(core.mean())}


def utilisation(z: Tensor, y: Tensor, a: Tensor) -> Utilisation:
    """Return how much every neuron uses the attribute and the label.

    ``z`` has absolute activations, ``(N, d)``. If every pair of label and attribute occurs, the two are separated
    exactly; pairs that do not occur are skipped.

    Example:
        >>> y, a = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 1, 1, 1, 0])
        >>> z = torch.stack([y, a], dim=1).float()  # one neuron is the label, the other the attribute
        >>> result = utilisation(z, y, a)  # they agree in 6 of 8 examples
        >>> result.spurious.round(decimals=4).tolist(), result.core.round(decimals=4).tolist()
        ([0.0, 1.0], [1.0, 0.0])

    Raises:
        InputError: as for ``selectivity``; or each attribute occurs with only one label, or vice versa.
    """
    spurious, core = selectivity(z, a, balance=y), selectivity(z, y, balance=a)
    pairs = len(torch.unique(torch.stack([y, a]), dim=1).T)
    for one, other, given in (("attribute", "label", a), ("label", "attribute", y)):
        if pairs == len(torch.unique(given)):
            what = f"each {one} occurs with only one {other}, so their use cannot be separated"
            raise InputError(what, hint="Include conflicting examples.")
    return Utilisation(spurious.index, core.index, core.active)
