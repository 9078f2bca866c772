r"""Subnetworks: what pruning left of a model, and what that did to its representations; figures 1b and 3 of DCWP.

Park, Lee, Lee and Ye, 2023, arXiv:2210.05247. Representations are drawn after pretraining, after pruning and after
retraining, see :mod:`spurless.explain.clouds`.

Deviations:
    * Figure 1b has unbiased test accuracy; here it is that of training examples, mined ones and others, for a method
      never sees the test split.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn

from spurless.core.errors import BadInput, MissingAttributes
from spurless.core.figures import Figure, Section
from spurless.data.grouped import Grouped
from spurless.data.mined import Mined
from spurless.explain.clouds import representation_section
from spurless.models.classifier import Classifier
from spurless.models.counting import layer_sparsity
from spurless.models.masks import make_permanent, prune, sparsity, weight_layers
from spurless.models.wrapping import wrap


class _Seen(Protocol):
    """A mask on its way: steps, share of pruned weights, accuracy on mined and on other training examples."""

    @property
    def step(self) -> int: ...
    @property
    def sparsity(self) -> float: ...
    @property
    def mined(self) -> float | None: ...
    @property
    def others(self) -> float | None: ...


class _Found(Protocol):
    """What a method that prunes leaves behind; ``methods.subnetwork.Subnetwork`` is one."""

    @property
    def mined(self) -> Mined | None: ...
    @property
    def layers(self) -> Mapping[str, float]: ...
    @property
    def looks(self) -> Sequence[_Seen]: ...
    @property
    def pruned(self) -> nn.Module | None: ...


def subnetwork_sections(  # noqa: PLR0913 - a public door
    start: nn.Module,
    model: nn.Module,
    split: Grouped,
    found: _Found,
    *,
    train: Grouped | None = None,
    seed: int = 0,
    device: torch.device | str | None = None,
    workers: int = 0,
) -> list[Section]:
    """Return what is known of a subnetwork: its representations, accuracy against sparsity, layers, and mined examples.

    Args:
        start: the model before pruning: ``fitted.start``.
        model: the subnetwork, trained: ``fitted.model``.
        split: the examples whose representations are drawn; as a rule test.
        found: what DCWP or MRM found: ``fitted.explanation``.
        train: the split that was mined, with attributes: precision and recall are told of it.
        seed: of the choice of examples and of t-SNE.
        device: where the arithmetic is done; by default where each model is.
        workers: processes that read a streamed split.

    Raises:
        BadInput: nothing is pruned, the models differ, ``found`` is of another one, or the split has too few examples
            or no labels.
    """
    before, after = wrap(start), wrap(model)
    _check(before, after, found)
    sections = [
        _representations(before, found.pruned, after, split, {"seed": seed, "device": device, "workers": workers})
    ]
    if found.looks:
        sections.append(accuracy_section(found.looks))
    sections.append(layers_section(found.layers, sparsity(after)))
    return sections if found.mined is None else [*sections, mined_section(found.mined, train)]


def rebuilt(start: Classifier, model: Classifier) -> Classifier:
    """Return the model between both: the weights of the first with the zeros of the second.

    That is what pruning made, but for the running statistics of normalisation layers, which move meanwhile.
    """
    copy = deepcopy(start)
    zeros = {name: layer.weight == 0 for name, layer in weight_layers(model)}
    prune(copy, {name: ~zero for name, zero in zeros.items() if bool(zero.any())})
    make_permanent(copy)
    return copy


def same_layers(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Return whether two counts of zeros are of the same weights; devices differ in the last digits of a share."""
    return a.keys() == b.keys() and all(math.isclose(a[name], b[name], abs_tol=1e-9) for name in a)


def accuracy_section(looks: Sequence[_Seen]) -> Section:
    """Return figure 1b: how right the subnetwork is while its mask is learned."""
    steps = [f"after {look.step:,} steps" for look in looks]
    parts = {"mined examples": [look.mined for look in looks], "other examples": [look.others for look in looks]}
    if all(look.mined is None for look in looks):
        parts = {"all examples": parts["other examples"]}
    traces, told = [], []
    for (name, shares), colour in zip(parts.items(), ("@arm2", "@arm1"), strict=False):
        right = [None if share is None else 100 * share for share in shares]
        traces.append(
            {"x": [100 * look.sparsity for look in looks], "y": right, "name": name, "mode": "lines+markers"}
            | {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "size": 8}, "text": steps}
            | {"hovertemplate": f"{name}, %{{text}}<br>%{{y:.1f}} % right, %{{x:.1f}} % pruned<extra></extra>"}
        )
        told.append(f"{name} from {_percent(shares[0])} to {_percent(shares[-1])} right")
    layout = {
        "showlegend": True,
        "xaxis": {"title": {"text": "% of the weights that are pruned"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "% right"}, "range": [0, 103]},
    }
    way = f"From {_percent(looks[0].sparsity)} pruned {steps[0]} to {_percent(looks[-1].sparsity)} {steps[-1]}"
    said = f"{way}: {', '.join(told)}."
    figure = Figure("While the mask was learned", said, {"data": traces, "layout": layout}, f"Lines. {said}")
    text = (
        "How right the subnetwork was on some training examples, whenever its mask was looked at. No weight moved "
        "meanwhile. What changed is which of them are left and, where there is BatchNorm, its statistics, as every "
        "step drew a mask of its own."
    )
    return Section("Accuracy against sparsity", text, (figure,))


