"""Models of timm with a linear head, as ``timm:NAME``.

timm adapts the head and the number of input channels, also of pretrained weights; a network with a fixed input size is
built for the size of the input. Pretrained weights are read from a safetensors file if there is one, else downloaded by
timm; the model then takes images in [0, 1] and normalizes them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from spurless.core.config import CheckedConfig
from spurless.core.errors import InputError, MissingExtraError, UnknownNameError, first_line
from spurless.models.classifier import Classifier
from spurless.models.weights import check_pretrained, find_pretrained, has_v1_strides
from spurless.models.wrapping import wrap
from spurless.models.zoo.normalize import Normalize
from spurless.models.zoo.shapes import Shape, check_image_shape


@dataclass(frozen=True)
class TimmConfig(CheckedConfig):
    """Initial weights."""

    pretrained: bool = False
    """start from pretrained weights with an untrained head: ``weights/NAME*.safetensors`` in the data folder, else
    timm's, downloaded on first use"""
    weights: str | None = None  # start from the weights in this safetensors file, with an untrained head
    normalise: bool = True  # with pretrained weights: normalize images in [0, 1] as they expect


def timm_model(
    variant: str, input_shape: Shape, n_classes: int, config: TimmConfig, *, load_pretrained: bool = True
) -> Classifier:
    """Build the model called ``variant`` in timm."""
    timm = _import_timm(variant)
    channels, height, width = check_image_shape(input_shape, f"timm:{variant}")
    if not timm.is_model(variant):
        names = timm.list_models()
        near = get_close_matches(variant, names, n=8, cutoff=0.0)
        raise UnknownNameError(f"timm model (of {len(names)}; the closest are listed)", variant, near)
    options: dict[str, Any] = {"num_classes": n_classes, "in_chans": channels}
    defaults = timm.get_pretrained_cfg(variant)
    if defaults is not None and defaults.fixed_input_size:
        options["img_size"] = (height, width)
    file = find_pretrained(variant, config.weights, config.pretrained) if load_pretrained else None
    is_pretrained = config.pretrained or config.weights is not None
    if file is not None:
        options["pretrained_cfg_overlay"] = {"file": str(file)}
    module = _create(variant, file, pretrained=is_pretrained and load_pretrained, **options)
    if file is not None:
        _check_weights(module, file, variant)
    if not isinstance(module.get_classifier(), nn.Linear):
        raise InputError(
            f"timm:{variant} has no single linear head (distilled, or convolutional to the end)",
            expected="nn.Linear",
            got=type(module.get_classifier()).__name__,
            hint="Choose another model.",
        )
    if is_pretrained and config.normalise:
        mean, std = module.pretrained_cfg["mean"], module.pretrained_cfg["std"]
        grey = channels != len(mean)  # timm sums the filters of the colors, so use the mean over colors
        statistics = ((sum(mean) / len(mean),), (sum(std) / len(std),)) if grey else (mean, std)
        module = nn.Sequential(Normalize(*statistics), module)
    return wrap(module, trained=False)


def _create(variant: str, file: Path | None, **options: Any) -> Any:
    try:
        return _import_timm(variant).create_model(variant, **options)
    except (SafetensorError, RuntimeError) as error:
        if file is None and isinstance(error, RuntimeError):
            raise
        raise InputError(
            f"the file does not have the weights of timm:{variant}: {first_line(error)}", where=file
        ) from None
    except OSError as error:
        raise InputError(
            f"the weights of timm:{variant} could not be downloaded: {first_line(error)}",
            hint=f"Put weights/{variant}.safetensors into the data folder ($SPURLESS_DATA), pass a file with weights=, "
            "or leave out pretrained.",
        ) from None


def _check_weights(module: nn.Module, file: Path, variant: str) -> None:
    """Raise for the weights of another model: timm would load what fits and log the rest."""
    head = str(getattr(module, "pretrained_cfg", {}).get("classifier", ""))
    with safe_open(file, "pt") as archive:
        check_pretrained(file, archive.keys(), module.state_dict(), head, f"timm:{variant}")
    if has_v1_strides(file, variant):
        raise InputError(
            f"the weights are for strides of version 1, which timm:{variant} does not have",
            where=file,
            hint=f"Use torchvision:{variant}.",
        )


def _import_timm(variant: str) -> ModuleType:
    try:
        import timm
    except ImportError:
        raise MissingExtraError("timm", "timm", f"The model timm:{variant}") from None
    return timm  # type: ignore[no-any-return]  # untyped where it is installed
