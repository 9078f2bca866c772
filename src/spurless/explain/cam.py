r"""Heat maps of images by xGradCAM and Grad-CAM, with one forward and one short backward pass per batch.

With the activations :math:`A_c` of a layer and the gradient :math:`G_c` of the explained logit, channel :math:`c` has
the weight

.. math:: w_c = \frac{\sum_{hw} G_c A_c}{\sum_{hw} A_c + 10^{-7}} \text{ (xGradCAM)}, \quad
    w_c = \operatorname{mean}_{hw} G_c \text{ (Grad-CAM)},

and the map is :math:`\max(0, \sum_c w_c A_c)`, scaled to [0, 1] in each image, resized bilinearly to the size of the
input, and scaled again, because resizing flattens peaks. This is what pytorch-grad-cam computes, which MaskTune's
authors used; a constant map becomes 0.

Fu et al., "Axiom-based Grad-CAM", BMVC 2020, arXiv:2008.02312; Selvaraju et al., "Grad-CAM", ICCV 2017,
arXiv:1610.02391.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, relu

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.explain.gradients import forward_hooks, input_gradient_mode, sum_explained_logits
from spurless.explain.target_layer import Grid, TargetLayer, check_image_batch, find_target_layer
from spurless.models.classifier import Classifier
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import wrap

EPSILON = 1e-7  # of pytorch-grad-cam, against division by 0

WeightFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From activations and gradients, ``(N, C, h, w)`` each, to the weight of every channel, ``(N, C)``."""


def xgradcam(
    model: nn.Module, x: Tensor, target: Tensor | None = None, *, layer: str | TargetLayer | None = None
) -> Tensor:
    """Return the xGradCAM of every image.

    Args:
        model: any classifier of images; it is not changed.
        x: images as the model takes them, ``(N, channels, height, width)``.
        target: the class to explain, one per image; by default the predicted one.
        layer: name of the layer; by default the last feature map. Finding it runs one image first: for many batches,
            call ``find_target_layer`` once and pass the result.

    Returns:
        Maps of shape ``(N, height, width)`` in [0, 1], on the device of the model.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
        >>> xgradcam(Classifier(net, nn.Linear(32, 2)), torch.rand(5, 1, 6, 6)).shape
        torch.Size([5, 6, 6])

    Raises:
        InputError: the input is not a batch of images, the layer or class does not exist, or no layer has a map.
    """
    check_arguments(xgradcam, locals())
    return _cam(model, x, target, layer, xgradcam_weights)


def gradcam(
    model: nn.Module, x: Tensor, target: Tensor | None = None, *, layer: str | TargetLayer | None = None
) -> Tensor:
    """Return the Grad-CAM of every image; arguments as for :func:`xgradcam`."""
    check_arguments(gradcam, locals())
    return _cam(model, x, target, layer, gradcam_weights)


def xgradcam_weights(activations: Tensor, gradients: Tensor) -> Tensor:
    """Return xGradCAM's channel weights: the mean gradient, weighted by the activation.

    Example:
        >>> xgradcam_weights(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[[[2.0, 6.0]]]]))  # (2 + 18) / 4
        tensor([[5.]])
    """
    return (gradients * activations).sum(dim=(2, 3)) / (activations.sum(dim=(2, 3)) + EPSILON)


def gradcam_weights(_: Tensor, gradients: Tensor) -> Tensor:
    """Return Grad-CAM's channel weights: the mean gradient."""
    return gradients.mean(dim=(2, 3))


def compute_coarse_map(activations: Tensor, gradients: Tensor, weigh: WeightFunction) -> Tensor:
    """Return the map at the size of the layer, ``(N, h, w)``, non-negative and not scaled."""
    return relu((weigh(activations, gradients)[:, :, None, None] * activations).sum(dim=1))


def scale_to_unit_range(values: Tensor, epsilon: float = EPSILON) -> Tensor:
    """Shift and scale every example to [0, 1]; a constant one becomes 0.

    A map with a range near ``epsilon`` stays below 1: such a map is noise.

    Example:
        >>> scale_to_unit_range(torch.tensor([[2.0, 3.0, 4.0, 6.0], [5.0, 5.0, 5.0, 5.0]])).round(decimals=2).tolist()
        [[0.0, 0.25, 0.5, 1.0], [0.0, 0.0, 0.0, 0.0]]
    """
    flat = values.flatten(1)
    flat = flat - flat.amin(dim=1, keepdim=True)
    return (flat / (flat.amax(dim=1, keepdim=True) + epsilon)).view_as(values)


def resize_maps(values: Tensor, size: Grid) -> Tensor:
    """Return maps ``(N, h, w)`` at another size, by bilinear interpolation."""
    return interpolate(values[:, None], size, mode="bilinear", align_corners=False)[:, 0]


def activations_and_gradients(
    model: Classifier, x: Tensor, target: Tensor | None, at: TargetLayer
) -> tuple[Tensor, Tensor]:
    """Return the output of a layer and the gradient of the explained logits, both ``(N, C, h, w)``, float32.

    There is no graph before the layer, and the backward pass ends there.
    """
    stored: list[Tensor] = []
    runs = count()

    def store(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if next(runs) != at.run and at.run is not None:
            return None
        leaf = _extract_map(output, at).detach().requires_grad_()
        stored[:] = [leaf]
        copy = leaf.clone()  # later layers may change it in place
        return copy if isinstance(output, Tensor) else type(output)((copy, *output[1:]))

    with input_gradient_mode(model), forward_hooks([at.module(model)], store):
        with readable_forward_errors(model, x):
            logits = model(x.detach())
        score = sum_explained_logits(model, logits, target)
        if not stored or not score.requires_grad:
            raise _unused_layer_error(model, at)
        (gradient,) = torch.autograd.grad(score, stored[0], allow_unused=True)
    if gradient is None:
        raise _unused_layer_error(model, at)
    image = (int(x.shape[2]), int(x.shape[3]))
    activations = stored[0].detach()
    wide = torch.promote_types(activations.dtype, torch.float32)  # float16 would overflow in the sums
    return at.as_map(activations, image).to(wide), at.as_map(gradient, image).to(wide)


def _cam(
    model: nn.Module, x: Tensor, target: Tensor | None, layer: str | TargetLayer | None, weigh: WeightFunction
) -> Tensor:
    model = wrap(model)
    check_image_batch(model, x)
    at = layer if isinstance(layer, TargetLayer) else find_target_layer(model, x, layer)
    activations, gradients = activations_and_gradients(model, x, target, at)
    coarse = scale_to_unit_range(compute_coarse_map(activations, gradients, weigh))
    return scale_to_unit_range(resize_maps(coarse, (int(x.shape[2]), int(x.shape[3]))))


def _extract_map(output: Any, at: TargetLayer) -> Tensor:
    first = output[0] if type(output) in (tuple, list) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise InputError(f"layer {at.layer!r} does not return a map", expected="a tensor", got=type(output).__name__)
    return first


def _unused_layer_error(model: Classifier, at: TargetLayer) -> InputError:
    return InputError(
        f"the logits of {model.name} do not depend on layer {at.layer!r}",
        hint="Name another layer, or leave layer out.",
    )
