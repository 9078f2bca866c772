"""Own models: a module that a user's own factory makes, as ``FILE.py:FACTORY`` or ``package.module:FACTORY``.

A factory is a function, or a class, that returns an ``nn.Module`` with a linear head. It is called without arguments,
or with ``n_classes`` and ``input_shape`` where it has parameters of these names. How its code is found and run, and
when it is not, is in :mod:`spurless.core.own_code`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch import nn

from spurless.core.errors import BadInput
from spurless.core.own_code import OwnCode, failed, opened
from spurless.models.classifier import Classifier, Input
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


def own_model(
    name: str, input_shape: Shape, n_classes: int, config: OwnConfig, example: Input | None = None
) -> Classifier:
    """Run a factory and wrap what it makes.

    Raises:
        BadInput: there is no such file, module or name, the code fails, or what it makes is no such classifier.
    """
    with opened(name) as code:
        if config.code not in (None, code.mark):
            raise BadInput("the file has changed since", where=code.name, expected=config.code, got=code.mark)
        module = _made(_factory(code), code.name, {"n_classes": n_classes, "input_shape": input_shape})
    model = _wrapped(module, code.name, config, example)
    if isinstance(model.head, nn.Linear) and model.n_classes != n_classes:
        raise BadInput(
            f"the module tells {model.n_classes} classes apart, and the data have {n_classes}",
            where=code.name,
            do="Give the factory a parameter n_classes, or name the layer that computes the logits: -O head=NAME.",
        )
    model.name, model.options = code.name, {"head": model.head_path, "code": code.mark}
    return model


def _factory(code: OwnCode) -> Callable[..., Any]:
    found = code.wanted("a function that makes a module")
    if isinstance(found, nn.Module) or not callable(found):
        raise BadInput(
            f"{code.name.rpartition(':')[2]!r} is no factory",
            where=code.name,
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
        raise failed(name, "the factory failed", error) from error
    if not isinstance(module, nn.Module):
        raise BadInput("the factory makes no module", where=name, expected="nn.Module", got=type(module).__name__)
    return module


def _wrapped(module: nn.Module, name: str, config: OwnConfig, example: Input | None) -> Classifier:
    try:
        model = wrap(module, config.head, example=example, trained=config.trained)
    except BadInput as error:
        raise BadInput(str(error).removesuffix("."), where=name) from error
    except Exception as error:  # a user's backbone may raise anything
        raise failed(name, "the classifier cannot take these examples", error) from error
    model.trained = config.trained
    return model
