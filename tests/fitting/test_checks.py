"""Rules of a run: what is refused before training, and a criterion that shows nothing of what it looks at."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, MissingAttributesError, UnknownNameError
from spurless.core.groups import Groups
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.fitting.checks import (
    check_argument_types,
    check_labels,
    check_model_fits_data,
    resolve_score,
    with_criterion,
)
from spurless.methods import METHODS
from spurless.methods.base import Info
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run
from spurless.train.selection import get_criterion
from spurless.train.selective import SCORES

DATA = planted(PlantedConfig(n_train=60, n_val=40, n_test=40))
SCRATCH, REPAIR = Info("own", "nobody", "x"), Info("own", "nobody", "x", start="trained")
GROUPS = Groups(("no", "yes"), ("left", "right"))


def a_run() -> Run:
    return make_run(Compute("cpu"), 0, TrainConfig())


class Told(nn.Module):
    """A model that says of example i what it was told."""

    def __init__(self, *labels: int) -> None:
        super().__init__()
        self.labels = nn.Parameter(nn.functional.one_hot(torch.tensor(labels), 2).float())

    def forward(self, x: Tensor) -> Tensor:
        return self.labels[x[:, 0].long()]


def told(*labels: int) -> Classifier:
    return Classifier(Told(*labels), nn.Identity())


def val() -> Split:
    """Six examples: three of each label."""
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    return Split(torch.arange(6.0)[:, None], y, torch.tensor([0, 1, 0, 1, 0, 1]), GROUPS)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"model": DATA}, r"'model' has the wrong type \(expected a module, .*, got Splits\)"),
        ({"data": DATA.train}, r"'data' has the wrong type \(expected three splits, .*, got Split\)"),
        (
            {"train": 3},
            r"'train' has the wrong type \(expected settings, for example \{'epochs': 5, .*, got int\)",
        ),
        ({"compute": "cpu"}, r"'compute' has the wrong type \(expected for example sp\.Compute\('cpu'\), got str\)"),
    ],
)
def test_what_is_given_in_the_wrong_place_is_named(wrong: dict[str, Any], match: str) -> None:
    fine: dict[str, Any] = {"model": nn.Linear(2, 2), "data": DATA, "train": {"lr": 1}, "compute": None}
    check_argument_types(**fine)
    with pytest.raises(InputError, match=match):
        check_argument_types(**{**fine, **wrong})
    with pytest.raises(InputError, match=match):
        fit("erm", **{**fine, **wrong})


def test_auto_is_the_score_that_the_method_declares() -> None:
    assert resolve_score("auto", SCRATCH) == "softmax"
    assert resolve_score("auto", METHODS["masktune"].info) == "product"
    assert resolve_score("auto", METHODS["selectivenet"].info) == "selector"
    assert resolve_score("softmax", METHODS["masktune"].info) == "softmax"
    assert resolve_score("masktune-authors", REPAIR) == "masktune-authors"


def test_the_score_of_every_method_is_one_that_it_can_have() -> None:
    assert {resolve_score("auto", method.info) for method in METHODS.values()} <= set(SCORES)


def test_an_unknown_score_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UnknownNameError, match=r"No score is called 'sofmax'\. Did you mean 'softmax'\?"):
        resolve_score("sofmax", SCRATCH)


@pytest.mark.parametrize("score", ["product", "masktune-authors"])
def test_a_score_of_two_models_is_refused_to_a_method_that_starts_from_none(score: str) -> None:
    with pytest.raises(
        InputError, match=rf"the score '{score}' needs two models, but own does not start from a trained one\. Use the"
    ):
        resolve_score(score, SCRATCH)


def test_a_learnt_score_is_refused_to_a_method_that_learns_none() -> None:
    with pytest.raises(
        InputError, match=r"'selector' is trained, but own does not train one\..* or selectivenet, deep-gamblers"
    ):
        resolve_score("selector", REPAIR)


@pytest.mark.parametrize("coverage", [0.0, 80.0, -1.0, float("nan")])
def test_a_coverage_that_is_no_share_is_refused_with_the_score(coverage: float) -> None:
    assert resolve_score("auto", SCRATCH, (1.0, 0.5)) == "softmax"
    with pytest.raises(InputError, match=r"the coverage must be a fraction \(expected above 0 and at most 1, got"):
        resolve_score("auto", SCRATCH, (1.0, coverage))


def test_inferred_groups_need_a_model_to_infer_them_from() -> None:
    criterion = get_criterion("val-worst-inferred")
    check_labels(REPAIR, criterion, DATA)
    with pytest.raises(InputError, match=r"infers groups from a starting model, but own trains from scratch\. Use val"):
        check_labels(SCRATCH, criterion, DATA)


def test_what_the_data_do_not_have_is_refused() -> None:
    hidden = Splits(DATA.train.hide_attributes(), DATA.val.hide_attributes(), DATA.test)
    last = get_criterion("last")
    check_labels(SCRATCH, last, hidden)
    check_labels(REPAIR, get_criterion("val-worst-inferred"), hidden)  # it looks at no attribute
    with pytest.raises(MissingAttributesError, match="the train split"):
        check_labels(Info("own", "n", "x", train_attributes=True), last, hidden)
    with pytest.raises(MissingAttributesError, match="the val split"):
        check_labels(Info("own", "n", "x", val_attributes=True), last, hidden)
    with pytest.raises(MissingAttributesError, match="Selection by val-worst-group"):
        check_labels(SCRATCH, get_criterion("val-worst-group"), hidden)


def test_a_model_that_does_not_fit_the_data_is_refused() -> None:
    check_model_fits_data(build("linear", DATA), DATA)
    with pytest.raises(InputError, match=r"does not accept examples of shape \(2,\)"):
        check_model_fits_data(build("linear", input_shape=(5,), n_classes=2), DATA)
    with pytest.raises(InputError, match="has 3 outputs but the data 2 classes"):
        check_model_fits_data(build("linear", input_shape=(2,), n_classes=3), DATA)


def test_the_last_epoch_needs_no_function() -> None:
    run = a_run()
    run = with_criterion(run, get_criterion("last"), val())
    assert (run.score_predictions, run.score) == (None, None)


def test_the_criterion_is_a_function_of_predictions_and_one_of_models() -> None:
    run = a_run()
    run = with_criterion(run, get_criterion("val-worst-group"), val())
    assert run.score_predictions is not None
    assert run.score is not None
    # no, left: 2 examples, no, right: 1, yes, left: 1, yes, right: 2 of which one is wrong
    pred = torch.tensor([0, 0, 0, 0, 1, 1])
    assert run.score_predictions(pred) == 0.5
    assert run.score(told(*pred.tolist())) == 0.5


def test_the_worst_inferred_group_by_hand() -> None:
    run, begun = a_run(), told(0, 0, 1, 1, 0, 0)
    run = with_criterion(run, get_criterion("val-worst-inferred"), val(), begun)
    assert run.score_predictions is not None
    # groups: no & right {0, 1}, no & wrong {2}, yes & right {3}, yes & wrong {4, 5}
    assert run.score_predictions(torch.tensor([0, 0, 1, 1, 0, 0])) == 0.0  # the start itself: 0 where it was wrong
    assert run.score_predictions(torch.tensor([0, 0, 0, 1, 1, 0])) == 0.5  # one of {4, 5}
    assert run.score_predictions(torch.tensor([0, 1, 0, 1, 1, 1])) == 0.5  # one of {0, 1}
    assert run.score_predictions(torch.tensor([0, 0, 0, 1, 1, 1])) == 1.0
    assert run.score is not None
    assert run.score(told(0, 0, 0, 1, 1, 0)) == 0.5


def test_where_the_start_was_never_wrong_the_inferred_groups_are_the_classes() -> None:
    run = a_run()
    run = with_criterion(run, get_criterion("val-worst-inferred"), val(), told(0, 0, 0, 1, 1, 1))
    assert run.score_predictions is not None
    assert run.score_predictions(torch.tensor([0, 0, 1, 1, 1, 1])) == pytest.approx(2 / 3)


def test_inferred_groups_wait_for_the_start_and_look_at_no_attribute() -> None:
    run = a_run()
    run = with_criterion(run, get_criterion("val-worst-inferred"), val())
    assert (run.score_predictions, run.score) == (None, None)
    scores = []
    for split in (val(), val().hide_attributes()):
        run = with_criterion(run, get_criterion("val-worst-inferred"), split, told(0, 0, 1, 1, 0, 0))
        assert run.score_predictions is not None
        scores.append(run.score_predictions(torch.tensor([0, 0, 1, 0, 1, 0])))
    assert scores[0] == scores[1]


def test_a_criterion_without_attributes_holds_none() -> None:
    run = a_run()
    run = with_criterion(run, get_criterion("val-average"), val())
    assert run.score_predictions is not None
    held = inspect.getclosurevars(run.score_predictions).nonlocals
    assert held["a"].tolist() == [-1] * 6
