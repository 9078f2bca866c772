"""The timm zoo: any timm model with a linear head, as ``timm:NAME``.

timm itself adapts the head and the number of input channels, also of pretrained weights; a net that takes one
size only is built for the size of the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from types import ModuleType
from typing import Any

from torch import nn

from spurless.core.errors import BadInput, MissingExtra, UnknownName
from spurless.models.classifier import Classifier
from spurless.models.shapes import Shape, image_shape
from spurless.models.wrapping import wrap


@dataclass(frozen=True)
class TimmConfig:
    """What to start from."""

    pretrained: bool = False
    """start from timm's default weights, downloaded on first use; the head is fresh"""


def timm_model(variant: str, input_shape: Shape, n_classes: int, config: TimmConfig) -> Classifier:
    """Build the model called ``variant`` in timm."""
    timm = _timm(variant)
    channels, height, width = image_shape(input_shape, f"timm:{variant}")
    if not timm.is_model(variant):
        names = timm.list_models()
        near = get_close_matches(variant, names, n=8, cutoff=0.0)
        raise UnknownName(f"timm model (of {len(names)}; the nearest are listed)", variant, near)
    options: dict[str, Any] = {}
    defaults = timm.get_pretrained_cfg(variant)
    if defaults is not None and defaults.fixed_input_size:
        options["img_size"] = (height, width)
    try:
        module = timm.create_model(
            variant, pretrained=config.pretrained, num_classes=n_classes, in_chans=channels, **options
        )
    except OSError as error:
        raise BadInput(
            f"the weights of timm:{variant} could not be fetched: {error}", do="Leave out pretrained, or go online."
        ) from None
    if not isinstance(module.get_classifier(), nn.Linear):
        raise BadInput(
            f"timm:{variant} has no single linear head (distilled, or convolutional to the end)",
            expected="nn.Linear",
            got=type(module.get_classifier()).__name__,
            do="Choose another model.",
        )
    return wrap(module, trained=False)


def _timm(variant: str) -> ModuleType:
    try:
        import timm
    except ImportError:
        raise MissingExtra("timm", "timm", f"The model timm:{variant}") from None
    return timm  # type: ignore[no-any-return]  # untyped where it is installed
