r"""Figures 2 to 6 of NeuronTune: features that differ between correct and incorrect predictions.

Zheng, Ye and Zhang, 2025, arXiv:2505.24048. For each label, the features with the highest and with the lowest
spuriousness are shown: the distribution of their values over correct (blue) and incorrect predictions (red), and the
images that activate them most. Heat maps explain the feature :math:`|v_i|`, not a class.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture, Section
from spurless.data.loader import Loader, sequential_order
from spurless.data.split import Split, Splits
from spurless.explain.attribution import compute_attribution_map
from spurless.explain.cam import xgradcam
from spurless.explain.overlays import compare_heat_maps, has_images
from spurless.explain.target_layer import NoFeatureMapError
from spurless.metrics.spuriousness import Neurons
from spurless.models.classifier import Classifier, device_of
from spurless.models.features import collect_features, compute_logits
from spurless.models.wrapping import wrap
from spurless.train.evaluate import EVALUATION_BATCH

BINS = 24
N_IMAGES = 4
MAX_POINTS = 400
CORRECT_COLOUR, INCORRECT_COLOUR = "@series1", "@bad"
COLOURS = ("@series1", "@series3", "@series2", "@bad")  # colors of the groups in the plane, as in figure 2 of the paper


class OneFeature(nn.Module):
    """A head whose only logit is the absolute value of one feature, so that explainers can explain it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        """Return ``(N, 1)``."""
        return features[:, self.dim : self.dim + 1].abs()


def compute_neuron_map(model: nn.Module, x: Tensor, dim: int) -> Tensor:
    """Return heat maps of one feature: xGradCAM, or gradient times input if the model has no feature map.

    Returns:
        Maps of shape ``(N, height, width)`` in [0, 1].

    Raises:
        InputError: the feature does not exist.
    """
    check_arguments(compute_neuron_map, locals())
    model = wrap(model)
    if not 0 <= dim < model.n_features:
        raise InputError(f"{model.name} has no feature {dim}", expected=f"0 to {model.n_features - 1}")
    feature_model = Classifier(model.backbone, OneFeature(dim), name=model.name)
    try:
        return xgradcam(feature_model, x)
    except NoFeatureMapError:
        return compute_attribution_map(feature_model, x, how="gradient-x-input")


def build_neuron_sections(
    model: nn.Module, split: Split, neurons: Neurons, features: Tensor | None = None, count: int = 3
) -> list[Section]:
    """Return one section per label: its most and least biased features, and the images that activate them.

    ``model`` is usually the starting point, ``fitted.start``, and ``neurons`` the result of NeuronTune,
    ``fitted.explanation``. ``features`` are those of the split, ``(N, d)``, if already computed. Pictures are drawn if
    the examples are images. ``count`` is the number of features of each kind.

    Raises:
        InputError: the features do not fit the split, or the labels are hidden.
    """
    check_arguments(build_neuron_sections, locals())
    classifier = wrap(model)
    if features is None:
        loader = Loader(split, sequential_order(len(split)), EVALUATION_BATCH, device_of(classifier))
        features = collect_features(classifier, loader.batches())
    shape = (len(split), len(neurons.suppressed))
    if features.shape != shape:
        got = tuple(features.shape)
        raise InputError("the features do not fit the split and the model", expected=shape, got=got)
    y = split.y.cpu()
    if bool((y < 0).any()):
        raise InputError("the labels of this split are hidden, so it is not known which predictions are correct")
    correct = compute_logits(classifier, features).argmax(dim=1) == y
    labels = range(len(neurons.labels))
    return [_build_section(classifier, split, neurons, features, correct, label, count) for label in labels]


def _build_section(  # noqa: PLR0913
    model: Classifier, split: Split, neurons: Neurons, features: Tensor, correct: Tensor, label: int, count: int
) -> Section:
    name, rows = neurons.labels[label], split.y.cpu() == label
    n_correct, n_incorrect = int((correct & rows).sum()), int((~correct & rows).sum())
    title = f"Neurons and the label {name}"
    if label in neurons.scores.skipped:
        return Section(title, f"All predictions with the label {name} are correct, or all are incorrect.")
    items: list[Picture | Figure] = []
    draws_images = has_images(split)
    for kind, dims in (("most", neurons.most_biased(label, count)), ("least", neurons.least_biased(label, count))):
        for dim in dims:
            score = float(neurons.scores.delta[label, dim])
            state = "suppressed" if neurons.suppressed[dim] else "kept"
            caption = f"Feature {dim}, {state}: score {score:.3g}, {kind} biased for this label"
            values = neurons.strength(features[rows, dim])
            items.append(plot_distributions(values, correct[rows], caption))
            if draws_images:
                top = neurons.top_examples(features, dim, N_IMAGES, mask=rows)
                items += [_draw_images(model, split, top, dim)] if top else []
    text = (
        f"{n_correct} correct and {n_incorrect} incorrect predictions with the label {name}. First the features whose "
        f"values were most increased among incorrect predictions at epoch {neurons.epoch}, then those whose values "
        "were most decreased. A feature is suppressed if it is biased for any label."
    )
    return Section(title, text, tuple(items))


