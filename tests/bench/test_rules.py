"""Rules of a run: what is refused before training, and a criterion that shows nothing of what it looks at."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.bench.fitting import fit
from spurless.bench.rules import check_fit, check_kinds, check_labels, score_of, set_criterion
from spurless.core.errors import BadInput, MissingAttributes, UnknownName
from spurless.core.groups import Groups
from spurless.data.grouped import Grouped, Splits
from spurless.data.planted import PlantedConfig, planted
from spurless.methods import METHODS
from spurless.methods.base import Info
from spurless.models import Classifier, build
from spurless.train.abstain import SCORES
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, Run, start
from spurless.train.select import criterion_named

DATA = planted(PlantedConfig(n_train=60, n_val=40, n_test=40))
SCRATCH, REPAIR = Info("own", "nobody", "x"), Info("own", "nobody", "x", start="trained")
GROUPS = Groups(("no", "yes"), ("left", "right"))


def a_run() -> Run:
    return start(Engine("cpu"), 0, TrainConfig())


class Told(nn.Module):
    """A model that says of example i what it was told."""

    def __init__(self, *labels: int) -> None:
        super().__init__()
        self.labels = nn.Parameter(nn.functional.one_hot(torch.tensor(labels), 2).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.labels[x[:, 0].long()]


def told(*labels: int) -> Classifier:
    return Classifier(Told(*labels), nn.Identity())


def val() -> Grouped:
    """Six examples: three of each label."""
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    return Grouped(torch.arange(6.0)[:, None], y, torch.tensor([0, 1, 0, 1, 0, 1]), GROUPS)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"model": DATA}, r"'model' is of the wrong kind \(expected a module, .*, got Splits\)"),
        ({"data": DATA.train}, r"'data' is of the wrong kind \(expected three splits, .*, got Grouped\)"),
        ({"train": "lr=1"}, r"'train' is of the wrong kind \(expected settings such as \{'epochs': 5, .*, got str\)"),
        ({"engine": "cpu"}, r"'engine' is of the wrong kind \(expected sp\.Engine\('cpu'\) or the like, got str\)"),
    ],
)
def test_what_is_given_in_the_wrong_place_is_named(wrong: dict[str, Any], match: str) -> None:
    fine: dict[str, Any] = {"model": nn.Linear(2, 2), "data": DATA, "train": {"lr": 1}, "engine": None}
    check_kinds(**fine)
    with pytest.raises(BadInput, match=match):
        check_kinds(**{**fine, **wrong})
    with pytest.raises(BadInput, match=match):
        fit("erm", **{**fine, **wrong})


def test_auto_is_the_score_that_the_method_declares() -> None:
    assert score_of("auto", SCRATCH) == "softmax"
    assert score_of("auto", METHODS["masktune"].info) == "product"
    assert score_of("auto", METHODS["selectivenet"].info) == "selector"
    assert score_of("softmax", METHODS["masktune"].info) == "softmax"
    assert score_of("masktune-authors", REPAIR) == "masktune-authors"


def test_the_score_of_every_method_is_one_that_it_can_have() -> None:
    assert {score_of("auto", method.info) for method in METHODS.values()} <= set(SCORES)


def test_an_unknown_score_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match=r"No score is called 'sofmax'\. Did you mean 'softmax'\?"):
        score_of("sofmax", SCRATCH)


@pytest.mark.parametrize("score", ["product", "masktune-authors"])
def test_a_score_of_two_models_is_refused_to_a_method_that_starts_from_none(score: str) -> None:
    with pytest.raises(BadInput, match=rf"the score '{score}' is of two models, and own starts from none\. Use the"):
        score_of(score, SCRATCH)


def test_a_learnt_score_is_refused_to_a_method_that_learns_none() -> None:
    with pytest.raises(BadInput, match=r"'selector' is learnt, and own learns none\..* or selectivenet, deep-gamblers"):
        score_of("selector", REPAIR)


@pytest.mark.parametrize("coverage", [0.0, 80.0, -1.0, float("nan")])
def test_a_coverage_that_is_no_share_is_refused_with_the_score(coverage: float) -> None:
    assert score_of("auto", SCRATCH, (1.0, 0.5)) == "softmax"
    with pytest.raises(BadInput, match=r"the coverage must be a share \(expected above 0 and at most 1, got"):
        score_of("auto", SCRATCH, (1.0, coverage))


def test_inferred_groups_need_a_model_to_infer_them_from() -> None:
    criterion = criterion_named("val-worst-inferred")
    check_labels(REPAIR, criterion, DATA)
    with pytest.raises(BadInput, match=r"asks where a starting model was right, and own trains from scratch\. Use val"):
        check_labels(SCRATCH, criterion, DATA)


def test_what_the_data_do_not_have_is_refused() -> None:
    hidden = Splits(DATA.train.hide_attributes(), DATA.val.hide_attributes(), DATA.test)
    last = criterion_named("last")
    check_labels(SCRATCH, last, hidden)
    check_labels(REPAIR, criterion_named("val-worst-inferred"), hidden)  # it looks at no attribute
    with pytest.raises(MissingAttributes, match="the train split"):
        check_labels(Info("own", "n", "x", train_attributes=True), last, hidden)
    with pytest.raises(MissingAttributes, match="the val split"):
        check_labels(Info("own", "n", "x", val_attributes=True), last, hidden)
    with pytest.raises(MissingAttributes, match="Selection by val-worst-group"):
        check_labels(SCRATCH, criterion_named("val-worst-group"), hidden)


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    check_fit(build("linear", DATA), DATA)
    with pytest.raises(BadInput, match=r"cannot take examples of shape \(2,\)"):
        check_fit(build("linear", input_shape=(5,), n_classes=2), DATA)
    with pytest.raises(BadInput, match="tells 3 classes apart, the data have 2"):
        check_fit(build("linear", input_shape=(2,), n_classes=3), DATA)


def test_the_last_epoch_needs_no_function() -> None:
    run = a_run()
    set_criterion(run, criterion_named("last"), val())
    assert (run.judge, run.score) == (None, None)


def test_the_criterion_is_a_function_of_predictions_and_one_of_models() -> None:
    run = a_run()
    set_criterion(run, criterion_named("val-worst-group"), val())
    assert run.judge is not None
    assert run.score is not None
    # no, left: 2 examples, no, right: 1, yes, left: 1, yes, right: 2 of which one is wrong
    pred = torch.tensor([0, 0, 0, 0, 1, 1])
    assert run.judge(pred) == 0.5
    assert run.score(told(*pred.tolist())) == 0.5


def test_the_worst_inferred_group_by_hand() -> None:
    run, begun = a_run(), told(0, 0, 1, 1, 0, 0)
    set_criterion(run, criterion_named("val-worst-inferred"), val(), begun)
    assert run.judge is not None
    # groups: no & right {0, 1}, no & wrong {2}, yes & right {3}, yes & wrong {4, 5}
    assert run.judge(torch.tensor([0, 0, 1, 1, 0, 0])) == 0.0  # the start itself: 0 where it was wrong
    assert run.judge(torch.tensor([0, 0, 0, 1, 1, 0])) == 0.5  # one of {4, 5}
    assert run.judge(torch.tensor([0, 1, 0, 1, 1, 1])) == 0.5  # one of {0, 1}
    assert run.judge(torch.tensor([0, 0, 0, 1, 1, 1])) == 1.0
    assert run.score is not None
    assert run.score(told(0, 0, 0, 1, 1, 0)) == 0.5


def test_where_the_start_was_never_wrong_the_inferred_groups_are_the_classes() -> None:
    run = a_run()
    set_criterion(run, criterion_named("val-worst-inferred"), val(), told(0, 0, 0, 1, 1, 1))
    assert run.judge is not None
    assert run.judge(torch.tensor([0, 0, 1, 1, 1, 1])) == pytest.approx(2 / 3)


def test_inferred_groups_wait_for_the_start_and_look_at_no_attribute() -> None:
    run = a_run()
    set_criterion(run, criterion_named("val-worst-inferred"), val())
    assert (run.judge, run.score) == (None, None)
    scores = []
    for split in (val(), val().hide_attributes()):
        set_criterion(run, criterion_named("val-worst-inferred"), split, told(0, 0, 1, 1, 0, 0))
        assert run.judge is not None
        scores.append(run.judge(torch.tensor([0, 0, 1, 0, 1, 0])))
    assert scores[0] == scores[1]


def test_a_criterion_without_attributes_holds_none() -> None:
    run = a_run()
    set_criterion(run, criterion_named("val-average"), val())
    assert run.judge is not None
    held = inspect.getclosurevars(run.judge).nonlocals
    assert held["a"].tolist() == [-1] * 6
