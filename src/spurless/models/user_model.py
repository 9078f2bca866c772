"""Build models from a user's factory, given as ``FILE.py:FACTORY`` or ``package.module:FACTORY``.

A factory is a function or a class that returns an ``nn.Module`` with a linear head. It is called without arguments, or
with ``n_classes`` and ``input_shape`` if it has parameters of these names. :mod:`spurless.core.user_code` describes
when and how its code is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import nn

from spurless.core.config import CheckedConfig
from spurless.core.errors import InputError
from spurless.core.modules import Input
from spurless.core.user_code import UserCode, load_user_code, user_code_error
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.models.zoo.shapes import Shape


@dataclass(frozen=True)
class UserModelConfig(CheckedConfig):
    """Options for the module of a factory."""

    head: str | None = None  # name of the linear layer that computes the logits; by default the one that runs last
    trained: bool = False  # whether its weights are trained, so that they can be audited and repaired
    code: str | None = None  # hash of the file, from a record; a file with another hash is an error


def build_user_model(
    name: str, input_shape: Shape, n_classes: int, config: UserModelConfig, example: Input | None = None
) -> Classifier:
    """Run a factory and wrap its module."""
    with load_user_code(name) as code:
        if config.code not in (None, code.file_hash):
            what = "the file has changed since the record was written"
            raise InputError(what, where=code.name, expected=config.code, got=code.file_hash)
        module = _call_factory(_load_factory(code), code.name, {"n_classes": n_classes, "input_shape": input_shape})
    model = _wrap(module, code.name, config, example)
    if isinstance(model.head, nn.Linear) and model.n_classes != n_classes:
        raise InputError(
            f"the module has {model.n_classes} outputs but the data have {n_classes} classes",
            where=code.name,
            hint="Add a parameter n_classes to the factory, or name the layer that computes the logits: -O head=NAME.",
        )
    model.name, model.options = code.name, {"head": model.head_path, "code": code.file_hash}
    return model


def _load_factory(code: UserCode) -> Callable[..., Any]:
    factory = code.get("a function that makes a module")
    if isinstance(factory, nn.Module) or not callable(factory):
        raise InputError(
            f"{code.name.rpartition(':')[2]!r} is not a factory",
            where=code.name,
            expected="a function or a class that returns a module",
            got="a module" if isinstance(factory, nn.Module) else type(factory).__name__,
        )
    return factory  # type: ignore[no-any-return]  # the user's file decides


def _call_factory(factory: Callable[..., Any], name: str, known: dict[str, Any]) -> nn.Module:
    try:
        parameters = set(signature(factory).parameters)
    except (TypeError, ValueError):  # some functions in C have no signature
        parameters = set()
    try:
        module = factory(**{key: value for key, value in known.items() if key in parameters})
    except (Exception, SystemExit) as error:
        raise user_code_error(name, "the factory failed", error) from error
    if not isinstance(module, nn.Module):
        got = type(module).__name__
        raise InputError("the factory does not return a module", where=name, expected="nn.Module", got=got)
    return module


def _wrap(module: nn.Module, name: str, config: UserModelConfig, example: Input | None) -> Classifier:
    try:
        model = wrap(module, config.head, example=example, trained=config.trained)
    except InputError as error:
        raise InputError(str(error).removesuffix("."), where=name) from error
    except Exception as error:  # a user's backbone may raise anything
        raise user_code_error(name, "the classifier does not accept these examples", error) from error
    model.trained = config.trained
    return model
