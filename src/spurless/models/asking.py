"""Asking: run a module on inputs, and say in a sentence what it cannot take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature
from typing import TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, SpurlessError, first_line

Input: TypeAlias = "Tensor | dict[str, Tensor]"

DEVICE = ("CUDA", "cuDNN", "memory")
"""Words of errors that are the device's and not the model's; most of them have a class of their own."""


@contextmanager
def asking(model: nn.Module, x: Input) -> Iterator[None]:
    """Say in a sentence that a model cannot take its inputs; what a sentence or the device says stays as it is."""
    try:
        yield
    except (SpurlessError, Warning):  # a warning is an error where the caller says so
        raise
    except Exception as error:  # a user's module may raise anything
        if any(word in str(error) for word in DEVICE):
            raise
        what = f"{getattr(model, 'name', type(model).__name__)} cannot take this input: {first_line(error)}"
        raise BadInput(what, do=mismatch(x, next(model.parameters(), None)) or _unknown_tokens(model, x)) from error


def mismatch(x: Input, weight: Tensor | None) -> str:
    """Say what to do where inputs and weights are numbers of different kinds, which is what torch says least plainly.

    Example:
        >>> import torch
        >>> mismatch(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
        'The input is float32 and the weights are float16: turn the model into float32 first, module.float().'
        >>> mismatch(torch.zeros(2), torch.zeros(2))
        ''
    """
    if weight is None or isinstance(x, dict) or x.dtype == weight.dtype:
        return ""
    given, own = (str(kind).removeprefix("torch.") for kind in (x.dtype, weight.dtype))
    remedy = (
        "turn the model into float32 first, module.float()."
        if x.is_floating_point()
        else "store numbers as float32, and images as uint8."
    )
    return f"The input is {given} and the weights are {own}: {remedy}"


def _unknown_tokens(model: nn.Module, x: Input) -> str:
    """Say what to do where a text has tokens that the model's table of words has not; torch names neither."""
    words = next((part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)), None)
    if words is None or not isinstance(x, dict) or "input_ids" not in x or (top := int(x["input_ids"].max())) < words:
        return ""
    return f"The texts have the token {top} and the model knows {words}: load them with tokenizer= as it was trained."


def own_copy(x: Input) -> Input:
    """Return a copy of inputs, for a module that may write into what it is given."""
    return {name: value.clone() for name, value in x.items()} if isinstance(x, dict) else x.clone()


def same(one: Input, two: Input) -> bool:
    """Return whether two inputs hold the same numbers."""
    if isinstance(one, dict) and isinstance(two, dict):
        return all(same(one[name], two[name]) for name in one)
    return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one.nan_to_num(), two.nan_to_num())


def takes_one(module: nn.Module) -> bool:
    """Return whether a module is called with one input; what takes any may be called with keywords.

    Example:
        >>> takes_one(nn.Flatten()), takes_one(nn.Bilinear(1, 1, 1))
        (True, False)
    """
    asked = [each for each in signature(module.forward).parameters.values() if each.default is Parameter.empty]
    return len(asked) == 1 and asked[0].kind is Parameter.POSITIONAL_OR_KEYWORD
