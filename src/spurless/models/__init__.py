"""Table of architectures, and the function that builds them. To add one, write its file and add its row here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from operator import index
from typing import Any

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.config import configure, key_settings
from spurless.core.errors import InputError, SpurlessError, UnknownNameError, first_line
from spurless.core.limits import check_bytes, check_groups
from spurless.core.modules import Input, eval_mode
from spurless.core.seeds import Seeds
from spurless.core.user_code import is_user_code, resolve_user_code_name
from spurless.data.split import Splits
from spurless.models.classifier import Classifier
from spurless.models.features import collect_features, compute_logits
from spurless.models.pruning.compact import CompactModel, compact_model
from spurless.models.user_model import UserModelConfig, build_user_model
from spurless.models.weights import load_weights, save_weights
from spurless.models.wrapping import wrap
from spurless.models.zoo.cnn import (
    PooledCNNConfig,
    ReBiasCNNConfig,
    SmallCNNConfig,
    VGG11Config,
    pooled_cnn,
    rebias_cnn,
    small_cnn,
    vgg11,
)
from spurless.models.zoo.mlp import LinearConfig, MLPConfig, linear, mlp
from spurless.models.zoo.normalize import Normalize, add_normalization
from spurless.models.zoo.resnet_small import SmallResNetConfig, resnet20, resnet32
from spurless.models.zoo.shapes import Shape
from spurless.models.zoo.timm import TimmConfig, timm_model
from spurless.models.zoo.token_mean import TokenMeanConfig, token_mean
from spurless.models.zoo.torchvision import TorchvisionConfig, torchvision_model
from spurless.models.zoo.transformers import TransformersConfig, transformers_model


@dataclass(frozen=True)
class Architecture:
    """A row of the table: name, configuration and builder of a model."""

    name: str
    config: type[Any]
    builder: Callable[..., Classifier]
    """``(input_shape, n_classes, config) -> Classifier``; a family takes the name of the member first, and one with the
    option ``pretrained`` takes ``load_pretrained``"""
    description: str
    takes_text: bool = False  # whether the input is a dict with token ids and attention mask instead of a tensor
    runs_user_code: bool = False  # whether building the model runs the user's code; see :mod:`spurless.core.user_code`

    @property
    def family(self) -> str | None:
        """The prefix of the names if the row is a family of models, else None."""
        prefix, colon, _ = self.name.partition(":")
        return prefix if colon else None


MODELS: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("linear", LinearConfig, linear, "one linear layer on the flattened input"),
        Architecture("mlp", MLPConfig, mlp, "linear layers with activations between them"),
        Architecture("small-cnn", SmallCNNConfig, small_cnn, "four 3x3 convolutions and a hidden layer (MaskTune)"),
        Architecture(
            "pooled-cnn", PooledCNNConfig, pooled_cnn, "three strided convolutions and global average pooling (DCWP)"
        ),
        Architecture(
            "rebias-cnn", ReBiasCNNConfig, rebias_cnn, "four 7x7 convolutions at full resolution (ReBias, EnD)"
        ),
        Architecture("vgg11-small", VGG11Config, vgg11, "VGG11 with one linear layer, no biases, no batch norm"),
        Architecture("resnet20", SmallResNetConfig, resnet20, "ResNet-20 for 32x32 images (He et al. 2016)"),
        Architecture("resnet32", SmallResNetConfig, resnet32, "ResNet-32 for 32x32 images (MaskTune)"),
        Architecture("torchvision:NAME", TorchvisionConfig, torchvision_model, "any torchvision classification model"),
        Architecture("timm:NAME", TimmConfig, timm_model, "any timm model with a linear head (extra: timm)"),
        Architecture(
            "token-mean", TokenMeanConfig, token_mean, "text: mean of word vectors and an MLP", takes_text=True
        ),
        Architecture(
            "transformers:NAME",
            TransformersConfig,
            transformers_model,
            "text: an encoder of transformers, such as transformers:minilm or hf:FOLDER (extra: text)",
            takes_text=True,
        ),
    )
}
FLOAT_BYTES = 4  # of a weight
ALIASES = {"hf": "transformers"}  # other names of families


def build(  # noqa: PLR0913 - public API
    name: str,
    data: Splits | None = None,
    *,
    input_shape: Shape | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    load_pretrained: bool = True,
    mean: Any = None,
    std: Any = None,
    **options: Any,
) -> Classifier:
    """Build an untrained model for data, or for ``input_shape`` and ``n_classes``.

    ``FILE.py:FACTORY`` and ``package.module:FACTORY`` run your own code; see :mod:`spurless.models.user_model`.
    The initial weights depend on ``seed`` only; the global random generator is not changed. If ``load_pretrained`` is
    False, a model with ``pretrained=True`` has random weights: no file is read or downloaded for a model whose weights
    are loaded next. With ``mean`` and ``std``, one number or one per channel, the model first normalizes images in
    [0, 1].

    Example:
        >>> model = build("mlp", input_shape=(1, 28, 28), n_classes=10, depth=2, width=32)
        >>> model.parameters_count  # 784 * 32 + 32 * 10
        25408

    Raises:
        UnknownNameError: no model has that name.
        InputError: an option is unknown, or the model does not accept such inputs.
    """
    check_arguments(build, {"name": name, "input_shape": input_shape, "n_classes": n_classes, "seed": seed})
    if data is not None and not (
        hasattr(data, "train") and hasattr(data, "groups")
    ):  # only its train split and its groups are used
        raise InputError("'data' has the wrong type", expected="three splits, or None", got=type(data).__name__)
    row = _for_text(get_architecture(name), data)
    normalization = _check_normalization(mean, std)
    if normalization and hasattr(row.config(), "normalise"):
        options["normalise"] = False  # that of the published weights is replaced
    config = configure(row.config, options, name)
    shape, classes = _sizes(row, data, input_shape, n_classes)
    example = _example(row, data, shape)
    more: dict[str, Any] = {"example": example} if row.runs_user_code else {}
    if "pretrained" in {field.name for field in fields(row.config)}:
        more["load_pretrained"] = load_pretrained
    try:
        _check_size(row, shape, classes, config)
        with Seeds(seed).seed_global_rng("init"):
            model = row.builder(shape, classes, config, **more)
        with eval_mode(model), torch.no_grad():  # raises now if the model does not accept the input
            model(example)
    except SpurlessError:
        raise
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise InputError(
            f"{name} does not accept inputs of shape {shape}: {first_line(error)}",
            hint="Use the tokenizer of the encoder: tokenizer=, max_length=."
            if row.takes_text
            else "Most torchvision and timm models expect 3x224x224: resize the images, or use small-cnn or resnet20.",
        ) from error
    if normalization:
        _check_takes_images(row, shape)
        add_normalization(model, mean, std, shape[0])
    model.name = row.name
    # what a builder has found out itself, such as the strides that a file of weights needs
    names = {item.name for item in fields(config)}
    known = {key: value for key, value in model.options.items() if row.runs_user_code or key in names}
    sizes = {"input_shape": shape, "n_classes": classes}
    model.options = {**sizes, **normalization, **key_settings(config), **known}
    model.verify(example)
    return model


def _check_normalization(mean: Any, std: Any) -> dict[str, Any]:
    """Return the options of a normalization, or none."""
    if (mean is None) != (std is None):
        raise InputError("the normalization needs a mean and a standard deviation", hint="Pass both mean and std.")
    return {} if mean is None else {"mean": mean, "std": std}


def _check_takes_images(row: Architecture, shape: Shape) -> None:
    if row.takes_text or len(shape) != 3:
        got = "texts" if row.takes_text else f"inputs of shape {shape}"
        raise InputError("mean and std are for images", got=got)


def get_architecture(name: str) -> Architecture:
    """Return the row of a model, of a member of a family such as ``torchvision:NAME``, or of a user's factory.

    The code of a factory is not run.

    Raises:
        UnknownNameError: no model has that name.
    """
    check_arguments(get_architecture, locals())
    prefix, colon, member = name.partition(":")
    prefix = ALIASES.get(prefix, prefix)
    for row in MODELS.values():
        if colon and row.family == prefix and member:
            return replace(row, name=f"{prefix}:{member}", builder=partial(row.builder, member))
    if is_user_code(name):
        full_name, builder = resolve_user_code_name(name), partial(build_user_model, name)
        return Architecture(full_name, UserModelConfig, builder, "your own module", runs_user_code=True)
    if name not in MODELS or colon:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name]


def _for_text(row: Architecture, data: Splits | None) -> Architecture:
    """Return the row of a user's module with ``takes_text`` set by the data."""
    if data is None or not row.runs_user_code:
        return row
    return replace(row, takes_text=isinstance(_first_inputs(data, 1), dict))


