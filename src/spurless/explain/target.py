"""Target: the layer where a heat map is taken, and how its output becomes a map of the image.

The rule: of all modules that ran on an example, take the output that was computed last among those that

* have a value per channel at more than one place of the image: ``(N, C, h, w)``, ``(N, h, w, C)``, or tokens
  ``(N, length, C)`` that make a grid once the class token and its like, which come first, are dropped;
* come after the first weights: normalised pixels are no features;
* are not what a pooling layer returned: the map before it is finer, and says the same;
* lie outside attention, whose inner tensors are no maps;
* are read by the features at these places: where a class token alone is read, the last block's output tells
  nothing of the others, and the last map is the input of that block's attention.

That is the ReLU before the last pool in small-cnn (``relu4``) and VGG, the last block of a ResNet (``layer3.4`` in
resnet32, ``layer4.1`` in ResNet-18), the last norm before attention in a vision transformer, and the last norm in
a Swin transformer; for small-cnn, ResNet-32 and ResNet-50 these are the layers of MaskTune's code. An image so
small that the last stage has one pixel left is explained at the stage before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import isqrt, log
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, did_you_mean
from spurless.explain.probing import NoGradient, probing, watching
from spurless.models.asking import asking
from spurless.models.classifier import Classifier, Input

MOST_PREFIX_TOKENS = 8  # a class token, a distillation token, registers

ROUNDING = log(1.4)  # how far the proportions of a small map may be from those of the image: 2x2 of 64x48 is 1.33

Grid = tuple[int, int]
"""Height and width of a map, or of an image."""


class NoMap(BadInput):
    """No layer of a model keeps a map of the image."""


@dataclass(frozen=True)
class Target:
    """A layer by name, the grid of its tokens where they are not a map already, and which of its runs is meant."""

    layer: str
    grid: Grid | None = None
    run: int | None = None
    """From 0, where one layer runs several times, such as a shared ReLU; None is the last."""

    def module(self, model: Classifier) -> nn.Module:
        """Return the layer itself."""
        return model.get_submodule(self.layer)

    def as_map(self, output: Tensor, image: Grid) -> Tensor:
        """Return the layer's output, or a gradient of its shape, as ``(N, C, h, w)``.

        Raises:
            BadInput: it is neither a map nor tokens that make a grid.
        """
        if output.dim() == 4:
            return output.permute(0, 3, 1, 2) if _channels_come_last(output.shape, image) else output
        grid = self.grid or (token_grid(output.shape[1], image) if output.dim() == 3 else None)
        if grid is None:
            raise BadInput(
                f"the output of layer {self.layer!r} is no map of the image",
                expected="(N, C, h, w), or (N, tokens, C)",
                got=tuple(output.shape),
            )
        height, width = grid
        patches = output[:, output.shape[1] - height * width :]
        return patches.transpose(1, 2).reshape(len(output), -1, height, width)


@dataclass(frozen=True)
class Seen:
    """A module's output that could be a map."""

    name: str
    output: Tensor
    version: int
    """How often the tensor had been written to: a ReLU in place returns the tensor of the layer before it."""
    grid: Grid
    run: int
    pooled: bool
    inside: bool
    """Whether it is a part of attention."""
    weights: bool

    @property
    def tokens(self) -> bool:
        """Whether it is a row of tokens rather than a map."""
        return self.output.dim() == 3

    @property
    def value(self) -> tuple[int, int]:
        """Two modules that return the same value share it: a block, the stage it ends, the ReLU it ends with."""
        return id(self.output), self.version


def find_target(model: Classifier, x: Input, layer: str | None = None) -> Target:
    """Find the layer for heat maps by running the first example, or look up the one that is named.

    Args:
        model: any classifier of images.
        x: at least one image, as the model takes it.
        layer: a name as in ``model.named_modules()``; the leading ``backbone.`` may be left out.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        >>> find_target(Classifier(net, nn.Linear(8, 2)), torch.zeros(1, 1, 6, 6)).layer
        'backbone.1'

    Raises:
        NoMap: no layer keeps a map of the image.
        NoGradient: the model lets no gradient through to its input.
        BadInput: there is no layer of that name, or the model cannot take the input.
    """
    image = check_images(model, x)
    with probing(model):
        seen, runs, features = _watch(model, image)
        if layer is None:
            if image.is_floating_point() and not features.requires_grad:
                raise NoGradient(model)
            best = _last_read(model, seen, features)
        else:
            name = named_layer(model, layer, [one.name for one in seen])
            found = next((one for one in reversed(seen) if one.name == name), None)
            if found is None:
                return Target(name)
            best = found
    return Target(best.name, best.grid if best.tokens else None, best.run if runs[best.name] > 1 else None)


def check_images(model: Classifier, x: Input) -> Tensor:
    """Return the images, or say that they are none."""
    if isinstance(x, Tensor) and x.dim() == 4 and len(x):
        return x
    raise BadInput(
        f"a heat map of {model.name} needs images",
        expected="a tensor of shape (N, channels, height, width)",
        got=f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__,
        do="For text, use token_attribution."
        if isinstance(x, dict)
        else 'For rows of features, use "integrated-gradients" or "gradient-x-input".',
    )


