"""DisEnt: the two sides by hand, swaps that stay in the batch, and a classifier of two encoders."""

from copy import deepcopy
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import InputError
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import Loader
from spurless.data.split import Splits
from spurless.fitting import fit
from spurless.methods.disent import DisEnt, DisEntConfig, Encoders, Sides, make_two_encoders
from spurless.models import Classifier, build, wrap
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.losses import generalised_cross_entropy
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Objective, Stage

DATA = planted(PlantedConfig(core=2.0, spurious=4.0, n_train=2000, n_val=100, n_test=4000))
FOUR = replace(DATA, train=DATA.train.select(torch.cat([(DATA.train.y == y).nonzero().flatten()[:2] for y in (0, 1)])))
ORDER = torch.tensor([2, 0, 3, 1])
"""One cycle: whichever way two of each label are laid out, some labels change place."""


def sides() -> Sides:
    """One intrinsic and one bias feature; the heads look at one each, and a little at the other."""
    features = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]], requires_grad=True)
    head, bias_head = nn.Linear(2, 2), nn.Linear(2, 2)
    for layer, weight in ((head, [[1.0, 0.1], [0.0, 0.0]]), (bias_head, [[0.1, 1.0], [0.0, 0.0]])):
        layer.load_state_dict({"weight": torch.tensor(weight), "bias": torch.zeros(2)})
    return Sides(features, head, bias_head)


def test_what_the_heads_say_by_hand() -> None:
    said = sides()
    y = torch.zeros(4, dtype=torch.long)
    torch.testing.assert_close(said.bias()[:, 0], torch.tensor([10.1, 20.2, 30.3, 40.4]))
    torch.testing.assert_close(said.bias(ORDER)[:, 0], torch.tensor([30.1, 10.2, 40.3, 20.4]))  # the bias of others
    odds = torch.tensor([1.0 + 3.0, 2.0 + 1.0, 3.0 + 4.0, 4.0 + 2.0])
    torch.testing.assert_close(said.intrinsic(y, ORDER), torch.log1p((-odds).exp()))


@pytest.mark.parametrize("order", [None, ORDER])
def test_no_gradient_reaches_the_encoder_of_the_other_side(order: Tensor | None) -> None:
    for loss, kept, stopped in (("intrinsic", 0, 1), ("bias", 1, 0)):
        said = sides()
        value = said.intrinsic(torch.ones(4, dtype=torch.long), order) if loss == "intrinsic" else said.bias(order)
        (slope,) = torch.autograd.grad(value.sum(), said.features)
        assert bool((slope[:, kept] != 0).all())
        assert bool((slope[:, stopped] == 0).all())


