"""Options: from words on a command line or keys of a TOML file to a frozen dataclass; unknown keys are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from spurless.core.errors import BadInput, did_you_mean

C = TypeVar("C")


def configure(config: type[C], options: Mapping[str, Any], owner: str) -> C:
    """Build ``config`` from options, each converted to the type of its field.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Walk:
        ...     steps: int = 10
        >>> configure(Walk, {"steps": "12"}, "walk")
        Walk(steps=12)

    Raises:
        BadInput: a key is unknown or a value has the wrong type; the message names owner and key.
    """
    if not is_dataclass(config):
        raise TypeError(f"{config} is no dataclass")
    hints = get_type_hints(config)
    known = {f.name for f in fields(config) if f.init}
    values = {}
    for key, value in options.items():
        name = key.replace("-", "_")
        if name not in known:
            raise BadInput(
                f"{owner} has no option {key!r}",
                do=f"{did_you_mean(name, known).strip()} Options: {', '.join(sorted(known)) or 'none'}.".strip(),
            )
        values[name] = _convert(hints[name], value, f"option {key!r} of {owner}")
    needed = [f.name for f in fields(config) if f.init and f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise BadInput(f"{owner} needs the option {missing[0]!r}")
    return config(**values)


def pairs(words: Iterable[str], flag: str, example: str = "seed=1") -> dict[str, str]:
    """Split ``KEY=VALUE`` words.

    Example:
        >>> pairs(["conflicting=0.01"], "--data-option")
        {'conflicting': '0.01'}
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"{flag} {word!r} is not KEY=VALUE", do=f"Write for example {flag} {example}.")
        found[key.strip()] = value.strip()
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with its name in every error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput("no such file", where=path, expected="a TOML file") from None
    except IsADirectoryError:
        raise BadInput("this is a folder", where=path, expected="a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"the file is not TOML: {error}", where=path) from None


def _convert(hint: Any, value: Any, what: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _convert_union(arguments, value, what)
    if origin is Literal:
        for argument in arguments:
            # a word on a command line is text, whatever the type of the choice
            if value == str(argument) or (type(value) is type(argument) and value == argument):
                return argument
        raise BadInput(f"{what} cannot be {value!r}", expected=", ".join(map(repr, arguments)))
    if origin is tuple:
        return _convert_tuple(arguments, value, what)
    return _convert_plain(hint, value, what)


def _convert_tuple(arguments: tuple[Any, ...], value: Any, what: str) -> tuple[Any, ...]:
    parts = [part.strip() for part in value.split(",") if value.strip()] if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise _wrong(what, "a list", value)
    if arguments[-1] is Ellipsis:
        arguments = arguments[:1] * len(parts)
    if len(parts) != len(arguments):
        raise _wrong(what, f"a list of {len(arguments)}", value)
    return tuple(_convert(argument, part, what) for argument, part in zip(arguments, parts, strict=True))


def _convert_union(arguments: tuple[Any, ...], value: Any, what: str) -> Any:
    if NoneType in arguments and (value is None or value == "none"):
        return None
    options = [argument for argument in arguments if argument is not NoneType]
    for option in options[:-1]:
        try:
            return _convert(option, value, what)
        except BadInput:
            continue
    return _convert(options[-1], value, what)


def _convert_plain(hint: Any, value: Any, what: str) -> Any:
    if hint is bool:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if str(value).lower() not in words:
            raise _wrong(what, "true or false", value)
        return words[str(value).lower()]
    if hint in (int, float):
        return _convert_number(hint, value, what)
    if hint in (str, Path):
        if not isinstance(value, str | int | float | Path) or (hint is Path and not isinstance(value, str | Path)):
            raise _wrong(what, "a path" if hint is Path else "a word", value)
        return hint(value)
    return value


def _convert_number(hint: Any, value: Any, what: str) -> int | float:
    expected = "a whole number" if hint is int else "a number"
    try:
        number: int | float = hint(value)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(what, expected, value) from None
    # TOML's true is no number, and 2.5 no whole one
    if isinstance(value, bool) or (isinstance(value, float) and number != value and value == value):
        raise _wrong(what, expected, value)
    return number


def _wrong(what: str, expected: str, got: Any) -> BadInput:
    return BadInput(f"{what} has the wrong type", expected=expected, got=repr(got))
