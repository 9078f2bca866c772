"""Attributions of several models on the same examples, side by side (figures 8 and 29 to 34 of "Large Learning Rates").

Barsbey et al. 2025, arXiv:2507.17748, section E: models of a low and of a high learning rate, attributions of the true
label's logit, normalised as captum does for display. If the core and the shortcut regions of the data are known, the
fraction of the attributions in each is reported; see :mod:`spurless.data.shortcut_regions` and
:mod:`spurless.metrics.attribution_share`. The fractions are one half of figure 26; the other half, selectivity, is on
the page of a sweep. ``benchmarks/backgrounds.py`` computes the background of photographs (section 5, figure 10).

Deviations:
    The study shows test examples that most low-rate models get wrong and most high-rate ones get right. Here there is
    one model of each kind: examples on which the first and the last model disagree come first, alternating between
    groups, or between labels if there are more groups than rows.
    Models are in eval mode, not in train mode.
    The study does not state what it does with images in which no object is found. Here they are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture, Section
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, sequential_order
from spurless.data.shortcut_regions import shortcut_regions
from spurless.data.split import Split, Splits
from spurless.explain.attribution import attribute
from spurless.explain.maps import BATCH_SIZE
from spurless.explain.overlays import (
    SCALE_NOTE,
    choose_examples,
    encode_grid,
    format_label,
    load_images,
    overlay_heat,
    predict_labels,
    to_rgb,
)
from spurless.metrics.attribution_share import map_entropy, normalise, region_share
from spurless.models.classifier import on_device
from spurless.models.wrapping import wrap

MAX_AVERAGED = 200  # maximum number of examples over which the fractions are averaged
COLOURS = {"core": "@series1", "object": "@series1", "spurious": "@series2", "background": "@series2"}

RegionFinder: TypeAlias = Callable[[Split, Tensor], Mapping[str, Tensor]]
"""From examples and their maps ``(N, height, width)`` to boolean masks by the name of the region."""


def build_attribution_section(  # noqa: PLR0913
    models: Mapping[str, nn.Module],
    data: Splits,
    *,
    part: str = "test",
    count: int = 6,
    how: str = "integrated-gradients",
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
    find_regions: RegionFinder | None = None,
) -> Section:
    """Draw the attributions of models on the same examples, and their fractions per region if regions are known.

    ``models`` have display names, such as ``lr=0.001`` and ``lr=0.1``; they are not changed. ``count`` is the maximum
    number of examples in the picture, and ``how`` a method of :func:`spurless.explain.attribute`. ``find_regions``
    returns the regions of images, such as object and background; it is used only if the data have no known regions.

    Raises:
        InputError: fewer than two models, or the data have neither images nor known regions.
        UnknownNameError: no attribution method is called ``how``.
    """
    check_arguments(build_attribution_section, locals())
    if len(models) < 2:
        raise InputError("a comparison needs at least two models", got=len(models))
    split: Split = getattr(data, part)
    compute: dict[str, Any] = {"device": device, "workers": workers}
    masks = shortcut_regions(data)
    has_images = not isinstance(split.x, dict) and split.example(1).ndim == 4  # type: ignore[union-attr]
    if not (masks or has_images):
        raise InputError("the data have neither images nor known regions, so there is nothing to draw", got=data.name)
    find = find_regions if find_regions is not None and not masks else lambda *_: masks
    items: list[Picture | Figure] = []
    text = f"{part} examples of {data.name}; attributions of the true label by {how}, summed over channels."
    if has_images:
        first, *_, last = models.values()
        choose_from = split if count >= len(split.groups) else split.hide_attributes()  # else one label fills all rows
        index = choose_examples(first, last, choose_from, count, seed, **compute)
        items.append(_draw_maps(models, split, index, find, how, compute))
    if masks or (has_images and find_regions is not None):
        order = torch.randperm(len(split), generator=Seeds(seed).generator("attributions"))[:MAX_AVERAGED]
        bars = _draw_fractions(models, split.select(order), find, how, compute)
        items += [] if bars is None else [bars]
        if bars is None:
            text += f" None of {len(order)} examples has attributions in several regions."
    return Section("Attributions of the models", text[:1].upper() + text[1:], items)


def compute_fractions(maps: Tensor, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the fraction of each map in each region; NaN for an image in which a region is empty."""
    fractions = {name: region_share(maps, mask) for name, mask in masks.items()}
    for mask in masks.values():
        if mask.shape == maps.shape:
            empty = ~mask.flatten(1).any(dim=1)
            fractions = {name: fraction.masked_fill(empty, torch.nan) for name, fraction in fractions.items()}
    return fractions


