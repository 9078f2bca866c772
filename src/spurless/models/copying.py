"""Copying: a module may keep what it computed last, as a picture of its attention; its copies keep the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def copied(module: M) -> M:
    """Return a deep copy, without the graph of what the module keeps beside its parameters: torch copies no graph.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> layer.last = layer.weight.sum()
        >>> copied(layer).last.requires_grad
        False
    """
    return deepcopy(module, computed(module))


def computed(module: nn.Module) -> dict[int, Any]:
    """Return what stands for everything in a module that was computed, by its identity, as ``deepcopy`` takes it."""
    kept = (value for part in module.modules() for value in _kept(vars(part).values()))
    return {id(value): value.detach().clone() for value in kept if value.grad_fn is not None}


def _kept(values: Iterable[Any]) -> Iterable[Tensor]:
    """Return the tensors among values, and in lists and dicts among them."""
    for value in values:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        yield from (each for each in inside if isinstance(each, Tensor))
