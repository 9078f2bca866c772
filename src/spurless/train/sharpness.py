r"""Sharpness: the gradient a short climb away from the weights, so that a step goes where the loss is low all around.

Kwon, Kim, Park and Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
Networks", ICML 2021, arXiv:2102.11600, Algorithm 1. With the gradient :math:`g` at the weights :math:`w`, the step is
made with the gradient at

.. math:: w + \rho \, \frac{T_w^2 g}{\lVert T_w g \rVert}, \qquad T_w = |w| + \eta

element by element: how far a weight is moved goes with its size, so that a layer that is scaled up and the next one
scaled down are as sharp as before. As in the authors' code :math:`T_w` is 1 for a parameter without "weight" in its
name, a bias for one, and :math:`\eta` is 0.01. One ball holds all that a stage trains.

Deviations:
    * The second pass leaves nothing but its gradient. Running statistics of batch normalisation and the memory of an
      objective, such as the weights of Group DRO, are those of the first pass, as without ASAM, and both passes start
      from the same; in the authors' code statistics are updated by both.
    * The weights are put back, not moved back: no rounding is left in them.
    * Dropout and whatever else is drawn in a forward pass is drawn anew in the second one, as in the authors' code.
    * Weight decay, L1 and clipping meet the gradient of the second pass; the climb knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

ETA = 0.01
"""Moves weights near 0 too; eta."""


def look_uphill(gradient: Callable[[], Tensor], model: nn.Module, rho: float, memory: Iterable[Tensor] = ()) -> Tensor:
    """Leave the gradient of ASAM in the parameters, and return the loss at the weights themselves.

    It is one tensor program that looks at no value, so that it may be captured as a graph.

    Args:
        gradient: forward and backward; leaves fresh gradients in the parameters and returns the loss.
        model: what is trained.
        rho: how far to climb.
        memory: tensors that the objective changes in place.
    """
    state = [*memory, *model.buffers()]
    before = _copies(state)
    loss = gradient()
    after = _copies(state)
    named = [(name, weight) for name, weight in model.named_parameters() if weight.grad is not None]
    weights = [weight.detach() for _, weight in named]
    start = _copies(weights)
    torch._foreach_add_(weights, climb(weights, *_slopes(named), rho))
    _put(state, before)
    gradient()
    _put(weights, start)
    _put(state, after)
    return loss


def climb(weights: list[Tensor], slopes: list[Tensor], adaptive: list[bool], rho: float) -> list[Tensor]:
    """Return how far each weight is moved; ``adaptive`` says of which the size counts.

    Example:
        >>> weights, slopes = [torch.tensor([3.99]), torch.tensor([7.0])], [torch.tensor([1.0]), torch.tensor([3.0])]
        >>> climb(weights, slopes, [True, False], rho=0.5)  # T is 4 and 1, T g is 4 and 3, its norm 5
        [tensor([1.6000]), tensor([0.3000])]
    """
    sizes = list(torch._foreach_abs(weights))
    torch._foreach_add_(sizes, ETA)
    for size, counts in zip(sizes, adaptive, strict=True):
        if not counts:
            size.fill_(1.0)
    moves = list(torch._foreach_mul(slopes, sizes))
    norm = torch.nn.utils.get_total_norm(moves) + 1e-16  # a gradient of 0 climbs nowhere
    torch._foreach_mul_(moves, sizes)
    torch._foreach_mul_(moves, rho / norm)
    return moves


def _slopes(named: list[tuple[str, nn.Parameter]]) -> tuple[list[Tensor], list[bool]]:
    return [weight.grad for _, weight in named if weight.grad is not None], ["weight" in name for name, _ in named]


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _put(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Write the values back in place."""
    if tensors:
        torch._foreach_copy_([tensor.detach() for tensor in tensors], values)
