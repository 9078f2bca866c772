"""Compared: what several models look at in the same examples, side by side; figures 8 and 29 to 34 of a study.

Barsbey et al. 2025, arXiv:2507.17748, section E: models of a low and of a high learning rate, attributions of the true
label's logit, normalised as captum does for pictures. Where the data say which pixels are the label's own and which the
shortcut's, the share of either is told; see :mod:`spurless.data.regions` and :mod:`spurless.metrics.attribution_share`.
Of photographs the share of the background is, where a net is given that finds it (section 5, figure 10). The shares are
one half of figure 26; the selectivity beside them is in the panels of a sweep.

Deviations:
    The study shows test examples that most low-rate models get wrong and most high-rate ones right. Here there is one
    model of each kind: examples on which the first and the last disagree come first, group by group in turn, or label
    by label where there are more groups than rows.
    Models are in eval mode, not in train mode.
    The study does not say what it does with images in which no object is found. Here they count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture, Section
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.data.regions import regions
from spurless.explain.attribution import attribute
from spurless.explain.heat import BATCH
from spurless.explain.pictures import chosen, pictured, predictions
from spurless.explain.tiles import encode, glow, rgb
from spurless.metrics.attribution_share import map_entropy, normalise, region_share
from spurless.models.segmentation import backgrounds
from spurless.models.wrapping import wrap

SHARED = 200
"""Examples over which shares are averaged, at most."""
COLOURS = {"core": "@arm1", "spurious": "@arm2", "noise": "@arm0", "object": "@arm1", "background": "@arm2"}


def attribution_section(  # noqa: PLR0913 - a public door
    models: Mapping[str, nn.Module],
    data: Splits,
    *,
    part: str = "test",
    count: int = 6,
    how: str = "integrated-gradients",
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
    segmenter: nn.Module | None = None,
) -> Section:
    """Show what models look at in the same examples and, where regions are known, how much lies in each.

    Args:
        models: by the names they are shown under, such as ``lr=0.001`` and ``lr=0.1``; each is left as it was.
        data: images, or columns whose regions are known.
        part: the split.
        count: how many examples are drawn, at most.
        how: what attributes, as for :func:`spurless.explain.attribute`.
        seed: of the choice of examples.
        device: where the arithmetic is done; by default where each model is.
        workers: processes that read a streamed split.
        segmenter: what finds the background of an image, such as :func:`spurless.models.segmentation.deeplab`; regions
            are then object and background, unless the data have their own.

    Raises:
        BadInput: there are no two models, or nothing to show: neither images nor regions.
        UnknownName: nothing that attributes has that name.
    """
    if len(models) < 2:
        raise BadInput("a comparison needs two models or more", got=len(models))
    split: Grouped = getattr(data, part)
    place: dict[str, Any] = {"device": device, "workers": workers}
    masks, drawn = regions(data), not isinstance(split.x, dict) and split.example(1).ndim == 4  # type: ignore[union-attr]
    if not (masks or drawn):
        raise BadInput("there is nothing to show: the examples are no images, and no region is known", got=data.name)
    # what the data say themselves goes before what a net finds
    find: Find = (lambda *_: masks) if masks or segmenter is None else partial(_apart, segmenter, device)
    items: list[Picture | Figure] = []
    text = f"{part} examples of {data.name}; attributions of the true label by {how}, sizes summed over channels."
    if drawn:
        first, *_, last = models.values()
        by = split if count >= len(split.groups) else split.hide_attributes()  # else all rows could be of one label
        items.append(_picture(models, split, chosen(first, last, by, count, seed, **place), find, how, place))
    if masks or (drawn and segmenter is not None):
        order = torch.randperm(len(split), generator=Seeds(seed).generator("attributions"))
        bars = _bars(models, split.select(order[:SHARED]), find, how, place)
        items += [] if bars is None else [bars]
        missed = "there attributions" if masks else "object and background told apart"
        text += "" if bars is not None else f" In none of {len(order[:SHARED])} were {missed}."
    return Section("What the models look at", text[:1].upper() + text[1:], items)


Find: TypeAlias = Callable[[Grouped, Tensor], Mapping[str, Tensor]]
"""From examples and their maps to the regions, by name."""


def _apart(segmenter: nn.Module, device: Any, split: Grouped, maps: Tensor) -> Mapping[str, Tensor]:
    """Return object and background of every image, as large as its map."""
    _, images = pictured(split, torch.arange(len(split)))
    found = backgrounds(images, segmenter, device=device).float()[:, None]
    background = interpolate(found, maps.shape[1:])[:, 0] > 0.5
    return {"object": ~background, "background": background}


def shares(maps: Tensor, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the share of each map that lies in each region; NaN where an image is all object or all background."""
    found = {name: region_share(maps, mask) for name, mask in masks.items()}
    for mask in masks.values():
        if mask.shape == maps.shape:
            nothing = ~mask.flatten(1).any(dim=1)
            found = {name: share.masked_fill(nothing, torch.nan) for name, share in found.items()}
    return found


