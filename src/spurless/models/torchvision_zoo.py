"""The torchvision zoo: every classification model of torchvision, as ``torchvision:NAME``.

The head is adapted to the classes, and the auxiliary heads of GoogLeNet and Inception are off. SqueezeNet has
no linear head (it averages a map per class), so it is given one: pooled features and a linear layer. An input
of one channel is repeated to three. A vision transformer is built for the size of the input; with pretrained
weights it takes only the size it was trained on. A model with pretrained weights takes images in [0, 1] and
normalises them itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

from torch import Tensor, nn

from spurless.core.errors import BadInput, UnknownName
from spurless.models.classifier import Classifier
from spurless.models.normalising import Normalising
from spurless.models.shapes import Shape, image_shape
from spurless.models.wrapping import wrap


@dataclass(frozen=True)
class TorchvisionConfig:
    """What to start from."""

    pretrained: bool = False
    """start from torchvision's default ImageNet weights, downloaded on first use; the head is fresh"""
    normalise: bool = True
    """where the weights are pretrained: normalise images in [0, 1] as they expect"""


class ThreeChannels(nn.Module):
    """Repeats a grey image to three channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the image three times over, without a copy."""
        return x.expand(-1, 3, -1, -1)


def torchvision_names() -> list[str]:
    """Return the names of all classification models."""
    import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def torchvision_model(variant: str, input_shape: Shape, n_classes: int, config: TorchvisionConfig) -> Classifier:
    """Build the model called ``variant`` in torchvision."""
    owner = f"torchvision:{variant}"
    channels, height, width = image_shape(input_shape, owner)
    if channels not in (1, 3):
        raise BadInput(f"{owner} takes images of 1 or 3 channels", got=channels, do="Use timm:NAME, or small-cnn.")
    names = torchvision_names()
    if variant not in names:
        raise UnknownName("torchvision model", variant, names)
    module = pretrained(variant) if config.pretrained else _fresh(variant, n_classes, height, width)
    if variant.startswith("squeezenet"):
        module.classifier = _linear_ending(n_classes)
    before: list[nn.Module] = [ThreeChannels()] if channels == 1 else []
    if config.pretrained and config.normalise:
        preset = _weights(variant).transforms()
        before.append(Normalising(preset.mean, preset.std))
    if before:
        module = nn.Sequential(*before, module)
    model = wrap(module, trained=False)
    if model.n_classes != n_classes:
        model.head = nn.Linear(model.n_features, n_classes, bias=model.head.bias is not None)
    return model


def _fresh(variant: str, n_classes: int, height: int, width: int) -> Any:
    import torchvision

    options: dict[str, Any] = dict(_QUIRKS.get(variant, {}), num_classes=n_classes)
    if variant.startswith("vit_"):
        options["image_size"] = height
    elif variant.startswith("maxvit"):
        options["input_size"] = (height, width)
    return torchvision.models.get_model(variant, weights=None, **options)


def pretrained(variant: str) -> Any:
    """Return a model of torchvision with its default weights, for any task; read with care, and downloaded once.

    Raises:
        BadInput: there is neither a file in the cache nor a network.
    """
    import torchvision

    weights = _weights(variant)
    try:
        # The file is a pickle. Reading it here with weights_only proves that it holds nothing but
        # tensors, before torchvision opens it from the cache without that care.
        weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, UnpicklingError) as error:
        raise BadInput(
            f"the weights of torchvision:{variant} could not be read: {error}",
            do=f"Put {weights.url} into the folder hub/checkpoints of TORCH_HOME, or leave out pretrained.",
        ) from None
    options = {key: value for key, value in _QUIRKS.get(variant, {}).items() if key == "aux_logits"}
    return torchvision.models.get_model(variant, weights=weights, **options)


def _weights(variant: str) -> Any:
    import torchvision

    return torchvision.models.get_model_weights(variant).DEFAULT


def _linear_ending(n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


# init_weights is named because torchvision warns that its default will change
_QUIRKS: dict[str, dict[str, bool]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
