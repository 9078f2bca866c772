"""Check the arguments of public functions against their annotations, so that a wrong one is one clear error."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeGuard, Union, get_args, get_origin

from spurless.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

MAX_TEXT = 60  # characters of a value in a message


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> None:
    """Raise if an argument has another type than its annotation, or is a tensor without values.

    Call it first in a public function, with ``locals()``, or in ``__post_init__`` of a dataclass with ``vars(self)``.
    Integers are accepted for floats, lists for tuples, and any sized iterable with an index for sequences. Annotations
    that name types which only type checkers import are not checked.

    Example:
        >>> def halve(n: int) -> float:
        ...     check_arguments(halve, locals())
        ...     return n / 2
        >>> halve("4")
        Traceback (most recent call last):
        spurless.core.errors.InputError: halve: the argument 'n' has the wrong type (expected int, got '4').
    """
    for name, (hint, text) in _annotations(function).items():
        if name not in values:
            continue
        value, owner = values[name], function.__qualname__.removesuffix(".__init__")
        if not _fits(value, hint):
            expected = text.replace("nn.Module", "a torch module")
            what, got = f"the argument {name!r} has the wrong type", describe_value(value)
            raise InputError(what, where=owner, expected=expected, got=got)
        if hint is not Any and (problem := _find_missing_values(value)) is not None:
            raise InputError(f"the argument {name!r} {problem}", where=owner, expected="dense values in memory")


def describe_value(value: object) -> str:
    """Return a short text for a message: a text or a number itself, the type of anything else.

    Example:
        >>> describe_value("x"), describe_value({}), describe_value(["a", 1])
        ("'x'", 'dict', 'list of int and str')
    """
    if isinstance(value, str | bytes | bool | int | float):
        text = repr(value) if not isinstance(value, int) or value.bit_length() < 999 else "an integer of many digits"
        return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
    if _is_tensor(value):
        return f"a tensor of shape {tuple(value.shape)} and type {str(value.dtype).removeprefix('torch.')}"
    kinds = sorted({type(item).__name__ for item in value}) if isinstance(value, list | tuple) else []
    return type(value).__name__ + (f" of {' and '.join(kinds)}" if len(kinds) in (2, 3) else "")


@cache
def _annotations(function: Callable[..., Any]) -> dict[str, tuple[Any, str]]:
    """Return the type of every argument that can be checked, and its text."""
    namespace = vars(sys.modules[function.__module__])
    checked = {}
    for name, parameter in inspect.signature(function).parameters.items():
        text = parameter.annotation
        if not isinstance(text, str) or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        try:
            hint = eval(text, namespace)  # the package's own annotation
        except (NameError, TypeError):  # imported for type checkers only
            continue
        checked[name] = hint, text
    return checked


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has a type; True for types that cannot be checked."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(value, arguments[0])
    if origin in (Union, UnionType):
        if isinstance(value, str) and any(map(_is_device_type, arguments)):  # with text as its name
            arguments = tuple(filter(_is_device_type, arguments))
        return any(_fits(value, argument) for argument in arguments)
    if origin is Literal:
        return isinstance(value, str | int | NoneType) and value in arguments
    if origin is tuple:
        return isinstance(value, list | tuple) and _fits_tuple(value, arguments)
    if origin is Sequence:
        return _is_sequence(value) and _all_fit(value, arguments[0])
    if origin is dict or origin is Mapping:
        return isinstance(value, Mapping) and _all_fit(value, arguments[0]) and _all_fit(value.values(), arguments[1])
    return _fits_class(value, origin or hint)


def _fits_tuple(value: Sequence[Any], hints: tuple[Any, ...]) -> bool:
    if not hints or hints[-1] is Ellipsis:
        return _all_fit(value, hints[0] if hints else Any)
    return len(value) == len(hints) and all(map(_fits, value, hints))


def _fits_class(value: Any, hint: Any) -> bool:
    if hint is None:
        return value is None
    if hint is int or hint is float:
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    if hint is Callable:
        return callable(value)
    if hint is Any or not isinstance(hint, type):
        return True
    if getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in _required_names(hint))
    if _is_device_type(hint):
        return _is_device(value, hint)
    return isinstance(value, hint)


def _is_device_type(hint: Any) -> bool:
    return getattr(hint, "__module__", "") == "torch" and getattr(hint, "__name__", "") == "device"


def _is_device(value: Any, device: Callable[[Any], Any]) -> bool:
    """Return whether a value is a device that stores values, or its name."""
    try:
        return isinstance(value, str | device) and device(value).type != "meta"
    except (RuntimeError, ValueError):  # not the name of a device
        return False


@cache
def _required_names(protocol: type) -> list[str]:
    """Return the names of the attributes and methods of a protocol, without those that every object has."""
    names = {*vars(protocol).get("__annotations__", {}), *vars(protocol)}
    is_special = re.compile("_abc_|_is_|__(?!call__|len__|getitem__)").match
    return [name for name in sorted(names) if not is_special(name)]


def _is_sequence(value: Any) -> bool:
    """Return whether a value has a length and an order; a text counts as one value."""
    has_order = all(hasattr(value, name) for name in ("__len__", "__getitem__", "__iter__"))
    return has_order and not isinstance(value, str | bytes | Mapping | type) and not _is_scalar(value)


def _is_scalar(value: Any) -> bool:
    return getattr(value, "shape", None) == ()


def _all_fit(values: Iterable[Any], hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(getattr(values, "ndim", None), int):  # an array, a tensor or a column of a table
        has_values = _find_missing_values(values) is None
        return values.ndim == 1 and has_values and _all_fit(values.tolist(), hint)  # type: ignore[attr-defined]
    return all(_fits(value, hint) for value in values)


def _find_missing_values(value: Any) -> str | None:
    """Return why a tensor has no values to compute with."""
    if not _is_tensor(value):
        return None
    return "is on the meta device" if value.is_meta else "is sparse" if str(value.layout) != "torch.strided" else None


def _is_tensor(value: object) -> TypeGuard[Tensor]:
    """Return whether a value is a tensor; without importing torch, which reports do not need."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
