r"""Neurons: which features tell mistakes from hits, and which images they answer to; figures 2 to 6 of NeuronTune.

Zheng, Ye and Zhang, 2025, arXiv:2505.24048. Of each label, the features with the highest and with the lowest
spuriousness are shown: how their values are distributed over hits (blue) and mistakes (red), and the images that
activate them most. A heat map is one of that feature, not of a class: the explained number is :math:`|v_i|` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture, Section
from spurless.data.grouped import Grouped, Splits
from spurless.data.loader import Loader, in_order
from spurless.explain.attribution import attribution_map
from spurless.explain.cam import xgradcam
from spurless.explain.pictures import contrast
from spurless.explain.target import NoMap
from spurless.metrics.spuriousness import Neurons
from spurless.models.classifier import Classifier
from spurless.models.features import collect, logits_of_features
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH

BINS = 24
IMAGES = 4
MOST_DOTS = 400
HITS, MISTAKES = "@arm1", "@bad"
COLOURS = ("@arm1", "@arm3", "@arm2", "@bad")
"""of the groups of the plane: blue and green, orange and red, as in the paper's figure 2"""


class OneFeature(nn.Module):
    """A head that returns the size of one feature as the only logit, so that what explains a class explains it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        """Return ``(N, 1)``."""
        return features[:, self.dim : self.dim + 1].abs()


def neuron_map(model: Classifier, x: Tensor, dim: int) -> Tensor:
    """Return where each image activates one feature: xGradCAM, or the gradient times the input where no map is kept.

    Returns:
        Maps of shape ``(N, height, width)`` in [0, 1].

    Raises:
        BadInput: there is no such feature.
    """
    if not 0 <= dim < model.n_features:
        raise BadInput(f"{model.name} has no feature {dim}", expected=f"0 to {model.n_features - 1}")
    one = Classifier(model.backbone, OneFeature(dim), name=model.name)
    try:
        return xgradcam(one, x)
    except NoMap:
        return attribution_map(one, x, how="gradient-x-input")


def neuron_sections(
    model: nn.Module, split: Grouped, neurons: Neurons, features: Tensor | None = None, count: int = 3
) -> list[Section]:
    """Return one section per label: its most and its least biased features, and the images that activate them.

    Args:
        model: the one whose hits and mistakes are shown, as a rule the starting point: ``fitted.start``.
        split: examples with labels; pictures are drawn where they are images.
        neurons: what NeuronTune found: ``fitted.explanation``.
        features: those of the split, ``(N, d)``, where they are at hand; all splits share the backbone.
        count: how many features of each kind.

    Raises:
        BadInput: features and split do not fit, or the split has no labels.
    """
    classifier = wrap(model)
    if features is None:
        device = next((parameter.device for parameter in classifier.parameters()), torch.device("cpu"))
        features = collect(classifier, Loader(split, in_order(len(split)), EVALUATION_BATCH, device).batches())
    if features.shape != (len(split), len(neurons.suppressed)):
        raise BadInput(
            "these features are not of this split and model",
            expected=(len(split), len(neurons.suppressed)),
            got=tuple(features.shape),
        )
    y = split.y.cpu()
    if bool((y < 0).any()):
        raise BadInput("the labels of this split are hidden, so nobody knows which predictions are wrong")
    right = logits_of_features(classifier, features).argmax(dim=1) == y
    return [_section(classifier, split, neurons, features, right, label, count) for label in range(len(neurons.labels))]


def _section(  # noqa: PLR0913 - what one section is made of
    model: Classifier, split: Grouped, neurons: Neurons, features: Tensor, right: Tensor, label: int, count: int
) -> Section:
    name, mine = neurons.labels[label], split.y.cpu() == label
    hits, mistakes = int((right & mine).sum()), int((~right & mine).sum())
    title = f"Neurons and the label {name}"
    if label in neurons.scores.skipped:
        return Section(title, f"There were no mistakes to learn from, or nothing but mistakes, with the label {name}.")
    items: list[Picture | Figure] = []
    drawn = not isinstance(split.x, dict) and model_sees_images(split)
    for kind, dims in (("most", neurons.most_biased(label, count)), ("least", neurons.least_biased(label, count))):
        for dim in dims:
            score = float(neurons.scores.delta[label, dim])
            word = f"Feature {dim}, {'suppressed' if neurons.suppressed[dim] else 'kept'}: score {score:.3g}"
            values = neurons.strength(features[mine, dim])
            items.append(distributions(values, right[mine], f"{word}, {kind} biased of this label"))
            if drawn:
                rows = neurons.top_examples(features, dim, IMAGES, within=mine)
                items += [_images(model, split, rows, dim, f"What activates feature {dim} most")] if rows else []
    text = (
        f"{hits} hits and {mistakes} mistakes with the label {name}. First come the features whose values were raised "
        f"most among mistakes when they were identified (epoch {neurons.epoch}), then those where they were lowered "
        "most. A feature is suppressed if it is biased for any label."
    )
    return Section(title, text, tuple(items))


def model_sees_images(split: Grouped) -> bool:
    """Return whether the examples are grey or RGB images."""
    x: Any = split.x
    shape = tuple(x[0].shape) if len(split) else ()
    return len(shape) == 3 and shape[0] in (1, 3)


def distributions(values: Tensor, right: Tensor, title: str) -> Figure:
    """Draw how one feature is distributed over hits and over mistakes, each as a share of its own."""
    low, high = float(values.min()), float(values.max())
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1)
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    traces, told = [], []
    for word, part, colour in (("hits", values[right], HITS), ("mistakes", values[~right], MISTAKES)):
        if not len(part):
            continue
        counts = torch.histogram(part.float().cpu(), edges).hist
        share = (100 * counts / len(part)).tolist()
        traces.append(
            {
                "type": "bar",
                "x": middles,
                "y": share,
                "name": word,
                "width": float(edges[1] - edges[0]),
                "marker": {"color": colour},
                "opacity": 0.55,
                "hovertemplate": f"{word}<br>%{{x:.3g}}: %{{y:.1f}} %<extra></extra>",
            }
        )
        told.append(f"median of {len(part)} {word} {float(part.float().quantile(0.5)):.3g}")
    layout = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": "activation"}},
        "yaxis": {"title": {"text": "% of each"}, "rangemode": "tozero"},
    }
    said = "; ".join(told)
    return Figure(title, f"{said}.", {"data": traces, "layout": layout}, f"Two overlaid histograms: {said}.", 240)


def _images(model: Classifier, split: Grouped, rows: list[int], dim: int, title: str) -> Picture:
    picture = contrast(model, split, rows, how=_draw(dim), across=True)
    return replace(picture, title=title, alt=f"{len(rows)} images, each beside the places that activate feature {dim}.")


def _draw(dim: int) -> Callable[[Classifier, Any], Tensor]:
    return lambda model, x: neuron_map(model, x, dim)


def synthetic_section(data: Splits, before: nn.Module, after: nn.Module) -> Section:
    """Return the paper's figure 2: the plane of core and spurious component, both boundaries, and distributions.

    Args:
        data: core-spurious-noise, or any rows of features whose first two are the core and the spurious one.
        before: a linear model of them.
        after: the tuned one.

    Raises:
        BadInput: the models are not linear in the features, with two classes.
    """
    lines = {"before": boundary(before, data.train), "after": boundary(after, data.train)}
    items: list[Picture | Figure] = [
        _plane(split, lines, name) for name, split in (("train", data.train), ("test", data.test))
    ]
    x = _rows(data.train)
    right = logits_of_features(wrap(before), x).argmax(dim=1) == data.train.y
    for label, name in enumerate(data.groups.labels):
        mine = data.train.y == label
        for dim, component in enumerate(("core", "spurious")):
            items.append(distributions(x[mine, dim].abs(), right[mine], f"{component} component, label {name}"))
    text = (
        "The boundary of the model before tuning leans on the spurious component; after tuning, with that "
        "component suppressed, it stands upright."
    )
    return Section("Core and spurious component", text, tuple(items))


def boundary(model: nn.Module, split: Grouped) -> tuple[float, float, float]:
    """Return ``(w_core, w_spurious, offset)``: the model says the second class where their sum is above 0.

    All other components are taken at 0.
    """
    classifier, x = wrap(model), _rows(split)
    head = classifier.head
    same = isinstance(head, nn.Linear) and head.out_features == 2 and head.in_features == x.shape[1] >= 2
    if not same or not torch.equal(classifier.features(x[:8]).detach(), x[:8]) or not isinstance(head, nn.Linear):
        raise BadInput(
            f"{classifier.name} is not linear in the features of these data, with two classes",
            do='Use sp.build("linear", data).',
        )
    weight = (head.weight[1] - head.weight[0]).detach()
    offset = float((head.bias[1] - head.bias[0]).detach()) if head.bias is not None else 0.0
    return float(weight[0]), float(weight[1]), offset


def _rows(split: Grouped) -> Tensor:
    if not isinstance(split.x, Tensor) or split.x.dim() != 2:
        raise BadInput("these data are no rows of features, so they have no plane to draw")
    return split.x.float().cpu()


def _plane(split: Grouped, lines: dict[str, tuple[float, float, float]], name: str) -> Figure:
    x = _rows(split)
    traces: list[dict[str, Any]] = []
    for g, colour in zip(range(len(split.groups)), COLOURS, strict=False):
        dots = x[split.g == g][:MOST_DOTS]
        marker = {"color": colour, "size": 4, "opacity": 0.55}
        traces.append(
            {"x": dots[:, 0].tolist(), "y": dots[:, 1].tolist(), "mode": "markers", "name": split.groups.name(g)}
            | {"marker": marker, "hoverinfo": "skip"}
        )
    low, high = (float(v) for v in (x[:, 1].min(), x[:, 1].max()))
    left, right = (float(v) for v in (x[:, 0].min(), x[:, 0].max()))
    for word, dash in (("before", "dash"), ("after", "solid")):
        core, spurious, offset = lines[word]
        if abs(core) >= 1e-6 * abs(spurious) and core:
            ends = {"x": [-(offset + spurious * v) / core for v in (low, high)], "y": [low, high]}
        else:  # a boundary that reads the spurious component alone is level
            ends = {"x": [left, right], "y": [-offset / spurious] * 2 if spurious else [low, low]}
        traces.append(
            {**ends, "mode": "lines", "name": f"boundary {word}", "line": {"color": "@ink", "dash": dash, "width": 2}}
        )
    layout = {
        "xaxis": {"title": {"text": "core component"}, "range": [left, right]},
        "yaxis": {"title": {"text": "spurious component"}, "range": [low, high]},
    }
    alt = f"The {name} split in the plane of core and spurious component, with the model's boundary before and after."
    caption = f"At most {MOST_DOTS} examples of each group are drawn."
    return Figure(f"The {name} split", caption, {"data": traces, "layout": layout}, alt, 360)
