"""Identity: what decides how an object acts, as words to hash, so that two that act apart are not confused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.provenance import digest

_OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def described(value: Any, opaque: Callable[[Any], Any] | None = None) -> Any:
    """Return the type and the values of an object, and of those inside it, as JSON.

    Args:
        value: the object.
        opaque: what to say of a function, and of an object that keeps its values where they cannot be seen.

    Raises:
        TypeError: there is such a thing, and nothing to say of it.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | torch.dtype | torch.device | Enum | type):
        return digest(value) if isinstance(value, Tensor) else str(value)
    if isinstance(value, tuple | list):
        return [described(part, opaque) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(str(described(part, opaque)) for part in value)
    if isinstance(value, Mapping):
        return [[described(key, opaque), described(part, opaque)] for key, part in value.items()]
    if not isinstance(value, _OPAQUE) and hasattr(value, "__dict__"):
        return [_kind(value), described(vars(value), opaque)]
    if opaque is None:
        raise TypeError(f"{value!r} cannot be described")
    return opaque(value)


def identity(value: Any) -> Any:
    """Return what decides how an object acts, as JSON: its type and its values; of a function its code.

    It sees no global variables, and of what keeps its values where they cannot be seen only the type.

    Example:
        >>> double, treble = (lambda x: 2 * x), (lambda x: 3 * x)
        >>> identity(double) == identity(lambda x: 2 * x), identity(double) == identity(treble)
        (True, False)
    """
    try:
        return described(value, _code)
    except RecursionError:
        return _kind(value)


def architecture(model: nn.Module) -> str:
    """Return a hash of the layers of a model, how each is set, and which weights are trained, without their values.

    Two networks of the same weights act apart if one has a ReLU where the other has a tanh. Of the user's own classes
    the code counts too.

    Example:
        >>> one, other = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> architecture(one) == architecture(other)
        False
    """
    layers = [[name, _kind(part), _own_code(type(part)), _settings(part)] for name, part in model.named_modules()]
    weights = [[name, weight.requires_grad] for name, weight in model.named_parameters()]
    return digest(layers, weights, *(part for name, buffer in model.named_buffers() for part in (name, buffer)))


_INTERNAL = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}


def _settings(part: nn.Module) -> list[Any]:
    """Return the attributes of a layer that are neither weights nor layers; a hook has another number every time."""
    told = {name: value for name, value in vars(part).items() if name not in _INTERNAL}
    hooks = {name: list(told.pop(name, {}).values()) for name in ("_forward_hooks", "_forward_pre_hooks")}
    return [[name, identity(value)] for name, value in sorted({**told, **hooks}.items())]


def _own_code(kind: type) -> list[Any]:
    """Return the code of a class and of those it is made from, as far as they are the user's own."""
    own = [part for part in kind.__mro__ if not _installed(part.__module__)]
    functions = [
        [name, getattr(value, "__func__", value)] for part in own for name, value in sorted(vars(part).items())
    ]
    return [[name, _code(value)] for name, value in functions if isinstance(value, FunctionType)]


def _installed(module: str) -> bool:
    root, file = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None) or ""
    return root != "__main__" and (root in ("builtins", "abc", "typing", "spurless") or "-packages" in file)


def _code(value: Any) -> Any:
    if isinstance(value, partial):
        return ["partial", identity(value.func), identity(value.args), identity(value.keywords)]
    if isinstance(value, MethodType):
        return [identity(value.__func__), identity(value.__self__)]
    if not isinstance(value, FunctionType):
        return [_kind(value), getattr(value, "__module__", None), getattr(value, "__qualname__", None)]
    within = [_held(cell) for cell in value.__closure__ or ()]
    return [_bytecode(value.__code__), identity(value.__defaults__), identity(value.__kwdefaults__), identity(within)]


def _held(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # what it names has no value yet
        return None


def _bytecode(code: CodeType) -> str:
    parts = [_bytecode(part) if isinstance(part, CodeType) else _constant(part) for part in code.co_consts]
    return digest(code.co_code, parts, list(code.co_names))


def _constant(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
