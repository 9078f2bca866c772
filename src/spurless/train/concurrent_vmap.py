"""One vmap for the steps of many small networks of the same architecture.

A step of a network of a few linear layers is about forty tiny kernels, and launching them takes longer than their work.
Jobs that differ only in weights, order and settings therefore gather their batches and compute their gradients with one
batched operation. Each job still updates its own weights with its own optimiser, as in the other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from spurless.data.split import Batch, Split
from spurless.models.classifier import Classifier
from spurless.train.step import GraphedSteps

LAYERS = (nn.Linear, nn.ReLU, nn.Tanh, nn.Flatten, nn.Sequential, Classifier)
"""Layers of networks that can be computed together: their ``repr`` and their weights define them completely."""

T = TypeVar("T")

RunParallel: TypeAlias = Callable[[Sequence[Callable[[], object]]], None]
"""Runs independent tasks, in parallel if it can."""


def group_for_vmap(members: Sequence[GraphedSteps]) -> list[list[GraphedSteps]]:
    """Return the members in groups that can share one vmap; a group of one does not use it."""
    groups: dict[Hashable, list[GraphedSteps]] = {}
    for number, member in enumerate(members):
        key = _group_key(member)
        groups.setdefault(number if key is None else key, []).append(member)
    return list(groups.values())


def separate_weights(model: nn.Module) -> None:
    """Copy the weights of a model out of tensors that it shares with others."""
    for weight in model.parameters():
        if weight.untyped_storage().nbytes() > weight.numel() * weight.element_size():
            weight.data = weight.data.clone()


class VmapSteps:
    """Steps of a group: weights, tables and counters are stacked in one tensor each, and every member has a view.

    A graph does not keep alive the tensors that it reads: the members must live as long as it is replayed.
    """

    def __init__(self, members: Sequence[GraphedSteps]) -> None:
        self.members = members
        self.parameters = [dict(member.model.named_parameters()) for member in members]
        self.weights = {
            name: torch.stack([parameters[name].detach() for parameters in self.parameters])
            for name in self.parameters[0]
        }
        for number, parameters in enumerate(self.parameters):
            for name, weight in parameters.items():
                weight.data = self.weights[name][number]
        self.rows, self.rates = _stack(members, "rows"), _stack(members, "rates")
        self.counters, self.losses = _stack(members, "counter"), _stack(members, "loss")
        self.rate = _stack_learning_rates(members)
        self.has_one_split = all(_is_same_split(members[0].loader.split, member.loader.split) for member in members)

    def body(self, run_parallel: RunParallel) -> None:
        """Run one step of every member."""
        first = self.members[0]

        def loss(weights: dict[str, Tensor], *batch: Tensor) -> Tensor:
            return first.objective(_WithWeights(first.model, weights), Batch(*batch))

        gradients, losses = vmap(grad_and_value(loss))(self.weights, *self._batches(self._next_indices(), run_parallel))
        self.losses += losses
        for number, parameters in enumerate(self.parameters):
            for name, weight in parameters.items():
                weight.grad = gradients[name][number]
        run_parallel([member.update for member in self.members])

    def _next_indices(self) -> Tensor:
        """Set the learning rates of the next steps, advance the counters, and return the indices of the batches."""
        self.rate.copy_(self.rates.gather(1, self.counters).squeeze(1))
        index = self.rows.gather(1, self.counters.unsqueeze(2).expand(-1, -1, self.rows.shape[2]))
        self.counters += 1
        return index.squeeze(1)

    def _batches(self, index: Tensor, run_parallel: RunParallel) -> list[Tensor]:
        """Return the stacked next batches of all members: inputs, labels, attributes, indices."""
        if not self.has_one_split:
            loaders = [member.loader for member in self.members]
            tasks = [partial(loader.gather, row) for loader, row in zip(loaders, index, strict=True)]
            batches = _collect(tasks, run_parallel)
            return [torch.stack(part) for part in zip(*map(_parts, batches), strict=True)]
        batch = self.members[0].loader.gather(index.flatten())
        return [part.reshape(*index.shape, *part.shape[1:]) for part in _parts(batch)]


def _stack(members: Sequence[GraphedSteps], name: str) -> Tensor:
    """Stack a tensor of all members, replace each member's tensor by its view, and return the stack."""
    stacked = torch.stack([getattr(member, name) for member in members])
    for member, part in zip(members, stacked, strict=True):
        setattr(member, name, part)
    return stacked


def _stack_learning_rates(members: Sequence[GraphedSteps]) -> Tensor:
    """Stack the learning rates of all optimisers, make each optimiser read its own from the stack, and return it."""
    groups = [member.optimiser.param_groups[0] for member in members]
    dtype = getattr(groups[0]["lr"], "dtype", torch.double)
    stacked = torch.tensor([float(group["lr"]) for group in groups], dtype=dtype, device=members[0].run.device)
    for group, rate in zip(groups, stacked, strict=True):
        group["lr"] = rate
    return stacked


class _WithWeights(nn.Module):
    """A module that is called with other weights than its own."""

    def __init__(self, module: nn.Module, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.call: Callable[[Tensor], Tensor] = lambda x: functional_call(module, weights, (x,))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x)


def _group_key(member: GraphedSteps) -> Hashable | None:
    """Return what members of a group must have in common; None for a member that cannot be in a group."""
    model = member.model
    has_known_layers = all(type(part) in LAYERS and not _has_hooks(part) for part in model.modules())
    is_trained_whole = all(weight.requires_grad for weight in model.parameters()) and member.module is model
    if not (has_known_layers and is_trained_whole) or member.stage.memory or member.config.asam:
        return None
    dtypes = tuple((weight.dtype, weight.device) for weight in model.parameters())
    bound = getattr(member.objective, "__self__", None)  # a bound method is a new object at every access
    objective = id(getattr(member.objective, "__func__", member.objective)), id(bound)
    return repr(model), dtypes, objective, member.rows.shape


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def _is_same_split(one: Split, other: Split) -> bool:
    """Return whether examples of both can be gathered from one of them."""
    is_plain = all(part is None for split in (one, other) for part in (split.hidden, split.augment))
    same_inputs = one.x is other.x and one.transform is other.transform
    return is_plain and same_inputs and torch.equal(one.y, other.y) and torch.equal(one.a, other.a)


def _parts(batch: Batch) -> tuple[Tensor, ...]:
    return cast(Tensor, batch.x), batch.y, batch.a, batch.index


def _collect(tasks: Sequence[Callable[[], T]], run_parallel: RunParallel) -> list[T]:
    """Run tasks and return their results."""
    results: dict[int, T] = {}

    def run(number: int) -> None:
        results[number] = tasks[number]()

    run_parallel([partial(run, number) for number in range(len(tasks))])
    return [results[number] for number in range(len(tasks))]
