"""Compared: what several models look at in the same examples, side by side; figures 8, 26 and 29 to 34 of a study.

Barsbey et al. 2025, arXiv:2507.17748, section E: models of a low and of a high learning rate, attributions of the true
label's logit, normalised as captum does for pictures. Where the data say which pixels are the label's own and which the
shortcut's, the share of either is told; see :mod:`spurless.data.regions` and :mod:`spurless.metrics.attribution_share`.

Deviations:
    The study shows test examples that most low-rate models get wrong and most high-rate ones right. Here there is one
    model of each kind: examples on which the first and the last disagree come first, group by group in turn, or label
    by label where there are more groups than rows.
    Models are in eval mode, not in train mode.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

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
from spurless.metrics.attribution_share import normalise, region_share
from spurless.models.wrapping import wrap

SHARED = 200
"""Examples over which shares are averaged, at most."""
COLOURS = {"core": "@arm1", "spurious": "@arm2", "noise": "@arm0"}


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
    items: list[Picture | Figure] = []
    if drawn:
        first, *_, last = models.values()
        by = split if count >= len(split.groups) else split.hide_attributes()  # else all rows could be of one label
        items.append(_picture(models, split, chosen(first, last, by, count, seed, **place), masks, how, place))
    if masks:
        order = torch.randperm(len(split), generator=Seeds(seed).generator("attributions"))
        items.append(_bars(models, split.select(order[:SHARED]), masks, how, place))
    text = f"{part} examples of {data.name}; attributions of the true label by {how}, sizes summed over channels."
    return Section("What the models look at", text[:1].upper() + text[1:], items)


def shares(model: nn.Module, split: Grouped, masks: Mapping[str, Tensor], how: str, **place: Any) -> dict[str, Tensor]:
    """Return the share of its attributions that lies in each region, example by example; ``place`` as for ``maps``."""
    maps = _maps(model, split, how, **place)
    return {name: region_share(maps, mask) for name, mask in masks.items()}


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
    masks: Mapping[str, Tensor],
    how: str,
    place: dict[str, Any],
) -> Picture:
    """Draw one row per example: the image, and what each model looks at in it."""
    shown, images = pictured(split, index)
    columns, lines = {"image": rgb(images)}, [f"{int(i)}: label {_word(shown, k)}" for i, k in _numbered(index, shown)]
    for name, model in models.items():
        maps, said = _maps(model, shown, how, **place), predictions(model, shown, **place)
        columns[name] = glow(images, maps)
        inside = {region: region_share(maps, mask) for region, mask in masks.items()}
        for i, line in enumerate(lines):
            wrong = " (wrong)" * (int(said[i]) != int(shown.y[i]))
            parts = "".join(f", {100 * float(share[i]):.0f} % {region}" for region, share in inside.items())
            lines[i] = f"{line}; {name} {_word(shown, int(said[i]))}{wrong}{parts}"
    return Picture(
        title="The same examples, model by model",
        caption="\n".join([*(f"{line}." for line in lines), "The lighter, the hotter; every map has its own scale."]),
        png=encode(columns, [str(int(i)) for i in index]),
        alt=f"{len(index)} rows of {len(columns)} columns: {', '.join(columns)}. The caption says label, predictions "
        "and shares of each row.",
    )


def _bars(
    models: Mapping[str, nn.Module], split: Grouped, masks: Mapping[str, Tensor], how: str, place: dict[str, Any]
) -> Figure:
    """Draw how much of the attributions lies in each region, mean over examples."""
    found = {name: shares(model, split, masks, how, **place) for name, model in models.items()}
    means = {name: {k: float(share.nanmean()) for k, share in row.items()} for name, row in found.items()}
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
    said = f"Mean over {len(split)} examples. {'; '.join(told)}."
    return Figure("Where attributions lie", said, {"data": bars, "layout": layout}, f"Bars. {said}")


def _numbered(index: Tensor, shown: Grouped) -> zip[tuple[int, int]]:
    return zip(index.tolist(), shown.y.tolist(), strict=True)


def _word(shown: Grouped, label: int) -> str:
    labels = shown.groups.labels
    return f"'{' '.join(labels[label].split())}'" if label < len(labels) else f"class {label}"