def _sizes(
    row: Architecture, data: Splits | None, input_shape: Shape | None, n_classes: int | None
) -> tuple[Shape, int]:
    name = row.name
    if data is not None:
        input_shape = _shape(row, _first_inputs(data, 1)) if input_shape is None else input_shape
        n_classes = len(data.groups.labels) if n_classes is None else n_classes
    if input_shape is None or n_classes is None:
        raise InputError(f"the inputs of {name} are not known", hint="Pass data, or both input_shape= and n_classes=.")
    try:
        shape, n_classes = tuple(index(side) for side in input_shape), index(n_classes)
    except TypeError:
        expected, got = "integers", f"{input_shape!r} and {n_classes!r}"
        raise InputError("the input shape or the number of classes is not valid", expected=expected, got=got) from None
    if not shape or min(shape) < 1:
        raise InputError("the input shape is empty", expected="for example (3, 28, 28)", got=shape)
    if n_classes < 2:
        raise InputError(f"{name} needs at least 2 classes", got=n_classes)
    check_groups([n_classes], "classes")
    check_bytes(FLOAT_BYTES * prod(shape), f"an input of shape {shape}")
    return shape, n_classes


def _check_size(row: Architecture, shape: Shape, n_classes: int, config: Any) -> None:
    """Raise if the weights exceed the limit; they are first created on the meta device, which stores none.

    Members of families have fixed sizes, and user code may do anything.
    """
    if row.family is None and not row.runs_user_code:
        with torch.device("meta"):
            n = row.builder(shape, n_classes, config).parameters_count
        check_bytes(FLOAT_BYTES * n, f"the model {row.name}, with {n:,} weights,")


