"""Build configuration dataclasses from command-line options or TOML files, with checked names and types."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spurless.core.errors import InputError, did_you_mean

C = TypeVar("C")
ADDED_LATER = {"added": "later"}
"""Metadata of fields that were added after keys of runs with the configuration were first written."""


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
    hints = get_type_hints(config)
    known = {f.name for f in fields(config) if f.init}
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
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError) as error:
        what = "this is a folder" if isinstance(error, IsADirectoryError) else "no such file"
        raise InputError(what, where=path, expected="a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"the file is not TOML: {error}", where=path) from None


def _convert(hint: Any, value: Any, what: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _convert_union(arguments, value, what)
    if origin is Literal:
        for argument in arguments:
            # a command-line value is text, also if the choice is a number
            if value == str(argument) or (type(value) is type(argument) and value == argument):
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
    if NoneType in arguments and (value is None or value == "none"):
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
    except (TypeError, ValueError, OverflowError):
        raise _wrong_type(what, expected, value) from None
    # true in TOML is not a number, and 2.5 is not an integer
    if isinstance(value, bool) or (isinstance(value, float) and number != value and value == value):
        raise _wrong_type(what, expected, value)
    return number


def _wrong_type(what: str, expected: str, got: Any) -> InputError:
    return InputError(f"{what} has the wrong type", expected=expected, got=repr(got))
