"""Find the layer for heat maps, and convert its output to a map of the image.

Of all modules that run on an example, the output that was computed last is used, among those that

* have a value per channel at more than one position of the image: ``(N, C, h, w)``, ``(N, h, w, C)``, or tokens
  ``(N, length, C)`` that form a grid without the class token and similar tokens, which come first;
* come after the first weights: normalized pixels are not features;
* are not the output of a pooling layer: the map before it is finer;
* are outside attention, whose inner tensors are not maps;
* influence the features at these positions: if only a class token is used, the other outputs of the last block have no
  effect, and the last map is the input of the attention of that block.

That is the ReLU before the last pool in small-cnn (``relu4``) and VGG, the last block of a ResNet (``layer3.4`` in
resnet32, ``layer4.1`` in ResNet-18), the last norm before attention in a vision transformer, and the last norm in
a Swin transformer; for small-cnn, ResNet-32 and ResNet-50 these are the layers of MaskTune's code. If the last
stage has a single pixel, the stage before it is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isqrt, log
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, did_you_mean
from spurless.core.modules import Input
from spurless.explain.gradients import NoGradientError, forward_hooks, input_gradient_mode
from spurless.models.classifier import Classifier
from spurless.models.input_errors import readable_forward_errors
from spurless.models.wrapping import wrap

MAX_PREFIX_TOKENS = 8  # a class token, a distillation token, registers

MAX_DISTORTION = log(1.4)  # of the aspect ratio of a small map: 2x2 for 64x48 pixels is 1.33

Grid = tuple[int, int]  # height and width of a map, or of an image


class NoFeatureMapError(InputError):
    """No layer of a model has a feature map of the image."""


@dataclass(frozen=True)
class TargetLayer:
    """Name of a layer, the grid of its tokens if it returns tokens, and the index of its call."""

    layer: str
    grid: Grid | None = None
    run: int | None = None  # from 0, if the layer runs several times, such as a shared ReLU; None is the last

    def module(self, model: Classifier) -> nn.Module:
        """Return the layer."""
        return model.get_submodule(self.layer)

    def as_map(self, output: Tensor, image: Grid) -> Tensor:
        """Return the layer's output, or a gradient of its shape, as ``(N, C, h, w)``."""
        if output.dim() == 4:
            return output.permute(0, 3, 1, 2) if _channels_come_last(output.shape, image) else output
        grid = self.grid or (infer_token_grid(output.shape[1], image) if output.dim() == 3 else None)
        if grid is None:
            raise InputError(
                f"the output of layer {self.layer!r} is not a map of the image",
                expected="(N, C, h, w), or (N, tokens, C)",
                got=tuple(output.shape),
            )
        height, width = grid
        patches = output[:, output.shape[1] - height * width :]
        return patches.transpose(1, 2).reshape(len(output), -1, height, width)


@dataclass(frozen=True)
class Candidate:
    """Output of a module that could be a map."""

    name: str
    output: Tensor
    version: int  # version of the tensor: an in-place ReLU returns the tensor of the layer before it
    grid: Grid
    run: int
    pooled: bool
    inside: bool  # whether the module is part of attention
    weights: bool

    @property
    def tokens(self) -> bool:
        """Whether the output is a sequence of tokens instead of a map."""
        return self.output.dim() == 3

    @property
    def value(self) -> tuple[int, int]:
        """Identity of the value: a block, its stage and its last ReLU may return the same tensor."""
        return id(self.output), self.version


def find_target_layer(model: nn.Module, x: Input, layer: str | None = None) -> TargetLayer:
    """Find the layer for heat maps by running the first example, or return the given one.

    Args:
        model: any classifier of images; a plain module is wrapped.
        x: at least one image, as the model takes it.
        layer: a name as in ``model.named_modules()``; the prefix ``backbone.`` may be left out.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        >>> find_target_layer(Classifier(net, nn.Linear(8, 2)), torch.zeros(1, 1, 6, 6)).layer
        'backbone.1'

    Raises:
        NoFeatureMapError: no layer has a map of the image.
        NoGradientError: the model has no gradient with respect to its input.
        InputError: the layer does not exist, or the model does not accept the input.
    """
    check_arguments(find_target_layer, locals())
    model = wrap(model)
    image = check_image_batch(model, x)
    with input_gradient_mode(model):
        candidates, runs, features = _find_candidates(model, image)
        if layer is None:
            if image.is_floating_point() and not features.requires_grad:
                raise NoGradientError(model)
            best = _find_last_used(model, candidates, features)
        else:
            name = resolve_layer_name(model, layer, [one.name for one in candidates])
            last = next((one for one in reversed(candidates) if one.name == name), None)
            if last is None:
                return TargetLayer(name)
            best = last
    return TargetLayer(best.name, best.grid if best.tokens else None, best.run if runs[best.name] > 1 else None)


def check_image_batch(model: Classifier, x: Input) -> Tensor:
    """Return the images; raise if the input is not a batch of images."""
    if isinstance(x, Tensor) and x.dim() == 4 and len(x):
        return x
    raise InputError(
        f"a heat map of {model.name} needs images",
        expected="a tensor of shape (N, channels, height, width)",
        got=f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
        hint="For text, use attribute_tokens."
        if isinstance(x, dict)
        else 'For rows of features, use "integrated-gradients" or "gradient-x-input".',
    )


