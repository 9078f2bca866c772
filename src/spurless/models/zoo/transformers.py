"""Encoders of transformers with pooling and a linear head, as ``transformers:NAME``.

NAME is ``minilm`` (from its Python package), a folder written by ``save_pretrained``, or a name on the hub. Only
safetensors files are read, and code that comes with the weights is never run.

Deviation:
    * The features are the mean of the last hidden states, or the first of them; BERT's own classifier puts a dense
      layer and a tanh between the first one and its head. ``classifier=True`` has these: it is the model of
      ``AutoModelForSequenceClassification`` with its trained head.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spurless.core.config import CheckedConfig, FractionBelowOne
from spurless.core.errors import InputError
from spurless.core.hf_files import import_transformers, open_pretrained
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.models.zoo.shapes import Shape
from spurless.models.zoo.token_mean import masked_mean

CPU_BATCH_SIZE = 16  # texts per forward pass of the encoder on the CPU


@dataclass(frozen=True)
class TransformersConfig(CheckedConfig):
    """Initial weights, and pooling of the token states."""

    pretrained: bool = True  # start from the weights of that name; else from random weights of the same architecture
    pool: Literal["mean", "cls"] = "mean"
    """features: the mean over the tokens of a text (sentence encoders), or the state of its first token (BERT)"""
    dropout: FractionBelowOne = 0.1  # dropout of the features in training; the encoder has its own inside
    classifier: bool = False
    """load the complete classifier with its trained head instead of an encoder with an untrained head"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.classifier and (self.pool, self.dropout) != ("mean", 0.1):
            raise InputError(
                "pool and dropout apply to an encoder, not to a complete classifier", hint="Leave them out."
            )


class Encoder(nn.Module):
    """Computes features of token ids, one row per text."""

    def __init__(self, encoder: nn.Module, config: TransformersConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(config.dropout)
        self.pool = config.pool
        # RoBERTa has one token type and DistilBERT none: their pairs are separated by a token only
        takes_types = "token_type_ids" in signature(encoder.forward).parameters
        self.types = takes_types and getattr(encoder.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the features."""
        x = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.types and token_type_ids is not None:
            x["token_type_ids"] = token_type_ids
        # not on accelerators: reading the mask would wait for the device, and shapes must stay the same
        pooled = self._pool_by_length(x) if input_ids.device.type == "cpu" else self._pool(x)
        dropped: Tensor = self.dropout(pooled)
        return dropped

    def _pool_by_length(self, x: dict[str, Tensor]) -> Tensor:
        """Pool texts of similar length together, without their padding: half the work or less."""
        mask = x["attention_mask"]
        lengths = (mask * torch.arange(1, mask.shape[1] + 1)).amax(dim=1).clamp(min=1)
        order = lengths.argsort(stable=True)
        parts = [
            self._pool({key: value[rows, : int(lengths[rows].max())] for key, value in x.items()})
            for rows in torch.split(order, CPU_BATCH_SIZE)
        ]
        return torch.cat(parts)[order.argsort()]

    def _pool(self, x: dict[str, Tensor]) -> Tensor:
        states: Tensor = self.encoder(**x).last_hidden_state
        return states[:, 0] if self.pool == "cls" else masked_mean(states, x["attention_mask"])


def transformers_model(
    variant: str, input_shape: Shape, n_classes: int, config: TransformersConfig, *, load_pretrained: bool = True
) -> Classifier:
    """Build the encoder called ``variant`` with an untrained head."""
    transformers = import_transformers(f"The model transformers:{variant}")
    architecture = open_pretrained(transformers.AutoConfig.from_pretrained, variant, "configuration")
    _check_encoder(variant, architecture, input_shape[0])
    pretrained = config.pretrained and load_pretrained
    if config.classifier:
        return _load_classifier(variant, architecture, n_classes, pretrained)
    if pretrained:
        load = transformers.AutoModel.from_pretrained
        encoder = open_pretrained(load, variant, "weights", use_safetensors=True)
    else:
        encoder = transformers.AutoModel.from_config(architecture, trust_remote_code=False)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # unused: its weights would only decay
    return Classifier(Encoder(encoder.float(), config), nn.Linear(architecture.hidden_size, n_classes))


def _load_classifier(variant: str, architecture: Any, n_classes: int, pretrained: bool) -> Classifier:
    """Return a classifier of transformers with its head."""
    if architecture.num_labels != n_classes:
        raise InputError(
            f"transformers:{variant} has {architecture.num_labels} classes but the data have {n_classes}",
            hint="Pass the data that it was trained for, or leave classifier out for an untrained head.",
        )
    kind = import_transformers(f"The model transformers:{variant}").AutoModelForSequenceClassification
    if not pretrained:
        return wrap(kind.from_config(architecture, trust_remote_code=False).float(), trained=False)
    module, loading_info = open_pretrained(
        kind.from_pretrained, variant, "weights", use_safetensors=True, output_loading_info=True
    )
    if loading_info["missing_keys"]:
        missing = ", ".join(sorted(loading_info["missing_keys"])[:3])
        raise InputError(
            f"transformers:{variant} is not a trained classifier: its weights lack {missing}",
            hint="Leave classifier out, and train a head.",
        )
    return wrap(module.float())


def _check_encoder(variant: str, architecture: Any, length: int) -> None:
    """Raise if the model is not an encoder, or the texts are too long for it."""
    kinds = import_transformers(f"The model transformers:{variant}").MODEL_MAPPING.get(type(architecture), ())
    kind = next(iter(kinds)) if isinstance(kinds, tuple | list) and kinds else kinds
    # models of images may download a backbone that the configuration names
    takes_text = getattr(kind, "main_input_name", None) == "input_ids"
    is_encoder = not getattr(architecture, "is_encoder_decoder", False) and hasattr(architecture, "hidden_size")
    if not takes_text or not is_encoder:
        raise InputError(
            f"transformers:{variant} is not a plain encoder",
            hint="Choose one such as BERT, RoBERTa or MiniLM, or wrap your own module.",
        )
    positions = getattr(architecture, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise InputError(
            f"transformers:{variant} takes at most {positions} tokens",
            got=f"texts of {length}",
            hint=f"Load the data with max_length={positions}.",
        )
