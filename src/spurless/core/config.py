"""Build configuration dataclasses from options or TOML files, with checked names, types and ranges."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spurless.core.errors import InputError, did_you_mean
from spurless.core.files import check_not_pipe

C = TypeVar("C")
ADDED_LATER = {"added": "later"}
"""Metadata of fields that were added after keys of runs with the configuration were first written."""


@dataclass(frozen=True)
class Range:
    """The allowed values of a number, as metadata of its type; NaN and infinity are never allowed.

    Example:
        >>> Range(1, 100).check(0, "Config.steps")
        Traceback (most recent call last):
        spurless.core.errors.InputError: Config.steps must be at least 1 (got 0).
    """

    low: float
    high: float
    above: bool = False  # whether ``low`` itself is excluded
    below: bool = False  # whether ``high`` itself is excluded

    def check(self, number: float, what: str) -> None:
        """Raise if a number is not in the range."""
        too_low = number <= self.low if self.above else number < self.low
        too_high = number >= self.high if self.below else number > self.high
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{what} must be a finite number", got=number)
        if not (too_low or too_high):
            return
        low = f"{'above' if self.above else 'at least'} {self.low:,}"
        high = f"{'below' if self.below else 'at most'} {self.high:,}"
        if (self.low, self.high) == (0, 1):
            expected = f"{low} and {high}" if self.above or self.below else "0 to 1"
            raise InputError(f"{what} must be a fraction", expected=expected, got=number)
        rule = "not be negative" if too_low and self.low == 0 and not self.above else f"be {low if too_low else high}"
        raise InputError(f"{what} must {rule}", got=number)


MAX_COUNT = 10**9
MAX_NUMBER = 3e38  # float32, with which PyTorch computes, ends at 3.4e38
Count = Annotated[int, Range(1, MAX_COUNT)]
"""Number of epochs, steps, examples and the like."""
CountOrZero = Annotated[int, Range(0, MAX_COUNT)]
Width = Annotated[int, Range(1, 10**6)]
"""Number of units or channels of a layer."""
SeedNumber = Annotated[int, Range(-(2**63), 2**63 - 1)]
Finite = Annotated[float, Range(-MAX_NUMBER, MAX_NUMBER)]
Positive = Annotated[float, Range(0, MAX_NUMBER, above=True)]
NotNegative = Annotated[float, Range(0, MAX_NUMBER)]
Fraction = Annotated[float, Range(0, 1)]
PositiveFraction = Annotated[float, Range(0, 1, above=True)]
FractionBelowOne = Annotated[float, Range(0, 1, below=True)]
InnerFraction = Annotated[float, Range(0, 1, above=True, below=True)]


class CheckedConfig:
    """Base class of dataclasses that checks the type and the range of every field.

    A subclass with a ``__post_init__`` of its own calls this one first.

    Example:
        >>> @dataclass(frozen=True)
        ... class Config(CheckedConfig):
        ...     rate: NotNegative = 0.1
        >>> Config(-1.0)
        Traceback (most recent call last):
        spurless.core.errors.InputError: Config.rate must not be negative (got -1.0).

    Raises:
        InputError: a value has the wrong type or is out of range.
    """

    def __post_init__(self) -> None:
        config: Any = type(self)
        for name, hint in field_types(config).items():
            value, what = getattr(self, name), f"{config.__name__}.{name}"
            converted = _convert(hint, value, what)
            if converted is not value and not _is_same(converted, value):
                raise _wrong_type(what, _describe_type(hint), value)


def configure(config: type[C], options: Mapping[str, Any], owner: str) -> C:
    """Build ``config`` from options, each converted to the type of its field.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     steps: int = 10
        >>> configure(Config, {"steps": "12"}, "the method")
        Config(steps=12)

    Raises:
        InputError: a key is unknown, a required one is missing, or a value has the wrong type.
    """
    if not is_dataclass(config):
        raise TypeError(f"{config} is not a dataclass")
    hints = field_types(config)
    known = set(hints)
    values = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = f"{did_you_mean(name, known)} Options: {', '.join(sorted(known)) or 'none'}.".strip()
            raise InputError(f"{owner} has no option {key!r}", hint=hint)
        values[name] = _convert(hints[name], value, f"option {key!r} of {owner}")
    required = [f.name for f in fields(config) if f.init and f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in values]:
        raise InputError(f"{owner} requires the option {missing[0]!r}")
    return config(**values)


def key_settings(config: Any) -> dict[str, Any]:
    """Return the settings that are part of the key of a run.

    Fields with the metadata ``ADDED_LATER`` are left out at their default, so that earlier runs keep their keys.

    Example:
        >>> from dataclasses import dataclass, field
        >>> @dataclass(frozen=True)
        ... class Config:
        ...     steps: int = 10
        ...     scale: float = field(default=1.0, metadata=ADDED_LATER)
        >>> key_settings(Config()), key_settings(Config(scale=2.0))
        ({'steps': 10}, {'steps': 10, 'scale': 2.0})
    """
    unchanged = {f.name for f in fields(config) if f.metadata == ADDED_LATER and getattr(config, f.name) == f.default}
    return {name: value for name, value in asdict(config).items() if name not in unchanged}


def parse_pairs(words: Iterable[str], flag: str, example: str = "seed=1") -> dict[str, str]:
    """Return a dict of ``KEY=VALUE`` texts.

    Example:
        >>> parse_pairs(["conflicting=0.01"], "--data-option")
        {'conflicting': '0.01'}
    """
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise InputError(f"{flag} {word!r} is not KEY=VALUE", hint=f"Write for example {flag} {example}.")
        pairs[key.strip()] = value.strip()
    return pairs


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; errors contain its path."""
    check_not_pipe(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "this is a folder" if isinstance(error, IsADirectoryError) else "no such file"
        raise InputError(what, where=path, expected="a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the file is not TOML: {error}", where=path) from None


def field_types(config: Any) -> dict[str, Any]:
    """Return the types of the fields of a dataclass that can be set, with their ranges."""
    return _field_types(config)


@cache
def _field_types(config: Any) -> dict[str, Any]:
    hints = get_type_hints(config, include_extras=True)
    return {part.name: hints[part.name] for part in fields(config) if part.init}


def _is_same(converted: Any, value: Any) -> bool:
    """Return whether conversion, which accepts text for numbers, has left a value as it was."""
    if isinstance(converted, tuple) and isinstance(value, list | tuple):
        return len(converted) == len(value) and all(map(_is_same, converted, value))
    if isinstance(value, str) != isinstance(converted, str):
        return False
    return not (isinstance(converted, int) and isinstance(value, float)) and bool(converted == value)


def _describe_type(hint: Any) -> str:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return {int: "an integer", float: "a number", bool: "true or false", str: "text"}.get(hint, str(hint))


def _convert(hint: Any, value: Any, what: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        converted = _convert(arguments[0], value, what)
        for rule in arguments[1:]:
            if isinstance(rule, Range):
                rule.check(converted, what)
        return converted
    if origin in (Union, UnionType):
        return _convert_union(arguments, value, what)
    if origin is Literal:
        for argument in arguments:
            # a command-line value is text, also if the choice is a number
            if type(value) in (str, type(argument)) and value in (argument, str(argument)):
                return argument
        raise InputError(f"{what} cannot be {value!r}", expected=", ".join(map(repr, arguments)))
    return _convert_tuple(arguments, value, what) if origin is tuple else _convert_plain(hint, value, what)


def _convert_tuple(arguments: tuple[Any, ...], value: Any, what: str) -> tuple[Any, ...]:
    parts = [part.strip() for part in value.split(",") if value.strip()] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise _wrong_type(what, "a list", value)
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(parts)
    if len(parts) != len(arguments):
        raise _wrong_type(what, f"a list of {len(arguments)}", value)
    return tuple(_convert(argument, part, what) for argument, part in zip(arguments, parts, strict=True))


def _convert_union(arguments: tuple[Any, ...], value: Any, what: str) -> Any:
    if NoneType in arguments and (value is None or (isinstance(value, str) and value == "none")):
        return None
    options = [argument for argument in arguments if argument is not NoneType]
    for option in options[:-1]:
        try:
            return _convert(option, value, what)
        except InputError:
            continue
    return _convert(options[-1], value, what)


def _convert_plain(hint: Any, value: Any, what: str) -> Any:
    if hint is bool:
        values = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if str(value).lower() not in values:
            raise _wrong_type(what, "true or false", value)
        return values[str(value).lower()]
    if hint in (int, float):
        return _convert_number(hint, value, what)
    if hint in (str, Path):
        if not isinstance(value, str | int | float | Path) or (hint is Path and not isinstance(value, str | Path)):
            raise _wrong_type(what, "a path" if hint is Path else "text", value)
        return hint(value)
    return value


def _convert_number(hint: Any, value: Any, what: str) -> int | float:
    expected = "an integer" if hint is int else "a number"
    try:
        number: int | float = hint(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch raises the last for several numbers
        raise _wrong_type(what, expected, value) from None
    # true in TOML is not a number, and 2.5 is not an integer
    if isinstance(value, bool) or (isinstance(value, float) and number != value and value == value):
        raise _wrong_type(what, expected, value)
    return number


def _wrong_type(what: str, expected: str, got: Any) -> InputError:
    return InputError(f"{what} has the wrong type", expected=expected, got=repr(got))
