"""Normalization layer with the mean and standard deviation that weights expect, and where these are found.

Images are always loaded in [0, 1]; only the model knows the normalization of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.models.classifier import Classifier, WholeNetwork


class Normalize(nn.Module):
    """Subtracts a mean and divides by a standard deviation per channel.

    Example:
        >>> Normalize((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        check_arguments(Normalize.__init__, {"mean": mean, "std": std})
        super().__init__()
        # not in the state dict: they are constants, and files of other libraries have no such keys
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised images."""
        return (x - self.mean) / self.std

    def __str__(self) -> str:
        mean, std = (", ".join(f"{value:.3g}" for value in part.flatten().tolist()) for part in (self.mean, self.std))
        return f"mean {mean} and standard deviation {std}"


def add_normalization(model: Classifier, mean: Any, std: Any, channels: int) -> None:
    """Put a normalization before the backbone of a model, in place.

    Example:
        >>> model = Classifier(nn.Flatten(), nn.Linear(4, 2))
        >>> add_normalization(model, "0.5", "0.25", channels=1)
        >>> model.features(torch.ones(1, 1, 2, 2))
        tensor([[2., 2., 2., 2.]])

    Raises:
        InputError: these are not one number or one per channel, or a standard deviation is not positive.
    """
    given = {"mean": parse_numbers("mean", mean), "std": parse_numbers("std", std)}
    for name, values in given.items():
        if len(values) not in (1, channels):
            raise InputError(f"{name} needs one number per channel", expected=channels, got=len(values))
    if min(given["std"]) <= 0:
        raise InputError("the standard deviation must be positive", got=min(given["std"]))
    layer = Normalize(given["mean"], given["std"])
    if isinstance(model.backbone, WholeNetwork):
        model.backbone.module = nn.Sequential(layer, model.backbone.module)
        return
    model.backbone = nn.Sequential(layer, model.backbone)
    if model.head_path is not None:
        model.head_path = f"1.{model.head_path}" if model.head_path else None


def parse_numbers(name: str, values: Any) -> tuple[float, ...]:
    """Return the numbers in a sequence, or in a text such as ``0.5,0.5,0.5``."""
    parts = values.split(",") if isinstance(values, str) else [values] if isinstance(values, int | float) else values
    try:
        numbers = tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or not all(map(isfinite, numbers)):
        raise InputError(f"{name} must be numbers", expected="such as 0.5,0.5,0.5", got=values)
    return numbers


@dataclass(frozen=True)
class Preprocessing:
    """How images were prepared for the training of weights, and where this is known from."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None  # side of the images
    source: str

    def for_channels(self, channels: int) -> Preprocessing:
        """Return the same for another number of channels: the mean over the channels."""
        if len(self.mean) == channels:
            return self
        return replace(self, mean=(sum(self.mean) / len(self.mean),), std=(sum(self.std) / len(self.std),))


def find_preprocessing(name: str, weights: Path) -> Preprocessing | None:
    """Return the preprocessing of weights that were not trained here, or None if it is not known.

    It is read from a ``preprocessor_config.json`` (transformers) or ``config.json`` (timm) next to the weights; else it
    is that of the published weights of ``timm:NAME`` or ``torchvision:NAME``.
    """
    for file in ("preprocessor_config.json", "config.json"):
        config = _read_json(weights.parent / file)
        config = config.get("pretrained_cfg", config)
        mean, std = (config.get(f"image_{key}", config.get(key)) for key in ("mean", "std"))
        if mean is not None and std is not None:
            size = config.get("crop_size") or config.get("size") or config.get("input_size")
            return Preprocessing(parse_numbers("mean", mean), parse_numbers("std", std), _to_side(size), file)
    family, _, variant = name.partition(":")
    with suppress(ImportError, ValueError):  # an unknown name is reported when the model is built
        if family == "timm":
            import timm

            defaults = timm.get_pretrained_cfg(variant)
            if defaults is not None:
                return Preprocessing(defaults.mean, defaults.std, _to_side(defaults.input_size), name)
        if family == "torchvision":
            import torchvision

            preset = torchvision.models.get_model_weights(variant).DEFAULT.transforms()
            return Preprocessing(tuple(preset.mean), tuple(preset.std), _to_side(preset.crop_size), name)
    return None


def published_normalization(model: nn.Module) -> Normalize | None:
    """Return the normalization of the published weights of a network of timm or torchvision; else None.

    Example:
        >>> published_normalization(nn.Linear(2, 2)) is None
        True
    """
    defaults = getattr(model, "pretrained_cfg", None)
    if isinstance(defaults, Mapping) and defaults.get("mean") and defaults.get("std"):
        return Normalize(defaults["mean"], defaults["std"])
    if type(model).__module__.startswith("torchvision.models."):
        return Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # of all its classifiers
    return None


def _to_side(size: Any) -> int | None:
    """Return the side of images; sizes are numbers, shapes with the sides last, or dicts."""
    if isinstance(size, Mapping):
        size = size.get("height", size.get("shortest_edge"))
    if isinstance(size, Sequence) and size:
        size = size[-1]
    return size if isinstance(size, int) and size > 0 else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
