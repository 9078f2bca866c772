"""Representations: the sizes of what the head reads, in the mode in which the learning-rate study took them, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spurless.core.errors import BadInput, first_line
from spurless.models.classifier import Classifier, evaluating
from spurless.models.features import HasInput, collect, rows


def representations(
    model: Classifier,
    batches: Iterable[HasInput],
    device: torch.device | str | None = None,
    *,
    train_mode: bool = False,
) -> Tensor:
    """Return the size of every feature of every example, ``(N, d)``, float32 on the CPU, none below 0.

    Args:
        model: where the features come from; it is left as it was, its running statistics too.
        batches: anything with ``.x``.
        device: where the inputs go; by default to the weights of the model.
        train_mode: whether batch norms use the statistics of each batch, as in the code of the study's authors. The
            numbers then depend on how examples are batched. All else, dropout too, stays as in evaluation.

    Example:
        >>> from types import SimpleNamespace
        >>> norm = nn.BatchNorm1d(1, eps=1e-12)  # nothing remembered yet: mean 0, variance 1
        >>> batches = [SimpleNamespace(x=torch.tensor([[-2.0], [6.0]]))]  # mean 2, deviation 4
        >>> model = Classifier(norm, nn.Linear(1, 2))
        >>> representations(model, batches).tolist(), representations(model, batches, train_mode=True).tolist()
        ([[2.0], [6.0]], [[1.0], [1.0]])

    Raises:
        BadInput: there are no batches, the features are not one finite row per example, or a batch norm has a single
            number per channel to take statistics of.
    """
    if not train_mode:
        return collect(model, batches, device).abs()
    with evaluating(model), batch_statistics(model):
        try:
            parts = list(rows(model, batches, device))
        except ValueError as error:
            if "value per channel" not in str(error):  # torch's words for a batch of one
                raise
            raise BadInput(first_line(error), do="Pass batches of two examples or more.") from error
    if not parts:
        raise BadInput("there are no batches to take features of", do="Pass a split with at least one example.")
    return torch.cat(parts).abs()


@contextmanager
def batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let every batch norm use the statistics of its batch, and none remember them."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracking
