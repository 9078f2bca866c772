"""The table of models: to add one, write its file and add its row here. Nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessError, UnknownName, first_line
from spurless.core.options import configure
from spurless.core.own_code import is_own, settled
from spurless.core.seeds import Seeds
from spurless.models.classifier import Classifier, Input, evaluating
from spurless.models.features import collect, logits_of_features
from spurless.models.mlp import LinearConfig, MLPConfig, linear, mlp
from spurless.models.own import OwnConfig, own_model
from spurless.models.pooled_cnn import PooledCNNConfig, pooled_cnn
from spurless.models.resnet_small import SmallResNetConfig, resnet20, resnet32
from spurless.models.shapes import Shape
from spurless.models.small_cnn import SmallCNNConfig, small_cnn
from spurless.models.timm_zoo import TimmConfig, timm_model
from spurless.models.token_mean import TokenMeanConfig, token_mean
from spurless.models.torchvision_zoo import TorchvisionConfig, torchvision_model
from spurless.models.transformers_zoo import TransformersConfig, transformers_model
from spurless.models.vgg11 import VGG11Config, vgg11
from spurless.models.weights import load_weights, save_weights
from spurless.models.wrapping import wrap


@dataclass(frozen=True)
class Architecture:
    """A row of the table: how a model is called, configured and built."""

    name: str
    config: type[Any]
    builder: Callable[..., Classifier]
    """(input_shape, n_classes, config) -> Classifier; a family takes the member's name first"""
    description: str
    text: bool = False
    """Whether it takes a dict of token ids and their mask rather than a tensor."""
    own: bool = False
    """Whether building it runs code of the user's own; see :mod:`spurless.core.own_code`."""

    @property
    def family(self) -> str | None:
        """The prefix of the names, for a row that stands for many models."""
        prefix, colon, _ = self.name.partition(":")
        return prefix if colon else None


MODELS: dict[str, Architecture] = {
    row.name: row
    for row in (
        Architecture("linear", LinearConfig, linear, "one linear layer on the flattened input"),
        Architecture("mlp", MLPConfig, mlp, "linear layers with an activation between them"),
        Architecture("small-cnn", SmallCNNConfig, small_cnn, "four 3x3 convolutions and a hidden layer (MaskTune)"),
        Architecture(
            "pooled-cnn", PooledCNNConfig, pooled_cnn, "three strided convolutions and a global average (DCWP)"
        ),
        Architecture("vgg11-small", VGG11Config, vgg11, "VGG11 with one linear layer, no biases, no batch norm"),
        Architecture("resnet20", SmallResNetConfig, resnet20, "ResNet-20 for 32x32 images (He et al. 2016)"),
        Architecture("resnet32", SmallResNetConfig, resnet32, "ResNet-32 for 32x32 images (MaskTune)"),
        Architecture("torchvision:NAME", TorchvisionConfig, torchvision_model, "any torchvision classification model"),
        Architecture("timm:NAME", TimmConfig, timm_model, "any timm model with a linear head (extra: timm)"),
        Architecture("token-mean", TokenMeanConfig, token_mean, "text: word vectors, averaged, and an MLP", text=True),
        Architecture(
            "transformers:NAME",
            TransformersConfig,
            transformers_model,
            "text: an encoder of transformers, such as transformers:minilm or hf:FOLDER (extra: text)",
            text=True,
        ),
    )
}
ALIASES = {"hf": "transformers"}
"""Other words for families."""


class Labelled(Protocol):
    """Anything that names its labels, such as ``Groups``."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The name of every class."""


class Showing(Protocol):
    """Anything that can show an example, such as a split."""

    def example(self, n: int = 2) -> Input:
        """Return the first ``n`` inputs as the model would get them."""


class Data(Protocol):
    """What a model is built for: inputs of some shape, and so many classes."""

    @property
    def train(self) -> Showing:
        """The split that shows an example."""

    @property
    def groups(self) -> Labelled:
        """What names the classes."""


