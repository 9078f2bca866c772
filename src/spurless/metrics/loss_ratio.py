r"""Loss ratio: the fraction of the training loss that comes from conflicting examples, for which the shortcut is wrong.

Barsbey et al. 2025, section 6 and figure 12: the highest ratio of conflicting to total loss during training correlates
with unbiased accuracy. Their proposition 1 explains why large logits matter. If a model of two classes uses the
shortcut, with a margin :math:`\alpha` on aligned and :math:`\beta` on conflicting examples, and its logits are scaled
by :math:`k`, the loss of an aligned example is :math:`\log(1 + e^{-\alpha k})` and that of a conflicting one
:math:`\log(1 + e^{\beta k})`, so that

.. math::
    \frac{\sum_{conflicting} \ell}{\sum_{aligned} \ell} \to
    \frac{n_{conflicting}}{n_{aligned}} \, \beta k e^{\alpha k} .

These odds grow without bound; the ratio to the total, which the paper plots, tends to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import InputError


@dataclass(frozen=True)
class LossTrace:
    """The summed losses of every training step, ``(steps,)`` each.

    Example:
        >>> trace = LossTrace(torch.tensor([1.0, 3.0, 0.0, 0.0]), torch.tensor([4.0, 4.0, 0.0, 2.0]))
        >>> trace.ratios()  # the loss of the third step is 0
        tensor([0.2500, 0.7500,    nan, 0.0000])
        >>> trace.ratios(window=2), trace.maximum(), trace.maximum(window=4)
        (tensor([0.5000, 0.0000]), 0.75, 0.4000000059604645)
    """

    conflicting: Tensor  # over the conflicting examples
    total: Tensor  # over all examples

    def __post_init__(self) -> None:
        if self.conflicting.dim() != 1 or self.conflicting.shape != self.total.shape:
            got = f"{tuple(self.conflicting.shape)} and {tuple(self.total.shape)}"
            raise InputError("conflicting and total must have one number per step", expected="(steps,) twice", got=got)

    @classmethod
    def of(cls, steps: Iterable[Tensor]) -> LossTrace:
        """Build a trace from the results of :func:`loss_parts` at each step."""
        parts = list(steps)
        both = torch.stack(parts) if parts else torch.zeros(0, 2)
        return cls(both[:, 0], both[:, 1])

    def ratios(self, window: int = 1) -> Tensor:
        """Return the ratio of every window, one after another, as float32; NaN where nothing is lost.

        A window is a number of steps: 1 for mini-batches, the steps of an epoch for epochs. The last may be shorter.
        """
        return (_sum_windows(self.conflicting, window) / _sum_windows(self.total, window)).float()

    def maximum(self, window: int = 1) -> float:
        """Return the highest ratio; NaN if the loss is always 0."""
        ratios = self.ratios(window)
        ratios = ratios[~ratios.isnan()]
        return float(ratios.max()) if len(ratios) else math.nan


def loss_parts(loss: Tensor, conflicting: Tensor) -> Tensor:
    """Return the summed loss of conflicting and of all examples of a batch, ``(2,)``, float64 and without gradient.

    It stays on the device of the losses and does not synchronise, so that it can be called at every step.

    Example:
        >>> steps = [loss_parts(torch.tensor([0.5, 1.5]), torch.tensor([False, True])) for _ in range(2)]
        >>> LossTrace.of(steps).total
        tensor([2., 2.], dtype=torch.float64)
    """
    if loss.dim() != 1 or conflicting.shape != loss.shape or conflicting.dtype != torch.bool:
        expected, hint = "float (N,) and bool (N,)", 'Compute the loss with reduction="none", and pass y != a.'
        got = f"{loss.dtype} {tuple(loss.shape)} and {conflicting.dtype} {tuple(conflicting.shape)}"
        raise InputError("loss and conflicting must have one value per example", expected=expected, got=got, hint=hint)
    loss = loss.detach().double()
    return torch.stack([torch.where(conflicting.to(loss.device), loss, 0).sum(), loss.sum()])


def loss_ratio(loss: Tensor, conflicting: Tensor) -> float:
    """Return the fraction of the loss that comes from conflicting examples; NaN if the loss is 0.

    Example:
        >>> loss_ratio(torch.tensor([0.5, 0.25, 2.25]), torch.tensor([False, False, True]))
        0.75
    """
    part, total = map(float, loss_parts(loss, conflicting))
    return part / total if total else math.nan


def loss_odds(loss: Tensor, conflicting: Tensor) -> float:
    """Return the loss of conflicting divided by that of aligned examples; infinite if the latter is 0.

    Example:
        >>> loss_odds(torch.tensor([0.5, 0.25, 2.25]), torch.tensor([False, False, True]))
        3.0
    """
    part = float(loss_parts(loss, conflicting)[0])
    rest = float(loss_parts(loss, ~conflicting)[0])  # not a difference, which would lose a tiny part to rounding
    if not rest:
        return math.inf if part else math.nan
    return part / rest


def odds_of_scaled_logits(k: float, *, aligned: Tensor, conflicting: Tensor) -> float:
    """Return the asymptotic loss odds for a large factor ``k`` of the logits: proposition 1.

    The proof assumes one margin for all aligned and one for all conflicting examples. With different margins, those of
    conflicting examples add up, and of the aligned ones only the smallest matter.
    Margins are above 0: of the correct logit for aligned, of the incorrect one for conflicting examples.

    Example:
        >>> f"{odds_of_scaled_logits(10.0, aligned=torch.ones(9), conflicting=torch.ones(1)):.0f}"  # 10 / (9 exp(-10))
        '24474'
    """
    aligned_loss = torch.exp(-k * aligned.double()).sum()
    return float(k * conflicting.double().sum() / aligned_loss)


def _sum_windows(values: Tensor, window: int) -> Tensor:
    if window < 1:
        raise InputError("window must be at least 1", got=window)
    sums = [part.double().sum() for part in torch.split(values, window)]
    return torch.stack(sums) if len(values) else values.double()