def plot_distributions(values: Tensor, correct: Tensor, title: str) -> Figure:
    """Draw histograms of one feature over correct and over incorrect predictions, in percent of each."""
    low, high = float(values.min()), float(values.max())
    edges = torch.linspace(low, high if high > low else low + 1, BINS + 1)
    centers = ((edges[1:] + edges[:-1]) / 2).tolist()
    traces, medians = [], []
    parts = (("correct", values[correct], CORRECT_COLOUR), ("incorrect", values[~correct], INCORRECT_COLOUR))
    for name, part, colour in parts:
        if not len(part):
            continue
        counts = torch.histogram(part.float().cpu(), edges).hist
        percentages = (100 * counts / len(part)).tolist()
        hover = f"{name}<br>%{{x:.3g}}: %{{y:.1f}} %<extra></extra>"
        bars = {"type": "bar", "x": centers, "y": percentages, "name": name, "width": float(edges[1] - edges[0])}
        traces.append(bars | {"marker": {"color": colour}, "opacity": 0.55, "hovertemplate": hover})
        medians.append(f"median of {len(part)} {name} {float(part.float().quantile(0.5)):.3g}")
    y_axis = {"title": {"text": "% of each"}, "rangemode": "tozero"}
    layout = {"barmode": "overlay", "xaxis": {"title": {"text": "activation"}}, "yaxis": y_axis}
    caption = "; ".join(medians)
    return Figure(title, f"{caption}.", {"data": traces, "layout": layout}, f"Two overlaid histograms: {caption}.", 240)


def _draw_images(model: Classifier, split: Split, rows: list[int], dim: int) -> Picture:
    def explain(model: Classifier, x: Any) -> Tensor:
        return compute_neuron_map(model, x, dim)

    picture = compare_heat_maps(model, split, rows, how=explain, across=True)
    title, alt = f"Images with the highest feature {dim}", f"{len(rows)} images with heat maps of feature {dim}."
    return replace(picture, title=title, alt=alt)


def build_synthetic_section(data: Splits, before: nn.Module, after: nn.Module) -> Section:
    """Return figure 2 of the paper: the plane of core and spurious component, both boundaries, and distributions.

    ``data`` are rows of features whose first two are the core and the spurious one.

    Raises:
        InputError: the models are not linear in the features, with two classes.
    """
    check_arguments(build_synthetic_section, locals())
    lines = {"before": get_linear_boundary(before, data.train), "after": get_linear_boundary(after, data.train)}
    items: list[Picture | Figure] = [
        _draw_plane(split, lines, name) for name, split in (("train", data.train), ("test", data.test))
    ]
    x = _get_rows(data.train)
    correct = compute_logits(wrap(before), x).argmax(dim=1) == data.train.y
    for label, name in enumerate(data.groups.labels):
        rows = data.train.y == label
        for dim, component in enumerate(("core", "spurious")):
            items.append(plot_distributions(x[rows, dim].abs(), correct[rows], f"{component} component, label {name}"))
    text = (
        "Before tuning, the model uses the spurious component, so its boundary is tilted; after tuning, with that "
        "component suppressed, the boundary is vertical."
    )
    return Section("Core and spurious component", text, tuple(items))


def get_linear_boundary(model: nn.Module, split: Split) -> tuple[float, float, float]:
    """Return ``(w_core, w_spurious, offset)``: the model predicts the second class if their sum is above 0.

    All other components are set to 0.
    """
    classifier, x = wrap(model), _get_rows(split)
    head = classifier.head
    is_linear = isinstance(head, nn.Linear) and head.out_features == 2 and head.in_features == x.shape[1] >= 2
    if not is_linear or not torch.equal(classifier.features(x[:8]).detach(), x[:8]) or not isinstance(head, nn.Linear):
        raise InputError(
            f"{classifier.name} is not linear in the features of these data, with two classes",
            hint='Use sp.build("linear", data).',
        )
    weight = (head.weight[1] - head.weight[0]).detach()
    offset = float((head.bias[1] - head.bias[0]).detach()) if head.bias is not None else 0.0
    return float(weight[0]), float(weight[1]), offset


def _get_rows(split: Split) -> Tensor:
    if not isinstance(split.x, Tensor) or split.x.dim() != 2:
        raise InputError("the examples are not rows of features, so there is no plane to draw")
    return split.x.float().cpu()


def _draw_plane(split: Split, lines: dict[str, tuple[float, float, float]], name: str) -> Figure:
    x = _get_rows(split)
    traces: list[dict[str, Any]] = []
    for g, colour in zip(range(len(split.groups)), COLOURS, strict=False):
        points = x[split.g == g][:MAX_POINTS]
        marker = {"color": colour, "size": 4, "opacity": 0.55}
        traces.append(
            {"x": points[:, 0].tolist(), "y": points[:, 1].tolist(), "mode": "markers", "name": split.groups.name(g)}
            | {"marker": marker, "hoverinfo": "skip"}
        )
    left, low = x[:, :2].amin(dim=0).tolist()
    right, high = x[:, :2].amax(dim=0).tolist()
    for when, dash in (("before", "dash"), ("after", "solid")):
        core, spurious, offset = lines[when]
        if abs(core) >= 1e-6 * abs(spurious) and core:
            ends = {"x": [-(offset + spurious * v) / core for v in (low, high)], "y": [low, high]}
        else:  # a boundary that uses only the spurious component is horizontal
            ends = {"x": [left, right], "y": [-offset / spurious] * 2 if spurious else [low, low]}
        line = {"color": "@ink", "dash": dash, "width": 2}
        traces.append({**ends, "mode": "lines", "name": f"boundary {when}", "line": line})
    layout = {
        "xaxis": {"title": {"text": "core component"}, "range": [left, right]},
        "yaxis": {"title": {"text": "spurious component"}, "range": [low, high]},
    }
    alt = f"The {name} split in the plane of core and spurious component, with the model's boundary before and after."
    caption = f"At most {MAX_POINTS} examples of each group are drawn."
    return Figure(f"The {name} split", caption, {"data": traces, "layout": layout}, alt, 360)
