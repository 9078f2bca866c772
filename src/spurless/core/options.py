"""Options: from words on a command line or keys of a TOML file to a frozen dataclass; unknown keys are refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
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
    return config(**values)


def pairs(words: Iterable[str], flag: str) -> dict[str, str]:
    """Split ``KEY=VALUE`` words.

    Example:
        >>> pairs(["conflicting=0.01"], "--data-option")
        {'conflicting': '0.01'}
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadInput(f"{flag} {word!r} is not KEY=VALUE", do=f"Write for example {flag} seed=1.")
        found[key.strip()] = value.strip()
    return found


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with its name in every error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput("no such file", where=path, expected="a TOML file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"the file is not TOML: {error}", where=path) from None


def _convert(hint: Any, value: Any, what: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _convert_union(arguments, value, what)
    if origin is Literal:
        if value not in arguments:
            raise BadInput(f"{what} cannot be {value!r}", expected=", ".join(map(repr, arguments)))
        return value
    if origin is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, Iterable):
            raise _wrong(what, "a list", value)
        return tuple(_convert(arguments[0], part, what) for part in parts)
    return _convert_plain(hint, value, what)


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
        try:
            number = hint(value) if not (hint is int and isinstance(value, float)) else int(value)
        except (TypeError, ValueError):
            raise _wrong(what, "a whole number" if hint is int else "a number", value) from None
        if hint is int and isinstance(value, float) and number != value:
            raise _wrong(what, "a whole number", value)
        return number
    if hint is str:
        return str(value)
    if hint is Path:
        return Path(value)
    return value


def _wrong(what: str, expected: str, got: Any) -> BadInput:
    return BadInput(f"{what} has the wrong type", expected=expected, got=repr(got))
