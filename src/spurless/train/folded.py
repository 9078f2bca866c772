"""Folded steps: the gradients of many small nets of one form, as one batched product over all of them.

A step of a net of a few linear layers is some forty tiny kernels, and launching them takes longer than their work. Jobs
that differ in nothing but weights, order and settings therefore look up their examples and are differentiated at once.
Each then moves its own weights with its own optimiser, so that neither the loop nor an update is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from spurless.data.grouped import Batch, Grouped
from spurless.models.classifier import Classifier
from spurless.train.step import GraphedSteps

LAYERS = (nn.Linear, nn.ReLU, nn.Tanh, nn.Flatten, nn.Sequential, Classifier)
"""Of what a net is made that may be folded: all that it computes is told by its printed form and its weights."""

T = TypeVar("T")

Spread: TypeAlias = Callable[[Sequence[Callable[[], object]]], None]
"""Does tasks that know nothing of each other, side by side if it can."""


def foldable(members: Sequence[GraphedSteps]) -> list[list[GraphedSteps]]:
    """Return the members in groups: those of a group are folded, a group of one is not."""
    groups: dict[Hashable, list[GraphedSteps]] = {}
    for number, member in enumerate(members):
        form = _form(member)
        groups.setdefault(number if form is None else form, []).append(member)
    return list(groups.values())


def unfold(model: nn.Module) -> None:
    """Give a model that was folded its weights back as its own."""
    for weight in model.parameters():
        if weight.untyped_storage().nbytes() > weight.numel() * weight.element_size():
            weight.data = weight.data.clone()


class Fold:
    """Members whose weights, tables and counters lie in one tensor each, of which every member has a view.

    A graph does not keep alive what it reads: the members do, for as long as it is replayed.
    """

    def __init__(self, members: Sequence[GraphedSteps]) -> None:
        self.members = members
        self.named = [dict(member.model.named_parameters()) for member in members]
        self.weights = {name: torch.stack([each[name].detach() for each in self.named]) for name in self.named[0]}
        for number, each in enumerate(self.named):
            for name, weight in each.items():
                weight.data = self.weights[name][number]
        self.rows, self.rates = _shared(members, "rows"), _shared(members, "rates")
        self.counters, self.losses = _shared(members, "counter"), _shared(members, "loss")
        self.rate = _shared_rate(members)
        self.one_split = all(_same_split(members[0].loader.split, member.loader.split) for member in members)

    def body(self, spread: Spread) -> None:
        """Make one step of every member."""
        first = self.members[0]

        def loss(weights: dict[str, Tensor], *part: Tensor) -> Tensor:
            return first.objective(_With(first.model, weights), Batch(*part))

        slopes, losses = vmap(grad_and_value(loss))(self.weights, *self._batches(self._turn(), spread))
        self.losses += losses
        for number, each in enumerate(self.named):
            for name, weight in each.items():
                weight.grad = slopes[name][number]
        spread([member.update for member in self.members])

    def _turn(self) -> Tensor:
        """Set the learning rates, move the counters on, and return the examples: what each member's own turn does."""
        self.rate.copy_(self.rates.gather(1, self.counters).squeeze(1))
        index = self.rows.gather(1, self.counters.unsqueeze(2).expand(-1, -1, self.rows.shape[2]))
        self.counters += 1
        return index.squeeze(1)

    def _batches(self, index: Tensor, spread: Spread) -> list[Tensor]:
        """Return the next batch of every member, one above the other: inputs, labels, attributes, indices."""
        if not self.one_split:
            loaders = [member.loader for member in self.members]
            found = _done([partial(one.gather, row) for one, row in zip(loaders, index, strict=True)], spread)
            return [torch.stack(part) for part in zip(*map(_parts, found), strict=True)]
        batch = self.members[0].loader.gather(index.flatten())
        return [part.reshape(*index.shape, *part.shape[1:]) for part in _parts(batch)]


def _shared(members: Sequence[GraphedSteps], name: str) -> Tensor:
    """Put a tensor that every member has into one, give each its part of it back, and return the whole."""
    whole = torch.stack([getattr(member, name) for member in members])
    for member, part in zip(members, whole, strict=True):
        setattr(member, name, part)
    return whole


def _shared_rate(members: Sequence[GraphedSteps]) -> Tensor:
    """Put the learning rates of all optimisers into one tensor, let each read its own there, and return the whole."""
    groups = [member.optimiser.param_groups[0] for member in members]
    kind = getattr(groups[0]["lr"], "dtype", torch.double)
    whole = torch.tensor([float(group["lr"]) for group in groups], dtype=kind, device=members[0].run.device)
    for group, rate in zip(groups, whole, strict=True):
        group["lr"] = rate
    return whole


class _With(nn.Module):
    """A module with other weights than its own."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.call: Callable[[Tensor], Tensor] = lambda x: functional_call(module, weights, (x,))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def _form(member: GraphedSteps) -> Hashable | None:
    """Return what members must have in common to be folded, or None for one that cannot be."""
    model = member.model
    plain = all(type(part) in LAYERS and not _hooked(part) for part in model.modules())
    whole = all(weight.requires_grad for weight in model.parameters()) and member.module is model
    if not (plain and whole) or member.stage.memory or member.config.asam:
        return None
    kinds = tuple((weight.dtype, weight.device) for weight in model.parameters())
    bound = getattr(member.objective, "__self__", None)  # a bound method is another object every time
    objective = id(getattr(member.objective, "__func__", member.objective)), id(bound)
    return repr(model), kinds, objective, member.rows.shape


def _hooked(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def _same_split(one: Grouped, other: Grouped) -> bool:
    """Return whether examples of both may be gathered from one of them."""
    simple = all(part is None for split in (one, other) for part in (split.hidden, split.augment))
    same = one.x is other.x and one.transform is other.transform
    return simple and same and torch.equal(one.y, other.y) and torch.equal(one.a, other.a)


def _parts(batch: Batch) -> tuple[Tensor, ...]:
    return cast(Tensor, batch.x), batch.y, batch.a, batch.index


def _done(tasks: Sequence[Callable[[], T]], spread: Spread) -> list[T]:
    """Return what tasks return."""
    found: dict[int, T] = {}

    def do(number: int) -> None:
        found[number] = tasks[number]()

    spread([partial(do, number) for number in range(len(tasks))])
    return [found[number] for number in range(len(tasks))]
