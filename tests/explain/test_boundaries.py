"""Boundaries: a rule drawn where it holds, and frames that are what a run of so many epochs ends with."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.bench.fitting import fit
from spurless.core.errors import BadInput, UndeclaredUse
from spurless.core.groups import Groups
from spurless.data import load
from spurless.data.gaussians import GROUPS
from spurless.data.grouped import Grouped, Splits
from spurless.explain.boundaries import Film, Watch, boundary, film, plane_of, wrong_labels
from spurless.methods import Info, make_method
from spurless.models import Classifier, build
from spurless.models.masks import sparsity
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Engine, Run, start

CPU = Engine("cpu")
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
    return fit("erm", model, data, train=TRAIN, engine=CPU).model, data


def run() -> Run:
    return start(CPU, 0, TrainConfig(**TRAIN))


def test_a_boundary_lies_where_the_rule_changes() -> None:
    model = Rule().train()
    found = boundary(model, (0.0, 0.0), (4.0, 2.0), 4)  # middles at 0.5, 1.5, 2.5, 3.5 and 0.25, 0.75, 1.25, 1.75
    assert found.tolist() == [[2, 2, 2, 2], [2, 2, 2, 2], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert model.training


def test_a_linear_model_divides_the_plane_along_its_line() -> None:
    model = Classifier(nn.Identity(), nn.Linear(2, 2))  # the second class where x + 2 y > 1
    with torch.no_grad():
        model.head.get_parameter("weight").copy_(torch.tensor([[0.0, 0.0], [1.0, 2.0]]))
        model.head.get_parameter("bias").copy_(torch.tensor([0.0, -1.0]))
    found = boundary(model, (-3.0, -1.0), (3.0, 2.0), 60).flip(0)  # fields of 0.1 by 0.05, the lowest first
    x = -3 + 0.1 * (torch.arange(60) + 0.5)
    y = -1 + 0.05 * (torch.arange(60) + 0.5)
    far = x[None] + 2 * y[:, None] - 1
    clear = far.abs() > 1e-4
    assert clear.float().mean() > 0.9
    assert torch.equal(found[clear], (far > 0).long()[clear])


def test_a_model_of_three_features_is_refused_in_one_sentence() -> None:
    model = Classifier(nn.Identity(), nn.Linear(3, 2), name="three")
    with pytest.raises(BadInput, match=r"^three cannot take rows of two features, so it has no plane to draw: .*$"):
        boundary(model, (0.0, 0.0), (1.0, 1.0), 3)
    _, data = trained()
    with pytest.raises(BadInput, match=r"three cannot take rows of two features"):
        film(make_method("avp", epochs=1), model, data, run())


def test_what_spans_no_plane_or_gives_no_logits_is_refused() -> None:
    with pytest.raises(BadInput, match=r"the corners span no plane \(expected bottom left, top right"):
        boundary(Rule(), (0.0, 1.0), (1.0, 1.0), 3)
    with pytest.raises(BadInput, match=r"Flatten gives no logits \(expected \(9, classes\), got \(18,\)\)"):
        boundary(nn.Flatten(0), (0.0, 0.0), (1.0, 1.0), 3)
    with pytest.raises(BadInput, match=r"at least one epoch from one frame to the next \(got 0\)"):
        Watch(trained()[1], every=0)


def split(x: Tensor, groups: Groups = GROUPS, a: Tensor | None = None) -> Grouped:
    y = torch.arange(len(x)) % len(groups.labels)
    return Grouped(x, y, torch.zeros_like(y) if a is None else a, groups)


def test_data_that_lie_in_no_plane_are_refused() -> None:
    with pytest.raises(
        BadInput, match=r"do not lie in a plane \(expected rows of two features, got examples of shape \(3,\)\)"
    ):
        plane_of(split(torch.zeros(5, 3)))
    with pytest.raises(BadInput, match=r"transformed on their way to the model"):
        plane_of(replace(split(torch.zeros(5, 2)), transform=lambda x: 2 * x))


def test_wrong_labels_are_the_corrupted_ones_whatever_else_there_is() -> None:
    x, a = torch.arange(12.0).view(6, 2), torch.tensor([0, 1, 0, 0, 1, 0])
    assert plane_of(wrong_labels(split(x, a=a)))[:, 0].tolist() == [2.0, 8.0]
    assert len(wrong_labels(split(x, Groups(("no", "yes"), ("left",)), a))) == 0
    several = Groups.overlapping(("no", "yes"), ("left", "corrupted"))
    assert plane_of(wrong_labels(split(x, several, torch.stack([1 - a, a], dim=1))))[:, 0].tolist() == [2.0, 8.0]


def test_a_watch_counts_by_hand_what_a_constant_model_does() -> None:
    data = load("gaussians", biased=False, per_class=4, mislabelled=3, test_per_class=2)
    watch = Watch(data, every=3, size=7)
    assert [watch(Always(4)) for _ in range(7)] == [1, 2, 3, 4, 5, 6, 7]  # rising: the last epoch is the best
    assert [frame.epoch for frame in watch.frames] == [3, 6]
    frame = watch.frames[0]
    wrong = data.train.y[20:]  # the last fifteen are the corrupted
    assert frame.obeyed == pytest.approx((wrong == 4).double().mean().item())
    assert 0 < (wrong == 4).sum() < 15
    assert [frame.accuracy, frame.sparsity] == pytest.approx([0.2, 0.3])
    assert frame.classes.tolist() == [[4] * 7] * 7
    assert isinstance(data.train.x, Tensor)
    both = torch.cat([data.train.x, plane_of(data.test)])
    inside = (both > torch.tensor(frame.low)) & (both < torch.tensor(frame.high))
    assert inside.all()  # no example is cut off


def test_without_wrong_labels_none_is_obeyed() -> None:
    watch = Watch(load("gaussians", mislabelled=0))
    watch(Always(0))
    assert watch.frames[0].obeyed is None


@pytest.mark.parametrize("method", ["avp", "random-prune"])
def test_a_frame_is_what_a_run_of_so_many_epochs_ends_with(method: str) -> None:
    model, data = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = film(make_method(method, epochs=5, **PRUNE), model, data, run(), every=2)
    assert [frame.epoch for frame in found.frames] == [0, 2, 4, 5]
    for frame in found.frames:
        there = model
        if frame.epoch:
            there = fit(method, model, data, train=TRAIN, engine=CPU, epochs=frame.epoch, **PRUNE).model
        assert torch.equal(frame.classes, boundary(there, frame.low, frame.high))
        assert frame.accuracy == pytest.approx(evaluate(there, data.test).average)
        assert frame.sparsity == pytest.approx(sparsity(there))
    assert 0 == found.frames[0].sparsity < found.frames[1].sparsity < found.frames[2].sparsity
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Looks:
    """A method that keeps what it was shown, and asks the criterion as often as it is told."""

    info: ClassVar[Info] = Info("looks", "nobody", "for these tests", val_labels=True)
    presets: ClassVar[Mapping[str, int]] = {}

    def __init__(self, config: int) -> None:
        self.config = config
        self.shown: Splits | None = None

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        self.shown = data
        assert run.score is not None
        for _ in range(self.config):
            run.score(model)
        return model


def test_the_camera_sees_the_test_split_and_the_method_does_not() -> None:
    model, data = trained()
    mine, method = run(), Looks(2)
    found = film(method, model, data, mine, every=1)
    assert isinstance(found, Film)
    assert mine.score is None  # the caller's run is left as it was
    assert method.shown is not None
    assert (method.shown.train.a == -1).all()
    assert (method.shown.val.y >= 0).all()
    with pytest.raises(UndeclaredUse):
        len(method.shown.test)


def test_what_cannot_be_filmed_is_refused(tmp_path: Path) -> None:
    model, data = trained()
    with pytest.raises(BadInput, match=r"looks asks the criterion after no epoch, so there is nothing to film"):
        film(Looks(0), model, data, run())
    with pytest.raises(BadInput, match=r"a run that is continued has no frames of what came before. Start the run"):
        film(Looks(1), model, data, replace(run(), checkpoints=Checkpoints(tmp_path, "key")))
