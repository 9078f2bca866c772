r"""Activation variability: how much the contribution of each weight of a network varies over examples.

Malik and Fern, "Frequency based pruning improves latent identification and generalization", definition 3.11. A weight
:math:`w_{ij}` contributes :math:`c = w_{ij} x_j` to unit :math:`i` for every example. Two readings of its variability:

.. math:: \text{paper: } \frac{\sigma^2(c)}{|\bar c|} = |w_{ij}| \frac{\sigma^2(x_j)}{|\bar x_j| + \epsilon}, \qquad
    \text{minmax: } \sigma\!\left(\frac{c - \min c}{\max c - \min c + \epsilon}\right)
    = \frac{|w_{ij}| \, \sigma(x_j)}{|w_{ij}| (\max x_j - \min x_j) + \epsilon}.

The first is the paper's formula, the absolute weight times the dispersion of its input; the second is that of the
authors' code for the toy data, in which the weight cancels. Both follow from the moments of the input, which are
computed in one pass in float64, without a tensor of examples by weights.

For a convolution, :math:`x_j` is an input channel at one kernel position, padding included, and every output position
is an observation; so is every token of a text, padding included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spurless.core.errors import InputError
from spurless.core.modules import eval_mode

Reading = Literal["paper", "minmax"]
EPS = 1e-8


class Moments:
    """Running mean, population variance, minimum and maximum over batches, without cancellation.

    Example:
        >>> moments = Moments()
        >>> for part in torch.tensor([[1.0], [2.0], [6.0]]).split(2):
        ...     moments.add(part)
        >>> moments.mean.item(), moments.variance.item(), moments.spread.item()
        (3.0, 4.666666666666667, 5.0)
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = self.low = self.high = torch.zeros(())

    def add(self, x: Tensor) -> None:
        """Add observations ``(n, ...)``."""
        n = len(x)
        if not n:
            return
        x = x.double()
        mean, low, high = x.mean(dim=0), x.amin(dim=0), x.amax(dim=0)
        squares = (x - mean).square().sum(dim=0)
        if not self.count:
            self.count, self.mean, self.squares, self.low, self.high = n, mean, squares, low, high
            return
        total, difference = self.count + n, mean - self.mean
        self.squares = self.squares + squares + difference.square() * (self.count * n / total)
        self.mean = self.mean + difference * (n / total)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.count = total

    @property
    def variance(self) -> Tensor:
        """The population variance."""
        return self.squares / self.count

    @property
    def spread(self) -> Tensor:
        """The maximum minus the minimum."""
        return self.high - self.low


@torch.no_grad()
def variability(
    model: nn.Module, batches: Iterable[Any], reading: Reading = "paper", eps: float = EPS
) -> dict[str, Tensor]:
    """Return the activation variability of every weight of linear layers and convolutions, by parameter name.

    Labels are not used. A weight that is zero, or whose input is constant, has the score 0. Transposed convolutions and
    layers that are not called (such as the projections inside torch's attention) are not scored.

    The model is run in eval mode, and the mode of each submodule is restored; ``eps`` is added to denominators.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> _ = layer[0].weight.data.copy_(torch.tensor([[1.0, -2.0]]))
        >>> variability(layer, [torch.tensor([[1.0, 1.0], [3.0, 1.0]])])["0.weight"]  # 1 * 1 / 2, and 2 * 0 / 1
        tensor([[0.5000, 0.0000]], dtype=torch.float64)
    """
    if reading not in ("paper", "minmax"):
        raise InputError("unknown reading of activation variability", expected="paper or minmax", got=reading)
    layers = {name: (layer, _Inputs(layer)) for name, layer in _layers(model)}
    with _record_inputs(layers.values()), eval_mode(model), _without_fast_path():
        n_batches = 0
        for x in batches:
            n_batches += 1
            model(x)
    if not n_batches:
        raise InputError("activation variability needs at least one batch")
    called = {name: pair for name, pair in layers.items() if pair[1].moments[0].count > 0}
    return {name: _score(layer.weight, inputs, reading, eps) for name, (layer, inputs) in called.items()}


class _Inputs:
    """The moments of each input of one layer, for a convolution at each kernel position."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.positions = list(product(*map(range, layer.kernel_size))) if _is_convolution(layer) else [()]
        self.moments = [Moments() for _ in self.positions]

    def __call__(self, _: nn.Module, args: tuple[Tensor, ...]) -> None:
        """Add an input; the signature is that of a forward pre-hook."""
        x = args[0].detach()
        if not _is_convolution(self.layer):
            self.moments[0].add(x.reshape(-1, x.shape[-1]))
            return
        padded = _pad_input(self.layer, x)
        for position, moments in zip(self.positions, self.moments, strict=True):
            part = _inputs_at(self.layer, padded, position)
            moments.add(part.movedim(1, -1).reshape(-1, part.shape[1]))

    def moment(self, name: str) -> Tensor:
        """Return a moment in a shape that broadcasts with the weight."""
        values = torch.stack([getattr(moments, name) for moments in self.moments], dim=-1)  # (inputs, positions)
        if not _is_convolution(self.layer):
            return values[:, 0]
        layer = self.layer
        grouped = values.reshape(layer.groups, -1, *layer.kernel_size)  # the channels that each group reads
        return grouped.repeat_interleave(layer.out_channels // layer.groups, dim=0)


def _score(weight: Tensor, inputs: _Inputs, reading: Reading, eps: float) -> Tensor:
    size, variance = weight.double().abs(), inputs.moment("variance")
    if reading == "paper":
        return size * variance / (inputs.moment("mean").abs() + eps)
    return size * variance.sqrt() / (size * inputs.moment("spread") + eps)


def _pad_input(layer: Any, x: Tensor) -> Tensor:
    """Pad an input as the layer does; an example without a batch dimension is a batch of one."""
    if x.dim() == len(layer.kernel_size) + 1:
        x = x.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    sides = layer._reversed_padding_repeated_twice
    return pad(x, sides, mode=mode) if any(sides) else x


def _inputs_at(layer: Any, padded: Tensor, position: tuple[int, ...]) -> Tensor:
    """Return a view of the inputs that one kernel position is multiplied with."""
    steps = []
    for k, size, kernel, stride, dilation in zip(
        position, padded.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True
    ):
        last = size - dilation * (kernel - 1)  # number of offsets at which the kernel fits
        steps.append(slice(k * dilation, k * dilation + last, stride))
    return padded[(slice(None), slice(None), *steps)]


def _is_convolution(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.conv._ConvNd)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield linear layers and convolutions with the name of their weight."""
    for name, module in model.named_modules():
        plain = _is_convolution(module) and not getattr(module, "transposed", False)
        if plain or isinstance(module, nn.Linear):
            yield (f"{name}.weight" if name else "weight"), module


@contextmanager
def _record_inputs(layers: Iterable[tuple[nn.Module, _Inputs]]) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(inputs) for layer, inputs in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Disable the fast path of torch's encoders, which does not call their layers in eval mode."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
