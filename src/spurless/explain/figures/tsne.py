r"""t-SNE plots of the features of one or several models, colored by label and by attribute.

Van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008. It preserves neighbours and little else, so each
plot comes with :math:`R^2` of :mod:`spurless.metrics.separation`, computed on the original features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Figure, Section
from spurless.core.progress import progress_reporter
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split
from spurless.metrics.separation import separation
from spurless.models.classifier import Classifier, on_device
from spurless.models.features import collect_features
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH

MAX_EXAMPLES = 1000
MIN_EXAMPLES = 4
PERPLEXITY = 30.0
MAX_LEGEND = 20  # maximum number of classes in a legend; more are only shown on hover
COLOURS = [f"@series{i}" for i in (1, 2, 3, 4, 5, 6, 0, 7)]
SYMBOLS = ("circle", "diamond-open", "cross", "triangle-up-open", "square", "star-open", "x", "circle-open")
"""Symbols of the first eight classes, of the next eight, and so on."""


def build_representation_section(
    models: Mapping[str, nn.Module],
    split: Split,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Section:
    """Return t-SNE plots of the features of models: one colored by label, one by attribute.

    ``models`` have the names of their panels, such as ``{"before": fitted.start, "after": fitted.model}``. At most
    1,000 examples are drawn. If attributes are hidden, or an example may have several, there is no figure by attribute.

    Raises:
        InputError: there are too few examples, their labels are hidden, or features are not finite.
    """
    check_arguments(build_representation_section, locals())
    if bool((split.y < 0).any()):
        raise InputError("the labels of this split are hidden, so points cannot be colored by label")
    if len(split) < MIN_EXAMPLES:
        raise InputError("there are too few examples for t-SNE", expected=f"at least {MIN_EXAMPLES}", got=len(split))
    index = torch.randperm(len(split), generator=Seeds(seed).generator("representations"))[:MAX_EXAMPLES].sort().values
    part, report = split.select(index), progress_reporter("t-SNE", len(models))
    embeddings = []
    for number, (name, model) in enumerate(models.items(), 1):
        features = _collect_features(wrap(model), part, device, workers)
        embeddings.append(_Embedding(name, features, compute_tsne(features, seed)))
        report(number)
    text = (
        f"t-SNE of the features of {len(part):,} of {len(split):,} examples. Points that are close have similar "
        "features; the sizes of clusters and the distances between them have no meaning."
    )
    figures = [_draw(coloring, _point_names(part), embeddings) for coloring in _colorings(part)]
    return Section("Representations", text, figures)


def compute_tsne(z: Tensor, seed: int) -> Tensor:
    """Return the t-SNE of at least four rows, ``(N, 2)``; deterministic for a seed; zeros if all rows are equal."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's own, not annotated

    z = z.double() - z.double().mean(dim=0)
    largest = float(z.abs().max())
    if largest == 0:
        return torch.zeros(len(z), 2)
    z = torch.nn.functional.pad(z / largest, (0, 1))  # scale does not matter, and PCA needs two columns
    perplexity, state = min(PERPLEXITY, (len(z) - 1) / 3), Seeds(seed).number("t-sne") % 2**32
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=state)
    with threadpool_limits(1):  # the order of sums over threads is random, and a thousand points do not need threads
        return torch.from_numpy(tsne.fit_transform(z.float().numpy())).float()


@dataclass(frozen=True)
class _Embedding:
    """The features of one model, and their t-SNE."""

    name: str
    features: Tensor
    points: Tensor


@dataclass(frozen=True)
class _Coloring:
    """What points are colored by: the names of the classes, and the class of each point."""

    kind: str
    names: tuple[str, ...]
    classes: Tensor


def _colorings(part: Split) -> list[_Coloring]:
    colorings = [_Coloring("label", part.groups.labels, part.y.cpu())]
    if _has_attribute(part):
        g = part.g.cpu()
        a = g if part.groups.mixed else part.groups.decode(g)[1]
        colorings.append(_Coloring("attribute", part.groups.attributes, a))
    return colorings


def _point_names(part: Split) -> list[str]:
    """Return the hover text of each point: its group, or its label if groups are not known."""
    if _has_attribute(part) and not part.groups.mixed:
        return [part.groups.name(g) for g in part.g.tolist()]
    return [part.groups.labels[y] for y in part.y.tolist()]


def _has_attribute(part: Split) -> bool:
    return part.has_attributes and not part.groups.overlap


def _draw(coloring: _Coloring, names: Sequence[str], embeddings: Sequence[_Embedding]) -> Figure:
    traces = []
    for n, embedding in enumerate(embeddings):
        axes = {"xaxis": f"x{_axis_number(n)}", "yaxis": f"y{_axis_number(n)}"}
        for k in sorted(set(coloring.classes.tolist())):
            rows = (coloring.classes == k).nonzero().flatten().tolist()
            x, y = ([round(v, 2) for v in column] for column in embedding.points[rows].T.tolist())
            traces.append(
                {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": coloring.names[k], **axes}
                | {"marker": _marker(k), "legendgroup": str(k), "showlegend": n == 0}
                | {"text": [names[row] for row in rows], "hovertemplate": "%{text}<extra></extra>"}
            )
    numbers = ", ".join(f"{_r2(item.features, coloring.classes)} {item.name}" for item in embeddings)
    caption = (
        f"Separation by {coloring.kind}: {numbers}.\nR² of the cosine distances of the features: "
        f"1 if each {coloring.kind} has a separate direction, 0 if the {coloring.kind} has no effect."
    )
    layout = _layout_panels([item.name for item in embeddings]) | {"showlegend": len(coloring.names) <= MAX_LEGEND}
    alt = f"Points colored by {coloring.kind}. Separation by {coloring.kind}: {numbers}."
    return Figure(f"Colored by {coloring.kind}", caption, {"data": traces, "layout": layout}, alt, 380)


def _marker(k: int) -> dict[str, Any]:
    colour, symbol = COLOURS[k % len(COLOURS)], SYMBOLS[k // len(COLOURS) % len(SYMBOLS)]
    edge = {"width": 1.5 if symbol.endswith("-open") else 0}
    return {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.75, "line": edge}


def _layout_panels(names: Sequence[str]) -> dict[str, Any]:
    """Return a layout of panels side by side, without tick labels, which have no meaning for t-SNE."""
    layout: dict[str, Any] = {"legend": {"itemsizing": "constant"}}
    bare = {"showgrid": False, "showticklabels": False, "showline": True, "mirror": True, "ticks": ""}
    for n, name in enumerate(names):
        ends = [(n + 0.03 * (n > 0)) / len(names), (n + 1 - 0.03 * (n < len(names) - 1)) / len(names)]
        k = _axis_number(n)
        below = {"domain": ends, "title": {"text": name}, "anchor": f"y{k}"}
        layout |= {f"xaxis{k}": bare | below, f"yaxis{k}": bare | {"anchor": f"x{k}"}}
    return layout


def _axis_number(n: int) -> str:
    """Return the suffix of an axis in Plotly; the first has none."""
    return str(n + 1) if n else ""


def _collect_features(model: Classifier, part: Split, device: torch.device | str | None, workers: int) -> Tensor:
    with on_device(model, device) as target:
        loader = Loader(part, sequential_order(len(part)), EVALUATION_BATCH, target, workers=workers)
        return collect_features(model, loader.batches(), target)


def _r2(z: Tensor, number: Tensor) -> str:
    r2 = separation(z, number).r2 if bool((z != 0).any()) else math.nan
    return "unknown" if math.isnan(r2) else f"{r2:.2f}"