def first_loss(data: Splits, config: DisEntConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[float, Classifier]:
    """The loss of the first step over the whole split, and the network before it."""
    begun: list[Classifier] = []

    def watch(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        begun.append(cast(Classifier, deepcopy(model)))
        minimise(model, loader, objective, run, stage)

    monkeypatch.setattr("spurless.methods.disent.minimise", watch)
    monkeypatch.setattr("torch.rand", lambda *_, **__: ORDER.argsort().float())
    run = make_run(Compute("cpu"), 0, TrainConfig(steps=1, batch_size=len(data.train)))
    DisEnt(config).fit(build("mlp", data, width=3, activation="tanh"), data, run)  # no unit is dead
    return run.history[0]["loss"], begun[0]


@pytest.mark.parametrize("swap_after", [0, 1])
def test_the_whole_loss_by_hand(swap_after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DisEntConfig(swap_after, swap=0.5, bias=3.0, swap_bias=7.0)
    loss, network = first_loss(FOUR, config, monkeypatch)
    seeds = make_run(Compute("cpu"), 0, TrainConfig()).seeds.child("train")
    order = torch.randperm(4, generator=seeds.generator("order", 0))  # of the loader
    x, y = cast(Tensor, FOUR.train.x)[order].float(), FOUR.train.y[order]
    z = network.features(x)
    swapped = torch.cat([z[:, :3], z[ORDER, 3:]], dim=1)
    bias_head = cast(nn.Linear, network.bias_head)
    intrinsic, bias = (cross_entropy(head(z), y, reduction="none") for head in (network.head, bias_head))
    share = [losses / torch.stack([losses[y == label].max() for label in y]) for losses in (intrinsic, bias)]
    weights = share[1] / (share[0] + share[1])
    expected = (weights * intrinsic).mean() + 3.0 * generalised_cross_entropy(bias_head(z), y).mean()
    if swap_after == 0:
        expected = expected + 0.5 * (weights * cross_entropy(network.head(swapped), y, reduction="none")).mean()
        expected = expected + 0.5 * 7.0 * generalised_cross_entropy(bias_head(swapped), y[ORDER]).mean()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


def test_a_swap_permutes_the_batch_and_another_one_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[Tensor] = []
    plainly = Sides.bias

    def watch(self: Sides, order: Tensor | None = None) -> Tensor:
        if order is not None:
            orders.append(order)
        return plainly(self, order)

    monkeypatch.setattr(Sides, "bias", watch)
    run = make_run(Compute("cpu"), 0, TrainConfig(steps=6, batch_size=64))
    DisEnt(DisEntConfig(swap_after=0)).fit(build("linear", DATA), DATA, run)
    assert len(orders) == 6
    assert all(sorted(order.tolist()) == list(range(64)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 6


def test_what_comes_back_is_a_classifier_of_both_encoders() -> None:
    net = nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2))  # a user's own
    run = make_run(Compute("cpu"), 0, TrainConfig(steps=3, batch_size=4))
    model, x = DisEnt(DisEntConfig(swap_after=1)).fit(wrap(net), FOUR, run), torch.randn(7, 2)
    model.verify(x)
    encoders = cast(Encoders, model.backbone)
    assert torch.equal(model.features(x), torch.cat([encoders.intrinsic(x), encoders.bias(x)], dim=1))
    assert torch.equal(model(x), model.head(model.features(x)))
    assert torch.equal(model.unwrap()(x), model(x))
    assert model.n_features == 10
    assert not hasattr(model, "bias_head")
    assert sum(p.numel() for p in model.parameters()) == 2 * 15 + 22  # two encoders, one head


def test_the_heads_are_drawn_apart_and_the_encoders_start_as_the_given_one() -> None:
    model = build("mlp", DATA, width=3)
    twins = make_two_encoders(deepcopy(model))
    encoders = cast(Encoders, twins.backbone)
    x = torch.randn(4, 2)
    assert torch.equal(encoders.intrinsic(x), model.features(x))
    assert torch.equal(encoders.bias(x), model.features(x))


def test_raises_the_accuracy_where_the_shortcut_misleads_without_any_attribute() -> None:
    settings = {"epochs": 8, "lr": 0.02, "batch_size": 100, "optimiser": "adam", "weight_decay": 0.0}
    gains = []
    for seed in range(3):
        model = build("linear", DATA, seed=seed)
        erm = fit("erm", model, DATA, seed=seed, train=settings, compute=Compute("cpu"))
        disent = fit("disent", model, DATA, seed=seed, train=settings, compute=Compute("cpu"), swap_after=40)
        gains.append(disent.record.metrics["worst_group"] - erm.record.metrics["worst_group"])  # type: ignore[operator]
        assert not any(disent.record.supervision.values())
    assert sorted(gains)[1] > 0.1


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"swap_after.* must not be negative \(got -1"):
        DisEntConfig(swap_after=-1)
    with pytest.raises(InputError, match=r"swap_bias.* must not be negative"):
        DisEntConfig(swap_bias=-0.1)
    with pytest.raises(InputError, match=r"q.* must be a fraction"):
        DisEntConfig(q=2.0)


def test_the_run_of_dcwp_has_two_of_its_networks_and_equal_weights() -> None:
    preset = DisEnt.presets["colored-mnist-dcwp"]
    assert (preset.bias, preset.swap, preset.swap_bias, preset.swap_after) == (1.0, 1.0, 1.0, 10_000)
    network = make_two_encoders(build("pooled-cnn", input_shape=(3, 28, 28), n_classes=10))
    assert network.n_features == 512
    assert network(torch.rand(2, 3, 28, 28)).shape == (2, 10)
