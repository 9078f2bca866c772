"""Shrinking: channels that do nothing are cut out of a model, which then computes the same with smaller layers.

A channel goes where nothing reads it (all weights that would are zero), or where it is constant (its whole filter is
zero) and the constant can move into the bias of the layer that reads it. A constant other than 0 cannot, where that
layer pads with zeros: at the border the constant ends, and a bias does not.

Layers that are in no chain (:mod:`spurless.models.chains`) are left as they are, and named: those whose channels meet
at the addition of a residual net above all.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own name for it
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from spurless.core.errors import BadInput
from spurless.models.chains import Chain, find_chains
from spurless.models.classifier import Classifier, Input, evaluating
from spurless.models.counting import flops, parameters
from spurless.models.learned_masks import is_learning
from spurless.models.masks import make_permanent


@dataclass(frozen=True)
class Shrunk:
    """A smaller model that computes the same in eval mode, and what was done."""

    model: nn.Module
    removed: dict[str, int]
    """how many channels each layer lost, by its name; layers that lost none are not named"""
    left_alone: dict[str, str]
    """layers of which something could not be removed, or that could not be judged, and why"""
    parameters_before: int
    parameters_after: int
    flops_before: int
    flops_after: int


def shrink(model: nn.Module, x: Input) -> Shrunk:
    """Cut channels that do nothing out of a copy of a model.

    The logits in eval mode stay the same up to rounding. A pruned model's zeros are made permanent. A classifier is
    renamed, because ``build`` makes no such model: its weights load into it alone.

    Args:
        model: any module; it is left as it was.
        x: a few examples, for the shapes.

    Example:
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = net[0].weight.data[1].zero_()
        >>> small = shrink(net, torch.zeros(1, 2))
        >>> small.removed, small.model[0].out_features, small.parameters_before, small.parameters_after
        ({'0': 1}, 2, 17, 12)

    Raises:
        BadInput: masks are still being learned.
    """
    if is_learning(model):
        raise BadInput("masks are still being learned", do="Call settle(model) first.")
    small = deepcopy(model)
    make_permanent(small)
    before = parameters(small), flops(small, x)
    chains, left_alone = find_chains(small, x)
    removed: Counter[str] = Counter()
    with evaluating(small):
        while cuts := {name: n for name, chain in chains.items() if (n := _cut(chain))}:
            removed.update(cuts)  # and again: a filter may be zero now, or a channel read by nobody
        left_alone |= _held(chains)
    if isinstance(small, Classifier) and removed:
        small.name = f"shrunk {small.name}"
    return Shrunk(small, dict(removed), left_alone, before[0], parameters(small), before[1], flops(small, x))


def _cut(chain: Chain) -> int:
    """Remove what can be removed; return how many channels that are."""
    layer, reader = chain.layer, chain.reader
    gone, values = _judged(chain)
    n = int(gone.sum())
    if not n:
        return 0
    keep, wide = ~gone, _spread(~gone, reader.weight.shape[1])
    with torch.no_grad():
        _fold(reader, torch.where(wide, 0, values))
        layer.weight = _part(layer.weight, keep)
        layer.bias = None if layer.bias is None else _part(layer.bias, keep)
        reader.weight = _part(reader.weight, wide, dim=1)
        for norm in (step for step in chain.steps if isinstance(step, _BatchNorm)):
            _narrow(norm, _spread(keep, norm.num_features))
    setattr(layer, "out_channels" if isinstance(layer, _ConvNd) else "out_features", len(layer.weight))
    setattr(reader, "in_channels" if isinstance(reader, _ConvNd) else "in_features", reader.weight.shape[1])
    return n


def _judged(chain: Chain) -> tuple[Tensor, Tensor]:
    """Return which channels go, and what the reader gets from each constant one (0 from all others)."""
    layer, reader = chain.layer, chain.reader
    dead = (layer.weight == 0).flatten(1).all(dim=1)
    constant = _constants(chain)
    unread = (reader.weight == 0).transpose(0, 1).flatten(1).all(dim=1)
    movable = constant.isfinite() & ((constant == 0) | (not _pads_with_zeros(reader)))
    gone = unread.view(len(dead), -1).all(dim=1) | (dead & movable.view(len(dead), -1).all(dim=1))
    if bool(gone.all()):
        gone[0] = False  # a layer without channels is none
    return gone, torch.where(_spread(dead, reader.weight.shape[1]), constant, 0)


def _constants(chain: Chain) -> Tensor:
    """Return what the reader gets of each channel if its filter is zero."""
    layer = chain.layer
    with torch.no_grad():
        values = layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias.clone()
        for step in chain.steps:
            values = _normed(step, values) if isinstance(step, _BatchNorm) else step(values)
    return _spread(values, chain.reader.weight.shape[1])


def _normed(norm: _BatchNorm, values: Tensor) -> Tensor:
    wide = _spread(values, norm.num_features)[None]
    return F.batch_norm(wide, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)[0]


def _held(chains: dict[str, Chain]) -> dict[str, str]:
    """Return the layers with constant channels that had to stay."""
    held = {}
    for name, chain in chains.items():
        values = _judged(chain)[1] * _pads_with_zeros(chain.reader)
        if n := int((values != 0).view(len(chain.layer.weight), -1).any(dim=1).sum()):
            held[name] = f"its {n} constant channels meet the zero padding of the next layer"
    return held


def _fold(reader: Any, constants: Tensor) -> None:
    """Move constants that the reader gets into its bias."""
    per_channel = constants.view(-1, *[1] * (reader.weight.dim() - 2))
    extra = (reader.weight * per_channel).flatten(1).sum(dim=1)
    if bool(extra.any()):
        present = extra.new_zeros(len(extra)) if reader.bias is None else reader.bias
        trained = (reader.weight if reader.bias is None else reader.bias).requires_grad
        reader.bias = nn.Parameter(present + extra, trained)


def _narrow(norm: _BatchNorm, keep: Tensor) -> None:
    for name, values in [*norm.named_parameters(recurse=False), *norm.named_buffers(recurse=False)]:
        if values.dim():  # not the counter of batches
            setattr(norm, name, _part(values, keep))
    norm.num_features = int(keep.sum())


def _part(values: Tensor, keep: Tensor, dim: int = 0) -> Any:
    chosen = values.detach().index_select(dim, keep.nonzero().flatten())
    return nn.Parameter(chosen, values.requires_grad) if isinstance(values, nn.Parameter) else chosen


def _spread(values: Tensor, width: int) -> Tensor:
    """Repeat what is said of a channel for each of its positions, once the map is flat."""
    return values.repeat_interleave(width // len(values))


def _pads_with_zeros(reader: Any) -> bool:
    return (
        isinstance(reader, _ConvNd) and reader.padding_mode == "zeros" and any(reader._reversed_padding_repeated_twice)
    )
