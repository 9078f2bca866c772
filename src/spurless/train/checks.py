"""Checks of models and losses before and during training, with readable errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, first_line
from spurless.core.modules import Input
from spurless.models.input_errors import DEVICE_ERROR_WORDS


def check_trainable(model: nn.Module) -> None:
    """Raise if the model has no trainable parameter."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            "nothing would be trained: no parameter requires a gradient",
            hint="Call requires_grad_(True) on the module, or on the part to train.",
        )


def check_has_gradient(loss: Tensor) -> None:
    """Raise if the loss has no gradient to any parameter."""
    if not loss.requires_grad:
        raise InputError(
            "nothing would be trained: the loss does not depend on a parameter that requires a gradient",
            hint="Call requires_grad_(True) on the part to train, and do not run it under torch.no_grad().",
        )


def explain_step_error(
    error: Exception, model: nn.Module, x: Input, *, first: bool, hidden: bool = False
) -> InputError | None:
    """Return a readable error for an error of a step; None if it should be raised unchanged.

    After the first step the model is known to accept its inputs. ``hidden``: the attributes of the batch are hidden.
    """
    is_about_negative = any(word in str(error).lower() for word in ("negative", "out of bounds", "out of range", "-1"))
    if first and hidden and is_about_negative and _accepts(model, x):
        return InputError(
            f"the loss failed, and the attributes of its batch are hidden (-1): {first_line(error)}",
            hint="If it reads batch.a, declare it: Info(train_attributes=True), and pass data with attributes.",
        )
    if "more than 1 value per channel" in str(error):
        return InputError(
            "batch normalisation cannot be trained on a batch of one example", hint="Use a batch size of 2 or more."
        )
    is_device_error = any(word in str(error) for word in DEVICE_ERROR_WORDS)
    if not first or type(error) is not RuntimeError or is_device_error or _accepts(model, x):
        return None
    shape = f"of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else f"of {', '.join(x)}"
    return InputError(
        f"the model {getattr(model, 'name', type(model).__name__)!r} does not accept examples {shape} in training: "
        f"{first_line(error)}",
        hint="Use larger examples, or remove the part that only runs in training, such as an auxiliary head.",
    )


@torch.no_grad()
def _accepts(model: nn.Module, x: Input) -> bool:
    """Return whether the model accepts the inputs, so that the error is the objective's."""
    try:
        model(x)
    except RuntimeError:
        return False
    return True
