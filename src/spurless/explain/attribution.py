"""Attributions of a logit to the input values: integrated gradients and DeepLift by captum, and input gradients.

The first two use a black image as baseline: the attributions of an example add up to the difference between its logit
and that of zeros. The input gradient, and gradient times input, need one backward pass and have no such sum.

Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017, arXiv:1703.01365; Shrikumar et al.,
"Learning Important Features Through Propagating Activation Differences", ICML 2017, arXiv:1704.02685; Simonyan et
al., "Deep Inside Convolutional Networks", 2013, arXiv:1312.6034.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError, first_line
from spurless.core.modules import Input
from spurless.explain.cam import scale_to_unit_range
from spurless.explain.gradients import (
    check_gradient_reaches_input,
    compute_gradient,
    input_gradient_mode,
    select_classes,
    sum_explained_logits,
)
from spurless.explain.tokens import attribute_tokens, find_special_tokens, get_token_ids
from spurless.models.classifier import Classifier
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import wrap

STEPS = 50  # number of points between the baseline and the image; captum's default
ROWS = 256  # maximum rows per forward pass, for any number of images and steps
EPSILON = torch.finfo(torch.float32).tiny  # attributions of many pixels are small, but not noise
MAX_SUM_ERROR = 0.1  # maximum relative error of DeepLift's sums without a warning

AttributionFunction: TypeAlias = Callable[[Classifier, Tensor, Tensor, int], Tensor]
"""From model, inputs, their classes and the number of steps to attributions of the shape of the inputs."""


def attribute(
    model: nn.Module, x: Input, target: Tensor | None = None, *, how: str = "integrated-gradients", steps: int = STEPS
) -> Tensor:
    """Return the signed attribution of the explained logit to each input value, in the shape of ``x``.

    Args:
        model: any classifier of tensors; it is not changed, and a plain module is wrapped.
        x: images, or rows of features, as the model takes them.
        target: the class to explain, one per example; by default the predicted one.
        how: ``"integrated-gradients"``, ``"deeplift"``, ``"input-gradient"`` or ``"gradient-x-input"``.
        steps: of integrated gradients; more steps give a more exact sum.

    Example:
        >>> from torch import nn
        >>> linear = nn.Linear(2, 2, bias=False)
        >>> _ = linear.weight.data.copy_(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))
        >>> attribute(Classifier(nn.Identity(), linear), torch.tensor([[3.0, 1.0]])).tolist()  # weight times input
        [[6.0, -1.0]]

    Raises:
        UnknownNameError: no attribution is called ``how``.
        InputError: the input is not a float tensor, captum is missing, or DeepLift does not support the model.
        NoGradientError: the model has no gradient with respect to its input.
    """
    check_arguments(attribute, locals())
    if how not in ATTRIBUTIONS:
        raise UnknownNameError("attribution", how, ATTRIBUTIONS)
    model = wrap(model)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not len(x):
        raise InputError(
            f"attributions of {model.name} need a float tensor",
            expected="float, one row or image per example",
            got=f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
            hint="For text, use attribute_tokens." if isinstance(x, dict) else "",
        )
    if target is not None and target.shape != x.shape[:1]:
        raise InputError("'target' needs one class per example", expected=f"({len(x)},)", got=tuple(target.shape))
    parts = []
    with input_gradient_mode(model):
        for start in range(0, len(x), ROWS):
            rows = x[start : start + ROWS].detach().clone()
            with torch.no_grad(), readable_forward_errors(model, rows):
                logits = model(rows)
            classes = select_classes(model, logits, None if target is None else target[start : start + ROWS])
            parts.append(ATTRIBUTIONS[how](model, rows.requires_grad_(), classes, steps).detach())
    return torch.cat(parts)


def compute_attribution_map(
    model: nn.Module, x: Input, target: Tensor | None = None, *, how: str = "integrated-gradients"
) -> Tensor:
    """Return the absolute attributions, summed over channels and scaled to [0, 1] in each example.

    Images give ``(N, height, width)``; rows of features keep their shape. Texts give ``(N, length)``, with 0 at special
    tokens.
    """
    check_arguments(compute_attribution_map, locals())
    model = wrap(model)
    if isinstance(x, dict):
        get_token_ids(model, x)  # raises for other dicts
        return scale_to_unit_range(attribute_tokens(model, x, target, how=how, special=find_special_tokens(x)), EPSILON)
    return scale_to_unit_range(sum_magnitudes(attribute(model, x, target, how=how)), EPSILON)


def sum_magnitudes(attributions: Tensor) -> Tensor:
    """Return the absolute values, summed over the channels of an image; float16 is converted to float32.

    Example:
        >>> sum_magnitudes(torch.tensor([[[[1.0, -2.0]], [[-3.0, 0.0]]]])).tolist()
        [[[4.0, 2.0]]]
    """
    wide = torch.promote_types(attributions.dtype, torch.float32)  # float16 would overflow in the sum
    size = attributions.to(wide).abs()
    return size.sum(dim=1) if size.dim() == 4 else size


def _integrated_gradients(model: Classifier, x: Tensor, target: Tensor, steps: int) -> Tensor:
    check_gradient_reaches_input(model, x)  # captum's error is less readable
    method = _import_captum("Integrated gradients need").IntegratedGradients(model)
    attributions: Tensor = method.attribute(x, target=target, n_steps=steps, internal_batch_size=ROWS)
    return attributions


def _deeplift(model: Classifier, x: Tensor, target: Tensor, _: int) -> Tensor:
    check_gradient_reaches_input(model, x)
    method = _import_captum("DeepLift needs").DeepLift(model)
    attributions: Tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting forward, backward hooks")  # captum removes them after the call
        try:
            attributions, error_of_sum = method.attribute(x, target=target, return_convergence_delta=True)
        except RuntimeError as error:
            raise InputError(
                f"DeepLift does not support {model.name}: {first_line(error)}",
                hint='Use a separate module for every activation, or use "integrated-gradients".',
            ) from error
    total = attributions.detach().flatten(1).abs().sum()
    if error_of_sum.abs().sum() > MAX_SUM_ERROR * total:
        warnings.warn(
            f"DeepLift's attributions do not add up for {model.name}: it supports activations that are modules, but "
            'this model has others (functional ones, attention). Use "integrated-gradients".',
            SpurlessWarning,
            stacklevel=2,
        )
    return attributions


def _input_gradient(model: Classifier, x: Tensor, target: Tensor, _: int) -> Tensor:
    # a clone, because a leaf must not be changed in place
    return compute_gradient(model, sum_explained_logits(model, model(x.clone()), target), x)


def _gradient_x_input(model: Classifier, x: Tensor, target: Tensor, steps: int) -> Tensor:
    return _input_gradient(model, x, target, steps) * x


ATTRIBUTIONS: dict[str, AttributionFunction] = {
    "integrated-gradients": _integrated_gradients,
    "deeplift": _deeplift,
    "input-gradient": _input_gradient,
    "gradient-x-input": _gradient_x_input,
}


def _import_captum(user: str) -> ModuleType:
    try:
        import captum.attr
    except ImportError:
        raise InputError(f"{user} the package 'captum'", hint="Install it with: pip install captum.") from None
    return captum.attr  # type: ignore[no-any-return]  # untyped where it is installed
