"""Numbers of parameters and multiply-adds of a model, and how many of them are not zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import move_to_device_of
from spurless.models.pruning.learned_masks import get_mask_logits
from spurless.models.pruning.masks import named_weight_layers


@dataclass(frozen=True)
class Size:
    """Size of a model, and its size without zeros; None if a number is unknown."""

    sparsity: float | None  # fraction of zeros among convolution and linear weights
    kept_parameters: int
    flops: int | None  # multiply-adds of one example
    kept_flops: int | None


def measure_size(model: nn.Module, x: Input) -> Size:
    """Return the size of a model, from one forward pass; if that fails, only parameters are counted.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 3.0]]))
        >>> measure_size(nn.Sequential(layer), torch.zeros(1, 2))
        Size(sparsity=0.5, kept_parameters=2, flops=2, kept_flops=1)
    """
    zeros, weights = _count_zeros(model)
    try:
        counts = _count_per_layer(model, move_to_device_of(x, next(model.parameters(), None)))
    except Exception:  # a user's module may raise anything, and a run must not fail because of this number
        counts = {}
    total, fractions = sum(counts.values()) or None, layer_sparsity(model)
    nonzero = round(sum(count * (1 - fractions[name]) for name, count in counts.items())) if total else None
    return Size(zeros / weights if weights else None, count_parameters(model) - zeros, total, nonzero)


def count_parameters(model: nn.Module) -> int:
    """Return the number of parameters; a shared one counts once, logits of learned masks do not count.

    Example:
        >>> count_parameters(nn.Linear(3, 2))
        8
    """
    logits = {id(p) for p in get_mask_logits(model).values()}
    return sum(p.numel() for p in model.parameters() if id(p) not in logits)


def layer_sparsity(model: nn.Module) -> dict[str, float]:
    """Return the fraction of zeros in every convolution and linear weight, by name.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.0, 3.0]]))
        >>> layer_sparsity(nn.Sequential(layer))
        {'0.weight': 0.5}
    """
    weights = _weights(model).items()
    return {name: float((w == 0).double().mean()) if w.numel() else 0.0 for name, w in weights}


def count_flops(model: nn.Module, x: Input) -> int:
    """Return the multiply-adds of convolution and linear layers for one example.

    Biases, norms, activations and products of activations (attention) do not count, nor do layers that are not called,
    such as the projections of ``nn.MultiheadAttention``. A layer that is called twice counts twice. The model is run
    once, in eval mode; ``x`` are a few examples, for the shapes.
    """
    return sum(_count_per_layer(model, x).values())


def _count_per_layer(model: nn.Module, x: Input) -> dict[str, int]:
    """Run the model once and return the multiply-adds of every layer, by the name of its weight."""
    counts = {name: 0 for name, _ in named_weight_layers(model)}
    handles = []
    for name, layer in named_weight_layers(model):

        def count(layer: Any, inputs: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            counts[name] += _multiply_adds(layer, inputs[0], output)

        handles.append(layer.register_forward_hook(count))
    try:
        with eval_mode(model), torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    n = _count_examples(x)
    return {name: count // n for name, count in counts.items()}


def _multiply_adds(layer: Any, x: Tensor, output: Tensor) -> int:
    """Return filter size times output size; for a transposed convolution, times input size."""
    positions = x if getattr(layer, "transposed", False) else output
    return positions.numel() * int(layer.weight[0].numel())


def _count_examples(x: Input) -> int:
    n = len(next(iter(x.values()))) if isinstance(x, dict) else len(x)
    if not n:
        raise InputError("there is no example", expected="one or more")
    return n


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the effective weights; in eval mode, so that learned masks are not sampled."""
    with eval_mode(model), torch.no_grad():
        return {name: layer.weight for name, layer in named_weight_layers(model)}


def _count_zeros(model: nn.Module) -> tuple[int, int]:
    """Return the number of zeros among convolution and linear weights, and of all; a shared one counts once."""
    unique = {id(weight): weight for weight in _weights(model).values()}.values()
    return sum(int((weight == 0).sum()) for weight in unique), sum(weight.numel() for weight in unique)
