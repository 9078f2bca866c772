"""Attribution: how much each input value adds to a logit; integrated gradients and DeepLift by captum.

Both compare with a black image: the attributions of one example add up to the difference between its logit and
that of zeros. The input gradient, and that times the input, need one step back and add up to nothing in particular.

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
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning, UnknownName, first_line
from spurless.explain.cam import unit_range
from spurless.explain.probing import check_reached, chosen_classes, gradient_by, probing, total_score
from spurless.explain.tokens import ids_of, marks, token_attribution
from spurless.models.asking import asking
from spurless.models.classifier import Classifier, Input

STEPS = 50
"""Points on the way from black to the image; captum's default."""
ROWS = 256
"""Rows that go through the model at once, whatever the number of images and steps."""
TINIEST = torch.finfo(torch.float32).tiny  # attributions of many pixels are small, and no noise
ADDS_UP = 0.1
"""How far DeepLift's sums may be from what they should be, as a share, before a warning."""

Rule: TypeAlias = Callable[[Classifier, Tensor, Tensor, int], Tensor]
"""From model, inputs, their classes and the number of steps to attributions of the shape of the inputs."""


def attribute(
    model: Classifier, x: Input, target: Tensor | None = None, *, how: str = "integrated-gradients", steps: int = STEPS
) -> Tensor:
    """Return what each input value adds to the explained logit, with its sign, in the shape of ``x``.

    Args:
        model: any classifier of tensors; it is left exactly as it was.
        x: images, or rows of features, as the model takes them.
        target: the class to explain, one per example; by default the predicted one.
        how: ``"integrated-gradients"``, ``"deeplift"``, ``"input-gradient"`` or ``"gradient-x-input"``.
        steps: of integrated gradients; more for a sharper sum.

    Example:
        >>> from torch import nn
        >>> linear = nn.Linear(2, 2, bias=False)
        >>> _ = linear.weight.data.copy_(torch.tensor([[2.0, -1.0], [0.0, 0.0]]))
        >>> attribute(Classifier(nn.Identity(), linear), torch.tensor([[3.0, 1.0]])).tolist()  # weight times input
        [[6.0, -1.0]]

    Raises:
        UnknownName: no attribution is called ``how``.
        BadInput: the input is no tensor of numbers, captum is missing, or DeepLift cannot go through the model.
        NoGradient: the model lets no gradient through to its input.
    """
    if how not in RULES:
        raise UnknownName("attribution", how, RULES)
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not len(x):
        raise BadInput(
            f"attributions of {model.name} need a tensor of numbers",
            expected="float, one row or image per example",
            got=f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
            do="For text, use token_attribution." if isinstance(x, dict) else "",
        )
    parts = []
    with probing(model):
        for start in range(0, len(x), ROWS):
            rows = x[start : start + ROWS].detach().clone()
            with torch.no_grad(), asking(model, rows):
                logits = model(rows)
            classes = chosen_classes(model, logits, None if target is None else target[start : start + ROWS])
            parts.append(RULES[how](model, rows.requires_grad_(), classes, steps).detach())
    return torch.cat(parts)


def attribution_map(
    model: Classifier, x: Input, target: Tensor | None = None, *, how: str = "integrated-gradients"
) -> Tensor:
    """Return the size of the attributions, summed over channels, from 0 to 1 in each example.

    Images give ``(N, height, width)``; rows of features keep their shape. Texts give ``(N, length)``, with 0 at the
    marks that stand before, between and after the words.
    """
    if isinstance(x, dict):
        ids_of(model, x)  # another dict has no marks
        return unit_range(token_attribution(model, x, target, how=how, special=marks(x)), TINIEST)
    return unit_range(magnitude(attribute(model, x, target, how=how)), TINIEST)


def magnitude(attributions: Tensor) -> Tensor:
    """Return the absolute values, summed over the channels of an image; those of halves in float32.

    Example:
        >>> magnitude(torch.tensor([[[[1.0, -2.0]], [[-3.0, 0.0]]]])).tolist()
        [[[4.0, 2.0]]]
    """
    wide = torch.promote_types(attributions.dtype, torch.float32)  # halves overflow in the sum, and have no TINIEST
    size = attributions.to(wide).abs()
    return size.sum(dim=1) if size.dim() == 4 else size


def _integrated_gradients(model: Classifier, x: Tensor, target: Tensor, steps: int) -> Tensor:
    check_reached(model, x)  # captum would say it less plainly
    method = _captum("Integrated gradients need").IntegratedGradients(model)
    found: Tensor = method.attribute(x, target=target, n_steps=steps, internal_batch_size=ROWS)
    return found


def _deeplift(model: Classifier, x: Tensor, target: Tensor, _: int) -> Tensor:
    check_reached(model, x)
    method = _captum("DeepLift needs").DeepLift(model)
    found: Tensor
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Setting forward, backward hooks")  # they are gone after the call
        try:
            found, missed = method.attribute(x, target=target, return_convergence_delta=True)
        except RuntimeError as error:
            raise BadInput(
                f"DeepLift cannot go through {model.name}: {first_line(error)}",
                do='Give every activation a module of its own, or use "integrated-gradients".',
            ) from error
    total = found.detach().flatten(1).abs().sum()
    if missed.abs().sum() > ADDS_UP * total:
        warnings.warn(
            f"DeepLift's attributions do not add up for {model.name}: it sees activations that are modules, and this "
            'model has others (functional ones, attention). Use "integrated-gradients".',
            SpurlessWarning,
            stacklevel=2,
        )
    return found


def _input_gradient(model: Classifier, x: Tensor, target: Tensor, _: int) -> Tensor:
    # a copy: what writes into its input may not write into a leaf
    return gradient_by(model, total_score(model, model(x.clone()), target), x)


def _gradient_x_input(model: Classifier, x: Tensor, target: Tensor, steps: int) -> Tensor:
    return _input_gradient(model, x, target, steps) * x


RULES: dict[str, Rule] = {
    "integrated-gradients": _integrated_gradients,
    "deeplift": _deeplift,
    "input-gradient": _input_gradient,
    "gradient-x-input": _gradient_x_input,
}


def _captum(who_needs: str) -> ModuleType:
    try:
        import captum.attr
    except ImportError:
        raise BadInput(
            f"{who_needs} the package 'captum'",
            do="Install it with: pip install captum.",
        ) from None
    return captum.attr  # type: ignore[no-any-return]  # untyped where it is installed
