"""Readable errors for inputs that a module does not accept, and helpers for inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import Parameter, signature

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessError, first_line
from spurless.core.modules import Input

DEVICE_ERROR_WORDS = ("CUDA", "cuDNN", "memory")
"""Words in errors of the device, which are not errors of the model or its input."""


@contextmanager
def readable_forward_errors(model: nn.Module, x: Input) -> Iterator[None]:
    """Convert errors of a forward pass into an InputError; errors of the device and of this package pass."""
    try:
        yield
    except (SpurlessError, Warning):  # a warning is an error if the caller configured it so
        raise
    except Exception as error:  # a user's module may raise anything
        if any(word in str(error) for word in DEVICE_ERROR_WORDS):
            raise
        what = f"{getattr(model, 'name', type(model).__name__)} does not accept this input: {first_line(error)}"
        raise InputError(
            what, hint=describe_dtype_mismatch(x, next(model.parameters(), None)) or _unknown_tokens(model, x)
        ) from error


def describe_dtype_mismatch(x: Input, weight: Tensor | None) -> str:
    """Return a hint if inputs and weights have different dtypes, else an empty string.

    Example:
        >>> import torch
        >>> describe_dtype_mismatch(torch.zeros(2), torch.zeros(2, dtype=torch.float16))
        'The input is float32 and the weights are float16: convert the model with module.float().'
        >>> describe_dtype_mismatch(torch.zeros(2), torch.zeros(2))
        ''
    """
    if weight is None or isinstance(x, dict) or x.dtype == weight.dtype:
        return ""
    input_dtype, weight_dtype = (str(kind).removeprefix("torch.") for kind in (x.dtype, weight.dtype))
    remedy = "store features as float32 and images as uint8."
    if x.is_floating_point():
        remedy = "convert the model with module.float()."
    return f"The input is {input_dtype} and the weights are {weight_dtype}: {remedy}"


def _unknown_tokens(model: nn.Module, x: Input) -> str:
    """Return a hint if a text has token ids outside the embedding, else an empty string."""
    vocabulary = next((part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding)), None)
    if vocabulary is None or not isinstance(x, dict) or "input_ids" not in x:
        return ""
    largest = int(x["input_ids"].max())
    if largest < vocabulary:
        return ""
    return (
        f"The texts have token id {largest}, the model has {vocabulary} tokens: load them with the model's tokenizer=."
    )


def clone_input(x: Input) -> Input:
    """Return a copy of inputs, for a module that may change its input in place."""
    return {name: value.clone() for name, value in x.items()} if isinstance(x, dict) else x.clone()


def inputs_equal(one: Input, two: Input) -> bool:
    """Return whether two inputs have the same values."""
    if isinstance(one, dict) and isinstance(two, dict):
        return all(inputs_equal(one[name], two[name]) for name in one)
    return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one.nan_to_num(), two.nan_to_num())


def takes_single_input(module: nn.Module) -> bool:
    """Return whether the forward of a module has exactly one required positional parameter.

    Example:
        >>> takes_single_input(nn.Flatten()), takes_single_input(nn.Bilinear(1, 1, 1))
        (True, False)
    """
    parameters = signature(module.forward).parameters.values()
    required = [parameter for parameter in parameters if parameter.default is Parameter.empty]
    return len(required) == 1 and required[0].kind is Parameter.POSITIONAL_OR_KEYWORD
