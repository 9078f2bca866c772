"""Features of all examples (the input of the head), and logits from features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from spurless.core.arguments import check_arguments, describe_value
from spurless.core.errors import InputError, first_line
from spurless.core.modules import Input, eval_mode
from spurless.models.classifier import Classifier, device_of
from spurless.models.input_errors import readable_forward_errors

SCHEMA = 1  # part of the cache key: raise it when the same weights and inputs give different features
DTYPES = {"float32": torch.float32, "float16": torch.float16}


class HasInput(Protocol):
    """Anything with inputs, such as a batch."""

    @property
    def x(self) -> Input:
        """The inputs, as the model takes them."""


def collect_features(
    model: Classifier, batches: Iterable[HasInput], device: torch.device | str | None = None
) -> Tensor:
    """Return the features of every example, in order: eval mode, no gradient, float32 on the CPU.

    ``device`` is the device of the inputs; by default that of the model.

    Raises:
        InputError: there are no batches, or the features are not one finite row per example.
    """
    check_arguments(collect_features, locals())
    with eval_mode(model):
        return _concatenate(iterate_features(model, batches, device))


def iterate_features(
    model: Classifier,
    batches: Iterable[HasInput],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    start: int = 0,
) -> Iterator[Tensor]:
    """Yield the features of each batch, on the CPU; the mode of the model is not changed.

    ``start`` is the number of the first example, for error messages.
    """
    target = device_of(model) if device is None else torch.device(device)
    for batch in batches:
        if not hasattr(batch, "x"):
            raise InputError("the batches must have inputs x", got=describe_value(batch))
        n = len(next(iter(batch.x.values())) if isinstance(batch.x, dict) else batch.x)
        # inside the loop: around it, no_grad would also apply to the caller between two batches
        with torch.no_grad(), readable_forward_errors(model, batch.x):
            features = model.features(_move(batch.x, target)).float()
        if features.dim() != 2 or len(features) != n:
            raise InputError(
                f"the features of {model.name} have the wrong shape", expected="(N, d)", got=tuple(features.shape)
            )
        part = features.to(dtype).cpu()
        check_finite(part, start)
        start += len(part)
        yield part


def check_finite(part: Tensor, start: int = 0) -> None:
    """Raise if features are not finite; ``start`` is the number of the first example."""
    finite = part.isfinite().all(dim=1)
    if bool(finite.all()):
        return
    bad = int((~finite).nonzero()[0])
    half = "; float16 overflows at 65,504, use float32" if part.dtype == torch.float16 else ""
    raise InputError(
        f"the features of example {start + bad} are not finite",
        got=float(part[bad][~part[bad].isfinite()][0]),
        hint=f"Check the input of example {start + bad}, and whether the weights have diverged{half}.",
    )


def compute_logits(model: Classifier, features: Tensor) -> Tensor:
    """Return the logits of features, float32 on the CPU."""
    check_arguments(compute_logits, locals())
    anchor = next(model.head.parameters(), features)
    with eval_mode(model), torch.no_grad(), readable_forward_errors(model, features):
        logits: Tensor = model.head(features.to(anchor.device, anchor.dtype))
    return logits.float().cpu()


def _concatenate(features: Iterable[Tensor]) -> Tensor:
    if not (parts := list(features)):
        raise InputError("there are no batches", hint="Pass a split with at least one example.")
    return torch.cat(parts)


def _move(x: Input, device: torch.device) -> Input:
    if isinstance(x, dict):
        return {key: value.to(device, non_blocking=True) for key, value in x.items()}
    return x.to(device, non_blocking=True)


def collect_magnitudes(
    model: Classifier,
    batches: Iterable[HasInput],
    device: torch.device | str | None = None,
    *,
    train_mode: bool = False,
) -> Tensor:
    """Return the absolute value of every feature of every example, ``(N, d)``, float32 on the CPU.

    In ``train_mode``, batch norms use the statistics of each batch, as in the code of the study's authors; the features
    then depend on the batches. Everything else, such as dropout, stays in eval mode. The model is not changed.

    Example:
        >>> from types import SimpleNamespace
        >>> norm = nn.BatchNorm1d(1, eps=1e-12)  # untrained: mean 0, variance 1
        >>> batches = [SimpleNamespace(x=torch.tensor([[-2.0], [6.0]]))]  # mean 2, deviation 4
        >>> model = Classifier(norm, nn.Linear(1, 2))
        >>> collect_magnitudes(model, batches).tolist(), collect_magnitudes(model, batches, train_mode=True).tolist()
        ([[2.0], [6.0]], [[1.0], [1.0]])
    """
    if not train_mode:
        return collect_features(model, batches, device).abs()
    with eval_mode(model), use_batch_statistics(model):
        try:
            return _concatenate(iterate_features(model, batches, device)).abs()
        except ValueError as error:
            if "value per channel" not in str(error):  # torch's message for a batch of one
                raise
            raise InputError(first_line(error), hint="Use batches of at least two examples.") from error


@contextmanager
def use_batch_statistics(model: nn.Module) -> Iterator[None]:
    """Use batch statistics in every batch norm, without updating the running statistics."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [(norm.training, norm.track_running_stats) for norm in norms]
    for norm in norms:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for norm, (training, tracking) in zip(norms, before, strict=True):
            norm.training, norm.track_running_stats = training, tracking
