"""User-defined methods: a class in the user's code, as ``FILE.py:METHOD`` or ``package.module:METHOD``.

The class follows the contract of :class:`~spurless.methods.base.Method`. How user code is found and run is described in
:mod:`spurless.core.user_code`. The hash of its file is part of the settings in records and of the key of a run, so that
results of an earlier version of the file are not reused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from spurless.core.errors import InputError
from spurless.core.user_code import UserCode, load_user_code, resolve_user_code_name, user_code_error, user_code_hash
from spurless.methods.base import Info, Method

_LOADED: dict[type[Method], tuple[str, str | None]] = {}  # name and file hash of every loaded class


def load_user_method(name: str, library: Container[str]) -> type[Method]:
    """Return the class of that name; a file that has not changed is not run again.

    ``library`` are the names of the library's methods, which must not be reused.
    """
    name = resolve_user_code_name(name)
    known = next((kind for kind, origin in _LOADED.items() if origin == (name, user_code_hash(name))), None)
    if known is not None:
        return known
    with load_user_code(name) as code:
        kind = _check_method(code, library)
    _LOADED[kind] = (code.name, code.file_hash)
    return kind


def config_dict(method: Method) -> dict[str, Any]:
    """Return the settings of a method for records; those of user-defined methods include the hash of the code."""
    _, mark = _LOADED.get(type(method), ("", None))
    return asdict(method.config) | ({} if mark is None else {"code": mark})


def _check_method(code: UserCode, library: Container[str]) -> type[Method]:
    """Return the class if it has ``info``, ``presets``, ``config`` and ``fit``."""
    kind, called = code.get("a class with info, presets and fit"), code.name.rpartition(":")[2]
    if not isinstance(kind, type):
        raise InputError(f"{called!r} is not a method", where=code.name, expected="a class", got=type(kind).__name__)
    info = getattr(kind, "info", None)
    if not isinstance(info, Info):
        raise InputError(f"{called!r} has no info", where=code.name, expected="info = Info(NAME, PAPER, SUMMARY)")
    if not re.fullmatch(r"[\w.+-]+", info.name):
        what = "the name of a method must be usable in file names"
        raise InputError(what, where=code.name, expected="letters, digits and -", got=info.name)
    if info.name in library:
        what = f"the name {info.name!r} is taken by a method of the library"
        raise InputError(what, where=code.name, hint="Change the name in info.")
    _check_settings(kind, called, code.name)
    return kind


def _check_settings(kind: Any, called: str, where: str) -> None:
    """Raise if the class cannot be created with its presets, or has no ``fit``."""
    presets = getattr(kind, "presets", None)
    if not isinstance(presets, Mapping) or not presets:
        raise InputError(f"{called!r} has no presets", where=where, expected="presets = {NAME: CONFIG, ...}")
    if not all(is_dataclass(preset) and not isinstance(preset, type) for preset in presets.values()):
        raise InputError(
            f"the presets of {called!r} are not dataclass instances", where=where, expected="instances of a dataclass"
        )
    if not callable(getattr(kind, "fit", None)):
        raise InputError(f"{called!r} has no fit", where=where, expected="fit(self, model, data, run)")
    try:
        method = kind(next(iter(presets.values())))
    except (Exception, SystemExit) as error:
        raise user_code_error(where, "the method cannot be created with its first preset", error) from error
    if not is_dataclass(getattr(method, "config", None)):
        raise InputError(f"{called!r} does not store its settings", where=where, expected="self.config = config")