def layers_section(layers: Mapping[str, float], whole: float) -> Section:
    """Return the share of zeros in every convolution and linear weight, from the first layer to the last."""
    names, shares = [name.removesuffix(".weight") for name in layers], [100 * share for share in layers.values()]
    places = list(range(len(names) + 1))
    labels = [*names, "all of them"]
    bars: dict[str, Any] = {"type": "bar", "orientation": "h", "x": [*shares, 100 * whole], "y": places}
    bars |= {"marker": {"color": [*("@arm1" for _ in names), "@arm0"]}, "text": labels}
    bars |= {"texttemplate": "%{x:.1f}", "textposition": "outside", "cliponaxis": False}
    bars |= {"hovertemplate": "%{text}<br>%{x:.2f} % pruned<extra></extra>"}
    layout = {
        "xaxis": {"title": {"text": "% pruned"}, "range": [0, 108], "tickvals": [0, 20, 40, 60, 80, 100]},
        "yaxis": {"tickvals": places, "ticktext": labels, "autorange": "reversed", "showgrid": False},
        "bargap": 0.35,
    }
    low, high = (choose(range(len(shares)), key=shares.__getitem__) for choose in (min, max))
    said = f"From {shares[low]:.1f} % in {names[low]} to {shares[high]:.1f} % in {names[high]}; "
    said += f"{_percent(whole)} of all of them."
    spec = {"data": [bars], "layout": layout}
    figure = Figure("Zeros in every layer", said, spec, f"Bars. {said}", 30 * len(labels) + 70)
    text = "Convolution and linear weights; biases and normalisation layers are not pruned."
    return Section("Layer-wise sparsity", text, (figure,))


def mined_section(mined: Mined, train: Grouped | None = None) -> Section:
    """Return what mining chose and, where the attributes of its split are known, how good a choice that was.

    Raises:
        BadInput: the list was made from other data.
    """
    lines = [mined.summary()]
    if train is not None:
        mined.check(train)
        lines.append(_quality(mined, train))
    return Section("Mined examples", "\n".join(lines))


def _quality(mined: Mined, train: Grouped) -> str:
    try:
        quality = mined.quality(train)
    except MissingAttributes:
        return "The attributes are not known, so nobody can tell how many of them break the shortcut."
    except BadInput:  # it is this split, so labels and attributes are no pairs
        return "Labels and attributes are no pairs, so it is not said which examples break the shortcut."
    return (
        f"Precision {_percent(quality.precision)}: so many of the chosen break the shortcut; of all examples, "
        f"{_percent(quality.base)} do. Recall {_percent(quality.recall)}: so many of those that do were chosen."
    )


def _representations(
    before: Classifier, pruned: nn.Module | None, after: Classifier, split: Grouped, how: dict[str, Any]
) -> Section:
    """Return figure 3."""
    if not any(True for _ in weight_layers(before.backbone)):
        text = f"{before.name} has no weights before its head, so what the head reads is the same at every stage."
        return Section("Representations", text)
    between = rebuilt(before, after) if pruned is None else pruned
    models = {"pretrained": before, "pruned": between, "retrained": after}
    section = representation_section(models, split, **how)
    if pruned is not None:
        return section
    said = "The pruned model is rebuilt: the pretrained weights, with the zeros of the retrained ones."
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in before.modules()):
        said += " Its BatchNorm statistics are the pretrained ones; in truth they moved while the mask was learned."
    return replace(section, text=f"{section.text}\n{said}")


def _percent(share: float | None) -> str:
    return "n/a" if share is None else f"{100 * share:.1f} %"


def _check(before: Classifier, after: Classifier, found: _Found) -> None:
    shapes = [{name: tuple(layer.weight.shape) for name, layer in weight_layers(model)} for model in (before, after)]
    if shapes[0] != shapes[1]:
        raise BadInput(
            "the models before and after pruning are not of one kind",
            expected=f"the layers of {after.name}, after",
            got=f"those of {before.name}, before",
            do="Give the one that was pruned; spurless fit saves it as NAME-start.safetensors.",
        )
    layers = layer_sparsity(after)
    if not any(layers.values()):
        raise BadInput(
            f"no weight of {after.name} is zero, so there is no subnetwork to show",
            do="Give the model that dcwp or mrm returned; if it is that one, prune for more steps.",
        )
    if not same_layers(found.layers, layers):
        raise BadInput(
            "what was found is of another model than the one that is given",
            expected="the same share of zeros in every layer",
        )
