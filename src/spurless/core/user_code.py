"""Load custom code of the user by the name ``FILE.py:NAME`` or ``package.module:NAME``.

Code is only run if the user names it: never because weights, a record or a dataset refer to it, and never from the
network. A file is run with its folder first on ``sys.path``, like a script.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from spurless.core.errors import InputError, did_you_mean, first_line
from spurless.core.files import expand_home, resolve_path
from spurless.core.hashing import content_hash


@dataclass(frozen=True)
class UserCode:
    """A file or a module that was run."""

    name: str  # file or module, and the name in it; see :func:`resolve_user_code_name`
    module: ModuleType
    file_hash: str | None  # hash of the file; None for a module without a file

    def get(self, expected: str, kind: type = Callable) -> Any:  # type: ignore[assignment]
        """Return the named object; ``expected`` describes it in the error, which suggests objects of a kind."""
        called = self.name.rpartition(":")[2]
        value = getattr(self.module, called, None)
        if value is None:
            known = [
                key for key, part in vars(self.module).items() if isinstance(part, kind) and not key.startswith("_")
            ]
            near = did_you_mean(called, known).strip() or f"It has: {', '.join(known[-8:]) or 'none'}."
            raise InputError(f"it does not define {called!r}", where=self.name, expected=expected, hint=near)
        return value


def is_user_code(name: str) -> bool:
    """Return whether a name has the form of custom code, without running it.

    A single word before the colon may be a misspelled family of models, so it only counts if such a module exists.

    Example:
        >>> [is_user_code(name) for name in ("nets/mine.py:make", "mine.nets:Net", "small-cnn", "tochvision:resnet18")]
        [True, True, False, False]
    """
    location, _, called = name.rpartition(":")
    if not called.isidentifier() or location.endswith(".py"):
        return called.isidentifier()
    return _installed(location) if location.isidentifier() else all(part.isidentifier() for part in location.split("."))


def resolve_user_code_name(name: str) -> str:
    """Return the name with an absolute path, so that other processes find the same code; other names unchanged."""
    location, _, called = name.rpartition(":")
    if not is_user_code(name) or not location.endswith(".py") or "://" in location:
        return name
    return f"{resolve_path(expand_home(location))}:{called}"


def user_code_hash(name: str) -> str | None:
    """Return the hash of the file of a resolved name; None if there is no such file."""
    path = Path(name.rpartition(":")[0])
    return content_hash(path.read_bytes()) if path.suffix == ".py" and path.is_file() else None


@contextmanager
def load_user_code(name: str) -> Iterator[UserCode]:
    """Run a file, or import a module, or raise; inside the block it can import files of its folder."""
    name = resolve_user_code_name(name)
    location = name.rpartition(":")[0]
    folder = str(Path(location).parent) if location.endswith(".py") else None
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        module = _load_module(location)
        yield UserCode(name, module, content_hash(Path(module.__file__).read_bytes()) if module.__file__ else None)
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)


def user_code_error(where: object, what: str, error: BaseException) -> InputError:
    """Return the error for custom code that raised an error."""
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    reason = first_line(error) if isinstance(error, Exception) else "it exits Python"
    return InputError(f"{what}: {type(error).__name__}: {reason}{line}", where=where)


def _installed(module: str) -> bool:
    try:
        return module != "__main__" and find_spec(module) is not None  # for a single word, this imports nothing
    except ValueError:  # a module that was created, not imported
        return False


def _load_module(location: str) -> ModuleType:
    if "://" in location:
        hint = "Download the file, read it, and pass its path."
        raise InputError("code is not downloaded", where=location, hint=hint)
    try:
        return _run_file(Path(location)) if location.endswith(".py") else import_module(location)
    except InputError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{location}.".startswith(f"{error.name}."):  # an import inside the module failed
            raise user_code_error(location, "cannot be run", error) from error
        hint = "Install it, set PYTHONPATH, or pass its file: FILE.py:NAME."
        raise InputError(f"unknown module {location!r}", hint=hint) from None
    except (Exception, SystemExit) as error:
        raise user_code_error(location, "cannot be run", error) from error


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError("no such file", where=path, expected="FILE.py:NAME")
    loader = _UncachedLoader(f"spurless_own_{content_hash(str(path))[:12]}", str(path))
    spec = spec_from_file_location(loader.name, path, loader=loader)
    if spec is None:
        raise InputError("the file cannot be run", where=path, expected="a Python file")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses look up their module there
    loader.exec_module(module)
    return module


class _UncachedLoader(SourceFileLoader):
    """Compiles the current content of a file; the bytecode cache would miss a quick edit of the same size."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)
