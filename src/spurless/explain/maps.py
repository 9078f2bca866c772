"""Heat maps of a whole split, batch by batch, and the table of explainers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.modules import Input
from spurless.core.progress import progress_reporter
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.explain.attribution import compute_attribution_map
from spurless.explain.cam import gradcam, xgradcam
from spurless.explain.target_layer import NoFeatureMapError, find_target_layer
from spurless.models.classifier import Classifier, device_of, on_device
from spurless.models.wrapping import wrap
from spurless.train.run import inference_threads

HeatMapFunction: TypeAlias = Callable[[Classifier, Any], Tensor]
"""From a model and a batch of inputs, as the model takes them, to one map per example, in [0, 1]."""

PrepareFunction: TypeAlias = Callable[[Classifier, Input], HeatMapFunction]
"""From a model and its first batch to the function that computes the maps of all batches."""

BATCH_SIZE = 256
STORAGE_DTYPES = (torch.float32, torch.float16, torch.uint8)


@dataclass(frozen=True)
class Explainer:
    """A row of the table: a heat-map function, and whether it uses one layer."""

    name: str
    compute: Callable[..., Tensor]
    description: str
    uses_layer: bool = False  # whether it takes ``layer``


def _attribution(how: str, description: str) -> Explainer:
    return Explainer(how, partial(compute_attribution_map, how=how), description)


EXPLAINERS: dict[str, Explainer] = {
    row.name: row
    for row in (
        Explainer(
            "xgradcam", xgradcam, "map of one layer, channels weighted by their part of the logit (MaskTune)", True
        ),
        Explainer("gradcam", gradcam, "map of one layer, channels weighted by their mean gradient", True),
        _attribution("integrated-gradients", "every pixel or word, gradients integrated from a zero input"),
        _attribution("deeplift", "every pixel, by differences from a black image"),
        _attribution("input-gradient", "every pixel, by its gradient"),
        _attribution("gradient-x-input", "every pixel or word, by its gradient times its value"),
    )
}
AUTO = "auto"  # xgradcam if the model has a feature map of the image, else gradient-x-input


def iterate_heat_maps(  # noqa: PLR0913
    model: nn.Module,
    split: Split,
    *,
    how: str | HeatMapFunction = "xgradcam",
    layer: str | None = None,
    batch_size: int = BATCH_SIZE,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Generator[Tensor]:
    """Yield the heat maps of a split batch by batch, in order, on the device; only one batch is in memory.

    Args:
        model: a classifier, or any module whose head can be found; it is not changed.
        split: the examples, without augmentation.
        how: a name in ``EXPLAINERS``; ``"auto"``, which is xgradcam if the model has a feature map of the image, else
            gradient-x-input; or your own function ``(model, x) -> maps``.
        layer: layer for xgradcam and gradcam; by default the last feature map.
        batch_size: changes speed and memory only.
        device: where to compute; by default the device of the model. The model is moved back after the last batch, or
            when the generator is closed.
        workers: processes that read a streamed split.

    Yields:
        Maps in [0, 1]: ``(n, height, width)`` for images, ``(n, length)`` for texts.

    Raises:
        UnknownNameError: no explainer has that name.
        InputError: the split is empty, or the model does not support the options.
    """
    check_arguments(iterate_heat_maps, locals())
    if not len(split):
        raise InputError("the split is empty")
    prepare = _make_prepare(how, layer)
    classifier = wrap(model)
    target = device_of(classifier) if device is None else torch.device(device)
    loader = Loader(split, sequential_order(len(split)), batch_size, target, workers=workers)
    return _stream(classifier, loader, prepare)


def compute_heat_maps(model: nn.Module, split: Split, *, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    """Return the heat maps of a whole split in one tensor on the CPU.

    ``dtype`` is float32, float16, or uint8 with 255 for the hottest; ``options`` are of :func:`iterate_heat_maps`.

    Raises:
        InputError: as for :func:`iterate_heat_maps`, or a map does not fit the dtype.
    """
    check_arguments(compute_heat_maps, locals())
    if dtype not in STORAGE_DTYPES:
        raise InputError(
            "maps cannot be stored with this dtype",
            expected=", ".join(map(_dtype_name, STORAGE_DTYPES)),
            got=_dtype_name(dtype),
        )
    known = signature(iterate_heat_maps).parameters.keys() - {"model", "split"}
    for name in options.keys() - known:
        raise InputError(f"compute_heat_maps has no option {name!r}", expected=", ".join(sorted(known)))
    report, start, heat = progress_reporter("heat maps", len(split)), 0, torch.empty(0)
    with inference_threads(), closing(iterate_heat_maps(model, split, **options)) as parts:
        for part in parts:
            if start == 0:
                heat = torch.empty((len(split), *part.shape[1:]), dtype=dtype)
            heat[start : start + len(part)] = _convert(part, dtype)
            start += len(part)
            report(start)
    return heat


def _stream(model: Classifier, loader: Loader, prepare: PrepareFunction) -> Generator[Tensor]:
    with on_device(model, loader.device):
        compute: HeatMapFunction | None = None
        finite: list[Tensor] = []
        for batch in loader.batches():
            compute = compute or prepare(model, batch.x)
            maps = compute(model, batch.x)
            if not isinstance(maps, Tensor) or not maps.dim() or len(maps) != len(batch):
                raise InputError(
                    "an explainer must return one map per example",
                    expected=f"a tensor of {len(batch)}",
                    got=tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__,
                )
            # checked at the end: checking every batch would make the host wait for the device
            finite.append(maps.flatten(1).isfinite().all(dim=1))
            yield maps.detach()
        if finite:
            _check_finite(torch.cat(finite))


def _check_finite(finite: Tensor) -> None:
    """Raise if a map is not finite: comparisons with NaN would hide nothing."""
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise InputError(
            f"the heat map of example {row} is not finite",
            hint=f"Check the input of example {row}, and whether the weights have diverged.",
        )


def _make_prepare(how: str | HeatMapFunction, layer: str | None) -> PrepareFunction:
    """Return a function that creates the heat-map function from the first batch, so that a layer is found once."""
    if how == AUTO:
        return lambda model, x: _auto(model, x, layer)
    if isinstance(how, str) and how not in EXPLAINERS:
        raise UnknownNameError("explainer", how, [*EXPLAINERS, AUTO])
    row = EXPLAINERS[how] if isinstance(how, str) else Explainer("your function", how, "")
    if row.uses_layer:
        return lambda model, x: partial(row.compute, layer=find_target_layer(model, x, layer))
    if layer is not None:
        names = ", ".join(name for name, other in EXPLAINERS.items() if other.uses_layer)
        raise InputError(f"{row.name} does not use a layer", hint=f"Leave layer out, or use one of: {names}.")
    return lambda _model, _x: row.compute


def _auto(model: Classifier, x: Input, layer: str | None) -> HeatMapFunction:
    if not isinstance(x, dict) and x.dim() == 4:
        with suppress(NoFeatureMapError):
            return _make_prepare("xgradcam", layer)(model, x)
    return _make_prepare("gradient-x-input", layer)(model, x)


def _convert(part: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.uint8:
        return part.to(dtype).cpu()
    if not bool(((part >= 0) & (part <= 1)).all()):
        raise InputError("maps must be in [0, 1] to be stored as uint8", hint="Use dtype=torch.float32.")
    return (part * 255).round().to(torch.uint8).cpu()


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
