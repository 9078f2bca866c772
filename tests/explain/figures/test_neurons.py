"""Neurons: bars that add up, maps of a feature whose place is known, a boundary drawn where the model changes sides."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.split import Split
from spurless.explain.figures.neurons import (
    OneFeature,
    build_neuron_sections,
    build_synthetic_section,
    compute_neuron_map,
    get_linear_boundary,
    plot_distributions,
)
from spurless.metrics.spuriousness import Neurons, spuriousness
from spurless.models import Classifier, build
from spurless.train.evaluate import predict

GROUPS = Groups(("left <b>", "right"), ("any",))


class Sides(nn.Module):
    """Two features: the light in the left half of a map, and that in the right; the map is the ReLU's output."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.ones_(self.conv.weight)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        light = self.relu(self.conv(x))
        return torch.stack([light[..., :4].sum(dim=(1, 2, 3)), light[..., 4:].sum(dim=(1, 2, 3))], dim=1)


def sided() -> tuple[Classifier, Split]:
    """A model that says right where the right half is lighter, and images, some of them misleading."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(60, (40, 1, 8, 8), generator=generator, dtype=torch.uint8)
    y = torch.arange(40) % 2
    shown = torch.where(torch.arange(40) < 8, 1 - y, y)  # the first eight look like the other label
    x[shown == 0, :, 2:6, 1:3] += 150
    x[shown == 1, :, 2:6, 5:7] += 150
    model = Classifier(Sides(), nn.Linear(2, 2, bias=False), name="sides")
    with torch.no_grad():
        model.head.get_parameter("weight").copy_(torch.eye(2))
    return model, Split(x, y, torch.zeros(40, dtype=torch.long), GROUPS)


def found(model: Classifier, split: Split) -> tuple[Neurons, Tensor]:
    assert isinstance(split.x, Tensor)
    features = model.features(split.prepare(split.x)).detach()
    scores = spuriousness(features, split.y, predict(model, split), 2)
    return Neurons(scores, torch.tensor([True, False]), split.groups.labels, 1, (1.0,)), features


def test_a_map_of_a_feature_is_hot_where_the_feature_looks_whatever_is_predicted() -> None:
    model, split = sided()
    x = split.prepare(split.x[:6] if isinstance(split.x, Tensor) else torch.empty(0))
    assert isinstance(x, Tensor)
    heat = compute_neuron_map(model, x, 0)
    assert heat.shape == (6, 8, 8)
    assert heat.flatten(1).amin(dim=1).tolist() == [0.0] * 6
    assert heat.flatten(1).amax(dim=1).tolist() == pytest.approx([1.0] * 6, abs=1e-4)
    pixel = torch.zeros(1, 1, 8, 8)
    pixel[0, 0, 3, 1] = 1.0
    assert int(compute_neuron_map(model, pixel, 0).argmax()) == 3 * 8 + 1
    assert float(compute_neuron_map(model, pixel, 1).max()) == 0.0  # nothing there for the other feature
    with pytest.raises(InputError, match=r"sides has no feature 2"):
        compute_neuron_map(model, x, 2)


def test_a_feature_is_explained_by_its_size() -> None:
    assert OneFeature(1)(torch.tensor([[1.0, -3.0, 2.0]])).tolist() == [[3.0]]


def test_a_model_without_a_map_is_explained_pixel_by_pixel() -> None:
    model = Classifier(nn.Flatten(), nn.Linear(4, 2))
    heat = compute_neuron_map(model, torch.ones(1, 1, 2, 2), 2)
    assert heat.shape == (1, 2, 2)
    assert int(heat.argmax()) == 2
    assert float(heat.flatten()[0]) == 0.0


def test_the_bars_are_shares_of_hits_and_of_mistakes() -> None:
    values, right = torch.tensor([0.0, 0.1, 0.1, 1.0, 0.9, 1.0]), torch.tensor([True, True, True, True, False, False])
    figure = plot_distributions(values, right, "one")
    hits, mistakes = figure.spec["data"]
    assert [t["name"] for t in (hits, mistakes)] == ["correct", "incorrect"]
    assert sum(hits["y"]) == pytest.approx(100)
    assert sum(mistakes["y"]) == pytest.approx(100)
    assert hits["y"][-1] == pytest.approx(25)
    assert "median of 4 correct 0.1" in figure.caption
    assert "median of 2 incorrect 0.95" in figure.caption
    assert [
        t["name"] for t in plot_distributions(torch.ones(3), torch.ones(3, dtype=torch.bool), "x").spec["data"]
    ] == ["correct"]


def test_each_label_shows_its_most_and_least_biased_features_and_who_activates_them() -> None:
    model, split = sided()
    neurons, _ = found(model, split)
    sections = build_neuron_sections(model, split, neurons, count=1)
    assert [s.title for s in sections] == ["Neurons and the label left <b>", "Neurons and the label right"]
    first = sections[0]
    assert "16 correct and 4 incorrect predictions" in first.text
    kinds = [type(item) for item in first.items]
    assert kinds == [Figure, Picture, Figure, Picture]
    assert first.items[0].title.startswith("Feature 1, kept")  # of label left, mistakes are light on the right
    assert first.items[2].title.startswith("Feature 0, suppressed")
    assert sections[1].items[0].title.startswith("Feature 0, suppressed")


def test_the_images_are_those_that_activate_the_feature_most() -> None:
    from PIL import Image

    model, split = sided()
    neurons, features = found(model, split)
    picture = build_neuron_sections(model, split, neurons, features, count=1)[0].items[1]
    assert isinstance(picture, Picture)
    mine = features[:, 1].where(split.y == 0, torch.tensor(-1.0))
    top = mine.argsort(descending=True)[:4].tolist()
    assert [int(line.split(":")[0]) for line in picture.caption.splitlines()[:4]] == top
    assert isinstance(picture.png, bytes)
    assert np.asarray(Image.open(BytesIO(picture.png))).ndim == 3


def test_features_at_hand_are_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = sided()
    neurons, features = found(model, split)
    expected = build_neuron_sections(model, split, neurons, count=1)
    monkeypatch.setattr("spurless.explain.figures.neurons.collect_features", None)
    assert [s.text for s in build_neuron_sections(model, split, neurons, features, count=1)] == [
        s.text for s in expected
    ]
    with pytest.raises(InputError, match=r"do not fit the split and the model"):
        build_neuron_sections(model, split, neurons, features[:5])
    with pytest.raises(InputError, match=r"labels of this split are hidden"):
        build_neuron_sections(model, split.hide_labels(), neurons, features)


def test_a_label_without_scores_says_so() -> None:
    model, split = sided()
    right = split.select(torch.arange(8, 40))
    neurons, features = found(model, right)
    for section in build_neuron_sections(model, right, neurons, features):
        assert not section.items
        assert section.text.startswith("All predictions with the label")


def plane(weights: list[float], bias: float) -> Classifier:
    data = load("core-spurious-noise", n_train=300, n_val=10, n_test=300)
    model = build("linear", data)
    head: Any = model.head
    with torch.no_grad():
        head.weight[0], head.weight[1] = 0.0, torch.tensor(weights)
        head.bias[0], head.bias[1] = 0.0, bias
    return model


def test_the_boundary_is_where_the_model_changes_sides() -> None:
    data = load("core-spurious-noise", n_train=300, n_val=10, n_test=300)
    before, after = plane([1.0, 4.0, 0.5], -2.0), plane([2.0, 0.0, 0.0], 0.5)
    assert get_linear_boundary(before, data.train) == (1.0, 4.0, -2.0)
    section = build_synthetic_section(data, before, after)
    assert len(section.items) == 2 + 4  # both splits; two components of two labels
    chart = section.items[0]
    assert isinstance(chart, Figure)
    traces = {trace["name"]: trace for trace in chart.spec["data"]}
    assert set(traces) == {*(data.groups.name(g) for g in range(4)), "boundary before", "boundary after"}
    for name, model in (("boundary before", before), ("boundary after", after)):
        for x, y in zip(traces[name]["x"], traces[name]["y"], strict=True):
            logits = model(torch.tensor([[x, y, 0.0]])).detach()[0]
            assert float(logits[1] - logits[0]) == pytest.approx(0.0, abs=1e-4)
    assert traces["boundary after"]["x"] == pytest.approx([-0.25, -0.25])
    dots = traces[data.groups.name(0)]
    assert isinstance(data.train.x, Tensor)
    expected = data.train.x[data.train.g == 0]
    assert dots["x"] == pytest.approx(expected[:400, 0].tolist())
    assert dots["y"] == pytest.approx(expected[:400, 1].tolist())


def test_a_boundary_that_reads_the_spurious_component_alone_is_level() -> None:
    data = load("core-spurious-noise", n_train=300, n_val=10, n_test=300)
    chart = build_synthetic_section(data, plane([0.0, 2.0, 0.0], -1.0), plane([1.0, 0.0, 0.0], 0.0)).items[0]
    assert isinstance(chart, Figure)
    line = next(trace for trace in chart.spec["data"] if trace["name"] == "boundary before")
    assert line["y"] == [0.5, 0.5]


def test_a_model_that_is_not_linear_in_the_features_has_no_boundary() -> None:
    data = load("core-spurious-noise", n_train=50, n_val=10, n_test=10)
    with pytest.raises(InputError, match=r"is not linear in the features"):
        get_linear_boundary(build("mlp", data, depth=2, width=4), data.train)
    with pytest.raises(InputError, match=r"not rows of features"):
        get_linear_boundary(plane([1.0, 0.0, 0.0], 0.0), sided()[1])
