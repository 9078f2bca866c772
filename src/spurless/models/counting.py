"""Counting: how many parameters and multiply-adds a model has, and how many of them are not zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.models.classifier import Input, evaluating
from spurless.models.learned_masks import mask_logits
from spurless.models.masks import weight_layers


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
    weights = {id(weight): weight for weight in _weights(model).values()}  # a shared one counts once
    return parameters(model) - sum(int((weight == 0).sum()) for weight in weights.values())


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
    zeros = layer_sparsity(model)
    return sum(count * (1 - zeros[name]) for name, count in _measured(model, x).items())


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


def _share_of_zeros(weight: Tensor) -> float:
    return float((weight == 0).double().mean()) if weight.numel() else 0.0
