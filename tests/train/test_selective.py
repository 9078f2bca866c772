"""Abstaining against what is known of planted data, and scores by hand."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.core.metric_info import COVERAGES
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Split
from spurless.models import Classifier
from spurless.train.evaluate import EVALUATION_BATCH
from spurless.train.selective import (
    ABSTAIN,
    SCORES,
    Abstainer,
    Response,
    assess_selective,
)

CONFIG = PlantedConfig(core=1.0, spurious=2.0, n_train=10, n_val=40000, n_test=40000)
DATA = planted(CONFIG)


class Table(nn.Module):
    """A model that says what it was told: the input is the number of a row."""

    def __init__(self, *rows: tuple[float, ...]) -> None:
        super().__init__()
        self.log_p = nn.Parameter(torch.tensor(rows, dtype=torch.float64).log())

    def forward(self, x: Tensor) -> Tensor:
        return self.log_p[x[:, 0].long()]


class FirstFeature(nn.Module):
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        assert logits.shape == (len(features), 2)
        return features[:, 0]


def numbered(n: int) -> Split:
    zeros = torch.zeros(n, dtype=torch.long)
    return Split(torch.arange(float(n))[:, None], zeros, zeros, Groups(("a", "b", "c"), ("only",)))


def linear(core: float, spurious: float) -> Classifier:
    model = Classifier(nn.Identity(), nn.Linear(2, 2))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[-core, -spurious], [core, spurious]]) / 2)  # type: ignore[operator]
        model.head.bias.zero_()  # type: ignore[operator]  # parameters
    return model


def softmax_response(model: nn.Module, split: Split) -> Response:
    return Abstainer((model,), "softmax").respond(split)


def product_response(first: nn.Module, second: nn.Module, split: Split, score: str = "product") -> Response:
    return Abstainer((first, second), score).respond(split)


def truth(tau: float, margin: float) -> tuple[float, float]:
    """Coverage and error of a rule whose distance from its boundary is N(margin, 1), kept from ``tau`` on."""
    right, wrong = torch.special.ndtr(torch.tensor([margin - tau, -margin - tau], dtype=torch.float64)).tolist()
    return right + wrong, wrong / (right + wrong)


@pytest.mark.parametrize("spurious", [0.0, 1.0])
def test_coverage_and_error_of_every_group_are_those_of_the_formula(spurious: float) -> None:
    norm = math.hypot(1.0, spurious)
    margins = [(CONFIG.core + sign * spurious * CONFIG.spurious) / norm for sign in (1, -1)]  # agree, disagree
    found = assess_selective(Abstainer.of(linear(1.0, spurious)), DATA)
    for target in COVERAGES[1:]:
        low, high = 0.0, 10.0
        for _ in range(60):  # the distance at which half of the agreeing and half of the others make the target
            tau = (low + high) / 2
            reached = sum(truth(tau, margin)[0] for margin in margins) / 2
            low, high = (tau, high) if reached > target else (low, tau)
        row = found.at(target)
        assert row.threshold == pytest.approx(torch.tensor(norm * tau).sigmoid().item(), abs=0.01)
        assert row.coverage == pytest.approx(target, abs=0.01)
        for g, margin in enumerate((margins[0], margins[1], margins[1], margins[0])):
            coverage, error = truth(tau, margin)
            assert float(row.group_coverage[g]) == pytest.approx(coverage, abs=0.02)
            assert float(row.group_error[g]) == pytest.approx(error, abs=0.02)


def test_abstaining_helps_the_average_and_harms_the_group_that_a_shortcut_fails() -> None:
    # the margin of the disagreeing groups is (1 - 2) / sqrt(2) < 0: the surer the rule, the more often it is wrong
    found = assess_selective(Abstainer.of(linear(1.0, 1.0)), DATA)
    assert found.at(0.8).error < found.at(1.0).error - 0.01
    assert found.at(0.8).worst[0] > found.at(1.0).worst[0] + 0.03
    assert found.at(0.8).worst[1] in ("minus, right", "plus, left")


def test_choosing_a_threshold_looks_at_no_label() -> None:
    hidden = replace(DATA, val=DATA.val.hide_labels())
    abstainer = Abstainer.of(linear(1.0, 1.0))
    assert assess_selective(abstainer, hidden).summary() == assess_selective(abstainer, DATA).summary()


def test_the_threshold_is_that_of_validation_whatever_test_is_like() -> None:
    # a validation split that is ten times as easy: its threshold keeps next to nothing of test
    assert isinstance(DATA.val.x, Tensor)
    easy = replace(DATA, val=replace(DATA.val, x=10 * DATA.val.x))
    abstainer = Abstainer.of(linear(1.0, 1.0))
    found = assess_selective(abstainer, easy, (0.5,))
    assert found.at(0.5).coverage < 0.01
    assert found.at(0.5).threshold == abstainer.calibrate(easy.val, 0.5).threshold


def test_the_softmax_response_is_the_largest_probability() -> None:
    scores, pred = softmax_response(Table((0.2, 0.5, 0.3), (0.9, 0.05, 0.05)), numbered(2))
    assert scores.tolist() == pytest.approx([0.5, 0.9])
    assert pred.tolist() == [1, 0]


def test_sure_examples_are_told_apart_beyond_single_precision() -> None:
    model = Classifier(nn.Identity(), nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0], [1.0]]))  # type: ignore[operator]  # a parameter
    x = torch.tensor([[20.0], [30.0], [25.0]])
    zeros = torch.zeros(3, dtype=torch.long)
    scores, _ = softmax_response(model, Split(x, zeros, zeros, Groups(("a", "b"), ("only",))))
    assert scores.argsort().tolist() == [0, 2, 1]


def test_the_product_is_taken_class_by_class_and_its_largest_is_the_label() -> None:
    first, second = Table((0.6, 0.4, 0.0), (0.5, 0.3, 0.2)), Table((0.1, 0.5, 0.4), (0.8, 0.1, 0.1))
    scores, pred = product_response(first, second, numbered(2))
    assert scores.tolist() == pytest.approx([0.2, 0.4])  # 0.06, 0.20, 0 and 0.40, 0.03, 0.02
    assert pred.tolist() == [1, 0]  # the first model alone would say 0 of the first example


def test_the_authors_extra_softmax_keeps_the_label_and_may_turn_the_order() -> None:
    model = Table((0.5, 0.5 - 1e-9, 1e-9), (0.49, 0.255, 0.255))
    plain = product_response(model, model, numbered(2))
    authors = product_response(model, model, numbered(2), "masktune-authors")
    assert plain.scores.tolist() == pytest.approx([0.25, 0.2401])
    # 1 / (1 + 1 + exp(-0.25)), and 1 / (1 + 2 exp(0.065025 - 0.2401))
    assert authors.scores.tolist() == pytest.approx([0.35985, 0.37329], abs=1e-4)
    assert authors.pred.tolist() == plain.pred.tolist() == [0, 0]


def test_a_selector_scores_and_the_head_predicts() -> None:
    model = linear(1.0, 0.0)
    model.add_module("selector", FirstFeature())
    assert Abstainer.of(model).score == "selector"
    scores, pred = Abstainer((model,), "selector").respond(DATA.test)
    assert isinstance(DATA.test.x, Tensor)
    torch.testing.assert_close(scores, DATA.test.x[:, 0].double())
    assert torch.equal(pred, (DATA.test.x[:, 0] > 0).long())


def test_calibration_keeps_the_share_of_validation_and_leaves_the_abstainer_as_it_was() -> None:
    loose = Abstainer.of(linear(1.0, 0.0))
    strict = loose.calibrate(DATA.val, 0.9)
    assert loose.threshold == -math.inf
    assert not bool((loose.predict_or_abstain(DATA.val) == ABSTAIN).any())
    assert int((strict.predict_or_abstain(DATA.val) != ABSTAIN).sum()) == 36000


def test_a_label_is_given_from_the_threshold_on_and_none_below() -> None:
    abstainer = Abstainer((Table((0.2, 0.5, 0.3), (0.9, 0.05, 0.05), (0.1, 0.1, 0.8)),), threshold=0.8 - 1e-9)
    assert abstainer.predict_or_abstain(numbered(3)).tolist() == [ABSTAIN, 0, 2]


def test_a_split_and_its_inputs_get_the_same_labels_over_many_batches() -> None:
    abstainer = Abstainer.of(linear(1.0, 1.0)).calibrate(DATA.val, 0.8)
    some = DATA.test.select(torch.arange(2 * EVALUATION_BATCH + 7))
    assert isinstance(some.x, Tensor)
    assert torch.equal(abstainer.predict_or_abstain(some.x), abstainer.predict_or_abstain(some))


def test_text_is_taken_as_a_dict() -> None:
    class Words(nn.Module):
        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            total = (ids * mask).sum(dim=1).float()
            return torch.stack([-total, total], dim=1)

    ids = torch.tensor([[1, 1], [-1, -1], [0, 1]]).repeat(EVALUATION_BATCH, 1)
    mask = torch.tensor([[1, 1], [1, 1], [1, 0]]).repeat(EVALUATION_BATCH, 1)
    labels = Abstainer((Classifier(Words(), nn.Identity()),), threshold=0.9).predict_or_abstain(
        {"ids": ids, "mask": mask}
    )
    assert labels.tolist() == [1, 0, ABSTAIN] * EVALUATION_BATCH


def test_dropout_is_off_and_the_mode_is_put_back() -> None:
    model = nn.Sequential(nn.Dropout(0.9), linear(1.0, 0.0))
    model.train()
    torch.testing.assert_close(softmax_response(model, DATA.test), softmax_response(linear(1.0, 0.0), DATA.test))
    assert model.training


def test_what_cannot_abstain_is_refused() -> None:
    model, three = linear(1.0, 0.0), Table((0.2, 0.5, 0.3))
    with pytest.raises(UnknownNameError, match=r"No score is called 'sofmax'. Did you mean 'softmax'"):
        Abstainer((model,), "sofmax")
    with pytest.raises(InputError, match=r"the score 'softmax' needs one model \(got 2\)"):
        Abstainer((model, model), "softmax")
    for score in ("product", "masktune-authors"):
        with pytest.raises(InputError, match=rf"the score '{score}' needs two models or more \(got 1\)"):
            Abstainer((model,), score)
    with pytest.raises(InputError, match=r"needs one model \(got 0\)"):
        Abstainer(())
    with pytest.raises(InputError, match=r"the model has no selector. Fit a method that learns to abstain"):
        Abstainer((model,), "selector").respond(DATA.test)
    with pytest.raises(InputError, match=r"the models have different numbers of classes \(got 3 and 2\)"):
        product_response(three, Table((0.5, 0.5)), numbered(1))
    with pytest.raises(InputError, match="the split has no examples"):
        Abstainer((model,)).predict_or_abstain(torch.zeros(0, 2))
    with pytest.raises(InputError, match="the models are on different devices"):
        product_response(model, linear(1.0, 0.0).to("meta"), DATA.test)
    assert list(SCORES) == ["softmax", "product", "masktune-authors", "selector"]