def named_layer(model: Classifier, layer: str, maps: list[str] | None = None) -> str:
    """Return the full name of a layer.

    Raises:
        BadInput: there is none of that name.
    """
    names = [name for name, _ in model.named_modules() if name]
    for name in (layer, f"backbone.{layer}"):
        if layer and name in names:
            return name
    known = list(dict.fromkeys(maps or names))
    suggestion = did_you_mean(layer, names) or did_you_mean(f"backbone.{layer}", names)
    raise BadInput(
        f"{model.name} has no layer {layer!r}",
        do=f"{suggestion} {'Layers with a map' if maps else 'Layers'}: {', '.join(known[-8:]) or 'none'}.".strip(),
    )


def token_grid(length: int, image: Grid) -> Grid | None:
    """Return the grid that so many tokens make of an image; the first few may be class tokens and their like.

    Example:
        >>> token_grid(197, (224, 224)), token_grid(16 * 8, (64, 32)), token_grid(200, (224, 224))
        ((14, 14), (16, 8), (14, 14))
        >>> token_grid(35, (224, 224)) is None  # the nearest square is 25, and 10 are too many to drop
        True
    """
    for prefix in range(min(MOST_PREFIX_TOKENS, length - 2) + 1):
        patches = length - prefix
        height = isqrt(patches * image[0] // image[1])
        if height and patches % height == 0 and height * image[1] == patches // height * image[0]:
            return height, patches // height
    return None


def _watch(model: Classifier, x: Tensor) -> tuple[list[Seen], Counter[str], Tensor]:
    """Run two copies of the first example.

    Two, because what has another number of rows is no output for the examples: windows, positions.

    Returns:
        What could be a map, in the order of completion; how often every layer ran; the features.
    """
    names = {module: name for name, module in model.backbone.named_modules(prefix="backbone")}
    inside = _inside_attention(model.backbone)
    image = (int(x.shape[2]), int(x.shape[3]))
    seen: list[Seen] = []
    runs: Counter[str] = Counter()

    def look(module: nn.Module, _: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple | list) and output else output
        weights = next(module.parameters(), None) is not None
        name = names[module]
        runs[name] += 1
        if isinstance(output, Tensor) and len(output) == 2 and (weights or seen):
            last = next((one for one in reversed(seen) if not one.tokens and not one.inside), None)
            grid = _grid(output, image, last)
            if grid is not None:
                pooled = "pool" in type(module).__name__.lower()
                run, version = runs[name] - 1, output._version
                seen.append(Seen(name, output, version, grid, run, pooled, module in inside, weights))

    leaf = torch.cat([x[:1], x[:1]]).clone()
    leaf.requires_grad_(leaf.is_floating_point())
    with watching(names, look), asking(model, leaf):
        features = model.features(leaf.clone())  # a copy: what writes into its input may not write into a leaf
    return seen, runs, features


def _last_read(model: Classifier, seen: list[Seen], features: Tensor) -> Seen:
    pooled = {one.value for one in seen if one.pooled}
    able = [one for one in seen if one.value not in pooled]
    able = [one for one in able if not one.inside] or able
    last = next((one for one in reversed(able) if _is_read(one, features)), None)
    if last is None:
        raise NoMap(
            f"{model.name} keeps no map of the image, so it has no layer for a heat map",
            do='Use "integrated-gradients" or "gradient-x-input", which need none.',
        )
    same = [one for one in seen if one.value == last.value]
    return next((one for one in same if one.weights), same[0])  # a block rather than the ReLU at its end


def _grid(output: Tensor, image: Grid, last: Seen | None) -> Grid | None:
    """Return the grid of a map or of tokens; None for what is neither."""
    if output.dim() == 4:
        height, width = output.shape[1:3] if _channels_come_last(output.shape, image) else output.shape[2:]
        return (height, width) if height * width > 1 else None
    if output.dim() != 3:
        return None
    if last is not None:
        patches = last.grid[0] * last.grid[1]
        if output.shape[1:] == (last.output.shape[1], patches):
            return None  # a flattened map, (N, C, places)
        if 0 <= output.shape[1] - patches <= MOST_PREFIX_TOKENS:
            return last.grid  # the tokens were made of that map
    return token_grid(output.shape[1], image)


def _channels_come_last(shape: torch.Size, image: Grid) -> bool:
    """Return whether ``(N, h, w, C)`` has the image's proportions, and ``(N, C, h, w)`` has them less."""

    def distortion(height: int, width: int) -> float:
        return abs(log(height * image[1]) - log(width * image[0]))

    last, first = distortion(shape[1], shape[2]), distortion(shape[2], shape[3])
    return last < min(first - 1e-9, ROUNDING)


def _is_read(one: Seen, features: Tensor) -> bool:
    """Return whether the features depend on the map, and not on its class token alone."""
    if not features.requires_grad or not one.output.requires_grad:
        return False
    weights = torch.arange(features.numel(), device=features.device).cos().view_as(features)  # no layer norm is blind
    (gradient,) = torch.autograd.grad((features * weights).sum(), one.output, retain_graph=True, allow_unused=True)
    if gradient is None or not one.tokens:
        return gradient is not None
    prefix = gradient.shape[1] - one.grid[0] * one.grid[1]
    return bool(gradient[:, prefix:].any()) or not bool(gradient.any())


def _inside_attention(backbone: nn.Module) -> set[nn.Module]:
    """Return what attention is made of: its tensors have as many dimensions as maps, and other meanings."""
    owners = [m for m in backbone.modules() if m is not backbone and _is_attention(m)]
    return {part for owner in owners for part in owner.modules() if part is not owner}


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "attention" in name or "attn" in name
