"""Content hashes, and descriptions of objects and models that can be hashed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

_OPAQUE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, partial)


def content_hash(*parts: Tensor | bytes | str | float | dict[str, Any] | list[Any] | tuple[Any, ...] | None) -> str:
    """Return a hash of the content: dtype, shape and bytes of tensors, and the JSON of everything else.

    Example:
        >>> content_hash(torch.zeros(2), "a") == content_hash(torch.zeros(2), "a")
        True
        >>> content_hash(torch.zeros(2)) == content_hash(torch.zeros(2, 1))
        False
    """
    state = blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, Tensor):
            state.update(f"tensor {part.dtype} {tuple(part.shape)}".encode())
            flat = part.detach().cpu().contiguous().view(-1)
            state.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        elif isinstance(part, bytes):
            state.update(f"bytes {len(part)} ".encode() + part)  # without the length, b"a", b"b" would equal b"a\0b"
        else:
            state.update(json.dumps(part, sort_keys=True, default=str).encode())
        state.update(b"\0")
    return state.hexdigest()


def is_content_hash(text: str) -> bool:
    """Return whether a text, such as the name of a file, has the form of a content hash."""
    return re.fullmatch(r"[0-9a-f]{24}", text) is not None


def checksum(tensor: Tensor) -> int:
    """Return a checksum of the bytes of a tensor: five times as fast as a hash, and enough to detect changes."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def describe_values(value: Any, describe_opaque: Callable[[Any], Any] | None = None) -> Any:
    """Return the type and the values of an object, and of the objects inside it, as JSON.

    ``describe_opaque`` describes functions and objects whose values cannot be read; without it, raise a TypeError.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor | torch.dtype | torch.device | Enum | type):
        return content_hash(value) if isinstance(value, Tensor) else str(value)
    if isinstance(value, tuple | list):
        return [describe_values(part, describe_opaque) for part in value]
    if isinstance(value, set | frozenset):
        return sorted(str(describe_values(part, describe_opaque)) for part in value)
    if isinstance(value, Mapping):
        return [[describe_values(part, describe_opaque) for part in item] for item in value.items()]
    if not isinstance(value, _OPAQUE) and hasattr(value, "__dict__"):
        return [_type_name(value), describe_values(vars(value), describe_opaque)]
    if describe_opaque is None:
        raise TypeError(f"{value!r} cannot be described")
    return describe_opaque(value)


def describe_object(value: Any) -> Any:
    """Return everything that decides what an object does, as JSON: types, values, and the code of functions.

    Global variables are not included, and objects whose values cannot be read are described by their type.

    Example:
        >>> double, treble = (lambda x: 2 * x), (lambda x: 3 * x)
        >>> [describe_object(double) == describe_object(other) for other in (lambda x: 2 * x, treble)]
        [True, False]
    """
    try:
        return describe_values(value, _describe_code)
    except RecursionError:
        return _type_name(value)


def architecture_hash(model: nn.Module) -> str:
    """Return a hash of a model without its weights: layers, their settings, and which weights are trained.

    Networks with the same weights differ if one has a ReLU and the other a tanh. For classes defined by the user, the
    code is hashed too.

    Example:
        >>> one, other = nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        >>> architecture_hash(one) == architecture_hash(other)
        False
    """
    parts = model.named_modules()
    layers = [[name, _type_name(part), _describe_user_class(type(part)), _layer_settings(part)] for name, part in parts]
    weights = [[name, weight.requires_grad] for name, weight in model.named_parameters()]
    return content_hash(layers, weights, *(part for name, buffer in model.named_buffers() for part in (name, buffer)))


_INTERNAL = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}


def _layer_settings(part: nn.Module) -> list[Any]:
    """Return the attributes of a layer that are neither weights nor layers; hooks without their random ids."""
    settings = {name: value for name, value in vars(part).items() if name not in _INTERNAL}
    hooks = {name: list(settings.pop(name, {}).values()) for name in ("_forward_hooks", "_forward_pre_hooks")}
    return [[name, describe_object(value)] for name, value in sorted({**settings, **hooks}.items())]


def _describe_user_class(kind: type) -> list[Any]:
    """Return the code of a class and its bases, as far as they are not from installed packages."""
    classes = [part for part in kind.__mro__ if not _is_installed(part.__module__)]
    values = [
        (name, getattr(value, "__func__", value)) for part in classes for name, value in sorted(vars(part).items())
    ]
    return [[name, _describe_code(value)] for name, value in values if isinstance(value, FunctionType)]


def _is_installed(module: str) -> bool:
    root, file = module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None) or ""
    return root != "__main__" and (root in ("builtins", "abc", "typing", "spurless") or "-packages" in file)


def _describe_code(value: Any) -> Any:
    if isinstance(value, partial):
        return ["partial", *map(describe_object, (value.func, value.args, value.keywords))]
    if isinstance(value, MethodType):
        return [describe_object(value.__func__), describe_object(value.__self__)]
    if not isinstance(value, FunctionType):
        return [_type_name(value), getattr(value, "__module__", None), getattr(value, "__qualname__", None)]
    closure = [_cell_value(cell) for cell in value.__closure__ or ()]
    return [_bytecode_hash(value.__code__), *map(describe_object, (value.__defaults__, value.__kwdefaults__, closure))]


def _cell_value(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _bytecode_hash(code: CodeType) -> str:
    parts = [_bytecode_hash(part) if isinstance(part, CodeType) else _constant_text(part) for part in code.co_consts]
    return content_hash(code.co_code, parts, list(code.co_names))


def _constant_text(value: object) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
