r"""Clouds: representations of one or several models, laid flat by t-SNE and painted by label and by attribute.

Van der Maaten and Hinton, "Visualizing Data using t-SNE", JMLR 2008. It keeps neighbours and little else, so each
picture has a number beside it: :math:`R^2` of :mod:`spurless.metrics.separation`, of the same examples before they
were laid flat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Section
from spurless.core.progress import teller
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, in_order
from spurless.metrics.separation import separation
from spurless.models.classifier import Classifier
from spurless.models.features import collect
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH

MOST = 1000
"""examples of a picture"""
FEWEST = 4
PERPLEXITY = 30.0
NAMED = 20
"""classes that a legend has room for; more are named by hovering alone"""
COLOURS = [f"@arm{i}" for i in (1, 2, 3, 4, 5, 6, 0, 7)]
SYMBOLS = ("circle", "diamond-open", "cross", "triangle-up-open", "square", "star-open", "x", "circle-open")
"""of the first eight classes, of the next eight, and so on"""


def representation_section(
    models: Mapping[str, nn.Module],
    split: Grouped,
    *,
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> Section:
    """Return what the heads of some models read, as clouds of points: a figure by label, and one by attribute.

    Args:
        models: by what is written under their panels, such as ``{"before": fitted.start, "after": fitted.model}``.
        split: the examples; of more than 1,000, so many are drawn. Where attributes are hidden, or an example may have
            several, there is no figure by attribute.
        seed: of the choice of examples and of t-SNE.
        device: where the arithmetic is done; by default where each model is.
        workers: processes that read a streamed split.

    Raises:
        BadInput: there are too few examples, their labels are hidden, or features are not finite.
    """
    if bool((split.y < 0).any()):
        raise BadInput("the labels of this split are hidden, so representations cannot be painted by label")
    if len(split) < FEWEST:
        raise BadInput("there are too few examples for a t-SNE", expected=f"at least {FEWEST}", got=len(split))
    index = torch.randperm(len(split), generator=Seeds(seed).generator("representations"))[:MOST].sort().values
    part, done = split.select(index), teller("t-SNE", len(models))
    clouds = []
    for number, (word, model) in enumerate(models.items(), 1):
        features = _features(wrap(model), part, device, workers)
        clouds.append(_Cloud(word, features, flattened(features, seed)))
        done(number)
    text = (
        f"t-SNE of what the head reads, of {len(part):,} of {len(split):,} examples. Those that lie close together are "
        "alike to the head; how far apart two clouds are, and how large, means nothing."
    )
    return Section("Representations", text, [_figure(paint, _names(part), clouds) for paint in _paints(part)])


def flattened(z: Tensor, seed: int) -> Tensor:
    """Return t-SNE of four or more representations, ``(N, 2)``: the same for one seed, zeros where all are the same."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # scikit-learn's own, not annotated

    z = z.double() - z.double().mean(dim=0)
    largest = float(z.abs().max())
    if largest == 0:
        return torch.zeros(len(z), 2)
    z = torch.nn.functional.pad(z / largest, (0, 1))  # scale does not matter, and PCA asks for two columns
    walk = TSNE(
        2,
        perplexity=min(PERPLEXITY, (len(z) - 1) / 3),
        init="pca",
        learning_rate="auto",
        random_state=Seeds(seed).number("t-sne") % 2**32,
    )
    with threadpool_limits(1):  # threads add up in any order, and a thousand points do not need them
        return torch.from_numpy(walk.fit_transform(z.float().numpy())).float()


@dataclass(frozen=True)
class _Cloud:
    """The representations of one model, as they are and laid flat."""

    word: str
    features: Tensor
    flat: Tensor


@dataclass(frozen=True)
class _Paint:
    """What points are painted by, and the number of each."""

    word: str
    names: tuple[str, ...]
    number: Tensor