def _shape(row: Architecture, example: Input) -> Shape:
    """Return the shape of one input; for text, the number of token ids."""
    if not row.takes_text:
        if isinstance(example, dict):
            raise InputError(
                f"{row.name} takes tensors, but the data are text (a dict of tensors)",
                hint="Use token-mean or transformers:NAME, or wrap a transformers model: "
                "wrap(AutoModelForSequenceClassification.from_pretrained(...)).",
            )
        if not row.runs_user_code and not example.is_floating_point():
            raise InputError(
                f"{row.name} takes floating-point inputs, but the inputs are integers",
                got=str(example.dtype).removeprefix("torch."),
                hint="Store features as float32 and images as uint8.",
            )
        return tuple(example.shape[1:])
    if not isinstance(example, dict) or not {"input_ids", "attention_mask"} <= example.keys():
        raise InputError(
            f"{row.name} takes text",
            expected="a dict with input_ids and attention_mask",
            got=", ".join(example) if isinstance(example, dict) else f"a tensor of shape {tuple(example.shape)}",
            hint="Load text with from_texts or --text COLUMN; for images, use small-cnn or torchvision:NAME.",
        )
    return tuple(example["input_ids"].shape[1:])


def _first_inputs(data: Splits, n: int) -> Input:
    """Return inputs of train, or of another split if all data are held out."""
    is_held_out = "held_out" in getattr(data, "options", ())  # a stand-in for Splits may have only train
    return data.example(n) if is_held_out else data.train.example(n)


def _example(row: Architecture, data: Splits | None, shape: Shape) -> Input:
    """Return a test input; for text a real one, because token ids must be in the vocabulary."""
    example = None if data is None else _first_inputs(data, 2)
    if not row.takes_text:
        return torch.zeros(1, *shape, dtype=example.dtype if isinstance(example, Tensor) else None)
    if len(shape) != 1:
        expected = "an input shape such as (128,), the number of tokens"
        raise InputError(f"{row.name} takes text", expected=expected, got=shape)
    if isinstance(example, dict) and tuple(example["input_ids"].shape[1:]) == shape:
        return example
    ids = torch.full((1, *shape), 2)  # 0 or 1 may be padding, which has no position
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


__all__ = [
    "MODELS",
    "Architecture",
    "Classifier",
    "CompactModel",
    "Normalize",
    "build",
    "collect_features",
    "compact_model",
    "compute_logits",
    "get_architecture",
    "load_weights",
    "save_weights",
    "wrap",
]