def _compute_maps(model: nn.Module, split: Split, how: str, device: Any = None, workers: int = 0) -> Tensor:
    """Return one map of magnitudes in [0, 1] per example, on the CPU."""
    classifier = wrap(model)
    with on_device(classifier, device) as target:
        loader = Loader(split, sequential_order(len(split)), BATCH_SIZE, target, workers=workers)
        parts = [attribute(classifier, batch.x, batch.y, how=how).cpu() for batch in loader.batches()]
    return normalise(torch.cat(parts))


def _draw_maps(
    models: Mapping[str, nn.Module], split: Split, index: Tensor, find: RegionFinder, how: str, compute: dict[str, Any]
) -> Picture:
    examples, images = load_images(split, index)
    columns = {"image": to_rgb(images)}
    lines = [
        f"{i}: label {format_label(examples, y)}" for i, y in zip(index.tolist(), examples.y.tolist(), strict=True)
    ]
    heat = {name: _compute_maps(model, examples, how, **compute) for name, model in models.items()}
    masks = find(examples, next(iter(heat.values())))
    for name, model in models.items():
        predicted, fractions = predict_labels(model, examples, **compute), compute_fractions(heat[name], masks)
        columns[name] = overlay_heat(images, heat[name])
        for i, line in enumerate(lines):
            wrong = " (wrong)" * (int(predicted[i]) != int(examples.y[i]))
            known = {region: float(values[i]) for region, values in fractions.items() if not values[i].isnan()}
            percentages = "".join(f", {100 * fraction:.0f} % {region}" for region, fraction in known.items())
            lines[i] = f"{line}; {name} {format_label(examples, int(predicted[i]))}{wrong}{percentages}"
    return Picture(
        title="The same examples, model by model",
        caption="\n".join([*(f"{line}." for line in lines), SCALE_NOTE]),
        png=encode_grid(columns, [str(int(i)) for i in index]),
        alt=f"{len(index)} rows of {len(columns)} columns: {', '.join(columns)}. The caption lists label, predictions "
        "and fractions of each row.",
    )


def _draw_fractions(
    models: Mapping[str, nn.Module], split: Split, find: RegionFinder, how: str, compute: dict[str, Any]
) -> Figure | None:
    """Draw the mean fraction of the attributions in each region; None if no example has a fraction for every model."""
    maps = {name: _compute_maps(model, split, how, **compute) for name, model in models.items()}
    masks = find(split, next(iter(maps.values())))
    fractions = {name: compute_fractions(part, masks) for name, part in maps.items()}
    # only examples that have a fraction for every model, so that all means are over the same examples
    usable = ~torch.stack([values for row in fractions.values() for values in row.values()]).isnan().any(dim=0)
    n = int(usable.sum())
    if not n:
        return None
    means = {name: {k: float(values[usable].mean()) for k, values in row.items()} for name, row in fractions.items()}
    style = {"type": "bar", "texttemplate": "%{y:.1f}", "textposition": "outside", "cliponaxis": False}
    bars: list[dict[str, Any]] = [
        {"name": region, "x": list(means), "y": [100 * row[region] for row in means.values()], **style}
        | {"marker": {"color": COLOURS.get(region, "@series0")}}
        | {"hovertemplate": f"%{{x}}: %{{y:.1f}} % {region}<extra></extra>"}
        for region in masks
    ]
    y_axis = {"title": {"text": "% of the attributions"}, "range": [0, 108]}
    layout = {"barmode": "group", "showlegend": True, "xaxis": {"type": "category"}, "yaxis": y_axis}
    numbers = [f"{name}: " + ", ".join(f"{100 * v:.1f} % {k}" for k, v in row.items()) for name, row in means.items()]
    of = f"{n} examples" if n == len(split) else f"{n} of {len(split)} examples, those with {' and '.join(masks)}"
    entropies = ", ".join(f"{map_entropy(part):.2f} of {name}" for name, part in maps.items())
    caption = f"Mean over {of}. {'; '.join(numbers)}. Entropy of a map, in nats: {entropies}."
    return Figure("Attributions per region", caption, {"data": bars, "layout": layout}, f"Bars. {caption}")
