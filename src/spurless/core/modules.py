"""The input type of models, and eval mode for any torch module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from torch import Tensor, nn

Input: TypeAlias = Tensor | dict[str, Tensor]
"""A batch of model inputs: a tensor, or the tensors of tokenized text by name."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode, and restore the mode of each of its parts afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
