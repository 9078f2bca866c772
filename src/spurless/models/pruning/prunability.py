r"""Prunability: the fraction of its accuracy that a model keeps when parts of every layer are set to zero.

Barsbey et al. 2025, section 3.2: with :math:`f^{(\kappa)}` the model without a fraction :math:`\kappa` of every layer,
the :math:`\kappa`-prunability is :math:`Acc(f^{(\kappa)}) / Acc(f)`. Pruned are the nodes of linear layers and the
filters or two-dimensional kernels of convolutions with the smallest l2 norm; or the smallest single weights. The first
convolution, the last linear layer, all biases and norms stay as they are.

Deviations:
    * The paper sums over :math:`\kappa = 0, 0.1, \dots, 0.9`, but prints values from 0.195 to 1.029, which no sum can
      take: the term at 0 alone is 1. Here ``mean`` is the metric, and ``total`` is the sum.
    * Some printed values cannot be this mean either: with K classes a model that guesses once it is pruned still has a
      mean of :math:`(1 + 9 / (K \, Acc)) / 10`, and 8 of 46 rows are below that. Two other readings fit more of them:
      ``mean_accuracy``, which is not divided by the accuracy, and ``above_chance``, where chance is subtracted first.
    * The authors' earlier code prunes every parameter of two or four dimensions; here it is the weights of linear and
      convolution layers, so that position and token embeddings stay.
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

from spurless.core.errors import InputError, UnknownNameError, did_you_mean
from spurless.models.pruning.masks import named_weight_layers

Unit: TypeAlias = Literal["kernels", "filters", "weights"]
"""Unit of pruning: nodes and 2-D kernels; nodes and filters; or single weights (magnitude pruning)."""

KAPPAS = tuple(tenths / 10 for tenths in range(10))
ROUNDING_TOLERANCE = 1e-9  # 0.29 * 100 is slightly below 29


@dataclass(frozen=True)
class Prunability:
    """Accuracies at every pruned fraction, and of the unpruned model."""

    kappas: tuple[float, ...]
    accuracies: tuple[float, ...]
    whole: float

    @property
    def retained(self) -> tuple[float, ...]:
        """Accuracy at every kappa divided by the unpruned accuracy; NaN if that is 0."""
        return tuple(accuracy / self.whole if self.whole else math.nan for accuracy in self.accuracies)

    @property
    def mean(self) -> float:
        """The mean over kappa, as in the paper's tables."""
        return self.total / len(self.kappas)

    @property
    def mean_accuracy(self) -> float:
        """The mean accuracy of the pruned models over kappa."""
        return sum(self.accuracies) / len(self.accuracies)

    def above_chance(self, n_classes: int) -> float:
        """Return the mean over kappa of the ratio of accuracies above chance, 1 / n_classes.

        It is NaN if the unpruned model is not above chance.

        Example:
            >>> Prunability((0.0, 0.5), (1.0, 0.75), 1.0).above_chance(2)
            0.75
        """
        chance = 1 / n_classes
        return (self.mean_accuracy - chance) / (self.whole - chance) if self.whole > chance else math.nan

    @property
    def total(self) -> float:
        """The sum over kappa, as in the paper's text."""
        return math.fsum(self.retained)


def measure_prunability(
    model: nn.Module,
    accuracy: Callable[[nn.Module], float],
    *,
    unit: Unit = "kernels",
    kappas: Sequence[float] = KAPPAS,
    skip: Collection[str] | None = None,
) -> Prunability:
    """Prune a copy of a model in steps, and measure its accuracy at every step.

    Args:
        model: any module; it is not changed.
        accuracy: function of a model in eval mode, called without gradients; the study uses the unbiased accuracy.
        unit: unit of pruning.
        kappas: pruned fractions of every layer, in any order; counts are rounded down.
        skip: names of weights that are never pruned; by default the first convolution and the last linear layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 1, bias=False))
        >>> for name, weight in (("0.weight", [[3.0], [1.0]]), ("1.weight", [[1.0, 1.0]])):
        ...     _ = model.get_parameter(name).data.copy_(torch.tensor(weight))
        >>> measure_prunability(model, lambda m: float(m(torch.ones(1, 1))), kappas=(0.0, 0.5)).retained
        (1.0, 0.75)
    """
    if unit not in get_args(Unit):
        raise UnknownNameError("unit of pruning", unit, get_args(Unit))
    wrong = [kappa for kappa in kappas if not 0 <= kappa <= 1]
    if wrong or not kappas:
        raise InputError("kappas must be fractions", expected="one or more from 0 to 1", got=wrong or "none")
    pruned = deepcopy(model).eval()
    targets = list(_find_layers(pruned, skip))
    with torch.no_grad():
        order = [_rank_units(layer, unit) for _, layer in targets]
    accuracies: dict[float, float] = {}
    for kappa in sorted({0.0, *kappas}):  # ascending, because zeros stay zero
        for (name, layer), (sizes, ranks) in zip(targets, order, strict=True):
            _zero(name, layer, (ranks < int(kappa * ranks.numel() + ROUNDING_TOLERANCE)).view(sizes))
        with torch.no_grad():
            accuracies[kappa] = float(accuracy(pruned.eval()))
    return Prunability(tuple(kappas), tuple(accuracies[kappa] for kappa in kappas), accuracies[0.0])


def find_skipped_weights(model: nn.Module) -> set[str]:
    """Return the weights of the first convolution and of the last linear layer, which are not pruned by default."""
    layers = list(named_weight_layers(model))
    convolutions = [name for name, layer in layers if not isinstance(layer, nn.Linear)]
    return {*convolutions[:1], *[name for name, layer in layers if isinstance(layer, nn.Linear)][-1:]}


def _find_layers(model: nn.Module, skip: Collection[str] | None) -> Iterator[tuple[str, Any]]:
    layers = dict(named_weight_layers(model))
    skipped = find_skipped_weights(model) if skip is None else set(skip)
    for name in sorted(skipped - set(layers)):
        raise InputError(f"no convolution or linear weight is called {name!r}", hint=did_you_mean(name, layers).strip())
    if skipped >= set(layers):
        raise InputError(
            "there is nothing to prune: all layers of the model are skipped",
            got=", ".join(sorted(layers)) or "none",
            hint="Pass skip=() to prune them too." if layers else "",
        )
    for name, layer in layers.items():
        if name in skipped:
            continue
        if not isinstance(_stored_weight(layer), nn.Parameter):
            raise _computed_error(name)
        yield name, layer


def _rank_units(layer: Any, unit: Unit) -> tuple[tuple[int, ...], Tensor]:
    """Return the shape of the units, broadcastable to the weight, and the rank of each by its norm."""
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
        weight = _stored_weight(layer).masked_fill_(gone, 0)
        if weight is not layer.weight and bool(torch.where(gone, layer.weight, 0).any()):
            raise _computed_error(name)


def _computed_error(name: str) -> InputError:
    return InputError(
        f"the weight {name!r} is computed from other parameters, so it cannot be set to zero",
        hint="Call torch.nn.utils.parametrize.remove_parametrizations first.",
    )


def _stored_weight(layer: Any) -> Tensor:
    """Return the stored weight of a layer, which a mask may hide."""
    has_original = parametrize.is_parametrized(layer, "weight") and layer.parametrizations.weight.is_tensor
    weight: Tensor = layer.parametrizations.weight.original if has_original else layer.weight
    return weight
