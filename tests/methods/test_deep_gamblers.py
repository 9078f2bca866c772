"""Deep Gamblers: the loss by hand, the reservation that theory asks for, and what it learns to refuse."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.methods.deep_gamblers import (
    DeepGamblers,
    DeepGamblersConfig,
    Reservation,
    attach_reservation,
    gamblers_loss,
)
from spurless.models import Classifier, build, load_weights, save_weights
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run
from spurless.train.selective import ABSTAIN, Abstainer, assess_selective

GROUPS = Groups(tuple("abcd"), ("clear", "noisy"))
GROUPS_OF_TWO = Groups(("even", "odd"), ("clear", "noisy"))
TRAIN = {"epochs": 15, "lr": 0.01, "optimiser": "adam", "batch_size": 50, "weight_decay": 0.0, "schedule": "cosine"}


def plane(n: int, name: str) -> Split:
    """Four classes by the signs of two features; where the third is above 0.6, a fifth of all, the label is chance."""
    generator = Seeds(0).generator(name)
    x = 2 * torch.rand(n, 3, generator=generator) - 1
    noisy = x[:, 2] > 0.6
    y = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return Split(x, torch.where(noisy, torch.randint(4, (n,), generator=generator), y), noisy.long(), GROUPS)


DATA = Splits(plane(2000, "train"), plane(2000, "val"), plane(2000, "test"))


def net() -> Classifier:
    return build("mlp", DATA, depth=2, width=32, bias=True)


def share_noisy(abstainer: Abstainer) -> float:
    """What share of the fifth that is refused lies where labels are chance."""
    refused = abstainer.calibrate(DATA.val, 0.8).predict_or_abstain(DATA.test) == ABSTAIN
    return float(DATA.test.a[refused].double().mean())


def reservation(model: Classifier) -> Reservation:
    assert isinstance(model.selector, Reservation)
    return model.selector


def test_the_loss_of_three_examples_by_hand() -> None:
    p = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.0, 1.0, 0.0]])  # the last column is kept
    y, payoff = torch.tensor([0, 0, 1]), 1.6
    by_hand = -(math.log(0.7 + 0.1 / 1.6) + math.log(0.1 + 0.6 / 1.6) + math.log(1.0)) / 3
    assert float(gamblers_loss((p + 1e-30).log(), y, payoff)) == pytest.approx(by_hand)


def test_a_payoff_without_limit_is_cross_entropy_over_all_outputs() -> None:
    outputs, y = torch.randn(8, 5), torch.randint(4, (8,))
    torch.testing.assert_close(gamblers_loss(outputs, y, 1e12), cross_entropy(outputs, y))


def test_a_sure_mistake_is_finite_and_so_is_its_gradient() -> None:
    outputs = torch.tensor([[1e4, -1e4, -1e4], [-1e4, -1e4, 1e4], [1e30, 0.0, -1e30]], requires_grad=True)
    loss = gamblers_loss(outputs, torch.tensor([1, 0, 0]), 1.5)
    loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    assert bool(loss.isfinite())
    assert outputs.grad is not None
    assert bool(outputs.grad.isfinite().all())
    assert float(outputs.grad[0, 1]) < 0 < float(outputs.grad[0, 0])


@pytest.mark.parametrize(("right", "expected"), [(0.9, 0.3), (0.8, 0.6), (0.5, 1.0)])
def test_the_optimum_keeps_what_the_theory_of_the_race_says(right: float, expected: float) -> None:
    # two classes, odds o = 1.5: with all bets on the likelier one the best reserve is (1 - q) / (1 - 1 / o), at most 1
    y = torch.tensor([0] * round(10 * right) + [1] * round(10 - 10 * right))
    outputs = torch.zeros(3, requires_grad=True)
    optimiser = torch.optim.Adam([outputs], lr=0.1)
    for _ in range(600):
        optimiser.zero_grad()
        gamblers_loss(outputs.expand(10, 3), y, 1.5).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    p = outputs.detach().softmax(dim=0)
    assert float(p[2]) == pytest.approx(expected, abs=0.01)
    assert float(p[1]) < 0.01


def test_the_score_has_the_order_of_the_reservation_and_does_not_round() -> None:
    selector = Reservation(1)
    with torch.no_grad():
        selector.layer.weight.fill_(1.0)
        selector.layer.bias.zero_()
    features, logits = torch.tensor([[-40.0], [-30.0], [2.0]]), torch.randn(3, 4)
    kept = torch.cat([logits, features], dim=1).double().softmax(dim=1)[:, -1]
    scores = selector(features, logits)
    torch.testing.assert_close(scores.double(), torch.log((1 - kept) / kept), atol=1e-4, rtol=1e-4)
    assert scores.argsort(descending=True).tolist() == kept.argsort().tolist() == [0, 1, 2]


def test_two_steps_by_hand_one_of_cross_entropy_and_one_of_betting() -> None:
    data = Splits(plane(60, "train"), plane(60, "val"), plane(60, "test"))
    model = build("linear", data)
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=2, batch_size=60, lr=0.5, momentum=0.0, weight_decay=0.0))
    with run.seeds.seed_global_rng("selector"):
        attach_reservation(model)  # the same draw that fit makes
    head, extra = model.head, reservation(model).layer
    assert isinstance(head, nn.Linear)
    weights = [p.detach().clone().requires_grad_() for p in (head.weight, head.bias, extra.weight, extra.bias)]
    x, y = data.train.x, data.train.y
    assert isinstance(x, Tensor)
    for step in range(2):
        logits = x @ weights[0].T + weights[1]
        outputs = torch.cat([logits, x @ weights[2].T + weights[3]], dim=1)
        loss = cross_entropy(logits, y) if step == 0 else gamblers_loss(outputs, y, 2.0)
        slopes = torch.autograd.grad(loss, weights, allow_unused=True)
        weights = [
            w if slope is None else (w - 0.5 * slope).detach().requires_grad_()
            for w, slope in zip(weights, slopes, strict=True)
        ]
    fitted = DeepGamblers(DeepGamblersConfig(2.0, 0.5)).fit(build("linear", data), data, run)
    assert isinstance(fitted.head, nn.Linear)
    found = [fitted.head.weight, fitted.head.bias, *reservation(fitted).layer.parameters()]
    for ours, by_hand in zip(found, weights, strict=True):
        torch.testing.assert_close(ours, by_hand)


def test_it_refuses_what_is_noisy_and_errs_less_on_the_rest() -> None:
    fitted = fit(DeepGamblers(), net(), DATA, train=TRAIN, compute=Compute("cpu"))
    abstainer = Abstainer.of(fitted.model)
    assert abstainer.score == "selector"
    found = assess_selective(abstainer, DATA)
    assert found.at(1.0).error > 0.15  # three quarters of a fifth
    assert found.at(0.8).error < 0.07
    assert found.at(0.8).coverage == pytest.approx(0.8, abs=0.03)
    assert share_noisy(abstainer) > 0.75


def test_the_model_has_a_logit_per_class_and_half_precision_changes_little() -> None:
    fitted = fit(DeepGamblers(), net(), DATA, train=TRAIN, compute=Compute("cpu", precision="bf16-mixed"))
    assert fitted.model(DATA.test.example(3)).shape == (3, 4)
    assert assess_selective(Abstainer.of(fitted.model), DATA).at(0.8).error < 0.08


def test_weights_are_saved_with_the_reservation_and_loaded_where_one_is(tmp_path: Path) -> None:
    fitted = fit(DeepGamblers(), net(), DATA, train={"epochs": 1}, compute=Compute("cpu"))
    save_weights(tmp_path / "model.safetensors", fitted.model)
    with pytest.raises(InputError, match=r"the weights do not fit mlp: unexpected selector\.layer\.bias"):
        load_weights(tmp_path / "model.safetensors", net())
    again = net()
    attach_reservation(again)
    load_weights(tmp_path / "model.safetensors", again)
    torch.testing.assert_close(Abstainer.of(again).respond(DATA.test), Abstainer.of(fitted.model).respond(DATA.test))


def test_a_payoff_at_which_abstaining_never_pays_is_a_warning() -> None:
    parts = (replace(split, y=split.y % 2, groups=GROUPS_OF_TWO) for split in (DATA.train, DATA.val, DATA.test))
    train, val, test = parts
    two = Splits(train, val, test)
    with pytest.warns(SpurlessWarning, match=r"With 2 classes and a payoff of 2\.2 it never pays to abstain"):
        fit(DeepGamblers(), build("linear", two), two, train={"steps": 1}, compute=Compute("cpu"))
    fine = DeepGamblers(DeepGamblers.presets["two-classes"])  # a warning would be an error here
    fit(fine, build("linear", two), two, train={"steps": 1}, compute=Compute("cpu"))


class CutError(Exception):
    """Stands for a kill between two steps."""


class CutAt(Checkpoints):
    """Cuts the run after its fifth save."""

    left = 5

    def save(self, stage: str, state: dict[str, Any]) -> None:
        super().save(stage, state)
        self.left -= 1
        if self.left == 0:
            raise CutError


def test_a_run_that_was_cut_ends_with_the_same_weights(tmp_path: Path) -> None:
    method, config = DeepGamblers(DeepGamblersConfig(2.2, 0.3)), TrainConfig(epochs=1, batch_size=200)  # 10 steps
    whole = method.fit(net(), DATA, make_run(Compute("cpu"), 0, config))
    with pytest.raises(CutError):
        method.fit(net(), DATA, make_run(Compute("cpu"), 0, config, CutAt(tmp_path, "key", seconds=0.0)))
    again = method.fit(net(), DATA, make_run(Compute("cpu"), 0, config, Checkpoints(tmp_path, "key")))
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_settings_that_make_no_sense_are_refused() -> None:
    for payoff in (1.0, 0.0, math.inf, math.nan):
        with pytest.raises(InputError, match=r"payoff must be (above 1|a finite number)"):
            DeepGamblersConfig(payoff)
    for pretrain in (-0.1, 1.0):
        with pytest.raises(InputError, match=r"pretrain.* must be a fraction"):
            DeepGamblersConfig(2.2, pretrain)
