"""Heat: maps of a whole split, in order, batch by batch; and the table of what can draw them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput, UnknownName
from spurless.core.progress import teller
from spurless.data.grouped import Grouped, Input
from spurless.data.loader import Loader, in_order
from spurless.explain.attribution import attribution_map
from spurless.explain.cam import gradcam, xgradcam
from spurless.explain.target import NoMap, find_target
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap

Draw: TypeAlias = Callable[[Classifier, Any], Tensor]
"""From a model and a batch of inputs, as the model takes them, to one map per example, in [0, 1]."""

Prepare: TypeAlias = Callable[[Classifier, Input], Draw]
"""From a model and its first batch to what draws the maps of all of them."""

BATCH = 256
STORED = (torch.float32, torch.float16, torch.uint8)


@dataclass(frozen=True)
class Explainer:
    """A row of the table: what draws the maps, and whether it looks at one layer."""

    name: str
    draw: Callable[..., Tensor]
    description: str
    layer: bool = False
    """Whether it takes ``layer``."""


def _by(how: str) -> Callable[..., Tensor]:
    return partial(attribution_map, how=how)


EXPLAINERS: dict[str, Explainer] = {
    row.name: row
    for row in (
        Explainer("xgradcam", xgradcam, "one layer's map, channels by their share of the logit (MaskTune)", layer=True),
        Explainer("gradcam", gradcam, "one layer's map, channels by their mean gradient", layer=True),
        Explainer("integrated-gradients", _by("integrated-gradients"), "every pixel or word, on the way from nothing"),
        Explainer("deeplift", _by("deeplift"), "every pixel, by differences from black"),
        Explainer("input-gradient", _by("input-gradient"), "every pixel, by its gradient"),
        Explainer("gradient-x-input", _by("gradient-x-input"), "every pixel or word, by its gradient times itself"),
    )
}
AUTO = "auto"
"""Stands for xgradcam where the model keeps a map of the image, and for gradient-x-input elsewhere."""


def maps(  # noqa: PLR0913 - a public door
    model: nn.Module,
    split: Grouped,
    *,
    how: str | Draw = "xgradcam",
    layer: str | None = None,
    batch_size: int = BATCH,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Generator[Tensor]:
    """Yield the heat maps of a split batch by batch, in order, on the device: no more than a batch is in memory.

    Args:
        model: a classifier, or any module whose head can be found; it is left exactly as it was.
        split: the examples; they are seen as in evaluation, without augmentation.
        how: a name in ``EXPLAINERS``; ``"auto"``, which is xgradcam where the model keeps a map of the image and
            gradient-x-input elsewhere; or a function ``(model, x) -> maps`` of your own.
        layer: where xgradcam and gradcam look; found by itself by default.
        batch_size: changes speed and memory only.
        device: where the arithmetic is done; by default where the model is. Elsewhere, the model is there until the
            last batch, or until the generator is closed.
        workers: processes that read a streamed split.

    Yields:
        Maps in [0, 1]: ``(n, height, width)`` of images, ``(n, length)`` of texts.

    Raises:
        UnknownName: nothing in the table has that name.
        BadInput: the split is empty, or the model or the options do not go together.
    """
    if not len(split):
        raise BadInput("the split is empty, so there is nothing to draw")
    prepare = _prepare(how, layer)
    classifier = wrap(model)
    home = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
    loader = Loader(split, in_order(len(split)), batch_size, place, workers=workers)
    return _stream(classifier, loader, prepare, home)


def all_maps(model: nn.Module, split: Grouped, *, dtype: torch.dtype = torch.float32, **options: Any) -> Tensor:
    """Return the heat maps of a whole split in one tensor on the CPU.

    Args:
        model: as for :func:`maps`.
        split: as for :func:`maps`.
        dtype: how maps are kept: float32, float16, or uint8 with 255 for the hottest.
        options: of :func:`maps`.

    Raises:
        BadInput: as for :func:`maps`, or a map cannot be kept like that.
    """
    if dtype not in STORED:
        raise BadInput("maps cannot be kept like that", expected=", ".join(map(_word, STORED)), got=_word(dtype))
    done, at, kept = teller("heat maps", len(split)), 0, torch.empty(0)
    with closing(maps(model, split, **options)) as parts:
        for part in parts:
            if at == 0:
                kept = torch.empty((len(split), *part.shape[1:]), dtype=dtype)
            kept[at : at + len(part)] = _as_stored(part, dtype)
            at += len(part)
            done(at)
    return kept


def _stream(model: Classifier, loader: Loader, prepare: Prepare, home: torch.device) -> Generator[Tensor]:
    model.to(loader.device)
    try:
        ready: Draw | None = None
        fine: list[Tensor] = []
        for batch in loader.batches():
            ready = ready or prepare(model, batch.x)
            found = ready(model, batch.x)
            if not isinstance(found, Tensor) or not found.dim() or len(found) != len(batch):
                raise BadInput(
                    "an explainer must return one map per example",
                    expected=f"a tensor of {len(batch)}",
                    got=tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__,
                )
            # looked at in the end: a look at every batch would make the host wait
            fine.append(found.flatten(1).isfinite().all(dim=1))
            yield found.detach()
        if fine:
            _check_finite(torch.cat(fine))
    finally:
        model.to(home)


def _check_finite(fine: Tensor) -> None:
    """Refuse heat that is no number: nothing would be hotter than it, and nothing would be hidden."""
    if not bool(fine.all()):
        row = int((~fine).nonzero()[0])
        raise BadInput(
            f"the heat map of example {row} is not finite",
            do=f"Look at example {row}: its inputs may not be finite; or the weights have diverged.",
        )


def _prepare(how: str | Draw, layer: str | None) -> Prepare:
    """Return what makes the drawing function when the first batch is there: a layer is looked for once."""
    if how == AUTO:
        return lambda model, x: _auto(model, x, layer)
    if isinstance(how, str) and how not in EXPLAINERS:
        raise UnknownName("explainer", how, [*EXPLAINERS, AUTO])
    row = EXPLAINERS[how] if isinstance(how, str) else Explainer("a function of your own", how, "")
    if row.layer:
        return lambda model, x: partial(row.draw, layer=find_target(model, x, layer))
    if layer is not None:
        named = ", ".join(name for name, other in EXPLAINERS.items() if other.layer)
        raise BadInput(f"{row.name} looks at no layer", do=f"Leave layer out, or use one of: {named}.")
    return lambda _model, _x: row.draw


def _auto(model: Classifier, x: Input, layer: str | None) -> Draw:
    if isinstance(x, dict) or x.dim() != 4:
        name = "gradient-x-input"
    else:
        try:
            return _prepare("xgradcam", layer)(model, x)
        except NoMap:
            name = "gradient-x-input"
    return _prepare(name, layer)(model, x)


def _as_stored(part: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.uint8:
        return part.to(dtype).cpu()
    if not bool(((part >= 0) & (part <= 1)).all()):
        raise BadInput("maps are kept as uint8 only where they are from 0 to 1", do="Use dtype=torch.float32.")
    return (part * 255).round().to(torch.uint8).cpu()


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
