r"""Prunability: how much of its accuracy a model keeps as more and more of every layer is set to zero.

Barsbey et al. 2025, section 3.2: with :math:`f^{(\kappa)}` the model without a share :math:`\kappa` of every layer,
the :math:`\kappa`-prunability is :math:`Acc(f^{(\kappa)}) / Acc(f)`. Pruned are whole nodes of linear layers and whole
filters or two-dimensional kernels of convolutions, those of the smallest l2 norm; or single weights, the smallest.
The first convolution, the last linear layer, biases and norms stay as they are, those of a pruned node too.

Deviations:
    * The paper sums over :math:`\kappa = 0, 0.1, \dots, 0.9`, but prints values from 0.195 to 1.029, which only the
      mean can take: the term at 0 alone is 1. Here ``mean`` is the number, and ``total`` stands beside it.
    * The authors' earlier code prunes every parameter of two or four dimensions; here it is the weights of linear and
      convolution layers, so that tables of positions and embeddings stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from spurless.core.errors import BadInput, UnknownName, did_you_mean
from spurless.models.masks import weight_layers

Unit: TypeAlias = Literal["kernels", "filters", "weights"]
"""What is pruned as a whole: nodes and 2-D kernels; nodes and filters; or single weights (magnitude pruning)."""

KAPPAS = tuple(tenths / 10 for tenths in range(10))
ROUNDING = 1e-9  # 0.29 * 100 is not 29, and is meant to be


@dataclass(frozen=True)
class Prunability:
    """The accuracy at every pruned share, beside that of the whole model."""

    kappas: tuple[float, ...]
    accuracies: tuple[float, ...]
    whole: float

    @property
    def retained(self) -> tuple[float, ...]:
        """The share of the accuracy that is left at every kappa; NaN where there was none."""
        return tuple(accuracy / self.whole if self.whole else math.nan for accuracy in self.accuracies)

    @property
    def mean(self) -> float:
        """The mean over kappa, as in the paper's tables."""
        return self.total / len(self.kappas)

    @property
    def total(self) -> float:
        """The sum over kappa, as in the paper's text."""
        return math.fsum(self.retained)


def prunability(
    model: nn.Module,
    accuracy: Callable[[nn.Module], float],
    *,
    unit: Unit = "kernels",
    kappas: Sequence[float] = KAPPAS,
    skip: Collection[str] | None = None,
) -> Prunability:
    """Prune a copy of a model further and further, and measure it at every step.

    Args:
        model: any module; it is left as it was, whatever ``accuracy`` does.
        accuracy: from a model in eval mode to its accuracy, without gradient; the study takes the unbiased one.
        unit: what goes as a whole.
        kappas: the shares that are pruned of every layer, in any order; counts are rounded down.
        skip: the names of weights that are never pruned; by default the first convolution and the last linear layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
        >>> for name, weight in (("0.weight", [[3.0], [1.0]]), ("1.weight", [[1.0, 1.0]])):
        ...     _ = model.get_parameter(name).data.copy_(torch.tensor(weight))
        >>> prunability(model, lambda m: float(m(torch.ones(1, 1))), kappas=(0.0, 0.5)).retained
        (1.0, 0.75)

    Raises:
        UnknownName: there is no such unit.
        BadInput: a kappa is no share, no weight is called like that, or there is nothing to prune.
    """
    if unit not in get_args(Unit):
        raise UnknownName("unit of pruning", unit, get_args(Unit))
    wrong = [kappa for kappa in kappas if not 0 <= kappa <= 1]
    if wrong or not kappas:
        raise BadInput("kappas must be shares", expected="one or more from 0 to 1", got=wrong or "none")
    pruned = deepcopy(model).eval()
    targets = list(_targets(pruned, skip))
    with torch.no_grad():
        order = [_smallest_first(layer, unit) for _, layer in targets]
    found: dict[float, float] = {}
    for kappa in sorted({0.0, *kappas}):  # ascending: what is zero stays zero
        for (name, layer), (sizes, ranks) in zip(targets, order, strict=True):
            _zero(name, layer, (ranks < int(kappa * ranks.numel() + ROUNDING)).view(sizes))
        with torch.no_grad():
            found[kappa] = float(accuracy(pruned.eval()))
    return Prunability(tuple(kappas), tuple(found[kappa] for kappa in kappas), found[0.0])


def never_pruned(model: nn.Module) -> set[str]:
    """Return the weights that pruning spares by default: those of the first convolution and the last linear layer.

    First and last are meant in the order in which the layers were added.
    """
    convolutions = [name for name, layer in weight_layers(model) if not isinstance(layer, nn.Linear)]
    linear = [name for name, layer in weight_layers(model) if isinstance(layer, nn.Linear)]
    return {*convolutions[:1], *linear[-1:]}


def _targets(model: nn.Module, skip: Collection[str] | None) -> Iterator[tuple[str, Any]]:
    layers = dict(weight_layers(model))
    spared = never_pruned(model) if skip is None else set(skip)
    for name in sorted(spared - set(layers)):
        raise BadInput(f"no convolution or linear weight is called {name!r}", do=did_you_mean(name, layers).strip())
    if spared >= set(layers):
        raise BadInput(
            "there is nothing to prune: the model has no layers but those that are spared",
            got=", ".join(sorted(layers)) or "none",
            do="Pass skip=() to prune these, too." if layers else "",
        )
    for name, layer in layers.items():
        if name in spared:
            continue
        if not isinstance(_beneath(layer), nn.Parameter):
            raise _computed(name)
        yield name, layer


def _smallest_first(layer: Any, unit: Unit) -> tuple[tuple[int, ...], Tensor]:
    """Return the shape of a layer's units, as a mask that spreads over its weight, and the rank of each by size."""
    weight = layer.weight.detach()
    if unit == "weights":
        size = weight.abs()
    else:
        keep = {0, 1} if unit == "kernels" and weight.dim() > 2 else {int(getattr(layer, "transposed", False))}
        size = weight.double().square().sum(dim=[dim for dim in range(weight.dim()) if dim not in keep], keepdim=True)
    ranks = size.flatten().argsort(stable=True).argsort()
    return tuple(size.shape), ranks


def _zero(name: str, layer: Any, gone: Tensor) -> None:
    with torch.no_grad():
        weight = _beneath(layer).masked_fill_(gone, 0)
        if weight is not layer.weight and bool(torch.where(gone, layer.weight, 0).any()):
            raise _computed(name)


def _computed(name: str) -> BadInput:
    return BadInput(
        f"the weight {name!r} is computed from others, and zeros there do not make it zero",
        do="Take its parametrization off with torch.nn.utils.parametrize.remove_parametrizations.",
    )


def _beneath(layer: Any) -> Tensor:
    """Return the tensor that a layer's weight is kept in: under a mask, what lies beneath it."""
    masked = parametrize.is_parametrized(layer, "weight") and layer.parametrizations.weight.is_tensor
    found: Tensor = layer.parametrizations.weight.original if masked else layer.weight
    return found
