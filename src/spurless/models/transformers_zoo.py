"""The transformers zoo: an encoder of transformers, pooled, under a linear head, as ``transformers:NAME``.

NAME is ``minilm`` (from its Python package), a folder that ``save_pretrained`` wrote, or a name on the hub. Weights
are read from safetensors alone, and code that comes with them is never run.

Deviation:
    * The features are the mean of the last hidden states, or the first of them; BERT's own classifier puts a dense
      layer and a tanh between the first one and its head. ``classifier=True`` has that: the model as
      ``AutoModelForSequenceClassification`` reads it, trained head included.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.pretrained import open_pretrained, transformers_for
from spurless.models.classifier import Classifier
from spurless.models.shapes import Shape
from spurless.models.token_mean import masked_mean
from spurless.models.wrapping import wrap

TOGETHER = 16
"""Texts that go through the encoder together on the CPU."""


@dataclass(frozen=True)
class TransformersConfig:
    """What to start from, and how token states become features."""

    pretrained: bool = True
    """start from the weights of that name; otherwise from random ones of the same architecture"""
    pool: Literal["mean", "cls"] = "mean"
    """features: the mean over the tokens of a text (sentence encoders), or the state of its first token (BERT)"""
    dropout: float = 0.1
    """of the features, in training; inside, the encoder keeps its own"""
    classifier: bool = False
    """the whole classifier that was saved there, with its own head, in the place of an encoder under a fresh one"""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise BadInput("option 'dropout' of transformers must be a share", expected="0 to 1", got=self.dropout)
        if self.classifier and (self.pool, self.dropout) != ("mean", 0.1):
            raise BadInput(
                "pool and dropout are those of an encoder, and a classifier has its own", do="Leave them out."
            )


class Encoder(nn.Module):
    """From token ids to features, one row per text."""

    def __init__(self, encoder: nn.Module, config: TransformersConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(config.dropout)
        self.pool = config.pool
        # RoBERTa has one token type only, and DistilBERT none: the second part of a pair is told by its separator
        known = "token_type_ids" in signature(encoder.forward).parameters
        self.types = known and getattr(encoder.config, "type_vocab_size", 0) > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the features."""
        x = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self.types and token_type_ids is not None:
            x["token_type_ids"] = token_type_ids
        # elsewhere, looking at the mask would wait for the device, and shapes must stay as they are
        pooled = self._by_length(x) if input_ids.device.type == "cpu" else self._pooled(x)
        dropped: Tensor = self.dropout(pooled)
        return dropped

    def _by_length(self, x: dict[str, Tensor]) -> Tensor:
        """Pool texts of about the same length together, without the padding behind them: half the work or less."""
        mask = x["attention_mask"]
        used = (mask * torch.arange(1, mask.shape[1] + 1)).amax(dim=1).clamp(min=1)
        order = used.argsort(stable=True)
        parts = [
            self._pooled({key: value[rows, : int(used[rows].max())] for key, value in x.items()})
            for rows in torch.split(order, TOGETHER)
        ]
        return torch.cat(parts)[order.argsort()]

    def _pooled(self, x: dict[str, Tensor]) -> Tensor:
        states: Tensor = self.encoder(**x).last_hidden_state
        return states[:, 0] if self.pool == "cls" else masked_mean(states, x["attention_mask"])


def transformers_model(variant: str, input_shape: Shape, n_classes: int, config: TransformersConfig) -> Classifier:
    """Build the encoder called ``variant`` under a fresh head."""
    transformers = transformers_for(f"The model transformers:{variant}")
    architecture = open_pretrained(transformers.AutoConfig.from_pretrained, variant, "configuration")
    _check(variant, architecture, input_shape[0])
    if config.classifier:
        return _whole(variant, architecture, n_classes, config.pretrained)
    if config.pretrained:
        load = transformers.AutoModel.from_pretrained
        encoder = open_pretrained(load, variant, "weights", use_safetensors=True)
    else:
        encoder = transformers.AutoModel.from_config(architecture, trust_remote_code=False)
    if getattr(encoder, "pooler", None) is not None:
        encoder.pooler = None  # nobody reads it: its weights would only decay
    return Classifier(Encoder(encoder.float(), config), nn.Linear(architecture.hidden_size, n_classes))


def _whole(variant: str, architecture: Any, n_classes: int, pretrained: bool) -> Classifier:
    """Return a classifier of transformers with its own head."""
    if architecture.num_labels != n_classes:
        raise BadInput(
            f"transformers:{variant} tells {architecture.num_labels} classes apart, and the data have {n_classes}",
            do="Pass the data that it was trained for, or leave classifier out for a fresh head.",
        )
    kind = transformers_for(f"The model transformers:{variant}").AutoModelForSequenceClassification
    if not pretrained:
        return wrap(kind.from_config(architecture, trust_remote_code=False), trained=False)
    module, told = open_pretrained(
        kind.from_pretrained, variant, "weights", use_safetensors=True, output_loading_info=True
    )
    if told["missing_keys"]:
        missing = ", ".join(sorted(told["missing_keys"])[:3])
        raise BadInput(
            f"transformers:{variant} is no trained classifier: its weights lack {missing}",
            do="Leave classifier out, and train a head on it.",
        )
    return wrap(module.float())


def _check(variant: str, architecture: Any, length: int) -> None:
    """Refuse what is no encoder, and texts that are too long for one."""
    if getattr(architecture, "is_encoder_decoder", False) or not hasattr(architecture, "hidden_size"):
        raise BadInput(
            f"transformers:{variant} is no plain encoder",
            do="Choose one such as BERT, RoBERTa or MiniLM, or wrap a module of your own.",
        )
    positions = getattr(architecture, "max_position_embeddings", None)
    if positions is not None and length > positions:
        raise BadInput(
            f"transformers:{variant} takes {positions} tokens at most",
            got=f"texts of {length}",
            do=f"Load the data with max_length={positions}.",
        )
