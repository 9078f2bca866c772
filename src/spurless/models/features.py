"""Features: what the head reads, for every example, in one pass over the data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.models.classifier import Classifier, Input, evaluating


class HasInput(Protocol):
    """Anything with inputs, such as a batch."""

    @property
    def x(self) -> Input:
        """The inputs, as the model takes them."""


def collect(model: Classifier, batches: Iterable[HasInput], device: torch.device | str | None = None) -> Tensor:
    """Return the features of every example, in order: eval mode, no gradient, float32 on the CPU.

    Args:
        model: where the features come from; every part of it is left in the mode it was in.
        batches: anything with ``.x``.
        device: where the inputs go; by default to the weights of the model.

    Raises:
        BadInput: there are no batches, or the features are not one row per example.
    """
    place = _device(model) if device is None else torch.device(device)
    rows = []
    with evaluating(model), torch.no_grad():
        for batch in batches:
            features = model.features(_moved(batch.x, place))
            if features.dim() != 2:
                raise BadInput(
                    f"the features of {model.name} have the wrong shape", expected="(N, d)", got=tuple(features.shape)
                )
            rows.append(features.float().cpu())
    if not rows:
        raise BadInput("there are no batches to take features of", do="Pass a split with at least one example.")
    return torch.cat(rows)


def logits_of_features(model: Classifier, features: Tensor) -> Tensor:
    """Return the logits of collected features, float32 on the CPU."""
    anchor = next(model.head.parameters(), features)
    with evaluating(model), torch.no_grad():
        logits: Tensor = model.head(features.to(anchor.device, anchor.dtype))
    return logits.float().cpu()


def _device(model: Classifier) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _moved(x: Input, device: torch.device) -> Input:
    if isinstance(x, dict):
        return {key: value.to(device, non_blocking=True) for key, value in x.items()}
    return x.to(device, non_blocking=True)
