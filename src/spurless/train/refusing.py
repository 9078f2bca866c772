"""Refusing: what cannot be trained is said in a sentence; errors that are not of the model or its input stay."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, first_line
from spurless.models.asking import DEVICE, Input


def check_trainable(model: nn.Module) -> None:
    """Refuse a model of which nothing would be trained.

    Raises:
        BadInput: no parameter requires a gradient.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadInput(
            "nothing would be trained: no parameter requires a gradient",
            do="Call requires_grad_(True) on the module, or on the part of it that is to learn.",
        )


def check_reached(loss: Tensor) -> None:
    """Refuse a loss from which no way leads back to a weight.

    Raises:
        BadInput: no parameter that requires a gradient had a part in it.
    """
    if not loss.requires_grad:
        raise BadInput(
            "nothing would be trained: the loss does not depend on a parameter that requires a gradient",
            do="Call requires_grad_(True) on the part that is to learn, and do not run it under torch.no_grad().",
        )


def why_not(error: Exception, model: nn.Module, x: Input, *, first: bool) -> BadInput | None:
    """Return the sentence for an error of a step, or None for one that is to be raised as it is.

    Args:
        error: what the objective raised.
        model: what is trained, in train mode.
        x: the inputs of the batch.
        first: whether it was the first step; a model that has made one can take its inputs.
    """
    if "more than 1 value per channel" in str(error):
        return BadInput(
            "batch normalisation cannot learn from a batch of one example", do="Use a batch size of 2 or more."
        )
    if not first or type(error) is not RuntimeError or any(word in str(error) for word in DEVICE) or _takes(model, x):
        return None
    shape = f"of shape {tuple(x.shape[1:])}" if isinstance(x, Tensor) else f"of {', '.join(x)}"
    return BadInput(
        f"the model {getattr(model, 'name', type(model).__name__)!r} cannot take examples {shape} in training: "
        f"{first_line(error)}",
        do="Give it larger examples, or leave out the part that runs in training only, such as an auxiliary head.",
    )


@torch.no_grad()
def _takes(model: nn.Module, x: Input) -> bool:
    """Return whether the model itself can take inputs, so that what failed is the objective."""
    try:
        model(x)
    except RuntimeError:
        return False
    return True