def resolve_layer_name(model: Classifier, layer: str, maps: list[str] | None = None) -> str:
    """Return the full name of a layer."""
    names = [name for name, _ in model.named_modules() if name]
    for name in (layer, f"backbone.{layer}"):
        if layer and name in names:
            return name
    known = list(dict.fromkeys(maps or names))
    suggestion = did_you_mean(layer, names) or did_you_mean(f"backbone.{layer}", names)
    raise InputError(
        f"{model.name} has no layer {layer!r}",
        hint=f"{suggestion} {'Layers with a map' if maps else 'Layers'}: {', '.join(known[-8:]) or 'none'}.".strip(),
    )


def infer_token_grid(length: int, image: Grid) -> Grid | None:
    """Return the grid of a number of tokens; the first few may be class tokens and similar; None without a grid.

    Example:
        >>> infer_token_grid(197, (224, 224)), infer_token_grid(16 * 8, (64, 32)), infer_token_grid(200, (224, 224))
        ((14, 14), (16, 8), (14, 14))
        >>> infer_token_grid(35, (224, 224)) is None  # the nearest square is 25, and 10 are too many to drop
        True
    """
    for prefix in range(min(MAX_PREFIX_TOKENS, length - 2) + 1):
        patches = length - prefix
        height = isqrt(patches * image[0] // image[1])
        if height and patches % height == 0 and height * image[1] == patches // height * image[0]:
            return height, patches // height
    return None


def _find_candidates(model: Classifier, x: Tensor) -> tuple[list[Candidate], Counter[str], Tensor]:
    """Run two copies of the first example; return possible maps in order, the calls of each layer, and the features.

    Outputs without two rows, such as windows and position embeddings, do not belong to the examples.
    """
    names = {module: name for name, module in model.backbone.named_modules(prefix="backbone")}
    inside = _find_attention_parts(model.backbone)
    image = (int(x.shape[2]), int(x.shape[3]))
    candidates: list[Candidate] = []
    runs: Counter[str] = Counter()

    def record(module: nn.Module, _: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple | list) and output else output
        weights = next(module.parameters(), None) is not None
        name = names[module]
        runs[name] += 1
        if isinstance(output, Tensor) and len(output) == 2 and (weights or candidates):
            last = next((one for one in reversed(candidates) if not one.tokens and not one.inside), None)
            grid = _grid(output, image, last)
            if grid is not None:
                pooled = "pool" in type(module).__name__.lower()
                run, version = runs[name] - 1, output._version
                candidates.append(Candidate(name, output, version, grid, run, pooled, module in inside, weights))

    leaf = torch.cat([x[:1], x[:1]]).clone()
    leaf.requires_grad_(leaf.is_floating_point())
    with forward_hooks(names, record), readable_forward_errors(model, leaf):
        features = model.features(leaf.clone())  # a clone, because a leaf must not be changed in place
    return candidates, runs, features


def _find_last_used(model: Classifier, candidates: list[Candidate], features: Tensor) -> Candidate:
    pooled = {one.value for one in candidates if one.pooled}
    usable = [one for one in candidates if one.value not in pooled]
    usable = [one for one in usable if not one.inside] or usable
    last = next((one for one in reversed(usable) if _is_used(one, features)), None)
    if last is None:
        raise NoFeatureMapError(
            f"{model.name} has no feature map of the image, so it has no layer for a heat map",
            hint='Use "integrated-gradients" or "gradient-x-input", which need no layer.',
        )
    equal = [one for one in candidates if one.value == last.value]
    return next((one for one in equal if one.weights), equal[0])  # a block instead of its last ReLU


def _grid(output: Tensor, image: Grid, last: Candidate | None) -> Grid | None:
    """Return the grid of a map or of tokens; None for other outputs."""
    if output.dim() == 4:
        height, width = output.shape[1:3] if _channels_come_last(output.shape, image) else output.shape[2:]
        return (height, width) if height * width > 1 else None
    if output.dim() != 3:
        return None
    if last is not None:
        patches = last.grid[0] * last.grid[1]
        if output.shape[1:] == (last.output.shape[1], patches):
            return None  # a flattened map, (N, C, positions)
        if 0 <= output.shape[1] - patches <= MAX_PREFIX_TOKENS:
            return last.grid  # tokens of that map
    return infer_token_grid(output.shape[1], image)


def _channels_come_last(shape: torch.Size, image: Grid) -> bool:
    """Return whether ``(N, h, w, C)`` fits the aspect ratio of the image better than ``(N, C, h, w)``."""

    def distortion(height: int, width: int) -> float:
        return abs(log(height * image[1]) - log(width * image[0]))

    last, first = distortion(shape[1], shape[2]), distortion(shape[2], shape[3])
    return last < min(first - 1e-9, MAX_DISTORTION)


def _is_used(one: Candidate, features: Tensor) -> bool:
    """Return whether the features depend on the map, and not only on its class token."""
    if not features.requires_grad or not one.output.requires_grad:
        return False
    # not constant, which a layer norm would ignore
    weights = torch.arange(features.numel(), device=features.device).cos().view_as(features)
    (gradient,) = torch.autograd.grad((features * weights).sum(), one.output, retain_graph=True, allow_unused=True)
    if gradient is None or not one.tokens:
        return gradient is not None
    prefix = gradient.shape[1] - one.grid[0] * one.grid[1]
    return bool(gradient[:, prefix:].any()) or not bool(gradient.any())


def _find_attention_parts(backbone: nn.Module) -> set[nn.Module]:
    """Return the parts of attention, whose tensors have as many dimensions as maps but are not maps."""
    owners = [m for m in backbone.modules() if m is not backbone and _is_attention(m)]
    return {part for owner in owners for part in owner.modules() if part is not owner}


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attention" in name or "attn" in name
