"""Mean of the word vectors of a text, or of both texts of a pair, followed by a small MLP.

The two parts of a pair (token types 0 and 1) are averaged separately; the MLP gets ``u``, ``v``, ``|u - v|`` and
``u * v``. The order of words within a part is ignored. A text without a second part has ``v = 0``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from spurless.core.config import CheckedConfig, Count, Width
from spurless.models.classifier import Classifier
from spurless.models.zoo.shapes import Shape


@dataclass(frozen=True)
class TokenMeanConfig(CheckedConfig):
    """Sizes of the layers."""

    vocabulary: Count = 8192
    """number of word vectors; larger token ids share them (32768 is enough for every word piece of BERT)"""
    width: Width = 32  # size of a word vector
    hidden: Width = 64  # number of features


class TokenMean(nn.Module):
    """Compute features from token ids, one row per text."""

    def __init__(self, config: TokenMeanConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocabulary, config.width)
        self.mlp = nn.Sequential(
            nn.Linear(4 * config.width, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU()
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return the features."""
        vectors = self.words(input_ids % self.words.num_embeddings)
        types = torch.zeros_like(attention_mask) if token_type_ids is None else token_type_ids
        second = (types == 1).to(attention_mask)
        u = masked_mean(vectors, attention_mask * (1 - second))
        v = masked_mean(vectors, attention_mask * second)
        features: Tensor = self.mlp(torch.cat([u, v, (u - v).abs(), u * v], dim=1))
        return features


def token_mean(_: Shape, n_classes: int, config: TokenMeanConfig) -> Classifier:
    """Build the network; texts may have any length."""
    return Classifier(TokenMean(config), nn.Linear(config.hidden, n_classes))


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the states over positions with mask 1; 0 if there are none.

    Example:
        >>> masked_mean(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
        tensor([[3.]])
    """
    weight = mask.to(states.dtype)[:, :, None]
    return (states * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
