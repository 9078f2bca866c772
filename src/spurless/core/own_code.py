"""Own code: what a user's own file or package holds, by the name ``FILE.py:NAME`` or ``package.module:NAME``.

A file is run with its own folder first among those that imports are looked for in, as a script would be.

This runs code, by the wish of whoever names it. It is never run because a file of weights, a record or a dataset names
it, and never fetched: the file lies on this machine, or the package is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from spurless.core.errors import BadInput, did_you_mean, first_line
from spurless.core.provenance import digest


@dataclass(frozen=True)
class OwnCode:
    """A file or a module that was run."""

    name: str
    """Where it is, and what is wanted of it; see :func:`settled`."""
    module: ModuleType
    mark: str | None
    """Hash of the file; None where there is none."""

    def wanted(self, what: str) -> Any:
        """Return what the name asks for; ``what`` says what that should be, for whoever misspelt it."""
        called = self.name.rpartition(":")[2]
        found = getattr(self.module, called, None)
        if found is None:
            known = [key for key, value in vars(self.module).items() if callable(value) and not key.startswith("_")]
            near = did_you_mean(called, known).strip() or f"It has: {', '.join(known[-8:]) or 'none'}."
            raise BadInput(f"there is no {called!r} in it", where=self.name, expected=what, do=near)
        return found


def is_own(name: str) -> bool:
    """Return whether a name has the form of one's own code; nothing is run for that.

    A bare word before the colon may be a family of models that is spelt wrong, so that a module must have that name.

    Example:
        >>> [is_own(name) for name in ("nets/mine.py:make", "mine.nets:Net", "small-cnn", "tochvision:resnet18")]
        [True, True, False, False]
    """
    place, _, called = name.rpartition(":")
    if not called.isidentifier() or place.endswith(".py"):
        return called.isidentifier()
    return _installed(place) if place.isidentifier() else all(part.isidentifier() for part in place.split("."))


def settled(name: str) -> str:
    """Return a name by which the same code is found from any folder and any process; others stay as they are."""
    place, _, called = name.rpartition(":")
    if not is_own(name) or not place.endswith(".py") or "://" in place:
        return name
    return f"{Path(place).expanduser().resolve()}:{called}"


def mark_of(name: str) -> str | None:
    """Return the hash of the file that a settled name is of; None where there is no such file."""
    path = Path(name.rpartition(":")[0])
    return digest(path.read_bytes()) if path.suffix == ".py" and path.is_file() else None


@contextmanager
def opened(name: str) -> Iterator[OwnCode]:
    """Run a file anew, or import a module; as long as it is open, it may import what lies beside it.

    Raises:
        BadInput: there is no such file or module, or its code fails.
    """
    name = settled(name)
    place = name.rpartition(":")[0]
    folder = str(Path(place).parent) if place.endswith(".py") else None
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        module = _module(place)
        yield OwnCode(name, module, digest(Path(module.__file__).read_bytes()) if module.__file__ else None)
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)


def failed(where: object, what: str, error: BaseException) -> BadInput:
    """Return the error for a user's code that raised one."""
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    reason = first_line(error) if isinstance(error, Exception) else "it leaves Python"
    return BadInput(f"{what}: {type(error).__name__}: {reason}{line}", where=where)


def _installed(module: str) -> bool:
    try:
        return module != "__main__" and find_spec(module) is not None  # of a bare word, which imports nothing
    except ValueError:  # one that was made, and not imported
        return False


def _module(place: str) -> ModuleType:
    """Run a file, or import a module."""
    if "://" in place:
        raise BadInput("code is never fetched", where=place, do="Download it, read it, and name the file.")
    try:
        return _run(Path(place)) if place.endswith(".py") else import_module(place)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):  # a module that theirs asks for
            raise failed(place, "cannot be run", error) from error
        raise BadInput(
            f"no module is called {place!r}", do="Install it, set PYTHONPATH, or name its file: FILE.py:NAME."
        ) from None
    except (Exception, SystemExit) as error:
        raise failed(place, "cannot be run", error) from error


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInput("no such file", where=path, expected="FILE.py:NAME")
    loader = _Anew(f"spurless_own_{digest(str(path))[:12]}", str(path))
    spec = spec_from_file_location(loader.name, path, loader=loader)
    if spec is None:
        raise BadInput("the file cannot be run", where=path, expected="a Python file")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look themselves up
    loader.exec_module(module)
    return module


class _Anew(SourceFileLoader):
    """Compiles what a file holds now: the cache of bytecode knows it by its size and the second of its last change."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