def _paints(part: Grouped) -> list[_Paint]:
    paints = [_Paint("label", part.groups.labels, part.y.cpu())]
    if _apart(part):
        g = part.g.cpu()
        a = g if part.groups.mixed else part.groups.decode(g)[1]
        paints.append(_Paint("attribute", part.groups.attributes, a))
    return paints


def _names(part: Grouped) -> list[str]:
    """Return what is said of each point under the pointer: its group, or its label where groups are not known."""
    if _apart(part) and not part.groups.mixed:
        return [part.groups.name(g) for g in part.g.tolist()]
    return [part.groups.labels[y] for y in part.y.tolist()]


def _apart(part: Grouped) -> bool:
    return part.has_attributes and not part.groups.overlap


def _figure(paint: _Paint, names: Sequence[str], clouds: Sequence[_Cloud]) -> Figure:
    """Draw one panel per model, all painted alike."""
    traces = []
    for n, cloud in enumerate(clouds):
        axes = {"xaxis": f"x{_number(n)}", "yaxis": f"y{_number(n)}"}
        for k in sorted(set(paint.number.tolist())):
            rows = (paint.number == k).nonzero().flatten().tolist()
            x, y = ([round(v, 2) for v in column] for column in cloud.flat[rows].T.tolist())
            traces.append(
                {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": paint.names[k], **axes}
                | {"marker": _marker(k), "legendgroup": str(k), "showlegend": n == 0}
                | {"text": [names[row] for row in rows], "hovertemplate": "%{text}<extra></extra>"}
            )
    told = ", ".join(f"{_r2(cloud.features, paint.number)} {cloud.word}" for cloud in clouds)
    caption = (
        f"Separation by {paint.word}: {told}.\nIt is R² of the cosine distances of the representations: "
        f"1 where each {paint.word} has a direction of its own, 0 where the {paint.word} means nothing."
    )
    layout = _panels([cloud.word for cloud in clouds]) | {"showlegend": len(paint.names) <= NAMED}
    alt = f"Clouds of points, painted by {paint.word}. Separation by {paint.word}: {told}."
    return Figure(f"Painted by {paint.word}", caption, {"data": traces, "layout": layout}, alt, 380)


def _marker(k: int) -> dict[str, Any]:
    colour, symbol = COLOURS[k % len(COLOURS)], SYMBOLS[k // len(COLOURS) % len(SYMBOLS)]
    edge = {"width": 1.5 if symbol.endswith("-open") else 0}
    return {"color": colour, "symbol": symbol, "size": 5, "opacity": 0.75, "line": edge}


def _panels(words: Sequence[str]) -> dict[str, Any]:
    """Return a layout of panels side by side, without numbers on their axes: those of t-SNE mean nothing."""
    layout: dict[str, Any] = {"legend": {"itemsizing": "constant"}}
    bare = {"showgrid": False, "showticklabels": False, "showline": True, "mirror": True, "ticks": ""}
    for n, word in enumerate(words):
        ends = [(n + 0.03 * (n > 0)) / len(words), (n + 1 - 0.03 * (n < len(words) - 1)) / len(words)]
        below = {"domain": ends, "title": {"text": word}, "anchor": f"y{_number(n)}"}
        layout |= {f"xaxis{_number(n)}": bare | below, f"yaxis{_number(n)}": bare | {"anchor": f"x{_number(n)}"}}
    return layout


def _number(n: int) -> str:
    """Return how Plotly counts axes: the first has no number."""
    return str(n + 1) if n else ""


def _features(model: Classifier, part: Grouped, device: torch.device | str | None, workers: int) -> Tensor:
    """Return what the head reads; the model is left where it was."""
    home = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    place = home if device is None else torch.device(device)
    loader = Loader(part, in_order(len(part)), EVALUATION_BATCH, place, workers=workers)
    try:
        return collect(model.to(place), loader.batches(), place)
    finally:
        model.to(home)


def _r2(z: Tensor, number: Tensor) -> str:
    found = separation(z, number).r2 if bool((z != 0).any()) else math.nan
    return "unknown" if math.isnan(found) else f"{found:.2f}"
