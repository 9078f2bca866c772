"""Decision boundaries: predictions of known rules, frames equal to shorter runs, and the figures."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, UndeclaredAccessError
from spurless.core.figures import Figure
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.datasets.gaussians import GROUPS
from spurless.data.split import Split, Splits
from spurless.explain.figures.decision_boundary import (
    BoundaryFrame,
    BoundaryHistory,
    BoundaryRecorder,
    build_boundary_section,
    check_plane,
    plot_boundary_curves,
    plot_boundary_slider,
    predict_plane,
    record_boundaries,
    select_wrong_labels,
)
from spurless.fitting import fit
from spurless.methods import Info, make_method
from spurless.models import Classifier, build
from spurless.models.pruning.masks import sparsity
from spurless.reporting.page import write_sections
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, Run, make_run

CPU = Compute("cpu")
TRAIN: dict[str, Any] = {"epochs": 40, "batch_size": 60, "optimiser": "adam", "lr": 0.03}
PRUNE: dict[str, Any] = {"candidates": 8, "keep": "last"}


class Rule(nn.Module):
    """Class 2 above y = 1, else class 1 right of x = 2, else class 0."""

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return torch.stack([torch.zeros(len(x)), (x[:, 0] > 2).float(), 2 * (x[:, 1] > 1).float()], dim=1)


class Always(nn.Module):
    """Says one class of five, whatever it sees, by a layer of ten weights, three of them zero."""

    def __init__(self, label: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 5, bias=False)
        self.label = label
        with torch.no_grad():
            self.layer.weight.copy_(torch.ones(5, 2))
            self.layer.weight.view(-1)[:3] = 0

    def forward(self, x: Tensor) -> Tensor:
        return torch.eye(5)[self.label].expand(len(x), 5)


@cache
def trained() -> tuple[Classifier, Splits]:
    data = load("gaussians", per_class=20, mislabelled=2, test_per_class=10, val_per_class=5)
    model = build("mlp", data, depth=3, width=12, activation="tanh")
    return fit("erm", model, data, train=TRAIN, compute=CPU).model, data


def run() -> Run:
    return make_run(CPU, 0, TrainConfig(**TRAIN))


def test_a_boundary_lies_where_the_rule_changes() -> None:
    model = Rule().train()
    found = predict_plane(model, (0.0, 0.0), (4.0, 2.0), 4)  # middles at 0.5, 1.5, 2.5, 3.5 and 0.25, 0.75, 1.25, 1.75
    assert found.tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2], [2, 2, 2, 2]]
    assert model.training


def test_a_linear_model_divides_the_plane_along_its_line() -> None:
    model = Classifier(nn.Identity(), nn.Linear(2, 2))  # the second class where x + 2 y > 1
    with torch.no_grad():
        model.head.get_parameter("weight").copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
        model.head.get_parameter("bias").copy_(torch.tensor([0.0, -1.0]))
    found = predict_plane(model, (-3.0, -1.0), (3.0, 2.0), 60)  # cells of 0.1 by 0.05
    x = -3 + 0.1 * (torch.arange(60) + 0.5)
    y = -1 + 0.05 * (torch.arange(60) + 0.5)
    far = x[None] + 2 * y[:, None] - 1
    clear = far.abs() > 1e-4
    assert clear.float().mean() > 0.9
    assert torch.equal(found[clear], (far > 0).long()[clear])


def test_a_model_of_three_features_is_refused_in_one_sentence() -> None:
    model = Classifier(nn.Identity(), nn.Linear(3, 2), name="three")
    with pytest.raises(InputError, match=r"^three does not take rows of two features: .*$"):
        predict_plane(model, (0.0, 0.0), (1.0, 1.0), 3)
    _, data = trained()
    with pytest.raises(InputError, match=r"three does not take rows of two features"):
        record_boundaries(make_method("avp", epochs=1), model, data, run())


def test_what_spans_no_plane_or_gives_no_logits_is_refused() -> None:
    with pytest.raises(InputError, match=r"the corners do not span a plane \(expected bottom left, top right"):
        predict_plane(Rule(), (0.0, 1.0), (1.0, 1.0), 3)
    with pytest.raises(InputError, match=r"Flatten does not return logits \(expected \(9, classes\), got \(18,\)\)"):
        predict_plane(nn.Flatten(0), (0.0, 0.0), (1.0, 1.0), 3)
    with pytest.raises(InputError, match=r"epochs between two frames must be positive \(got 0\)"):
        BoundaryRecorder(trained()[1], interval=0)


def split(x: Tensor, groups: Groups = GROUPS, a: Tensor | None = None) -> Split:
    y = torch.arange(len(x)) % len(groups.labels)
    return Split(x, y, torch.zeros_like(y) if a is None else a, groups)


def test_data_that_lie_in_no_plane_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"are not points in a plane \(expected rows of two features, got examples of shape \(3,\)\)"
    ):
        check_plane(split(torch.zeros(5, 3)))
    with pytest.raises(InputError, match=r"are transformed"):
        check_plane(replace(split(torch.zeros(5, 2)), transform=lambda x: 2 * x))


def test_wrong_labels_are_the_corrupted_ones_whatever_else_there_is() -> None:
    x, a = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 0, 1, 0])
    assert check_plane(select_wrong_labels(split(x, a=a)))[:, 0].tolist() == [2.0, 8.0]
    assert len(select_wrong_labels(split(x, Groups(("no", "yes"), ("left",)), a))) == 0
    several = Groups.overlapping(("no", "yes"), ("left", "corrupted"))
    assert check_plane(select_wrong_labels(split(x, several, torch.stack([1 - a, a], dim=1))))[:, 0].tolist() == [
        2.0,
        8.0,
    ]


def test_a_watch_counts_by_hand_what_a_constant_model_does() -> None:
    data = load("gaussians", biased=False, per_class=4, mislabelled=3, test_per_class=2)
    watch = BoundaryRecorder(data, interval=3, size=7)
    for _ in range(7):
        watch(Always(4))
    history = watch.finish()
    assert [frame.epoch for frame in history.frames] == [3, 6, 7]  # the last epoch is always there
    frame = history.frames[0]
    wrong = data.train.y[20:]  # the last fifteen are the corrupted
    assert frame.fitted_wrong == pytest.approx((wrong == 4).double().mean().item())
    assert 0 < (wrong == 4).sum() < 15
    assert [frame.accuracy, frame.sparsity] == pytest.approx([0.2, 0.3])
    assert frame.classes.tolist() == [[4] * 7] * 7
    assert isinstance(data.train.x, Tensor)
    both = torch.cat([data.train.x, check_plane(data.test)])
    inside = (both > torch.tensor(history.low)) & (both < torch.tensor(history.high))
    assert inside.all()  # no example is cut off


def test_without_wrong_labels_none_is_obeyed() -> None:
    watch = BoundaryRecorder(load("gaussians", mislabelled=0))
    watch(Always(0))
    assert watch.frames[0].fitted_wrong is None


def test_frames_are_of_every_epoch_even_if_the_method_keeps_another() -> None:
    model, data = trained()
    found = record_boundaries(
        make_method("avp", epochs=5, candidates=8, keep="validated"), model, data, run(), interval=2
    )
    last = fit("avp", model, data, train=TRAIN, compute=CPU, epochs=5, **PRUNE).model
    assert torch.equal(found.frames[-1].classes, predict_plane(last, found.low, found.high))


@pytest.mark.parametrize("method", ["avp", "random-prune"])
def test_a_frame_is_what_a_run_of_so_many_epochs_ends_with(method: str) -> None:
    model, data = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = record_boundaries(make_method(method, epochs=5, **PRUNE), model, data, run(), interval=2)
    assert [frame.epoch for frame in found.frames] == [0, 2, 4, 5]
    for frame in found.frames:
        there = model
        if frame.epoch:
            there = fit(method, model, data, train=TRAIN, compute=CPU, epochs=frame.epoch, **PRUNE).model
        assert torch.equal(frame.classes, predict_plane(there, found.low, found.high))
        assert frame.accuracy == pytest.approx(evaluate(there, data.test).average)
        assert frame.sparsity == pytest.approx(sparsity(there))
    assert 0 == found.frames[0].sparsity < found.frames[1].sparsity < found.frames[2].sparsity
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Looks:
    """A method that remembers its data, and ends as many epochs as it is told."""

    info: ClassVar[Info] = Info("looks", "nobody", "for these tests", val_labels=True)
    presets: ClassVar[Mapping[str, int]] = {}

    def __init__(self, config: int) -> None:
        self.config = config
        self.shown: Splits | None = None

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        self.shown = data
        assert run.on_epoch_end is not None
        for step in range(self.config):
            run.on_epoch_end(model, step)
        return model


def test_the_camera_sees_the_test_split_and_the_method_does_not() -> None:
    model, data = trained()
    mine, method = run(), Looks(2)
    found = record_boundaries(method, model, data, mine, interval=1)
    assert isinstance(found, BoundaryHistory)
    assert mine.on_epoch_end is None  # the caller's run is left as it was
    assert method.shown is not None
    assert (method.shown.train.a == -1).all()
    assert (method.shown.val.y >= 0).all()
    with pytest.raises(UndeclaredAccessError):
        len(method.shown.test)


def test_what_cannot_be_filmed_is_refused(tmp_path: Path) -> None:
    model, data = trained()
    with pytest.raises(InputError, match=r"looks trains without epochs, so there are no frames"):
        record_boundaries(Looks(0), model, data, run())
    with pytest.raises(InputError, match=r"a resumed run has no frames of earlier epochs. Start the run"):
        record_boundaries(Looks(1), model, data, replace(run(), checkpoints=Checkpoints(tmp_path, "key")))


# ------------------------------------------------------------------ figures


def history(count: int, every: int = 10, wrong: bool = True) -> BoundaryHistory:
    """Frames whose numbers tell which one they are: frame i predicts class i everywhere."""
    data = load("gaussians", per_class=3, mislabelled=1 if wrong else 0, test_per_class=2)
    frames = tuple(
        BoundaryFrame(every * i, torch.full((4, 4), i % 5), 0.9 - i / 100, 1 - i / 10 if wrong else None, i / 20)
        for i in range(count)
    )
    return BoundaryHistory(data, (-2.0, -2.0), (2.0, 2.0), frames)


def areas(figure: Figure) -> list[Any]:
    return [trace["z"][0][0] for trace in figure.spec["data"] if trace["type"] == "contour"]


def test_a_section_has_columns_as_far_apart_as_they_can_be() -> None:
    section = build_boundary_section({"one <b>": history(5), "two": history(5)}, columns=3)
    grid, _ = section.items
    assert isinstance(grid, Figure)
    assert grid.caption.splitlines() == [
        "From left to right: epoch 0, 20, 40. In %.",
        "one <b>: accuracy 90.0, 88.0, 86.0; wrong labels fitted 100, 80, 60; sparsity 0, 10, 20.",
        "two: accuracy 90.0, 88.0, 86.0; wrong labels fitted 100, 80, 60; sparsity 0, 10, 20.",
    ]
    assert grid.title == "Epochs 0 to 40"
    assert areas(grid) == [0, 2, 4, 0, 2, 4]
    traces = grid.spec["data"]
    assert [trace["type"] for trace in traces] == ["contour", "scatter", "scatter"] * 6
    data = history(1).data
    assert len(traces[1]["x"]) == len(data.test)
    assert len(traces[2]["x"]) == len(select_wrong_labels(data.train)) == 5
    assert {trace["xaxis"] for trace in traces} == {"x", "x2", "x3", "x4", "x5", "x6"}
    (alone, _) = build_boundary_section({"a": history(4)}, columns=1).items
    assert isinstance(alone, Figure)
    assert areas(alone) == [0]


def test_the_color_scale_has_the_color_of_each_class_at_its_number() -> None:
    contour = plot_boundary_slider({"a": history(1)}).spec["data"][0]
    assert [stop for stop, _ in contour["colorscale"]] == [0, 0.25, 0.5, 0.75, 1]
    assert len({colour for _, colour in contour["colorscale"]}) == 5
    assert contour["contours"] == {"start": 0.5, "end": 3.5, "size": 1}
    assert contour["x"] == contour["y"] == [-1.5, -0.5, 0.5, 1.5]


def test_the_slider_has_a_step_per_frame() -> None:
    figure = plot_boundary_slider({"left": history(4), "right": history(4)})
    (slider,) = figure.spec["layout"]["sliders"]
    assert [step["label"] for step in slider["steps"]] == ["0", "10", "20", "30"]
    values, traces = slider["steps"][2]["args"]
    assert [figure.spec["data"][i]["type"] for i in traces] == ["contour"] * 2
    assert [z[0][0] for z in values["z"]] == [2, 2]
    assert "left: accuracy 87.0; wrong labels fitted 70; sparsity 15. right: " in figure.alt


def test_lines_are_percent_over_epochs() -> None:
    figure = plot_boundary_curves(history(3), "AVP")
    accuracy, fitted, zeros = figure.spec["data"]
    assert accuracy["x"] == fitted["x"] == zeros["x"] == [0, 10, 20]
    assert accuracy["y"] == pytest.approx([90, 89, 88])
    assert fitted["y"] == pytest.approx([100, 90, 80])
    assert zeros["y"] == pytest.approx([0, 5, 10])
    assert len({trace["line"]["dash"] for trace in (accuracy, fitted, zeros)}) == 3  # not by color alone
    assert "At epochs 0 and 20: test accuracy 90.0 and 88.0 %" in figure.caption
    clean = plot_boundary_curves(history(3, wrong=False), "a")
    assert [trace["name"] for trace in clean.spec["data"]] == ["test accuracy", "sparsity"]


def test_a_page_takes_all_of_it(tmp_path: Path) -> None:
    section = build_boundary_section({"AVP": history(3)})
    figures = [*section.items, plot_boundary_curves(history(3), "AVP")]
    text = write_sections(tmp_path / "page.html", "Boundaries", [replace(section, items=figures)]).read_text()
    assert "wrong labels fitted 100, 90, 80" in text
    assert text.count('"type":"contour"') == 4


@pytest.mark.parametrize("show", [build_boundary_section, plot_boundary_slider])
def test_histories_of_other_epochs_are_refused(show: Any) -> None:
    with pytest.raises(InputError, match=r"'b' was recorded at other epochs than the first"):
        show({"a": history(3), "b": history(3, every=5)})
    for empty in ({}, {"a": history(0)}):
        with pytest.raises(InputError, match=r"there is no frame to draw"):
            show(empty)