def _maps(model: nn.Module, split: Grouped, how: str, device: Any = None, workers: int = 0) -> Tensor:
    """Return one map of sizes from 0 to 1 per example, on the CPU."""
    classifier = wrap(model)
    home = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
    where = home if device is None else torch.device(device)
    loader = Loader(split, in_order(len(split)), BATCH, where, workers=workers)
    try:
        classifier.to(where)
        parts = [attribute(classifier, batch.x, batch.y, how=how).cpu() for batch in loader.batches()]
    finally:
        classifier.to(home)
    return normalise(torch.cat(parts))


def _picture(
    models: Mapping[str, nn.Module],
    split: Grouped,
    index: Tensor,
    find: Find,
    how: str,
    place: dict[str, Any],
) -> Picture:
    """Draw one row per example: the image, and what each model looks at in it."""
    shown, images = pictured(split, index)
    columns, lines = {"image": rgb(images)}, [f"{int(i)}: label {_word(shown, k)}" for i, k in _numbered(index, shown)]
    heat = {name: _maps(model, shown, how, **place) for name, model in models.items()}
    masks = find(shown, next(iter(heat.values())))
    for name, model in models.items():
        said, inside = predictions(model, shown, **place), shares(heat[name], masks)
        columns[name] = glow(images, heat[name])
        for i, line in enumerate(lines):
            wrong = " (wrong)" * (int(said[i]) != int(shown.y[i]))
            told = {region: float(share[i]) for region, share in inside.items() if not share[i].isnan()}
            parts = "".join(f", {100 * share:.0f} % {region}" for region, share in told.items())
            lines[i] = f"{line}; {name} {_word(shown, int(said[i]))}{wrong}{parts}"
    return Picture(
        title="The same examples, model by model",
        caption="\n".join([*(f"{line}." for line in lines), "The lighter, the hotter; every map has its own scale."]),
        png=encode(columns, [str(int(i)) for i in index]),
        alt=f"{len(index)} rows of {len(columns)} columns: {', '.join(columns)}. The caption says label, predictions "
        "and shares of each row.",
    )


def _bars(
    models: Mapping[str, nn.Module], split: Grouped, find: Find, how: str, place: dict[str, Any]
) -> Figure | None:
    """Draw how much of the attributions lies in each region, mean over examples; nothing where none of them counts."""
    maps = {name: _maps(model, split, how, **place) for name, model in models.items()}
    masks = find(split, next(iter(maps.values())))
    found = {name: shares(part, masks) for name, part in maps.items()}
    there = ~torch.stack([share for row in found.values() for share in row.values()]).isnan().any(dim=0)
    n = int(there.sum())
    if not n:
        return None
    # of the same examples, model by model: where one sees nothing, there is nothing to compare
    means = {name: {k: float(share[there].mean()) for k, share in row.items()} for name, row in found.items()}
    bars: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": region,
            "x": list(means),
            "y": [100 * row[region] for row in means.values()],
            "marker": {"color": COLOURS[region]},
            "texttemplate": "%{y:.1f}",
            "textposition": "outside",
            "cliponaxis": False,
            "hovertemplate": f"%{{x}}: %{{y:.1f}} % {region}<extra></extra>",
        }
        for region in masks
    ]
    layout = {
        "barmode": "group",
        "showlegend": True,
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": "% of the attributions"}, "range": [0, 108]},
    }
    told = [f"{name}: " + ", ".join(f"{100 * v:.1f} % {k}" for k, v in row.items()) for name, row in means.items()]
    of = f"{n} examples" if n == len(split) else f"{n} of {len(split)} examples, those with object and background"
    spread = ", ".join(f"{map_entropy(part):.2f} of {name}" for name, part in maps.items())
    said = f"Mean over {of}. {'; '.join(told)}. Entropy of a map, in nats: {spread}."
    return Figure("Where attributions lie", said, {"data": bars, "layout": layout}, f"Bars. {said}")


def _numbered(index: Tensor, shown: Grouped) -> zip[tuple[int, int]]:
    return zip(index.tolist(), shown.y.tolist(), strict=True)


def _word(shown: Grouped, label: int) -> str:
    labels = shown.groups.labels
    return f"'{' '.join(labels[label].split())}'" if label < len(labels) else f"class {label}"
