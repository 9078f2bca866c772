"""Gradients of logits with respect to inputs; modes, parameters and hooks of the model are restored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import Classifier

Hook: TypeAlias = Callable[[nn.Module, Any, Any], Any]
"""Called with a module, its inputs and its output; a result other than None replaces the output."""


class NoGradientError(InputError):
    """The logits of a model have no gradient with respect to its input."""

    def __init__(self, model: Classifier) -> None:
        super().__init__(
            f"{model.name} has no gradient with respect to its input, so it cannot be explained: a part of it runs "
            "under torch.no_grad() or detaches its output",
            hint="Freeze that part with requires_grad_(False) instead; checkpointing needs use_reentrant=False.",
        )


@contextmanager
def input_gradient_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode with gradients enabled, but not for its parameters.

    No gradient of a weight is computed, and there is no graph before the first tensor that requires a gradient. A
    caller's ``no_grad`` or ``inference_mode`` is suspended inside the block.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with eval_mode(model), torch.inference_mode(False), torch.enable_grad():
        try:
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)


@contextmanager
def forward_hooks(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Call ``hook`` after the forward pass of each module; remove it at the end, also after an error."""
    handles: list[Any] = []
    try:
        handles.extend(module.register_forward_hook(hook) for module in modules)
        yield
    finally:
        for handle in handles:
            handle.remove()


def select_classes(model: Classifier, logits: Tensor, target: Tensor | None) -> Tensor:
    """Return the class to explain, one per example: the given one, else the predicted one."""
    if target is None:
        return logits.detach().argmax(dim=1)
    n, classes = logits.shape
    if target.shape != (n,) or target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise InputError(
            "the target must be one class per example",
            expected=f"integers of shape ({n},)",
            got=f"{target.dtype} of shape {tuple(target.shape)}".removeprefix("torch."),
        )
    wrong = target[(target < 0) | (target >= classes)]
    if len(wrong):
        raise InputError(f"{model.name} has no class {int(wrong[0])}", expected=f"0 to {classes - 1}")
    return target.to(logits.device, torch.long)


def sum_explained_logits(model: Classifier, logits: Tensor, target: Tensor | None) -> Tensor:
    """Return the sum of the explained logits, whose gradient is that of each example."""
    return logits.gather(1, select_classes(model, logits, target)[:, None]).sum()


def compute_gradient(model: Classifier, score: Tensor, by: Tensor) -> Tensor:
    """Return the gradient of a score with respect to a tensor.

    Raises:
        NoGradientError: the score does not depend on the tensor in the graph.
    """
    gradient = compute_gradient_or_none(score, by)
    if gradient is None:
        raise NoGradientError(model)
    return gradient


def compute_gradient_or_none(score: Tensor, by: Tensor) -> Tensor | None:
    """Return the gradient of a score with respect to a tensor; None if it does not depend on it."""
    if not score.requires_grad:
        return None
    try:
        return torch.autograd.grad(score, by, allow_unused=True)[0]
    except RuntimeError as error:
        if "use_reentrant" not in str(error):  # such a checkpoint has gradients for parameters only
            raise
        return None


def gradient_reaches_input(model: Classifier, x: Input) -> bool:
    """Return whether the logits have a gradient with respect to the input; True for inputs such as token ids."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return True
    with input_gradient_mode(model):
        x = x[:1].detach().clone().requires_grad_()
        logits = model(x.clone())  # a clone, because a leaf must not be changed in place
        return compute_gradient_or_none(logits.sum(), x) is not None


def check_gradient_reaches_input(model: Classifier, x: Input) -> None:
    """Raise NoGradientError if the logits have no gradient with respect to the input."""
    if not gradient_reaches_input(model, x):
        raise NoGradientError(model)
