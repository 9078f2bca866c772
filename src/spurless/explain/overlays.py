"""Pictures of heat maps over the examples, and of the maps of two models next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Picture
from spurless.core.modules import eval_mode
from spurless.core.progress import progress_reporter
from spurless.core.seeds import Seeds
from spurless.data.checks import describe_kind
from spurless.data.input_masks import InputMask, SoftInputMask
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.explain.gradients import NoGradientError
from spurless.explain.maps import AUTO, HeatMapFunction, compute_heat_maps
from spurless.models.classifier import on_device
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH

SCALE_NOTE = "Lighter is hotter; each map has its own scale."
MIN_TILE, MAX_TILE = 112, 192
"""Pixels: smaller images are enlarged to about the first size, larger images are reduced to the second."""
GAP, HEADING, FONT = 8, 24, 13
BACKGROUND_COLOUR, TEXT_COLOUR = (251, 250, 247), (27, 30, 35)
IMAGE_BRIGHTNESS = 0.5  # brightness of an image behind its heat map
COLOUR_STOPS = (0.0, 0.4, 0.8, 1.0), ((0, 0, 0), (215, 20, 0), (255, 205, 30), (255, 255, 255))
"""Heat values and their colours; every channel increases with heat."""


def compare_heat_maps(  # noqa: PLR0913
    before: nn.Module,
    split: Split,
    index: Tensor | Sequence[int],
    *,
    after: nn.Module | None = None,
    hidden: InputMask | SoftInputMask | None = None,
    how: str | HeatMapFunction = AUTO,
    layer: str | None = None,
    device: torch.device | str | None = None,
    workers: int = 0,
    across: bool = False,
) -> Picture:
    """Draw one row per example: image, heat map of ``before``, hidden pixels, heat map of ``after``.

    The models get the whole images, also if the split hides parts of them; the third column shows those parts. The
    caption lists the label and the predictions of each row.

    Args:
        before: a classifier, or any module whose head can be found; it is not changed.
        split: grey or RGB images.
        index: indices of the examples, in the order of the rows.
        after: the repaired model; without it there is no fourth column.
        hidden: one mask per example of the split, or one per row, instead of the masks of the split.
        how: explainer, as for :func:`spurless.explain.iterate_heat_maps`.
        layer: layer of the map, as for :func:`spurless.explain.iterate_heat_maps`.
        device: where to compute; by default the device of each model.
        workers: processes that read a streamed split.
        across: draw one column per example instead of one row.

    Raises:
        InputError: the examples are not images, an index or a mask does not fit, or the model does not support the
            options.
        UnknownNameError: no explainer has that name.
    """
    check_arguments(compare_heat_maps, locals())
    check_images(split)
    rows = _check_index(index, len(split))
    examples = _without_masks(split.select(rows))
    raw = _stack_images(examples)
    images = _to_bytes(raw, raw)
    masked = _apply_masks(raw, split.hidden if hidden is None else hidden, rows, len(split))
    compute_maps = partial(compute_heat_maps, split=examples, how=how, layer=layer, device=device, workers=workers)
    models = {"before": before} if after is None else {"before": before, "after": after}
    heat = {name: overlay_heat(images, compute_maps(model)) for name, model in models.items()}
    predicted = {name: predict_labels(model, examples, device, workers) for name, model in models.items()}
    columns = {"image": to_rgb(images), "heat map" if after is None else "heat map before": heat["before"]}
    columns |= {} if masked is None else {"hidden": to_rgb(_to_bytes(masked, raw))}
    columns |= {} if after is None else {"heat map after": heat["after"]}
    lines = [_describe_row(examples, i, int(row), predicted) for i, row in enumerate(rows)]
    return Picture(
        title="Heat maps" if after is None else "Heat maps before and after",
        caption="\n".join([*lines, SCALE_NOTE]),
        png=encode_grid(columns, [str(int(row)) for row in rows], across),
        alt=f"{len(rows)} row{'s' * (len(rows) > 1)} of {len(columns)} columns: {', '.join(columns)}. "
        "The caption lists the label and the prediction of each row.",
    )


def choose_examples(  # noqa: PLR0913
    before: nn.Module,
    after: nn.Module | None,
    split: Split,
    n: int,
    seed: int = 0,
    *,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Tensor:
    """Return the indices of examples to draw: those whose prediction changed first, then others.

    Both parts alternate between groups; between labels if attributes are hidden or groups overlap.
    """
    check_arguments(choose_examples, locals())
    if n < 1:
        raise InputError("at least one example must be shown", got=n)
    changed = torch.zeros(len(split), dtype=torch.bool)
    if after is not None:
        whole = _without_masks(split)
        changed = predict_labels(before, whole, device, workers) != predict_labels(after, whole, device, workers)
    keys = (split.g if split.has_attributes and not split.groups.overlap else split.y).cpu()
    generator = Seeds(seed).generator("pictures")
    parts = [_alternate(which.nonzero().flatten(), keys, generator) for which in (changed, ~changed)]
    return torch.cat(parts)[:n]


def make_thumbnails(
    model: nn.Module, split: Split, index: Tensor | Sequence[int], *, device: torch.device | str | None = None
) -> list[tuple[bytes, bytes | None]]:
    """Return a small PNG of each example and one of its heat map; the model is not changed.

    The second is None if the model has no gradient to its input.
    """
    examples, images = load_images(split, index)
    thumbnails = [encode_image(image) for image in to_rgb(images)]
    try:
        heat = overlay_heat(images, compute_heat_maps(model, split=examples, how=AUTO, device=device))
    except NoGradientError:
        return [(image, None) for image in thumbnails]
    return [(image, encode_image(hot)) for image, hot in zip(thumbnails, heat, strict=True)]


def load_images(split: Split, index: Tensor | Sequence[int]) -> tuple[Split, Tensor]:
    """Return the chosen examples without masks, and their images as uint8."""
    check_images(split)
    examples = _without_masks(split.select(_check_index(index, len(split))))
    raw = _stack_images(examples)
    return examples, _to_bytes(raw, raw)


def has_images(split: Split) -> bool:
    """Return whether the examples are grey or RGB images."""
    x: Any = split.x
    shape = () if isinstance(x, dict) or not len(split) else tuple(x[0].shape)
    return len(shape) == 3 and shape[0] in (1, 3)


def check_images(split: Split) -> None:
    """Raise if the examples cannot be drawn."""
    if not len(split):
        raise InputError("the split is empty, so there is nothing to draw")
    if has_images(split):
        return
    x: Any = split.x
    shape = () if isinstance(x, dict) else tuple(x[0].shape)
    raise InputError(
        "the examples are not images, so they cannot be drawn",
        expected="grey or RGB, (1 or 3, height, width) each",
        got=describe_kind(x) if not shape else f"rows of {shape[0]} features" if len(shape) == 1 else f"shape {shape}",
        hint="Use spurless.explain.compute_heat_maps for the numbers.",
    )


def predict_labels(
    model: nn.Module, split: Split, device: torch.device | str | None = None, workers: int = 0
) -> Tensor:
    """Return the predicted label of every example, in order; the model keeps its mode and its device."""
    classifier = wrap(model)
    report, parts = progress_reporter("predictions", len(split)), []
    with on_device(classifier, device) as target, eval_mode(classifier), torch.no_grad():
        loader = Loader(split, sequential_order(len(split)), EVALUATION_BATCH, target, workers=workers)
        for batch in loader.batches():
            parts.append(classifier(batch.x).argmax(dim=1).cpu())
            report(sum(map(len, parts)))
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def format_label(split: Split, label: int) -> str:
    """Return the quoted name of a label, or ``class N`` if the data have no such label."""
    labels = split.groups.labels
    return f"'{' '.join(labels[label].split())}'" if label < len(labels) else f"class {label}"


def _check_index(index: Tensor | Sequence[int], n: int) -> Tensor:
    rows = torch.as_tensor(index).flatten().cpu().long()
    if not len(rows):
        raise InputError("there is no example to draw", expected="at least one index")
    wrong = rows[(rows < 0) | (rows >= n)]
    if len(wrong):
        raise InputError(f"the split has no example {int(wrong[0])}", expected=f"0 to {n - 1}")
    return rows


def _without_masks(split: Split) -> Split:
    return replace(split, hidden=None)


def _stack_images(examples: Split) -> Tensor:
    """Return the images as stored, ``(n, channels, height, width)``."""
    x: Any = examples.x
    images = x if isinstance(x, Tensor) else torch.stack([x[i] for i in range(len(examples))])
    return images.detach().cpu()


def _to_bytes(images: Tensor, like: Tensor) -> Tensor:
    """Scale images to 0..255; values outside [0, 1] are scaled by the minimum and maximum of each image of ``like``."""
    if images.dtype == torch.uint8:
        return images
    flat = like.float().flatten(1)
    low, high = flat.amin(dim=1), flat.amax(dim=1)
    in_unit_range = (low >= 0) & (high <= 1)
    low, high = (torch.where(in_unit_range, end, v)[:, None, None, None] for end, v in ((0.0, low), (1.0, high)))
    return (255 * (images.float() - low) / (high - low).clamp(min=1e-12)).clamp(0, 255).round().to(torch.uint8)


def _apply_masks(raw: Tensor, hidden: InputMask | SoftInputMask | None, rows: Tensor, n: int) -> Tensor | None:
    """Return the images with their masks applied; None without masks."""
    if hidden is None:
        return None
    masks = hidden.select(rows).to("cpu") if len(hidden) == n else hidden.to("cpu")
    size = masks.shape if isinstance(masks, InputMask) else tuple(masks.heat.shape[1:])
    if len(masks) != len(rows) or size != tuple(raw.shape[2:]):
        raise InputError(
            "the masks do not fit the images",
            expected=f"masks of shape {tuple(raw.shape[2:])}, {n} of them, or {len(rows)} in the order of the rows",
            got=f"{len(hidden)} of shape {size}",
        )
    masked = masks.apply(raw, torch.arange(len(rows)))
    return masked if isinstance(masked, Tensor) else None


def _alternate(index: Tensor, keys: Tensor, generator: torch.Generator) -> Tensor:
    """Return the indices in random order, but one of every key before the second of any."""
    index = index[torch.randperm(len(index), generator=generator)]
    counts: dict[int, int] = {}
    order = []
    for position, key in enumerate(keys[index].tolist()):
        counts[key] = counts.get(key, 0) + 1
        order.append((counts[key], key, position))
    return index[torch.tensor([position for *_, position in sorted(order)], dtype=torch.long)]


def _describe_row(examples: Split, i: int, number: int, predicted: Mapping[str, Tensor]) -> str:
    y = int(examples.y[i])
    words = {name: int(labels[i]) for name, labels in predicted.items()}
    if len(words) == 1:
        words = {"predicted": words["before"]}
    listed = ", ".join(f"{name} {format_label(examples, k)}" + " (wrong)" * (0 <= y != k) for name, k in words.items())
    return f"{number}: label {format_label(examples, y)}; {listed}." if y >= 0 else f"{number}: {listed}."


def to_rgb(images: Tensor) -> Tensor:
    """Return images with three channels; grey images are repeated."""
    return images.expand(-1, 3, -1, -1)


def overlay_heat(images: Tensor, heat: Tensor) -> Tensor:
    """Add heat maps as light to dimmed grey images."""
    if heat.dim() != 3:
        raise InputError("the maps cannot be drawn", expected="(n, height, width)", got=tuple(heat.shape))
    if heat.shape[1:] != images.shape[2:]:  # the model gets the images in another size
        heat = interpolate(heat[:, None], size=tuple(images.shape[2:]), mode="bilinear", align_corners=False)[:, 0]
    grey = IMAGE_BRIGHTNESS * images.float().mean(dim=1, keepdim=True).round() / 255
    light = heat_to_color(heat.float()).permute(0, 3, 1, 2) / 255
    return (255 * (grey + light - grey * light)).round().to(torch.uint8)


def heat_to_color(heat: Tensor) -> Tensor:
    """Return the color of every heat value from 0 to 1, channels last, 0 to 255.

    Example:
        >>> heat_to_color(torch.tensor([0.0, 0.2, 1.0])).tolist()
        [[0.0, 0.0, 0.0], [107.5, 10.0, 0.0], [255.0, 255.0, 255.0]]
    """
    stops, colours = torch.tensor(COLOUR_STOPS[0]), torch.tensor(COLOUR_STOPS[1], dtype=torch.float32)
    heat = heat.clamp(0, 1)
    i = torch.bucketize(heat, stops[1:-1], right=True)
    part = ((heat - stops[i]) / (stops[i + 1] - stops[i]))[..., None]
    return colours[i] + part * (colours[i + 1] - colours[i])


def encode_grid(columns: Mapping[str, Tensor], numbers: Sequence[str], across: bool = False) -> bytes:
    """Return a PNG with one row per example, or one column if ``across``, with headings and numbers."""
    tiles = [[images[i] for images in columns.values()] for i in range(len(numbers))]
    if across:
        return _encode_tiles([list(row) for row in zip(*tiles, strict=True)], list(columns), numbers)
    return _encode_tiles(tiles, numbers, list(columns))


def encode_image(image: Tensor) -> bytes:
    """Return one image ``(3, height, width)`` as a PNG of the size of a tile."""
    buffer = BytesIO()
    _make_tile(image).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _make_tile(image: Tensor) -> Any:
    """Return a PIL image; a small one is enlarged pixel by pixel, a large one is reduced smoothly."""
    from PIL import Image

    size = _tile_size(tuple(image.shape[1:]))
    resampling = Image.Resampling.NEAREST if size[0] >= image.shape[2] else Image.Resampling.LANCZOS
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).resize(size, resampling)


def _encode_tiles(tiles: Sequence[Sequence[Tensor]], row_labels: Sequence[str], headings: Sequence[str]) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT)
    size = _tile_size(tuple(tiles[0][0].shape[1:]))
    margin = 2 * GAP + max(round(font.getlength(label)) for label in row_labels)
    widths = [max(size[0], round(font.getlength(heading))) + GAP for heading in headings]
    sheet = Image.new("RGB", (margin + sum(widths), HEADING + len(row_labels) * (size[1] + GAP)), BACKGROUND_COLOUR)
    pen = ImageDraw.Draw(sheet)
    for row, label in enumerate(row_labels):
        pen.text((margin - GAP, HEADING + row * (size[1] + GAP) + size[1] // 2), label, TEXT_COLOUR, font, anchor="rm")
    left = margin
    for column, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        pen.text((left, HEADING // 2), heading, TEXT_COLOUR, font, anchor="lm")
        for row, tile in enumerate(tiles):
            sheet.paste(_make_tile(tile[column]), (left, HEADING + row * (size[1] + GAP)))
        left += width
    buffer = BytesIO()
    sheet.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _tile_size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return width and height of a tile: small images are enlarged by a whole factor, large ones are reduced."""
    long = max(shape)
    scale = max(1, round(MIN_TILE / long)) if long <= MAX_TILE else MAX_TILE / long
    return max(1, round(shape[1] * scale)), max(1, round(shape[0] * scale))
