r"""CAM: heat maps of images by xGradCAM and Grad-CAM, a batch at a time, in one forward pass and a short way back.

With the activations :math:`A_c` of a layer and the gradient :math:`G_c` of the explained logit by them, channel
:math:`c` counts

.. math:: w_c = \frac{\sum_{hw} G_c A_c}{\sum_{hw} A_c + 10^{-7}} \text{ (xGradCAM)}, \quad
    w_c = \operatorname{mean}_{hw} G_c \text{ (Grad-CAM)},

and the map is :math:`\max(0, \sum_c w_c A_c)`, from 0 to 1 in each image, enlarged bilinearly to the size of the
input, and from 0 to 1 again, since enlarging flattens peaks. This is what pytorch-grad-cam computes, which MaskTune's
authors used; a map without any heat, or with the same heat everywhere, is 0.

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

from spurless.core.errors import BadInput
from spurless.explain.probing import probing, total_score, watching
from spurless.explain.target import Grid, Target, check_images, find_target
from spurless.models.asking import asking
from spurless.models.classifier import Classifier

TINY = 1e-7  # pytorch-grad-cam's, where a sum or a range may be 0

Weighing: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From activations and gradients, ``(N, C, h, w)`` each, to the weight of every channel, ``(N, C)``."""


def xgradcam(
    model: Classifier, x: Tensor, target: Tensor | None = None, *, layer: str | Target | None = None
) -> Tensor:
    """Return the xGradCAM of every image.

    Args:
        model: any classifier of images; it is left exactly as it was.
        x: images as the model takes them, ``(N, channels, height, width)``.
        target: the class to explain, one per image; by default the predicted one.
        layer: where to look, by name; found by itself by default. Either way one image is run before the others: for
            many batches call ``find_target`` once and pass what it returns, as ``maps`` does.

    Returns:
        Maps of shape ``(N, height, width)`` in [0, 1], on the device of the model.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
        >>> xgradcam(Classifier(net, nn.Linear(32, 2)), torch.rand(5, 1, 6, 6)).shape
        torch.Size([5, 6, 6])

    Raises:
        BadInput: the input is no image, there is no such layer or class, or no layer keeps a map.
    """
    return _cam(model, x, target, layer, by_share)


def gradcam(model: Classifier, x: Tensor, target: Tensor | None = None, *, layer: str | Target | None = None) -> Tensor:
    """Return the Grad-CAM of every image; arguments as for :func:`xgradcam`."""
    return _cam(model, x, target, layer, by_mean)


def by_share(activations: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels as xGradCAM does: by the mean gradient, each place counting by its share of the activation.

    Example:
        >>> by_share(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([[[[2.0, 6.0]]]]))  # (2 + 18) / 4
        tensor([[5.]])
    """
    return (gradients * activations).sum(dim=(2, 3)) / (activations.sum(dim=(2, 3)) + TINY)


def by_mean(_: Tensor, gradients: Tensor) -> Tensor:
    """Weigh channels as Grad-CAM does: by the mean gradient."""
    return gradients.mean(dim=(2, 3))


def coarse_map(activations: Tensor, gradients: Tensor, weigh: Weighing) -> Tensor:
    """Return the map at the layer's own size, ``(N, h, w)``, not negative and not scaled."""
    weights = weigh(activations, gradients)
    return relu((weights[:, :, None, None] * activations).sum(dim=1))


def unit_range(values: Tensor, tiny: float = TINY) -> Tensor:
    """Shift and scale every example to [0, 1]; one that is the same everywhere becomes 0.

    What has a range near ``tiny`` stays below 1: such a map is noise.

    Example:
        >>> unit_range(torch.tensor([[[2.0, 3.0], [4.0, 6.0]], [[5.0, 5.0], [5.0, 5.0]]])).round(decimals=2).tolist()
        [[[0.0, 0.25], [0.5, 1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    """
    flat = values.flatten(1)
    flat = flat - flat.amin(dim=1, keepdim=True)
    return (flat / (flat.amax(dim=1, keepdim=True) + tiny)).view_as(values)


def enlarged(values: Tensor, size: Grid) -> Tensor:
    """Return maps ``(N, h, w)`` at another size, by bilinear interpolation between the centres of their pixels."""
    return interpolate(values[:, None], size, mode="bilinear", align_corners=False)[:, 0]


def activations_and_gradients(model: Classifier, x: Tensor, target: Tensor | None, at: Target) -> tuple[Tensor, Tensor]:
    """Return the layer's output and the gradient of the explained logits by it, both as ``(N, C, h, w)``, float32.

    The forward pass leaves no graph before the layer, and the way back ends there.
    """
    held: list[Tensor] = []
    runs = count()

    def hold(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if next(runs) != at.run and at.run is not None:
            return None
        leaf = _tensor(output, at).detach().requires_grad_()
        held[:] = [leaf]
        copy = leaf.clone()  # what follows may write into it
        return copy if isinstance(output, Tensor) else type(output)((copy, *output[1:]))

    with probing(model), watching([at.module(model)], hold):
        with asking(model, x):
            logits = model(x.detach())
        score = total_score(model, logits, target)
        if not held or not score.requires_grad:
            raise _unread(model, at)
        (gradient,) = torch.autograd.grad(score, held[0], allow_unused=True)
    if gradient is None:
        raise _unread(model, at)
    image = (int(x.shape[2]), int(x.shape[3]))
    activations = held[0].detach()
    wide = torch.promote_types(activations.dtype, torch.float32)  # halves would overflow in the sums
    return at.as_map(activations, image).to(wide), at.as_map(gradient, image).to(wide)


def _cam(model: Classifier, x: Tensor, target: Tensor | None, layer: str | Target | None, weigh: Weighing) -> Tensor:
    check_images(model, x)
    at = layer if isinstance(layer, Target) else find_target(model, x, layer)
    activations, gradients = activations_and_gradients(model, x, target, at)
    coarse = unit_range(coarse_map(activations, gradients, weigh))
    return unit_range(enlarged(coarse, (int(x.shape[2]), int(x.shape[3]))))


def _tensor(output: Any, at: Target) -> Tensor:
    first = output[0] if type(output) in (tuple, list) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        raise BadInput(f"layer {at.layer!r} returns no map", expected="a tensor", got=type(output).__name__)
    return first


def _unread(model: Classifier, at: Target) -> BadInput:
    return BadInput(
        f"the logits of {model.name} do not depend on layer {at.layer!r}",
        do="Name another layer, or leave layer out.",
    )
