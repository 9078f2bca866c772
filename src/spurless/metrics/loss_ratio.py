r"""Loss ratio: how much of the training loss comes from the examples where the shortcut is wrong.

Barsbey et al. 2025, section 6 and figure 12: the highest ratio of conflicting to total loss that a training meets goes
with unbiased accuracy. Their proposition 1 says why large logits matter. Where a model of two classes follows the
shortcut, with a margin :math:`\alpha` on aligned and :math:`\beta` on conflicting examples, and its logits are scaled
by :math:`k`, an aligned example loses :math:`\log(1 + e^{-\alpha k})` and a conflicting one
:math:`\log(1 + e^{\beta k})`, so that

.. math::
    \frac{\sum_{conflicting} \ell}{\sum_{aligned} \ell} \to
    \frac{n_{conflicting}}{n_{aligned}} \, \beta k e^{\alpha k} .

What grows without bound are these odds; the ratio to the total, which is plotted, tends to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput


@dataclass(frozen=True)
class LossTrace:
    """The summed losses of every step of a training, ``(steps,)`` each.

    Example:
        >>> trace = LossTrace(torch.tensor([1.0, 3.0, 0.0, 0.0]), torch.tensor([4.0, 4.0, 0.0, 2.0]))
        >>> trace.ratios()  # the third step has no loss at all
        tensor([0.2500, 0.7500,    nan, 0.0000])
        >>> trace.ratios(window=2), trace.maximum(), trace.maximum(window=4)
        (tensor([0.5000, 0.0000]), 0.75, 0.4000000059604645)
    """

    conflicting: Tensor
    """Over the examples where the shortcut is wrong."""
    total: Tensor
    """Over all examples."""

    def __post_init__(self) -> None:
        if self.conflicting.dim() != 1 or self.conflicting.shape != self.total.shape:
            raise BadInput(
                "there must be one sum of each kind per step",
                expected="(steps,) and (steps,)",
                got=f"{tuple(self.conflicting.shape)} and {tuple(self.total.shape)}",
            )

    @classmethod
    def of(cls, steps: Iterable[Tensor]) -> LossTrace:
        """Gather what :func:`loss_parts` returned at each step."""
        parts = list(steps)
        both = torch.stack(parts) if parts else torch.zeros(0, 2)
        return cls(both[:, 0], both[:, 1])

    def ratios(self, window: int = 1) -> Tensor:
        """Return the ratio of every window, one after another, as float32; NaN where nothing is lost.

        Args:
            window: how many steps make one number: 1 for mini-batches, the steps of an epoch for epochs. The last
                window has what is left.
        """
        return (_in_windows(self.conflicting, window) / _in_windows(self.total, window)).float()

    def maximum(self, window: int = 1) -> float:
        """Return the highest ratio that was met; NaN where nothing was ever lost."""
        ratios = self.ratios(window)
        ratios = ratios[~ratios.isnan()]
        return float(ratios.max()) if len(ratios) else math.nan


def loss_parts(loss: Tensor, conflicting: Tensor) -> Tensor:
    """Return the summed loss of conflicting and of all examples of a batch, ``(2,)``, float64 and without gradient.

    It stays on the device of the losses and waits for nothing, so that it may be taken at every step.

    Args:
        loss: one number per example, ``(N,)``.
        conflicting: True where the shortcut is wrong, ``(N,)``: ``y != a``.

    Example:
        >>> steps = [loss_parts(torch.tensor([0.5, 1.5]), torch.tensor([False, True])) for _ in range(2)]
        >>> LossTrace.of(steps).total
        tensor([2., 2.], dtype=torch.float64)

    Raises:
        BadInput: there is not one loss and one mark per example.
    """
    if loss.dim() != 1 or conflicting.shape != loss.shape or conflicting.dtype != torch.bool:
        raise BadInput(
            "the loss ratio needs one loss and one mark per example",
            expected="float (N,) and bool (N,)",
            got=f"{loss.dtype} {tuple(loss.shape)} and {conflicting.dtype} {tuple(conflicting.shape)}",
            do='Take the losses with reduction="none", and y != a.',
        )
    loss = loss.detach().double()
    return torch.stack([torch.where(conflicting.to(loss.device), loss, 0).sum(), loss.sum()])


def loss_ratio(loss: Tensor, conflicting: Tensor) -> float:
    """Return the share of the loss that conflicting examples have; NaN where nothing is lost.

    Example:
        >>> loss_ratio(torch.tensor([0.5, 0.25, 2.25]), torch.tensor([False, False, True]))
        0.75
    """
    part, total = map(float, loss_parts(loss, conflicting))
    return part / total if total else math.nan


def loss_odds(loss: Tensor, conflicting: Tensor) -> float:
    """Return the loss of conflicting over that of aligned examples; infinite where the latter lose nothing.

    Example:
        >>> loss_odds(torch.tensor([0.5, 0.25, 2.25]), torch.tensor([False, False, True]))
        3.0
    """
    part = float(loss_parts(loss, conflicting)[0])
    rest = float(loss_parts(loss, ~conflicting)[0])  # not a difference: beside a large loss, a tiny one is rounding
    if not rest:
        return math.inf if part else math.nan
    return part / rest


def odds_of_scaled_logits(k: float, *, aligned: Tensor, conflicting: Tensor) -> float:
    """Return what the loss odds tend to as the factor ``k`` of the logits grows: proposition 1.

    The proof takes one margin for all aligned and one for all conflicting examples. With many, those of conflicting
    examples add up, and of aligned ones only the smallest matter.

    Args:
        k: the factor.
        aligned: by how much the right logit leads, for each aligned example; above 0.
        conflicting: by how much the wrong one leads, for each conflicting example; above 0.

    Example:
        >>> f"{odds_of_scaled_logits(10.0, aligned=torch.ones(9), conflicting=torch.ones(1)):.0f}"  # 10 / (9 exp(-10))
        '24474'
    """
    lost = torch.exp(-k * aligned.double()).sum()
    return float(k * conflicting.double().sum() / lost)


def _in_windows(values: Tensor, window: int) -> Tensor:
    if window < 1:
        raise BadInput("a window has one step or more", got=window)
    return (
        torch.stack([part.double().sum() for part in torch.split(values, window)]) if len(values) else values.double()
    )
