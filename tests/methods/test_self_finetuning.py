"""SELF: the divergence by hand, the choice against scipy, and what the chosen examples do to a model that cheats."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.special import rel_entr
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods import make_method
from spurless.methods import self_finetuning as self_tuning
from spurless.methods._head import split_halves
from spurless.methods.self_finetuning import Chosen, divergence, drop_features, shorten
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")
DATA = planted(PlantedConfig(n_train=1000, n_val=400, n_test=2000))
TRAIN = {"epochs": 5, "lr": 0.05}


def linear(weight: list[list[float]]) -> Classifier:
    """A trained model whose features are the inputs."""
    model = Classifier(nn.Identity(), nn.Linear(2, 2), trained=True)
    model.head.load_state_dict({"weight": torch.tensor(weight), "bias": torch.zeros(2)})
    return model


CHEAT, HONEST = [[0.0, -1.0], [0.0, 1.0]], [[-1.0, 0.0], [1.0, 0.0]]


def tuned(model: nn.Module, data: Splits = DATA, **options: Any) -> Fitted:
    return fit("self", model, data, train=TRAIN, compute=CPU, **{"n": 50, "disagreement": "dropout", **options})


def chosen(fitted: Fitted) -> Chosen:
    assert isinstance(fitted.explanation, Chosen)
    return fitted.explanation


def probabilities(model: Classifier, index: Tensor) -> Tensor:
    logits: Tensor = model(torch.as_tensor(DATA.val.x)[index])
    return logits.detach().double().softmax(dim=1)


def test_the_divergence_by_hand() -> None:
    # early (3/4, 1/4) against final (1/2, 1/2), then the other way round, then no disagreement
    a, b = [math.log(3.0), 0.0], [0.0, 0.0]
    found = divergence(torch.tensor([a, b, a]), torch.tensor([b, a, a]))
    forth = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    back = 0.5 * math.log(2 / 3) + 0.5 * math.log(2.0)
    assert found.tolist() == pytest.approx([forth / 2, back / 2, 0.0], abs=1e-7)


def test_the_examples_of_largest_divergence_are_chosen_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    early, final = linear(HONEST), linear(CHEAT)
    monkeypatch.setattr(self_tuning, "train_again", lambda *_: early)
    fitted = tuned(final, n=30, disagreement="early", seed=4)
    half = split_halves(DATA.val.y, Seeds(4))[1]
    score = rel_entr(probabilities(early, half).numpy(), probabilities(final, half).numpy()).mean(axis=1)
    by_hand = sorted(zip(score.tolist(), half.tolist(), strict=True), reverse=True)[:30]
    assert chosen(fitted).index.tolist() == [index for _, index in by_hand]
    assert chosen(fitted).disagreement.tolist() == pytest.approx([value for value, _ in by_hand], rel=1e-4)


def test_mistakes_are_the_examples_of_largest_loss() -> None:
    fitted = tuned(linear(CHEAT), n=25, disagreement="mistakes", seed=4)
    half = split_halves(DATA.val.y, Seeds(4))[1]
    loss = cross_entropy(linear(CHEAT)(torch.as_tensor(DATA.val.x)[half]), DATA.val.y[half], reduction="none")
    assert set(chosen(fitted).index.tolist()) == set(half[loss.topk(25).indices].tolist())


def test_dropout_sets_its_share_to_zero_and_keeps_the_mean() -> None:
    rows = DATA.val.select(torch.arange(300))
    run = make_run(CPU, 0, TrainConfig())
    before, after = torch.as_tensor(rows.x), torch.as_tensor(drop_features(rows, 0.25, run).x)
    gone = after == 0
    assert float(gone.double().mean()) == pytest.approx(0.25, abs=0.07)  # 4 standard errors
    assert torch.allclose(after[~gone], before[~gone] / 0.75)
    assert torch.equal(after, torch.as_tensor(drop_features(rows, 0.25, run).x))


def test_the_early_model_is_the_one_of_that_time() -> None:
    train = TrainConfig(epochs=4, batch_size=10)
    assert shorten(train, 10, 0.5).steps == 20
    assert shorten(TrainConfig(steps=50), 10, 0.1).steps == 5
    assert shorten(TrainConfig(steps=1), 10, 0.1).steps == 1
    fitted = tuned(build("linear", DATA), disagreement="early", early=0.4)
    stages = [row for row in fitted.record.history if row["stage"] == "early"]
    assert stages[-1]["step"] == 16  # of 5 x 8


def test_an_example_that_is_left_alone_in_an_epoch_does_not_move_that_time() -> None:
    # batch norm cannot learn from one example, so that the loop leaves it out: 2 steps an epoch, not 3
    data = replace(DATA, train=DATA.train.select(torch.arange(33)))
    fitted = fit(
        "self", build("linear", data), data, n=20, early=0.5, train={"epochs": 2, "batch_size": 16}, compute=CPU
    )
    assert [row["step"] for row in fitted.record.history if row["stage"] == "early"][-1] == 2


def test_where_nothing_was_learnt_since_nobody_disagrees(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = self_tuning.shorten
    monkeypatch.setattr(self_tuning, "shorten", lambda train, n, _: whole(train, n, 1.0))
    fitted = tuned(build("linear", DATA), disagreement="early", n=200)
    assert float(chosen(fitted).disagreement.abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("options", "train", "core", "gain"),
    [
        ({"disagreement": "dropout", "n": 100}, {"epochs": 2, "lr": 0.01}, (2.5, 4.0), 0.3),
        ({"disagreement": "early", "early": 0.1, "n": 200, "lr": 0.05}, TRAIN, (1.0, 2.0), 0.15),
    ],
)
def test_it_raises_the_worst_group_without_any_attribute(
    options: dict[str, Any], train: dict[str, Any], core: tuple[float, float], gain: float
) -> None:
    for seed in range(3):
        data = planted(PlantedConfig(core=core[0], spurious=core[1], n_train=2000, n_val=1000, n_test=4000, seed=seed))
        fitted = fit("self", build("linear", data, seed=seed), data, seed=seed, train=train, compute=CPU, **options)
        assert fitted.start is not None
        assert evaluate(fitted.model, data.test).worst[0] > evaluate(fitted.start, data.test).worst[0] + gain
        assert fitted.record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}


def test_what_is_chosen_has_more_of_the_minority_than_what_it_is_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_tuning, "train_again", lambda *_: linear(HONEST))
    index = chosen(tuned(linear(CHEAT), n=40, disagreement="early")).index
    conflicting = DATA.val.a != DATA.val.y
    assert float(conflicting[index].double().mean()) > 0.8  # half of all


def test_the_chosen_are_tuned_on_in_class_balanced_batches_and_without_momentum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(self_tuning, "tune_head", lambda *given: seen.append(given))
    few = torch.cat([(DATA.val.y == 0).nonzero().flatten(), (DATA.val.y == 1).nonzero().flatten()[:40]])
    tuned(linear(CHEAT), Splits(DATA.train, DATA.val.select(few), DATA.test), n=90, batches=400)
    _, rows, order, _, _, settings = seen[0]
    assert len(order(0)) == 400 * 32
    assert not 0.4 < float(rows.y.double().mean()) < 0.6
    assert float(rows.y[order(0)].double().mean()) == pytest.approx(0.5, abs=0.02)  # 4 standard errors
    assert (settings.momentum, settings.lr, settings.weight_decay) == (0.0, 0.01, 1e-4)


def test_the_criterion_reads_validation_without_another_pass() -> None:
    fitted = tuned(linear(CHEAT), select="val-worst-class", lr=0.5)
    scores = [row["score"] for row in fitted.record.history]
    assert evaluate(fitted.model, DATA.val).worst_class[0] == pytest.approx(max(scores))


def test_an_early_model_needs_an_untrained_one() -> None:
    with pytest.raises(
        InputError, match=r"trained model was passed\. Pass an untrained model, or use disagreement='dropout'"
    ):
        tuned(linear(CHEAT), disagreement="early")


def test_more_than_the_half_holds_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"fewer than n examples \(expected n of at most 20\d, got 300\)\. Set n lower"
    ):
        tuned(linear(CHEAT), n=300)
    assert len(chosen(tuned(linear(CHEAT), n=200)).index) == 200


@pytest.mark.filterwarnings("ignore:Validation differs from train")
def test_one_class_and_other_heads_are_refused() -> None:
    one = Splits(DATA.train, DATA.val.select(DATA.val.y == 1), DATA.test)
    with pytest.raises(InputError, match=r"SELF needs examples of at least two classes .* Choose more \(a larger n\)"):
        tuned(linear(CHEAT), one)
    other = Classifier(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"SELF tunes a linear head \(got Sequential\)"):
        tuned(other)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n": 0}, "n.* must be at least 1"),
        ({"batches": 0}, "batches.* must be at least 1"),
        ({"early": 1.0}, "early.* must be a fraction"),
        ({"dropout": 0.0}, "dropout.* must be a fraction"),
        ({"disagreement": "late"}, "early"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("self", **options)
