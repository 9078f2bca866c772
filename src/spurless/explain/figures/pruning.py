r"""Figures 1b and 3 of DCWP: the subnetwork that pruning leaves, and its features.

Park, Lee, Lee and Ye, 2023, arXiv:2210.05247. Features are drawn after pretraining, after pruning and after retraining,
see :mod:`spurless.explain.figures.tsne`.

Deviations:
    * Figure 1b shows unbiased test accuracy; here it is the accuracy on training examples, mined ones and others,
      because a method never gets the test split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.figures import Figure, Section
from spurless.data.mined import MinedExamples
from spurless.data.split import Split
from spurless.explain.figures.tsne import build_representation_section
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import make_permanent, named_weight_layers, prune, sparsity
from spurless.models.pruning.size import layer_sparsity
from spurless.models.wrapping import wrap


class _Subnetwork(Protocol):
    """Explanation of a pruning method, such as ``methods._learn_mask.Subnetwork``."""

    @property
    def mined(self) -> MinedExamples | None: ...
    @property
    def layers(self) -> Mapping[str, float]: ...
    @property
    def snapshots(self) -> Sequence[Any]: ...  # with step, sparsity, and accuracies on mined and other examples
    @property
    def pruned(self) -> nn.Module | None: ...


def build_subnetwork_sections(  # noqa: PLR0913
    start: nn.Module,
    model: nn.Module,
    split: Split,
    subnetwork: _Subnetwork,
    *,
    train: Split | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> list[Section]:
    """Return sections on a subnetwork: features, accuracy against sparsity, layers, and mined examples.

    ``start`` is the model before pruning, ``fitted.start``; ``model`` the trained subnetwork, ``fitted.model``;
    ``split`` the examples whose features are drawn, usually test; ``subnetwork`` the result of DCWP or MRM,
    ``fitted.explanation``; ``train`` the mined split with attributes, for precision and recall.

    Raises:
        InputError: nothing is pruned, the models differ, ``subnetwork`` belongs to another model, or the split has
            too few examples or no labels.
    """
    check_arguments(build_subnetwork_sections, locals())
    before, after = wrap(start), wrap(model)
    _check_models(before, after, subnetwork)
    how = {"seed": seed, "device": device, "workers": workers}
    sections = [_build_features_section(before, subnetwork.pruned, after, split, how)]
    if subnetwork.snapshots:
        sections.append(build_accuracy_section(subnetwork.snapshots))
    sections.append(build_layers_section(subnetwork.layers, sparsity(after)))
    return sections if subnetwork.mined is None else [*sections, build_mined_section(subnetwork.mined, train)]


def rebuild_pruned_model(start: Classifier, model: Classifier) -> Classifier:
    """Return the pruned model before retraining: the weights of the first with the zeros of the second.

    Only the running statistics of normalization layers can differ from the original.
    """
    copy = deepcopy(start)
    zeros = {name: layer.weight == 0 for name, layer in named_weight_layers(model)}
    prune(copy, {name: ~zero for name, zero in zeros.items() if bool(zero.any())})
    make_permanent(copy)
    return copy


def have_same_sparsity(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two models have the same sparsity in every layer, up to rounding."""
    return a.keys() == b.keys() and all(math.isclose(a[name], b[name], abs_tol=1e-9) for name in a)


def build_accuracy_section(snapshots: Sequence[Any]) -> Section:
    """Return figure 1b: the accuracy of the subnetwork while its mask is learned."""
    pruned_percentages = [100 * snapshot.sparsity for snapshot in snapshots]
    steps = [f"after {snapshot.step:,} steps" for snapshot in snapshots]
    parts = {
        "mined examples": [snapshot.mined for snapshot in snapshots],
        "other examples": [snapshot.others for snapshot in snapshots],
    }
    if all(snapshot.mined is None for snapshot in snapshots):
        parts = {"all examples": parts["other examples"]}
    traces, changes = [], []
    for (name, accuracies), colour in zip(parts.items(), ("@series2", "@series1"), strict=False):
        percentages = [None if accuracy is None else 100 * accuracy for accuracy in accuracies]
        traces.append(
            {"x": pruned_percentages, "y": percentages, "name": name, "mode": "lines+markers"}
            | {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 8}, "text": steps}
            | {"hovertemplate": f"{name}, %{{text}}<br>%{{y:.1f}} % correct, %{{x:.1f}} % pruned<extra></extra>"}
        )
        changes.append(f"{name} from {_percent(accuracies[0])} to {_percent(accuracies[-1])} correct")
    layout = {
        "showlegend": True,
        "xaxis": {"title": {"text": "% of weights pruned"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "% correct"}, "range": [0, 103]},
    }
    first, last = (_percent(snapshots[i].sparsity) for i in (0, -1))
    caption = f"From {first} pruned {steps[0]} to {last} {steps[-1]}: {', '.join(changes)}."
    figure = Figure("While the mask was learned", caption, {"data": traces, "layout": layout}, f"Lines. {caption}")
    text = (
        "Accuracy of the subnetwork on some training examples while its mask was learned. The weights did not change, "
        "only the mask and the statistics of BatchNorm, because every step samples a mask."
    )
    return Section("Accuracy against sparsity", text, (figure,))


