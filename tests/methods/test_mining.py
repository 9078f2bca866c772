"""Mining: every way finds what breaks the shortcut, the ensemble does so by hand too, and no attribute is looked at."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError, MissingAttributesError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.loader import Loader, shuffled_order
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.methods._mining import (
    MINING_COLORED_MNIST,
    MINING_CORRUPTED_CIFAR10,
    MINING_DIGITS,
    MINING_PEERS_CIFAR10,
    MiningConfig,
    _order,
    ensemble_weights,
    mine_conflicting,
)
from spurless.models import Classifier, build
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig, learning_rate
from spurless.train.evaluate import predict
from spurless.train.run import Compute, Run, make_run

SMALL: dict[str, Any] = {"batch_size": 64, "steps": None, "optimiser": "adam", "lr": 1e-3, "weight_decay": 0.0}
WAYS = {
    "gce": MiningConfig("gce", lr=0.1, steps=300, batch_size=64),
    "early": MiningConfig("early", lr=0.03, steps=100, batch_size=64),
    "ensemble": MiningConfig("ensemble", epochs=10, **SMALL),
    "peers": MiningConfig("ensemble", epochs=10, peers=2, ascent=1e-4, **SMALL),
}
NONE = torch.zeros(())


def digits(seed: int) -> Splits:
    return load("colored-digits", conflicting=0.05, size=8, seed=seed)


def fresh(data: Splits, seed: int) -> Classifier:
    return build("mlp", data, seed=seed, depth=2)


def a_run(seed: int = 0) -> Run:
    return make_run(
        Compute("cpu"), seed, TrainConfig(epochs=1, batch_size=8, lr=7.0)
    )  # settings that mining must not use


def test_a_list_that_is_the_truth_is_as_good_as_attributes() -> None:
    data = load("planted", n_train=600, n_val=100, n_test=400)
    conflicting = data.train.y != data.train.a
    mined = MinedExamples(conflicting.float(), conflicting, "gce", data_fingerprint(data.train))
    blind = replace(data, train=data.train.hide_attributes())
    with pytest.raises(MissingAttributesError):
        fit("group-dro", build("linear", data), blind)
    known, listed = (fit("group-dro", build("linear", data), each) for each in (data, mined.as_groups(blind)))
    for one, other in zip(known.model.parameters(), listed.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)  # the groups are the same, in another order
    assert listed.record.metrics["worst_group"] == pytest.approx(known.record.metrics["worst_group"], abs=0.02)
    assert any("by mined examples" in said for said in listed.record.warnings)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_finds_the_one_in_twenty_that_conflict(way: str, seed: int) -> None:
    data = digits(seed)
    mined = mine_conflicting(fresh(data, seed), data.train, a_run(seed), WAYS[way])
    found = mined.quality(data.train)
    assert found.precision is not None
    assert found.recall is not None
    assert found.base == pytest.approx(0.05)
    assert found.precision > 0.6  # by chance 0.05; the lowest of twelve is 0.72
    assert found.recall > 0.25  # by chance the share that is chosen, at most 0.04; the lowest is 0.34
    conflicting = data.train.a != data.train.y
    assert mined.score[conflicting].mean() > mined.score[~conflicting].mean() + 0.4


@pytest.mark.parametrize("way", WAYS)
def test_the_attributes_are_not_looked_at_and_the_model_is_left_alone(way: str) -> None:
    data = digits(0)
    model = fresh(data, 0)
    before = [p.clone() for p in model.parameters()]
    shown = mine_conflicting(model, data.train, a_run(), WAYS[way])
    lies = replace(data.train, a=data.train.a.flip(0))
    for other in (data.train.hide_attributes(), lies):
        again = mine_conflicting(model, other, a_run(), WAYS[way])
        assert torch.equal(shown.score, again.score)
        assert torch.equal(shown.chosen, again.chosen)
        assert shown.fingerprint == again.fingerprint
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not torch.equal(shown.score, mine_conflicting(model, data.train, a_run(1), WAYS[way]).score)


def test_of_two_ways_the_mistakes_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    data, seen = digits(0), {}

    def watch(net: Classifier, split: Split, *_: object) -> Tensor:
        seen["wrong"] = predict(net, split) != split.y
        with torch.no_grad():
            return net.eval()(split.example(len(split)))  # type: ignore[no-any-return]  # a module's call is Any

    monkeypatch.setattr("spurless.methods._mining.logits", watch)
    for way in ("gce", "early"):
        mined = mine_conflicting(fresh(data, 0), data.train, a_run(), WAYS[way])
        assert torch.equal(mined.chosen, seen["wrong"])


def toy() -> tuple[Split, Classifier]:
    x = torch.tensor([[1.0], [2.0], [-1.0], [-3.0]])
    split = Split(x, torch.tensor([1, 1, 0, 1]), torch.full((4,), -1), Groups(("minus", "plus")))
    data = Splits(split, split, split)
    model = build("linear", data, bias=False)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0], [1.0]]))  # type: ignore[operator]  # the head is linear
    return split, model


def test_the_score_of_two_epochs_by_hand() -> None:
    # with w the difference of the two rows, p_y = sigmoid(s_y w x); the last example has p_y = sigmoid(-3) = 0.047
    split, model = toy()
    config = MiningConfig(
        "ensemble", tau=0.9, lr=0.5, momentum=0.0, weight_decay=0.0, epochs=2, steps=None, batch_size=4
    )
    x, sign = split.x, 2.0 * split.y - 1
    assert isinstance(x, Tensor)
    margin, w, unsure = sign * x[:, 0], 1.0, []
    for _ in range(2):
        p = torch.sigmoid(margin * w)
        learnt = p > 0.05
        assert learnt.tolist() == [True, True, True, False]
        # each row of the weights moves by half as much as the difference does
        w += 2 * 0.5 * float(((1 - p) * margin)[learnt].sum() / 3)
        unsure.append(1 - torch.sigmoid(margin * w))
    mined = mine_conflicting(model, split, a_run(), config)
    assert torch.allclose(mined.score, torch.stack(unsure).mean(dim=0), atol=1e-6)
    assert mined.chosen.tolist() == [False, False, False, True]


def test_one_net_learns_from_what_it_is_sure_of() -> None:
    losses = -torch.tensor([0.9, 0.04, 0.06, 0.5]).log()
    (counts,) = ensemble_weights([losses], torch.zeros(4, dtype=torch.long), 2, MiningConfig("ensemble"), NONE)
    assert counts.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    (nothing,) = ensemble_weights([losses + 9], torch.zeros(4, dtype=torch.long), 2, MiningConfig("ensemble"), NONE)
    assert nothing.tolist() == [0, 0, 0, 0]  # and no division by zero


def test_two_peers_decide_together_and_by_class() -> None:
    # label 0: largest p 0.9 and 0.8; label 1: largest 0.1 and 0.2, so that 0.004 and 0.03 are 0.04 and 0.15 of it
    y = torch.tensor([0, 0, 1, 1])
    one, other = torch.tensor([0.9, 0.4, 0.1, 0.004]), torch.tensor([0.8, 0.008, 0.2, 0.03])
    config = MiningConfig("ensemble", peers=2)
    a, b = ensemble_weights([-one.log(), -other.log()], y, 2, config, torch.tensor(0.5))
    assert a.tolist() == pytest.approx([0.25, -0.125, 0.25, 0.0])  # the second: sure, and its peer is not
    assert b.tolist() == pytest.approx([0.25, 0.0, 0.25, -0.125])


def test_peers_begin_apart_and_ascend_from_the_second_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    data, ascents, apart = digits(0), [], []

    def watch(losses: list[Tensor], y: Tensor, n: int, config: MiningConfig, ascent: Tensor) -> list[Tensor]:
        ascents.append(float(ascent))
        apart.append(not torch.allclose(losses[0], losses[1]))
        return ensemble_weights(losses, y, n, config, ascent)

    monkeypatch.setattr("spurless.methods._mining.ensemble_weights", watch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        mine_conflicting(fresh(data, 0), data.train, a_run(), replace(WAYS["peers"], epochs=2, batch_size=500))
    assert ascents == pytest.approx([0, 0, 1e-4, 1e-4])
    assert all(apart)


def test_the_rate_decays_by_steps_and_every_example_comes_in_turn() -> None:
    config = MiningConfig("gce", batch_size=4, steps=20, decay_steps=3)
    order, plain = _order(10, Seeds(0), config), shuffled_order(10, Seeds(0))
    drawn = torch.cat([order(epoch) for epoch in range(5)])
    assert torch.equal(drawn, torch.cat([plain(epoch) for epoch in range(6)]))  # 5 x 12 = 6 x 10
    split, _ = toy()
    per_epoch = Loader(split, order, 4, training=True).steps()
    rates = [learning_rate(config.train, step, 20, per_epoch) for step in range(9)]
    assert rates == pytest.approx([0.1] * 3 + [0.01] * 3 + [0.001] * 3)


def test_the_presets_are_those_of_the_experiments() -> None:
    config = MINING_COLORED_MNIST
    rates = [learning_rate(config.train, step, 2000, config.decay_steps or 0) for step in (599, 600, 1999)]
    assert (config.how, config.q, config.optimiser, config.train.steps) == ("gce", 0.7, "sgd", 2000)
    assert rates == pytest.approx([0.1, 0.01, 1e-4])
    assert (config.momentum, config.weight_decay, config.batch_size) == (0.9, 1e-4, 256)
    cifar = MINING_CORRUPTED_CIFAR10
    assert (cifar.how, cifar.eta, cifar.tau, cifar.peers, cifar.steps) == ("ensemble", 0.05, 0.8, 1, 10_000)
    assert (MINING_PEERS_CIFAR10.peers, MINING_PEERS_CIFAR10.ascent, MINING_PEERS_CIFAR10.train.epochs) == (2, 1e-4, 50)
    assert MINING_DIGITS.how == "gce"


def test_a_list_of_nothing_or_of_most_is_a_warning() -> None:
    split, model = toy()
    long = MiningConfig("early", lr=1.0, steps=1, batch_size=4)
    easy = replace(split, y=torch.tensor([1, 1, 0, 0]))
    with pytest.warns(
        SpurlessWarning, match=r"\(early\) chose 0 of 4 examples: either no example conflicts.*Try fewer steps"
    ):
        mine_conflicting(model, easy, a_run(), long)
    with pytest.warns(SpurlessWarning, match=r"chose 4 of 4 examples: either most examples.*Try more steps"):
        mine_conflicting(model, replace(split, y=1 - easy.y), a_run(), replace(long, lr=1e-6))
    with pytest.warns(SpurlessWarning, match=r"\(ensemble\) chose 0 of 4.*Try lower tau"):
        mine_conflicting(model, easy, a_run(), MiningConfig("ensemble", steps=1, batch_size=4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"q": 0.0}, "q.* must be a fraction"),
        ({"tau": 1.5}, "tau.* must be a fraction"),
        ({"peers": 3, "how": "ensemble"}, "peers cannot be"),
        ({"peers": 2}, "only the ensemble has peers"),
        ({"decay_steps": 3, "steps": None}, "decay_steps needs how='gce' or 'early'"),
        ({"decay_steps": 3, "how": "ensemble"}, "decay_steps needs how='gce' or 'early'"),
        ({"lr": 0.0}, "lr.* must be above 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        MiningConfig(**options)


def test_a_net_that_could_not_begin_is_refused() -> None:
    split, model = toy()
    with pytest.raises(InputError, match=r"each of 2 labels a probability of 0\.5.*eta under 0\.5, got 0\.6"):
        mine_conflicting(model, split, a_run(), MiningConfig("ensemble", eta=0.6))
    model.trained = True
    with pytest.raises(InputError, match="mining begins with an untrained model"):
        mine_conflicting(model, split, a_run())


class KilledError(Exception):
    """Stands for a kill."""


@pytest.mark.parametrize("way", ["gce", "peers"])
def test_a_killed_run_goes_on_to_the_same_list(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = digits(0)
    whole = mine_conflicting(fresh(data, 0), data.train, a_run(), WAYS[way])

    def kill(*said: object) -> None:
        if said[2] == 70:  # the step
            raise KilledError

    run = replace(a_run(), checkpoints=Checkpoints(tmp_path, "key", seconds=0.0))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "report_progress", kill)
        with pytest.raises(KilledError):
            mine_conflicting(fresh(data, 0), data.train, run, WAYS[way])
    run = replace(a_run(), checkpoints=Checkpoints(tmp_path, "key"))
    assert torch.equal(mine_conflicting(fresh(data, 0), data.train, run, WAYS[way]).score, whole.score)
    assert run.history[0]["stage"] == "mine"
