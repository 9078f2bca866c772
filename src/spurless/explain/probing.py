"""Probing: run a model for its gradients, and leave it as it was: modes, parameters, hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.models.classifier import Classifier, Input, evaluating

Hook: TypeAlias = Callable[[nn.Module, Any, Any], Any]
"""Called with a module, its inputs and its output; what it returns, unless None, takes the place of the output."""


class NoGradient(BadInput):
    """A model does not let a gradient through to what is to be explained."""

    def __init__(self, model: Classifier) -> None:
        super().__init__(
            f"no gradient of {model.name} reaches its input, so nobody can say where it looks: a part of it runs under "
            "torch.no_grad(), or detaches what it computes",
            do="Freeze that part by requires_grad_(False) instead; a checkpointed one needs use_reentrant=False.",
        )


@contextmanager
def probing(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode with gradients on, but with none for its parameters.

    What lies before the first tensor that asks for a gradient then leaves no graph, and no gradient of a weight is
    ever computed. A caller's ``no_grad`` or ``inference_mode`` is lifted inside the block and is back after it.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluating(model), torch.inference_mode(False), torch.enable_grad():
        try:
            for parameter in trainable:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)


@contextmanager
def watching(modules: Iterable[nn.Module], hook: Hook) -> Iterator[None]:
    """Call ``hook`` after the forward pass of each module; take it off at the end, also after an error."""
    handles: list[Any] = []
    try:
        handles.extend(module.register_forward_hook(hook) for module in modules)
        yield
    finally:
        for handle in handles:
            handle.remove()


def chosen_classes(model: Classifier, logits: Tensor, target: Tensor | None) -> Tensor:
    """Return the class whose logit is explained, one per example: the given one, else the predicted one.

    Raises:
        BadInput: the target is not one whole number per example, or no class has it.
    """
    if target is None:
        return logits.detach().argmax(dim=1)
    n, classes = logits.shape
    if target.shape != (n,) or target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise BadInput(
            "the target must be one class per example",
            expected=f"whole numbers of shape ({n},)",
            got=f"{target.dtype} of shape {tuple(target.shape)}".removeprefix("torch."),
        )
    wrong = target[(target < 0) | (target >= classes)]
    if len(wrong):
        raise BadInput(f"{model.name} has no class {int(wrong[0])}", expected=f"0 to {classes - 1}")
    return target.to(logits.device, torch.long)


def total_score(model: Classifier, logits: Tensor, target: Tensor | None) -> Tensor:
    """Return the sum of the explained logits; its gradient keeps the examples apart, since none reads another."""
    return logits.gather(1, chosen_classes(model, logits, target)[:, None]).sum()


def gradient_by(model: Classifier, score: Tensor, by: Tensor) -> Tensor:
    """Return the gradient of a score by a tensor.

    Raises:
        NoGradient: the one was not computed from the other, as far as torch knows.
    """
    found = slope(score, by)
    if found is None:
        raise NoGradient(model)
    return found


def slope(score: Tensor, by: Tensor) -> Tensor | None:
    """Return the gradient of a score by a tensor; None where there is no way from one to the other."""
    if not score.requires_grad:
        return None
    try:
        return torch.autograd.grad(score, by, allow_unused=True)[0]
    except RuntimeError as error:
        if "use_reentrant" not in str(error):  # such a checkpoint goes back to the parameters alone
            raise
        return None


def reached(model: Classifier, x: Input) -> bool:
    """Return whether a gradient of the logits reaches the input; of one that can have none, such as ids, True."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return True
    with probing(model):
        x = x[:1].detach().clone().requires_grad_()
        logits = model(x.clone())  # what writes into its input may not write into a leaf
        return slope(logits.sum(), x) is not None


def check_reached(model: Classifier, x: Input) -> None:
    """Refuse a model that lets no gradient through.

    Raises:
        NoGradient: none of the logits reaches the input.
    """
    if not reached(model, x):
        raise NoGradient(model)
