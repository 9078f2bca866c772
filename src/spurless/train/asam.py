r"""ASAM: the gradient at perturbed weights, so that training finds minima that are flat.

Kwon, Kim, Park and Choi, "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural
Networks", ICML 2021, arXiv:2102.11600, Algorithm 1. With the gradient :math:`g` at the weights :math:`w`, a step uses
the gradient at

.. math:: w + \rho \, \frac{T_w^2 g}{\lVert T_w g \rVert}, \qquad T_w = |w| + \eta

elementwise. The perturbation of a weight is proportional to its size, so that sharpness does not change if one layer is
scaled up and the next one down. As in the authors' code, :math:`T_w` is 1 for parameters without "weight" in their
name, such as biases, and :math:`\eta` is 0.01. The norm is over all parameters that a stage trains.

With ``asam_scale="all"``, :math:`T_w = |w|` for every parameter and :math:`\eta` is 0. That is the widespread class
``SAM(parameters, adaptive=True)``, which the code of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748)
calls. With Kwon et al.'s :math:`T_w`, a large :math:`\rho` mostly moves biases and the shifts of batch norms.

Deviations:
    * Only the gradient of the second pass is used. Running statistics of batch normalisation and the memory of an
      objective, such as the weights of Group DRO, are those of the first pass, and both passes start from the same
      state; in the authors' code both passes update the statistics.
    * The weights are restored from a copy, instead of subtracting the perturbation, which would leave rounding errors.
    * Random numbers of a forward pass, such as dropout, are drawn again in the second pass, as in the authors' code.
    * Weight decay, L1 and clipping apply to the gradient of the second pass; the perturbation does not include them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from spurless.train.config import AsamScale

ETA = 0.01  # perturbs weights near 0 too; eta


def asam_gradient(
    compute_gradient: Callable[[], Tensor],
    model: nn.Module,
    rho: float,
    memory: Iterable[Tensor] = (),
    scale: AsamScale = "kwon",
) -> Tensor:
    """Compute the gradient of ASAM in the parameters, and return the loss at the original weights.

    ``memory`` are tensors that the objective changes in place. It reads no values on the host, for CUDA graphs.
    """
    state = [*memory, *model.buffers()]
    before = _copy(state)
    loss = compute_gradient()
    after = _copy(state)
    named = [(name, weight) for name, weight in model.named_parameters() if weight.grad is not None]
    weights = [weight.detach() for _, weight in named]
    original = _copy(weights)
    adaptive = [scale == "all" or "weight" in name for name, _ in named]
    eta = 0.0 if scale == "all" else ETA
    torch._foreach_add_(weights, asam_perturbation(weights, _gradients(named), adaptive, rho, eta))
    _restore(state, before)
    compute_gradient()
    _restore(weights, original)
    _restore(state, after)
    return loss


def asam_perturbation(
    weights: list[Tensor], gradients: list[Tensor], adaptive: list[bool], rho: float, eta: float = ETA
) -> list[Tensor]:
    """Return the perturbation of each weight; ``adaptive`` states for which tensors it is proportional to their size.

    Example:
        >>> weights, gradients = [torch.tensor([3.99]), torch.tensor([7.0])], [torch.tensor([1.0]), torch.tensor([3.0])]
        >>> asam_perturbation(weights, gradients, [True, False], rho=0.5)  # T is 4 and 1, T g is 4 and 3, its norm 5
        [tensor([1.6000]), tensor([0.3000])]
    """
    sizes = list(torch._foreach_abs(weights))
    torch._foreach_add_(sizes, eta)
    for size, is_adaptive in zip(sizes, adaptive, strict=True):
        if not is_adaptive:
            size.fill_(1.0)
    moves = list(torch._foreach_mul(gradients, sizes))
    norm = torch.nn.utils.get_total_norm(moves) + 1e-16  # no perturbation if the gradient is 0
    torch._foreach_mul_(moves, sizes)
    torch._foreach_mul_(moves, rho / norm)
    return moves


def _gradients(named: list[tuple[str, nn.Parameter]]) -> list[Tensor]:
    return [weight.grad for _, weight in named if weight.grad is not None]


def _copy(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _restore(tensors: list[Tensor], values: list[Tensor]) -> None:
    """Write values back in place."""
    if tensors:
        torch._foreach_copy_([tensor.detach() for tensor in tensors], values)
