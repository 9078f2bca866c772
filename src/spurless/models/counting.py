"""Counting: how many parameters and multiply-adds a model has, and how many of them are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.models.classifier import Input, beside, evaluating
from spurless.models.learned_masks import mask_logits
from spurless.models.masks import weight_layers


@dataclass(frozen=True)
class Size:
    """How large a model is, and how much of it is left where zeros cost nothing; None where it cannot be told."""

    sparsity: float | None
    """the share of zeros among convolution and linear weights"""
    kept_parameters: int
    flops: int | None
    """multiply-adds of one example"""
    kept_flops: int | None


def size(model: nn.Module, x: Input) -> Size:
    """Count everything at once, with one run of the model; one that cannot be run still has its parameters counted.

    Args:
        model: any module.
        x: one example is enough; the shape decides.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 3.0]]))
        >>> size(nn.Sequential(layer), torch.zeros(1, 2))
        Size(sparsity=0.5, kept_parameters=2, flops=2, kept_flops=1)
    """
    zeros, weights = _zeros(model)
    try:
        counts = _measured(model, beside(x, next(model.parameters(), None)))
    except Exception:  # a user's module may raise anything, and no run is to fail for a number beside its own
        counts = {}
    every, left = sum(counts.values()) or None, round(_left(model, counts))
    return Size(zeros / weights if weights else None, parameters(model) - zeros, every, left if every else None)


def parameters(model: nn.Module) -> int:
    """Return the number of parameters; a shared one counts once, a learned mask's logits do not count.

    Example:
        >>> parameters(nn.Linear(3, 2))
        8
    """
    logits = {id(p) for p in mask_logits(model).values()}
    return sum(p.numel() for p in model.parameters() if id(p) not in logits)


def kept_parameters(model: nn.Module) -> int:
    """Return the parameters less the zeros among convolution and linear weights; biases and norms all count."""
    return parameters(model) - _zeros(model)[0]


def layer_sparsity(model: nn.Module) -> dict[str, float]:
    """Return the share of zeros in every convolution and linear weight, by its name.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 3.0]]))
        >>> layer_sparsity(nn.Sequential(layer))
        {'0.weight': 0.5}
    """
    return {name: _share_of_zeros(weight) for name, weight in _weights(model).items()}


def flops(model: nn.Module, x: Input) -> int:
    """Return the multiply-adds of convolution and linear layers for one example.

    Biases, norms, activations and products of activations (attention) do not count, nor do layers whose weight is read
    and that are never called, such as attention's own projections. A layer that is called twice counts twice.

    Args:
        model: any module; it is run once, in eval mode.
        x: a few examples; the shape decides.
    """
    return sum(_measured(model, x).values())


def kept_flops(model: nn.Module, x: Input) -> float:
    """Return the multiply-adds that are left where zeros cost nothing: each layer's, times its share of non-zeros."""
    return _left(model, _measured(model, x))


def _left(model: nn.Module, counts: dict[str, int]) -> float:
    zeros = layer_sparsity(model)
    return sum(count * (1 - zeros[name]) for name, count in counts.items())


def _measured(model: nn.Module, x: Input) -> dict[str, int]:
    """Run the model once and return the multiply-adds of every layer, by the name of its weight."""
    counts = {name: 0 for name, _ in weight_layers(model)}
    handles = []
    for name, layer in weight_layers(model):

        def count(layer: Any, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            counts[name] += _multiply_adds(layer, inputs[0], output)

        handles.append(layer.register_forward_hook(count))
    try:
        with evaluating(model), torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    n = _examples(x)
    return {name: count // n for name, count in counts.items()}


def _multiply_adds(layer: Any, given: Tensor, made: Tensor) -> int:
    """Every number of the output costs one filter; of a transposed convolution, every number of the input."""
    one = layer.weight[0].numel()
    times = given if getattr(layer, "transposed", False) else made
    return times.numel() * int(one)


def _examples(x: Input) -> int:
    n = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
    if not n:
        raise BadInput("there is no example to count multiply-adds on", expected="one or more")
    return n


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that act; eval mode, so that a learned mask draws nothing."""
    with evaluating(model), torch.no_grad():
        return {name: layer.weight for name, layer in weight_layers(model)}


def _zeros(model: nn.Module) -> tuple[int, int]:
    """Return how many convolution and linear weights are zero, and how many there are; a shared one counts once."""
    own = {id(weight): weight for weight in _weights(model).values()}.values()
    return sum(int((weight == 0).sum()) for weight in own), sum(weight.numel() for weight in own)


def _share_of_zeros(weight: Tensor) -> float:
    return float((weight == 0).double().mean()) if weight.numel() else 0.0
