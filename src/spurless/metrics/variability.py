r"""Variability: how much what a weight contributes varies over examples, for every weight of a network at once.

Malik and Fern, "Frequency based pruning improves latent identification and generalization", definition 3.11. A weight
:math:`w_{ij}` contributes :math:`c = w_{ij} x_j` to unit :math:`i` for every example. Two readings of its variability:

.. math:: \text{paper: } \frac{\sigma^2(c)}{|\bar c|} = |w_{ij}| \frac{\sigma^2(x_j)}{|\bar x_j| + \epsilon}, \qquad
    \text{minmax: } \sigma\!\left(\frac{c - \min c}{\max c - \min c + \epsilon}\right)
    = \frac{|w_{ij}| \, \sigma(x_j)}{|w_{ij}| (\max x_j - \min x_j) + \epsilon}.

The first is the paper's formula, the size of the weight times the dispersion of its input; the second is what the
authors' code for the toy does, where the size of the weight cancels. Both follow from the moments of the input, which
are taken in one pass, in float64: no tensor of examples by weights is ever made.

Of a convolution, :math:`x_j` is an input channel at one place of the kernel, padding included, and every place of
the output is an observation; so is every token of a text, padding included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from spurless.core.errors import BadInput

Reading = Literal["paper", "minmax"]
EPS = 1e-8


class Moments:
    """Mean, variance and extremes of numbers that come in batches; population variance, merged without cancellation.

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
        """Take in observations ``(n, ...)``."""
        n = len(x)
        if not n:
            return
        x = x.double()
        mean, low, high = x.mean(dim=0), x.amin(dim=0), x.amax(dim=0)
        squares = (x - mean).square().sum(dim=0)
        if not self.count:
            self.count, self.mean, self.squares, self.low, self.high = n, mean, squares, low, high
            return
        total, apart = self.count + n, mean - self.mean
        self.squares = self.squares + squares + apart.square() * (self.count * n / total)
        self.mean = self.mean + apart * (n / total)
        self.low, self.high = torch.minimum(self.low, low), torch.maximum(self.high, high)
        self.count = total

    @property
    def variance(self) -> Tensor:
        """The population variance."""
        return self.squares / self.count

    @property
    def spread(self) -> Tensor:
        """The largest less the smallest."""
        return self.high - self.low


@torch.no_grad()
def variability(
    model: nn.Module, batches: Iterable[Any], reading: Reading = "paper", eps: float = EPS
) -> dict[str, Tensor]:
    """Return the activation variability of every weight of linear layers and convolutions, by the weight's name.

    Labels play no part. A weight that is zero, or whose input never changes, has the score 0. Layers that are never
    called (attention's own projections, whose weights are read directly) and transposed convolutions have none.

    Args:
        model: any module; it is run in eval mode, and each part is left in the mode it was in.
        batches: what the model is called with, batch by batch; how it is cut makes no difference.
        reading: ``paper`` or ``minmax``.
        eps: keeps a denominator above 0.

    Example:
        >>> layer = nn.Sequential(nn.Linear(2, 1, bias=False))
        >>> _ = layer[0].weight.data.copy_(torch.tensor([[1.0, -2.0]]))
        >>> variability(layer, [torch.tensor([[1.0, 1.0], [3.0, 1.0]])])["0.weight"]  # 1 * 1 / 2, and 2 * 0 / 1
        tensor([[0.5000, 0.0000]], dtype=torch.float64)

    Raises:
        BadInput: there is no example, or no such reading.
    """
    if reading not in ("paper", "minmax"):
        raise BadInput("no such reading of activation variability", expected="paper or minmax", got=reading)
    layers = {name: (layer, _Inputs(layer)) for name, layer in _layers(model)}
    with _watched(layers.values()), _evaluating(model), _layer_by_layer():
        some = False
        for x in batches:
            some = True
            model(x)
    if not some:
        raise BadInput("activation variability is taken over examples, and there is none")
    return {name: _score(layer.weight, inputs, reading, eps) for name, (layer, inputs) in layers.items() if inputs.seen}


class _Inputs:
    """What one layer was given: the moments of each of its inputs, for a convolution at each place of the kernel."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.places = list(product(*map(range, layer.kernel_size))) if _convolves(layer) else [()]
        self.moments = [Moments() for _ in self.places]

    @property
    def seen(self) -> bool:
        """Whether the layer was called."""
        return self.moments[0].count > 0

    def __call__(self, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        """Take in an input; the form of a forward pre-hook."""
        x = given[0].detach()
        if not _convolves(self.layer):
            self.moments[0].add(x.reshape(-1, x.shape[-1]))
            return
        padded = _padded(self.layer, x)
        for place, moments in zip(self.places, self.moments, strict=True):
            part = _read_by(self.layer, padded, place)
            moments.add(part.movedim(1, -1).reshape(-1, part.shape[1]))

    def spread_out(self, what: str) -> Tensor:
        """Return a moment in a shape that multiplies with the weight."""
        values = torch.stack([getattr(moments, what) for moments in self.moments], dim=-1)  # (inputs, places)
        if not _convolves(self.layer):
            return values[:, 0]
        layer = self.layer
        grouped = values.reshape(layer.groups, -1, *layer.kernel_size)  # the channels that each group reads
        return grouped.repeat_interleave(layer.out_channels // layer.groups, dim=0)


def _score(weight: Tensor, inputs: _Inputs, reading: Reading, eps: float) -> Tensor:
    size, variance = weight.double().abs(), inputs.spread_out("variance")
    if reading == "paper":
        return size * variance / (inputs.spread_out("mean").abs() + eps)
    return size * variance.sqrt() / (size * inputs.spread_out("spread") + eps)


def _padded(layer: Any, x: Tensor) -> Tensor:
    """Pad an input as the layer does; an example that comes without a batch is a batch of one."""
    if x.dim() == len(layer.kernel_size) + 1:
        x = x.unsqueeze(0)
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    sides = layer._reversed_padding_repeated_twice
    return pad(x, sides, mode=mode) if any(sides) else x


def _read_by(layer: Any, padded: Tensor, place: tuple[int, ...]) -> Tensor:
    """Return what one place of the kernel reads as it moves over the input: a view."""
    steps = []
    for k, size, kernel, stride, dilation in zip(
        place, padded.shape[2:], layer.kernel_size, layer.stride, layer.dilation, strict=True
    ):
        last = size - dilation * (kernel - 1)  # where the kernel's first place may stand
        steps.append(slice(k * dilation, k * dilation + last, stride))
    return padded[(slice(None), slice(None), *steps)]


def _convolves(layer: nn.Module) -> bool:
    return isinstance(layer, nn.modules.conv._ConvNd)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Walk over linear layers and convolutions, each with the name of its weight."""
    for name, module in model.named_modules():
        plain = _convolves(module) and not getattr(module, "transposed", False)
        if plain or isinstance(module, nn.Linear):
            yield (f"{name}.weight" if name else "weight"), module


@contextmanager
def _watched(layers: Iterable[tuple[nn.Module, _Inputs]]) -> Iterator[None]:
    handles = [layer.register_forward_pre_hook(inputs) for layer, inputs in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _layer_by_layer() -> Iterator[None]:
    """Let torch's encoders call their layers one by one: in eval mode they take a short cut, with nested tensors."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
