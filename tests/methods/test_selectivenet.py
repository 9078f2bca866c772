"""SelectiveNet: the loss by hand, the coverage it is held to, and what it learns to refuse."""

from pathlib import Path

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.methods.selectivenet import (
    Gate,
    SelectiveNet,
    SelectiveNetConfig,
    attach_gate,
    selective_loss,
)
from spurless.models import Classifier, build, load_weights, save_weights
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run
from spurless.train.selective import ABSTAIN, Abstainer, assess_selective

GROUPS = Groups(tuple("abcd"), ("clear", "noisy"))
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


LOSSES, CHOSEN = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([1.0, 1.0, 0.5, 0.0])


def test_the_loss_of_four_examples_by_hand() -> None:
    # coverage 2.5 / 4 = 0.625; the chosen losses add up to 5
    short = 32 * (0.8 - 0.625) ** 2
    assert float(selective_loss(LOSSES, CHOSEN, SelectiveNetConfig())) == pytest.approx(5 / 4 + short)
    assert float(selective_loss(LOSSES, CHOSEN, SelectiveNet.presets["cifar10-paper"])) == pytest.approx(
        5 / 4 / 0.625 + short
    )


def test_more_coverage_than_asked_for_costs_nothing() -> None:
    assert float(selective_loss(LOSSES, CHOSEN, SelectiveNetConfig(coverage=0.6))) == pytest.approx(5 / 4)


def test_a_batch_that_is_refused_whole_is_finite_and_pays() -> None:
    odds = torch.full((4,), -1e4, requires_grad=True)
    for config in (SelectiveNetConfig(), SelectiveNet.presets["cifar10-paper"]):
        loss = selective_loss(LOSSES, odds.sigmoid(), config)
        (slope,) = torch.autograd.grad(loss, odds)
        assert float(loss.detach()) == pytest.approx(32 * 0.8**2)
        assert bool(slope.isfinite().all())


def test_the_gradient_drops_the_dear_and_keeps_the_cheap() -> None:
    chosen = torch.full((4,), 0.9, requires_grad=True)  # above the coverage, so only the risk speaks
    (slope,) = torch.autograd.grad(selective_loss(LOSSES, chosen, SelectiveNet.presets["cifar10-paper"]), chosen)
    # d/dg of sum(l g) / sum(g) is (l - mean) / sum(g), with the mean 3.75
    torch.testing.assert_close(slope, (LOSSES - 3.75) / 3.6)


def test_the_gate_starts_almost_indifferent() -> None:
    with Seeds(0).seed_global_rng("gate"):
        gate, plain = Gate(8, 512), Gate(8, 512)
        nn.init.constant_(plain.layers[2].weight, 1.0)  # type: ignore[arg-type]  # a parameter
        features = torch.randn(256, 8)
    tame, wild = (g(features, features).detach().std() for g in (gate, plain))
    assert float(tame) < 0.15 < float(wild)  # or the first steps would decide what is refused


def test_the_auxiliary_head_learns_with_the_features_and_leaves() -> None:
    model = net()
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=2, batch_size=50, lr=0.1, weight_decay=0.0))
    before = [p.detach().clone() for p in model.backbone.parameters()]
    # alpha = 0: only the auxiliary head is asked, so backbone learns, and the head that stays does not
    head = [p.detach().clone() for p in model.head.parameters()]
    fitted = SelectiveNet(SelectiveNetConfig(alpha=0.0)).fit(model, DATA, run)
    assert not any(torch.equal(p, b) for p, b in zip(fitted.backbone.parameters(), before, strict=True))
    assert all(map(torch.equal, fitted.head.parameters(), head))
    assert {name.split(".")[0] for name, _ in fitted.named_parameters()} == {"backbone", "head", "selector"}


@pytest.mark.parametrize("preset", list(SelectiveNet.presets))
def test_it_refuses_what_is_noisy_and_errs_less_on_the_rest(preset: str) -> None:
    fitted = fit(SelectiveNet(SelectiveNet.presets[preset]), net(), DATA, train=TRAIN, compute=Compute("cpu"))
    abstainer = Abstainer.of(fitted.model)
    assert abstainer.score == "selector"
    found = assess_selective(abstainer, DATA)
    assert found.at(1.0).error > 0.15  # three quarters of a fifth
    assert found.at(0.8).error < 0.05
    assert share_noisy(abstainer) > 0.85


@pytest.mark.slow
def test_it_keeps_the_coverage_that_it_was_trained_for() -> None:
    for coverage in (0.7, 0.95):
        method = SelectiveNet(SelectiveNetConfig(coverage=coverage))
        fitted = fit(method, net(), DATA, train=TRAIN, compute=Compute("cpu"))
        reached = Abstainer.of(fitted.model).respond(DATA.test).scores.sigmoid().mean()
        assert float(reached) == pytest.approx(coverage, abs=0.05)


def test_weights_are_saved_with_the_gate_and_loaded_where_one_is(tmp_path: Path) -> None:
    fitted = fit(SelectiveNet(), net(), DATA, train={"epochs": 1}, compute=Compute("cpu"))
    save_weights(tmp_path / "model.safetensors", fitted.model)
    with pytest.raises(InputError, match=r"the weights do not fit mlp: unexpected selector\.layers"):
        load_weights(tmp_path / "model.safetensors", net())
    again = net()
    attach_gate(again)
    load_weights(tmp_path / "model.safetensors", again)
    torch.testing.assert_close(Abstainer.of(again).respond(DATA.test), Abstainer.of(fitted.model).respond(DATA.test))


def test_a_batch_of_one_has_no_coverage() -> None:
    with pytest.raises(InputError, match="SelectiveNet needs the coverage of a batch"):
        fit(SelectiveNet(), net(), DATA, train={"batch_size": 1, "steps": 1}, compute=Compute("cpu"))


def test_settings_that_make_no_sense_are_refused() -> None:
    for coverage in (0.0, 1.1):
        with pytest.raises(InputError, match=r"coverage.* must be a fraction"):
            SelectiveNetConfig(coverage=coverage)
    with pytest.raises(InputError, match=r"alpha.* must be a fraction"):
        SelectiveNetConfig(alpha=1.1)
    with pytest.raises(InputError, match=r"penalty.* must not be negative"):
        SelectiveNetConfig(penalty=-1.0)
    with pytest.raises(InputError, match=r"width.* must be at least 1"):
        SelectiveNetConfig(width=0)
