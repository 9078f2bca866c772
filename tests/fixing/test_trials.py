"""Tests of attempts: judged against the old model, the best is kept, a failing method is a row, the old stays whole."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.repairs import Choice, RepairScore
from spurless.fitting.protocol import Protocol
from spurless.fixing.holdout import split_validation
from spurless.fixing.trials import RepairTrials, find_holdout_suspects
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")
RUINED = Choice("afr", "ruins it", options={"gamma": 200.0, "lr": 50.0, "steps": 200, "clip": 1e9})
GOOD = Choice("class-balanced-head", "unlearns it", options={"on": "val", "epochs": 5})
STILL = Choice("class-balanced-head", "hardly moves", options={"on": "train", "epochs": 1, "batches": 1, "lr": 1e-9})
FAILS = Choice("self", "cannot", options={"n": 100_000, "disagreement": "dropout"})


@cache
def shop(tolerance: float = 0.01) -> RepairTrials:
    """A linear model that has learnt the shortcut, and validation where it holds for half."""
    data = sp.load("planted", seed=1000, n_train=600, n_val=800, n_test=400)
    train = TrainConfig(steps=150, batch_size=64, lr=0.05)
    old = sp.fit("erm", sp.build("linear", data, seed=0), data, train=train, compute=CPU).model
    held, run = split_validation(data, 0), make_run(CPU, 0, train)
    return RepairTrials(
        old, held, find_holdout_suspects(old, held.scoring, run), Protocol(train, compute=CPU), run, tolerance
    )


def test_a_repair_that_raises_the_worst_group_is_taken() -> None:
    before = shop().old_score
    (only,), model = shop().run_all([GOOD], strict=True)
    assert only.outcome == "taken"
    assert only.score is not None
    assert only.score.worst_group is not None
    assert before.worst_group is not None
    assert only.score.worst_group.value > before.worst_group.value + 0.1
    assert only.score.average.value >= before.average.value - 0.01
    assert model is not None
    assert not torch.equal(model.head.weight, shop().old.head.weight)  # type: ignore[arg-type]  # linear


@pytest.mark.parametrize(("choice", "fate"), [(RUINED, "too costly"), (STILL, "no better")])
def test_one_that_does_not_pay_is_not(choice: Choice, fate: str) -> None:
    weights = {name: value.clone() for name, value in shop().old.state_dict().items()}
    (only,), model = shop().run_all([choice], strict=True)
    assert only.outcome == fate
    assert model is None
    for name, value in shop().old.state_dict().items():
        assert torch.equal(value, weights[name])


def test_the_tolerance_is_what_the_average_may_lose() -> None:
    (only,), _ = shop().run_all([RUINED], strict=True)
    assert only.score is not None
    cost = shop().old_score.average.value - only.score.average.value
    assert cost > 0.01
    for allowed, fine in ((cost - 1e-6, False), (cost, True)):
        ((again,), _) = replace_tolerance(allowed).run_all([RUINED], strict=True)
        assert (again.outcome != "too costly") is fine


def replace_tolerance(tolerance: float) -> RepairTrials:
    made = shop()
    return RepairTrials(made.old, made.holdout, made.suspected, made.protocol, made.run, tolerance)


def test_what_fails_is_a_row_and_the_next_is_run() -> None:
    (failed, taken, still), model = shop().run_all([FAILS, GOOD, STILL])
    assert still.outcome == "no better"
    assert failed.outcome == "failed"
    assert "fewer than n examples" in failed.error
    assert failed.score is None
    assert taken.outcome == "taken"
    assert model is not None
    tried, none = shop().run_all([FAILS])
    assert [one.outcome for one in tried] == ["failed"]
    assert none is None


def test_of_what_fits_the_best_is_taken_and_of_a_tie_the_first() -> None:
    tried, model = shop().run_all([STILL, RUINED, GOOD, GOOD])
    assert [one.outcome for one in tried] == ["no better", "too costly", "taken", "passed over"]
    assert tried[2].choice.why == "unlearns it"
    assert model is not None


def test_a_method_that_was_named_says_what_it_cannot() -> None:
    with pytest.raises(InputError, match=r"fewer than n examples"):
        shop().run_all([FAILS], strict=True)


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_the_best_by_the_criterion_is_kept(turned: bool) -> None:
    other = Choice("class-balanced-head", "a little", options={"on": "val", "epochs": 1, "batches": 10})
    choices = [FAILS, other, GOOD, RUINED]
    tried, model = shop().run_all(choices[::-1] if turned else choices, ignore_attributes=True)
    fate = {one.choice.why.split(":")[0]: one.outcome for one in tried}
    assert fate["cannot"] == "failed"
    assert fate["ruins it"] == "too costly"
    (taken,) = [one for one in tried if one.outcome == "taken"]
    (passed,) = [one for one in tried if one.outcome == "passed over"]
    assert taken.score is not None
    assert passed.score is not None
    assert taken.score.criterion.value > passed.score.criterion.value
    assert taken.choice.why.startswith("Of 3 methods that were run, it is the best")
    assert model is not None
    assert shop().score(model) == taken.score


def test_the_only_one_that_could_be_run_is_not_called_the_best_of_one() -> None:
    tried, _ = shop().run_all([FAILS, GOOD], ignore_attributes=True)
    (taken,) = [one for one in tried if one.outcome == "taken"]
    assert taken.choice.why.startswith("It is the only method that could be run: ")


def test_the_same_again_gives_the_same_weights() -> None:
    one, two = (shop().run_all([GOOD], strict=True)[1] for _ in range(2))
    assert one is not None
    assert two is not None
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name])


def test_progress_goes_by_the_name_of_the_method() -> None:
    told: list[Any] = []
    made = shop()
    protocol = replace(made.protocol, progress=lambda *words: told.append(words))
    RepairTrials(made.old, made.holdout, made.suspected, protocol, made.run, 0.01).run_all([GOOD], strict=True)
    assert {stage for stage, *_ in told} == {"class-balanced-head"}


def test_the_tolerance_decides_what_an_inferred_group_may_cost_a_class() -> None:
    made = shop(0.05)
    old = made.old_score

    def like(worst_class: float, inferred: float) -> RepairScore:
        low, high = (replace(old.average, value=value) for value in (worst_class, inferred))
        return RepairScore(old.average, old.balanced, low, high)

    blind = RepairTrials(made.old, made.holdout, made.suspected, made.protocol, made.run, 0.05)
    object.__setattr__(blind, "old_score", like(0.6, 0.2))
    assert blind._judge_outcome(like(0.56, 0.4)) == "passed over"
    assert blind._judge_outcome(like(0.5, 0.4)) == "no better"
