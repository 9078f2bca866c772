"""Classification models of torchvision, as ``torchvision:NAME``.

The head is adapted to the number of classes, and the auxiliary heads of GoogLeNet and Inception are off. SqueezeNet has
no linear head (it averages a map per class), so it gets pooled features and a linear layer, unless ``conv_head``. Grey
images are repeated to three channels. A vision transformer is built for the size of the input; with pretrained weights
it takes only the size it was trained on. A model with pretrained weights takes images in [0, 1] and normalizes them
itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any

from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.models.zoo.normalize import Normalize
from spurless.models.zoo.shapes import Shape, check_image_shape


@dataclass(frozen=True)
class TorchvisionConfig:
    """Initial weights."""

    pretrained: bool = False
    """start from torchvision's default ImageNet weights, downloaded on first use, with an untrained head"""
    normalise: bool = True  # with pretrained weights: normalize images in [0, 1] as they expect
    conv_head: bool = False  # of SqueezeNet: keep torchvision's head, a convolution and a ReLU, to load its weights


class ThreeChannels(nn.Module):
    """Repeats a grey image to three channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the image repeated three times, without a copy."""
        return x.expand(-1, 3, -1, -1)


def list_torchvision_models() -> list[str]:
    """Return the names of all classification models."""
    import torchvision

    names: list[str] = torchvision.models.list_models(module=torchvision.models)
    return names


def torchvision_model(variant: str, input_shape: Shape, n_classes: int, config: TorchvisionConfig) -> Classifier:
    """Build the model called ``variant`` in torchvision."""
    owner = f"torchvision:{variant}"
    channels, height, width = check_image_shape(input_shape, owner)
    if channels not in (1, 3):
        raise InputError(f"{owner} takes images of 1 or 3 channels", got=channels, hint="Use timm:NAME, or small-cnn.")
    names = list_torchvision_models()
    if variant not in names:
        raise UnknownNameError("torchvision model", variant, names)
    module = load_pretrained(variant) if config.pretrained else _create_untrained(variant, n_classes, height, width)
    if variant.startswith("squeezenet") and not config.conv_head:
        module.classifier = _make_linear_head(n_classes)
    before: list[nn.Module] = [ThreeChannels()] if channels == 1 else []
    if config.pretrained and config.normalise:
        preset = _default_weights(variant).transforms()
        before.append(Normalize(preset.mean, preset.std))
    if before:
        module = nn.Sequential(*before, module)
    model = wrap(module, trained=False)
    if model.n_classes != n_classes:
        model.head = nn.Linear(model.n_features, n_classes, bias=model.head.bias is not None)
    return model


def _create_untrained(variant: str, n_classes: int, height: int, width: int) -> Any:
    import torchvision

    options: dict[str, Any] = dict(_EXTRA_OPTIONS.get(variant, {}), num_classes=n_classes)
    if variant.startswith("vit_"):
        options["image_size"] = height
    elif variant.startswith("maxvit"):
        options["input_size"] = (height, width)
    return torchvision.models.get_model(variant, weights=None, **options)


def load_pretrained(variant: str) -> Any:
    """Return a model of torchvision, for any task, with its default weights, which are downloaded once."""
    import torchvision

    weights = _default_weights(variant)
    try:
        # The file is a pickle. Reading it here with weights_only ensures that it contains only tensors, before
        # torchvision opens it from the cache without that check.
        weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, UnpicklingError) as error:
        raise InputError(
            f"the weights of torchvision:{variant} could not be read: {error}",
            hint=f"Put {weights.url} into the folder hub/checkpoints of TORCH_HOME, or leave out pretrained.",
        ) from None
    options = {key: value for key, value in _EXTRA_OPTIONS.get(variant, {}).items() if key == "aux_logits"}
    return torchvision.models.get_model(variant, weights=weights, **options)


def _default_weights(variant: str) -> Any:
    import torchvision

    return torchvision.models.get_model_weights(variant).DEFAULT


def _make_linear_head(n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


# init_weights is set because torchvision warns that its default will change
_EXTRA_OPTIONS: dict[str, dict[str, bool]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
