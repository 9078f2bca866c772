"""Classification models of torchvision, as ``torchvision:NAME``.

The head is adapted to the number of classes, and the auxiliary heads of GoogLeNet and Inception are off. SqueezeNet has
no linear head (it averages a map per class), so it gets pooled features and a linear layer, unless ``conv_head``. Grey
images are repeated to three channels. A vision transformer is built for the size of the input; with pretrained weights
it takes only the size it was trained on. A model with pretrained weights takes images in [0, 1] and normalizes them
itself.

Pretrained weights are read from a safetensors file if there is one, with or without a head, else downloaded by
torchvision. The ResNets with bottlenecks of He et al. (version 1, also Keras's and Caffe's) have the stride of a block
on its first convolution, those of torchvision (version 1.5) on the second one. Weights of one version need its strides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from spurless.core.config import ADDED_LATER, CheckedConfig
from spurless.core.errors import InputError, UnknownNameError, first_line
from spurless.models.classifier import Classifier, find_linear_layers
from spurless.models.weights import BATCH_COUNT_SUFFIX, check_pretrained, find_pretrained, has_v1_strides, load_tensors
from spurless.models.wrapping import wrap
from spurless.models.zoo.normalize import Normalize
from spurless.models.zoo.shapes import Shape, check_image_shape


@dataclass(frozen=True)
class TorchvisionConfig(CheckedConfig):
    """Initial weights."""

    pretrained: bool = False
    """start from pretrained weights with an untrained head: ``weights/NAME*.safetensors`` in the data folder, else
    torchvision's default ImageNet weights, downloaded on first use"""
    weights: str | None = field(default=None, metadata=ADDED_LATER)
    """start from the weights in this safetensors file, with an untrained head"""
    normalise: bool = True  # with pretrained weights: normalize images in [0, 1] as they expect
    strides: Literal["auto", "v1", "v1.5"] = field(default="auto", metadata=ADDED_LATER)
    """of a ResNet with bottlenecks: on the first convolution of a block (v1) or the second one (v1.5); auto: v1 if the
    file of the weights has ``_v1`` in its name or ``v1`` as ``stride`` in its metadata, else v1.5"""
    conv_head: bool = field(default=False, metadata=ADDED_LATER)
    """of SqueezeNet: keep torchvision's head, a convolution and a ReLU, to load its weights"""

    @property
    def starts_pretrained(self) -> bool:
        """Whether the model starts from pretrained weights."""
        return self.pretrained or self.weights is not None


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


def torchvision_model(
    variant: str, input_shape: Shape, n_classes: int, config: TorchvisionConfig, *, load_pretrained: bool = True
) -> Classifier:
    """Build the model called ``variant`` in torchvision."""
    owner = f"torchvision:{variant}"
    channels, height, width = check_image_shape(input_shape, owner)
    if channels not in (1, 3):
        raise InputError(f"{owner} takes images of 1 or 3 channels", got=channels, hint="Use timm:NAME, or small-cnn.")
    names = list_torchvision_models()
    if variant not in names:
        raise UnknownNameError("torchvision model", variant, names)
    file = find_pretrained(variant, config.weights, config.pretrained) if load_pretrained else None
    if config.starts_pretrained and file is None and load_pretrained:
        module = create_pretrained(variant)
    else:
        module = _create_untrained(variant, n_classes, height, width)
    _adapt(module, variant, n_classes, config)
    _load_file(file, module, variant)
    strides = _set_strides(module, variant, config.strides, file)
    before: list[nn.Module] = [ThreeChannels()] if channels == 1 else []
    if config.starts_pretrained and config.normalise:
        preset = _default_weights(variant).transforms()
        before.append(Normalize(preset.mean, preset.std))
    if before:
        module = nn.Sequential(*before, module)
    model = wrap(module, trained=False)
    if model.n_classes != n_classes:
        model.head = nn.Linear(model.n_features, n_classes, bias=model.head.bias is not None)
    if strides is not None and config.starts_pretrained:
        model.options["strides"] = strides  # weights that are trained from here on need the same strides
    return model