def build_layers_section(layers: Mapping[str, float], whole: float) -> Section:
    """Return the fraction of zeros in every convolution and linear weight, from the first layer to the last."""
    names, percentages = [name.removesuffix(".weight") for name in layers], [100 * zeros for zeros in layers.values()]
    positions = list(range(len(names) + 1))
    labels = [*names, "all layers"]
    bars: dict[str, Any] = {"type": "bar", "orientation": "h", "x": [*percentages, 100 * whole], "y": positions}
    bars |= {"marker": {"color": [*("@series1" for _ in names), "@series0"]}, "text": labels}
    bars |= {"texttemplate": "%{x:.1f}", "textposition": "outside", "cliponaxis": False}
    bars |= {"hovertemplate": "%{text}<br>%{x:.2f} % pruned<extra></extra>"}
    layout = {
        "xaxis": {"title": {"text": "% pruned"}, "range": [0, 108], "tickvals": [0, 20, 40, 60, 80, 100]},
        "yaxis": {"tickvals": positions, "ticktext": labels, "autorange": "reversed", "showgrid": False},
        "bargap": 0.35,
    }
    low, high = (choose(range(len(names)), key=percentages.__getitem__) for choose in (min, max))
    caption = f"From {percentages[low]:.1f} % in {names[low]} to {percentages[high]:.1f} % in {names[high]}; "
    caption += f"{_percent(whole)} of all layers."
    spec = {"data": [bars], "layout": layout}
    figure = Figure("Zeros in every layer", caption, spec, f"Bars. {caption}", 30 * len(labels) + 70)
    text = "Convolution and linear weights; biases and normalization layers are not pruned."
    return Section("Layer-wise sparsity", text, (figure,))


def build_mined_section(mined: MinedExamples, train: Split | None = None) -> Section:
    """Return the mined examples, with precision and recall if the attributes of the split are known."""
    lines = [mined.summary()]
    if train is not None:
        mined.check(train)
        lines.append(_describe_quality(mined, train))
    return Section("Mined examples", "\n".join(lines))


def _describe_quality(mined: MinedExamples, train: Split) -> str:
    try:
        quality = mined.quality(train)
    except MissingAttributesError:
        return "The attributes are not known, so precision and recall are not known."
    except InputError:  # the split was checked, so labels and attributes do not correspond
        return "Labels and attributes do not correspond, so it is not defined which examples break the shortcut."
    return (
        f"Precision {_percent(quality.precision)} (mined examples that break the shortcut; of all examples, "
        f"{_percent(quality.base)}). Recall {_percent(quality.recall)}."
    )


def _build_features_section(
    before: Classifier, pruned: nn.Module | None, after: Classifier, split: Split, how: dict[str, Any]
) -> Section:
    if not any(True for _ in named_weight_layers(before.backbone)):
        text = f"{before.name} has no weights before its head, so its features are the same at every stage."
        return Section("Representations", text)
    between = rebuild_pruned_model(before, after) if pruned is None else pruned
    models = {"pretrained": before, "pruned": between, "retrained": after}
    section = build_representation_section(models, split, **how)
    if pruned is not None:
        return section
    note = "The pruned model is rebuilt: the pretrained weights, with the zeros of the retrained ones."
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in before.modules()):
        note += " Its BatchNorm statistics are the pretrained ones, but they changed while the mask was learned."
    return replace(section, text=f"{section.text}\n{note}")


def _percent(fraction: float | None) -> str:
    return "n/a" if fraction is None else f"{100 * fraction:.1f} %"


def _check_models(before: Classifier, after: Classifier, subnetwork: _Subnetwork) -> None:
    shapes = [{name: layer.weight.shape for name, layer in named_weight_layers(model)} for model in (before, after)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "the models before and after pruning have different layers",
            expected=f"the layers of {after.name}, after",
            got=f"those of {before.name}, before",
            hint="Pass the model that was pruned; spurless fit saves it as NAME-start.safetensors.",
        )
    layers = layer_sparsity(after)
    if not any(layers.values()):
        raise InputError(
            f"no weight of {after.name} is zero, so there is no subnetwork to show",
            hint="Pass the model that dcwp or mrm returned; if it is that one, prune for more steps.",
        )
    if not have_same_sparsity(subnetwork.layers, layers):
        same = "the same fraction of zeros in every layer"
        raise InputError("the explanation belongs to another model", expected=same)