def build(
    name: str,
    data: Data | None = None,
    *,
    input_shape: Shape | None = None,
    n_classes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Classifier:
    """Build an untrained model for data, or for ``input_shape`` and ``n_classes``.

    ``FILE.py:FACTORY`` and ``package.module:FACTORY`` run code of your own; see :mod:`spurless.models.own`.
    The weights come from ``seed`` alone; the global generator is left as it was.

    Example:
        >>> model = build("mlp", input_shape=(1, 28, 28), n_classes=10, depth=2, width=32)
        >>> model.parameters_count  # 784 * 32 + 32 * 10
        25408

    Raises:
        UnknownName: no model has that name.
        BadInput: an option is unknown, or the model cannot take such inputs.
    """
    row = _for_text(architecture_named(name), data)
    config = configure(row.config, options, name)
    shape, classes = _sizes(row, data, input_shape, n_classes)
    example = _example(row, data, shape)
    try:
        with Seeds(seed).borrowed("init"):
            model = row.builder(shape, classes, config, **({"example": example} if row.own else {}))
        with evaluating(model), torch.no_grad():  # a net that cannot take the input says so now
            model(example)
    except SpurlessError:
        raise
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:
        raise BadInput(
            f"{name} cannot take inputs of shape {shape}: {first_line(error)}",
            do="Tokenise the text as the encoder does: tokenizer=, max_length=."
            if row.text
            else "Most nets of a zoo are made for 3x224x224: enlarge the images, or use small-cnn or resnet20.",
        ) from error
    model.name = row.name
    known = model.options if row.own else {}
    model.options = {"input_shape": shape, "n_classes": classes, **asdict(config), **known}
    model.verify(example)
    return model


def architecture_named(name: str) -> Architecture:
    """Return the row of that name; ``torchvision:NAME`` and the other families stand for all their members.

    A factory has a row too, which is made here; none of its code is run for that.
    """
    prefix, colon, member = name.partition(":")
    prefix = ALIASES.get(prefix, prefix)
    for row in MODELS.values():
        if colon and row.family == prefix and member:
            return replace(row, name=f"{prefix}:{member}", builder=partial(row.builder, member))
    if is_own(name):
        return Architecture(settled(name), OwnConfig, partial(own_model, name), "a module of your own", own=True)
    if name not in MODELS or colon:
        raise UnknownName("model", name, MODELS)
    return MODELS[name]


def _for_text(row: Architecture, data: Data | None) -> Architecture:
    """Return the row of a user's own module for the kind of data that it is to take."""
    return replace(row, text=isinstance(data.train.example(1), dict)) if row.own and data is not None else row


def _sizes(row: Architecture, data: Data | None, input_shape: Shape | None, n_classes: int | None) -> tuple[Shape, int]:
    name = row.name
    if data is not None:
        input_shape = _shape(row, data.train.example(1)) if input_shape is None else input_shape
        n_classes = len(data.groups.labels) if n_classes is None else n_classes
    if input_shape is None or n_classes is None:
        raise BadInput(f"{name} needs to know its inputs", do="Pass data, or both input_shape= and n_classes=.")
    shape = tuple(int(side) for side in input_shape)
    if not shape or min(shape) < 1:
        raise BadInput("the input shape is empty", expected="for example (3, 28, 28)", got=shape)
    if n_classes < 2:
        raise BadInput(f"{name} needs at least 2 classes", got=n_classes)
    return shape, n_classes


def _shape(row: Architecture, example: Input) -> Shape:
    """Return the shape of one input; of text, how many token ids it has."""
    if not row.text:
        if isinstance(example, dict):
            raise BadInput(
                f"{row.name} takes tensors, and this data is a dict of them (text)",
                do="Use token-mean or transformers:NAME, or wrap a transformers model: "
                "wrap(AutoModelForSequenceClassification.from_pretrained(...)).",
            )
        if not row.own and not example.is_floating_point():
            raise BadInput(
                f"{row.name} takes fractions, and these inputs are whole numbers",
                got=str(example.dtype).removeprefix("torch."),
                do="Store numbers as float32, and images as uint8.",
            )
        return tuple(example.shape[1:])
    if not isinstance(example, dict) or not {"input_ids", "attention_mask"} <= example.keys():
        raise BadInput(
            f"{row.name} takes text",
            expected="a dict with input_ids and attention_mask",
            got=", ".join(example) if isinstance(example, dict) else f"a tensor of shape {tuple(example.shape)}",
            do="Load text with from_texts, or a CSV with --text COLUMN; for images use small-cnn or torchvision:NAME.",
        )
    return tuple(example["input_ids"].shape[1:])


def _example(row: Architecture, data: Data | None, shape: Shape) -> Input:
    """Return an input to try a model on: of text a real one, since token ids must be in its vocabulary."""
    example = None if data is None else data.train.example(2)
    if not row.text:
        return torch.zeros(1, *shape, dtype=example.dtype if isinstance(example, Tensor) else None)
    if len(shape) != 1:
        raise BadInput(f"{row.name} takes text", expected="an input shape such as (128,), its tokens", got=shape)
    if isinstance(example, dict) and tuple(example["input_ids"].shape[1:]) == shape:
        return example
    return {
        "input_ids": torch.full((1, *shape), 2),  # 0 or 1 may be padding, which has no position
        "attention_mask": torch.ones(1, *shape, dtype=torch.long),
    }


__all__ = [
    "MODELS",
    "Architecture",
    "Classifier",
    "architecture_named",
    "build",
    "collect",
    "load_weights",
    "logits_of_features",
    "save_weights",
    "wrap",
]