def _adapt(module: Any, variant: str, n_classes: int, config: TorchvisionConfig) -> None:
    """Give a module the same layers and settings, whether its weights were downloaded or not."""
    if variant in _EXTRA_OPTIONS:
        module.transform_input = config.starts_pretrained  # as torchvision sets it
    if variant.startswith("squeezenet") and not config.conv_head:
        module.classifier = _make_linear_head(n_classes)


def _load_file(file: Path | None, module: nn.Module, variant: str) -> None:
    """Load the weights of a file, if there is one, into all of the module but its head."""
    if file is None:
        return
    owner = f"torchvision:{variant}"
    if variant in _EXTRA_OPTIONS:
        hint = f"Use torchvision's file: pretrained=True without a file weights/{variant}*.safetensors."
        raise InputError(f"{owner} cannot be loaded from a safetensors file", where=file, hint=hint)
    head = "classifier" if variant.startswith("squeezenet") else list(find_linear_layers(module))[-1]
    state = module.state_dict()
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise InputError(f"the file is not a complete safetensors file: {first_line(error)}", where=file) from None
    counts = {name: value for name, value in state.items() if name.endswith(BATCH_COUNT_SUFFIX)}  # old files have none
    tensors = {**counts, **tensors}
    check_pretrained(file, tensors, state, head, owner)
    given = {name: value for name, value in tensors.items() if not name.startswith(f"{head}.")}
    shapes = [name for name, value in given.items() if value.shape != state[name].shape]
    if shapes:
        raise InputError(
            f"the file does not have the weights of {owner}: {shapes[0]} has another shape",
            where=file,
            expected=tuple(state[shapes[0]].shape),
            got=tuple(given[shapes[0]].shape),
        )
    load_tensors(module, {**state, **given})


def _set_strides(module: nn.Module, variant: str, strides: str, file: Path | None) -> str | None:
    """Set the strides of a ResNet with bottlenecks, and return their version; None for other models."""
    from torchvision.models.resnet import Bottleneck

    blocks = [part for part in module.modules() if isinstance(part, Bottleneck)]
    if not blocks:
        if strides != "auto":
            hint = "Leave strides out."
            what = f"torchvision:{variant} has no bottlenecks, so its strides have one version"
            raise InputError(what, got=strides, hint=hint)
        return None
    if strides == "auto":
        strides = "v1" if file is not None and has_v1_strides(file, variant) else "v1.5"
    if strides == "v1":
        for block in blocks:
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return strides


def _create_untrained(variant: str, n_classes: int, height: int, width: int) -> Any:
    import torchvision

    options: dict[str, Any] = dict(_EXTRA_OPTIONS.get(variant, {}), num_classes=n_classes)
    if variant.startswith("vit_"):
        options["image_size"] = height
    elif variant.startswith("maxvit"):
        options["input_size"] = (height, width)
    return torchvision.models.get_model(variant, weights=None, **options)


def create_pretrained(variant: str) -> Any:
    """Return a model of torchvision, for any task, with its default weights, which are downloaded once."""
    import torchvision

    weights = _default_weights(variant)
    try:
        # The file is a pickle. Reading it here with weights_only ensures that it contains only tensors, before
        # torchvision opens it from the cache without that check.
        weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        module = torchvision.models.get_model(variant, weights=weights)
    except Exception as error:  # a damaged file, or one of another kind, may raise anything
        raise InputError(
            f"the weights of torchvision:{variant} could not be read: {first_line(error)}",
            hint=f"Put {weights.url} into the folder hub/checkpoints of TORCH_HOME, or weights/{variant}.safetensors "
            "into the data folder ($SPURLESS_DATA), or leave out pretrained.",
        ) from None
    if variant == "inception_v3":  # the weights include the auxiliary head; GoogLeNet leaves its own out
        module.aux_logits, module.AuxLogits = False, None
    return module


def _default_weights(variant: str) -> Any:
    import torchvision

    return torchvision.models.get_model_weights(variant).DEFAULT


def _make_linear_head(n_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, n_classes))


# init_weights is set because torchvision warns that its default will change
_EXTRA_OPTIONS: dict[str, dict[str, bool]] = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
