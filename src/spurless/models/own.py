"""Own models: a module that a user's own factory makes, as ``FILE.py:FACTORY`` or ``package.module:FACTORY``.

A factory is a function, or a class, that returns an ``nn.Module`` with a linear head. It is called without arguments,
or with ``n_classes`` and ``input_shape`` where it has parameters of these names. Its file is run with its own folder
first among those that imports are looked for in, as a script would be.

This runs code, by the wish of whoever names it. It is never run because a file of weights, a record or a dataset names
it, and never fetched: the file lies on this machine, or the package is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from spurless.core.errors import BadInput, did_you_mean
from spurless.core.provenance import digest
from spurless.models.classifier import Classifier, Input, first_line
from spurless.models.shapes import Shape
from spurless.models.wrapping import wrap


@dataclass(frozen=True)
class OwnConfig:
    """How to take what a factory makes."""

    head: str | None = None
    """name of the linear layer that computes the logits; by default the one that runs last"""
    trained: bool = False
    """whether its weights are worth auditing and repairing as they are"""
    code: str | None = None
    """hash of the file, as a record tells it: another file of that name is refused"""


def is_own(name: str) -> bool:
    """Return whether a name has the form of a factory; nothing is run for that.

    A bare word before the colon may be a family of models that is spelt wrong, so that a module must have that name.

    Example:
        >>> [is_own(name) for name in ("nets/mine.py:make", "mine.nets:Net", "small-cnn", "tochvision:resnet18")]
        [True, True, False, False]
    """
    place, _, factory = name.rpartition(":")
    if not factory.isidentifier() or place.endswith(".py"):
        return factory.isidentifier()
    return _installed(place) if place.isidentifier() else all(part.isidentifier() for part in place.split("."))


def settled(name: str) -> str:
    """Return a name by which the same factory is found from any folder and any process; others stay as they are."""
    place, _, factory = name.rpartition(":")
    if not is_own(name) or not place.endswith(".py") or "://" in place:
        return name
    return f"{Path(place).expanduser().resolve()}:{factory}"


def own_model(
    name: str, input_shape: Shape, n_classes: int, config: OwnConfig, example: Input | None = None
) -> Classifier:
    """Run a factory and wrap what it makes.

    Raises:
        BadInput: there is no such file, module or name, the code fails, or what it makes is no such classifier.
    """
    name = settled(name)
    place, _, called = name.rpartition(":")
    with _importing_from(place):
        code = _opened(place)
        mark = digest(Path(code.__file__).read_bytes()) if code.__file__ else None
        if config.code not in (None, mark):
            raise BadInput("the file has changed since", where=name, expected=config.code, got=mark)
        module = _made(_factory(code, called, name), name, {"n_classes": n_classes, "input_shape": input_shape})
    model = _wrapped(module, name, config, example)
    if isinstance(model.head, nn.Linear) and model.n_classes != n_classes:
        raise BadInput(
            f"the module tells {model.n_classes} classes apart, and the data have {n_classes}",
            where=name,
            do="Give the factory a parameter n_classes, or name the layer that computes the logits: -O head=NAME.",
        )
    model.name, model.options = name, {"head": model.head_path, "code": mark}
    return model


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None  # of a bare word, which imports nothing
    except ValueError:  # the program itself
        return False


@contextmanager
def _importing_from(place: str) -> Iterator[None]:
    """Let a file import what lies beside it."""
    folder = str(Path(place).parent) if place.endswith(".py") else None
    if folder is not None:
        sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder is not None and folder in sys.path:
            sys.path.remove(folder)


def _opened(place: str) -> ModuleType:
    """Run a file, or import a module."""
    if "://" in place:
        raise BadInput("code is never fetched", where=place, do="Download it, read it, and name the file.")
    try:
        return _run(Path(place)) if place.endswith(".py") else import_module(place)
    except BadInput:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):  # a module that theirs asks for
            raise _failed(place, "cannot be run", error) from error
        raise BadInput(
            f"no module is called {place!r}", do="Install it, set PYTHONPATH, or name its file: FILE.py:FACTORY."
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(place, "cannot be run", error) from error


def _run(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadInput("no such file", where=path, expected="FILE.py:FACTORY")
    spec = spec_from_file_location(f"spurless_own_{digest(str(path))[:12]}", path)
    if spec is None or spec.loader is None:
        raise BadInput("the file cannot be run", where=path, expected="a Python file")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module  # where dataclasses look themselves up
    spec.loader.exec_module(module)  # anew each time: the file may have changed
    return module


def _factory(code: ModuleType, called: str, name: str) -> Callable[..., Any]:
    found = getattr(code, called, None)
    if found is None:
        known = [key for key, value in vars(code).items() if callable(value) and not key.startswith("_")]
        near = did_you_mean(called, known).strip() or f"It has: {', '.join(known[-8:]) or 'none'}."
        raise BadInput(f"there is no {called!r} in it", where=name, expected="a function that makes a module", do=near)
    if isinstance(found, nn.Module) or not callable(found):
        raise BadInput(
            f"{called!r} is no factory",
            where=name,
            expected="a function or a class that makes a module",
            got="a module that is made already" if isinstance(found, nn.Module) else type(found).__name__,
        )
    return found  # type: ignore[no-any-return]  # whatever a user's file holds


def _made(factory: Callable[..., Any], name: str, known: dict[str, Any]) -> nn.Module:
    try:
        taken = signature(factory).parameters
    except (TypeError, ValueError):  # some of C do not tell
        taken = {}  # type: ignore[assignment]  # it is only looked into
    try:
        module = factory(**{key: value for key, value in known.items() if key in taken})
    except (Exception, SystemExit) as error:
        raise _failed(name, "the factory failed", error) from error
    if not isinstance(module, nn.Module):
        raise BadInput("the factory makes no module", where=name, expected="nn.Module", got=type(module).__name__)
    return module


def _wrapped(module: nn.Module, name: str, config: OwnConfig, example: Input | None) -> Classifier:
    try:
        model = wrap(module, config.head, example=example, trained=config.trained)
    except BadInput as error:
        raise BadInput(str(error).removesuffix("."), where=name) from error
    except Exception as error:  # a user's backbone may raise anything
        raise _failed(name, "the classifier cannot take these examples", error) from error
    model.trained = config.trained
    return model


def _failed(where: object, what: str, error: BaseException) -> BadInput:
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    reason = first_line(error) if isinstance(error, Exception) else "it leaves Python"
    return BadInput(f"{what}: {type(error).__name__}: {reason}{line}", where=where)
