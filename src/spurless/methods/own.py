"""Own methods: a class that a user's own file holds, as ``FILE.py:METHOD`` or ``package.module:METHOD``.

It keeps the contract of :class:`~spurless.methods.base.Method`. How its code is found and run, and when it is not, is
in :mod:`spurless.core.own_code`. A record tells the hash of its file among the settings, and so does the key of a run:
what an earlier state of the file made is not taken for what it makes now.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from spurless.core.errors import BadInput
from spurless.core.own_code import OwnCode, failed, mark_of, opened, settled
from spurless.methods.base import Info, Method

_OPENED: dict[type[Method], tuple[str, str | None]] = {}
"""Where each came from, and the hash of the file as it was then."""


def own_method(name: str, library: Container[str]) -> type[Method]:
    """Return the class of that name; a file that has not changed is not run again.

    Args:
        name: of the form that :func:`~spurless.core.own_code.is_own` knows.
        library: names of methods that are taken.

    Raises:
        BadInput: there is no such file, module or name, the code fails, or the class is no method.
    """
    name = settled(name)
    known = next((kind for kind, origin in _OPENED.items() if origin == (name, mark_of(name))), None)
    if known is not None:
        return known
    with opened(name) as code:
        kind = _checked(code, library)
    _OPENED[kind] = (code.name, code.mark)
    return kind


def settings_of(method: Method) -> dict[str, Any]:
    """Return the settings of a method as records tell them: those of one's own have the hash of the code, too."""
    _, mark = _OPENED.get(type(method), ("", None))
    return asdict(method.config) | ({} if mark is None else {"code": mark})


def _checked(code: OwnCode, library: Container[str]) -> type[Method]:
    """Return the class, if it keeps the contract as far as can be seen from outside."""
    kind, called = code.wanted("a class with info, presets and fit"), code.name.rpartition(":")[2]
    if not isinstance(kind, type):
        raise BadInput(f"{called!r} is no method", where=code.name, expected="a class", got=type(kind).__name__)
    info = getattr(kind, "info", None)
    if not isinstance(info, Info):
        raise BadInput(f"{called!r} has no info", where=code.name, expected="info = Info(NAME, PAPER, SUMMARY)")
    if not re.fullmatch(r"[\w.+-]+", info.name):
        raise BadInput(
            "the name of a method is part of file names",
            where=code.name,
            expected="letters, digits and -",
            got=info.name,
        )
    if info.name in library:
        raise BadInput(
            f"a method of the library is called {info.name!r}",
            where=code.name,
            do="Give yours another name in its info.",
        )
    _check_settings(kind, called, code.name)
    return kind


def _check_settings(kind: Any, called: str, where: str) -> None:
    """Refuse a class that cannot be made with its own settings, or does not fit."""
    presets = getattr(kind, "presets", None)
    if not isinstance(presets, Mapping) or not presets:
        raise BadInput(f"{called!r} has no presets", where=where, expected="presets = {NAME: CONFIG, ...}")
    if not all(is_dataclass(preset) and not isinstance(preset, type) for preset in presets.values()):
        raise BadInput(f"the presets of {called!r} are no settings", where=where, expected="instances of a dataclass")
    if not callable(getattr(kind, "fit", None)):
        raise BadInput(f"{called!r} has no fit", where=where, expected="fit(self, model, data, run)")
    try:
        made = kind(next(iter(presets.values())))
    except (Exception, SystemExit) as error:
        raise failed(where, "the method cannot be made with its first preset", error) from error
    if not is_dataclass(getattr(made, "config", None)):
        raise BadInput(f"{called!r} does not keep its settings", where=where, expected="self.config = config")
