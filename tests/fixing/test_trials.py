"""Tests of attempts: judged against the old model, the best is kept, a failing method is a row, the old stays whole."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.repairs import Choice
from spurless.data.transplants import get_transplants
from spurless.fitting.protocol import Protocol
from spurless.fixing.holdout import split_validation
from spurless.fixing.scores import HeldOutExamples, find_holdout_suspects
from spurless.fixing.trials import REFITTED, RepairTrials, hide_regions, rank_attempts
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
    examples = HeldOutExamples(held.scoring, find_holdout_suspects(old, held.scoring, run))
    return RepairTrials(old, held, examples, Protocol(train, compute=CPU), run, tolerance)


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


def test_the_tolerance_is_what_the_mean_over_groups_may_lose() -> None:
    (only,), _ = shop().run_all([RUINED], strict=True)
    assert only.cost is not None
    assert only.cost.target == "the mean over groups"
    cost = -only.cost.difference
    assert cost > 0.01
    for allowed, fine in ((cost - 1e-6, False), (cost, True)):
        ((again,), _) = replace(shop(), tolerance=allowed).run_all([RUINED], strict=True)
        assert (again.outcome != "too costly") is fine


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
    other = Choice("class-balanced-head", "a little", options={"on": "val", "epochs": 1, "batches": 60})
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


def watch(choices: list[Choice], **more: Any) -> set[str]:
    stages: list[str] = []
    protocol = replace(shop().protocol, progress=lambda stage, *_: stages.append(stage))
    replace(shop(), protocol=protocol, **more).run_all(choices)
    return set(stages)


def test_progress_names_the_method_its_number_and_the_time_that_is_used() -> None:
    assert watch([GOOD]) == {"class-balanced-head"}
    titled = replace(GOOD, title="Balanced")
    assert watch([titled, GOOD]) == {"candidate 1 of 2: Balanced", "candidate 2 of 2: class-balanced-head"}
    (stage,) = watch([titled, FAILS], budget=4.5)
    assert stage == "candidate 1 of 2: Balanced, 0.0 of 4.5 minutes"


def test_after_the_budget_no_method_that_trains_the_network_starts_and_cheap_ones_do() -> None:
    slow, restarted = Choice("erm", "slow"), replace(GOOD, restart=True)
    trials = replace(shop(), budget=0.0)
    trials.__dict__["_seconds_per_example"] = 0.0  # only the time that is used up counts
    attempts, _ = trials.run_all([slow, GOOD, restarted])
    assert [attempt.outcome for attempt in attempts] == ["not tried", "taken", "not tried"]
    assert [attempt.choice for attempt in rank_attempts(attempts)][1:] == [slow, restarted]
    failed, later = replace(shop(), budget=0.0).run_all([FAILS, slow])[0]
    assert [one.outcome for one in rank_attempts([later, failed])] == ["failed", "not tried"]


def test_a_method_that_takes_more_than_twice_the_budget_alone_is_not_started() -> None:
    slow = Choice("erm", "slow")
    trials = replace(shop(), protocol=replace(shop().protocol, train=TrainConfig(epochs=10)))
    trials.__dict__["_seconds_per_example"] = 0.01
    minutes = 10 * 600 * 3 * 0.01 / 60  # epochs, examples, passes
    assert trials.estimate_minutes(slow) == pytest.approx(minutes)
    assert trials.estimate_minutes(replace(slow, restart=True)) == pytest.approx(2 * minutes)
    steps = Choice("dcwp", "slow", "digits")
    assert trials.estimate_minutes(steps) == pytest.approx(200 * 64 * 3 * 0.01 / 60)
    short = replace(trials, budget=minutes / 2 - 0.01)
    short.__dict__["_seconds_per_example"] = 0.01
    assert [attempt.outcome for attempt in short.run_all([slow, GOOD])[0]] == ["not tried", "taken"]


def test_flagged_regions_are_hidden_in_every_image() -> None:
    data = sp.load("patched-digits", seed=1000)
    transplants = get_transplants(data.train, ["the top left corner", "the top right corner"])
    hidden = hide_regions(data.train, transplants).hidden
    assert hidden is not None
    x = torch.full_like(torch.as_tensor(data.train.x)[:2], 9)
    masked = torch.as_tensor(hidden.apply(x, torch.tensor([0, len(data.train) - 1])))
    size = x.shape[-1] // 4
    assert int(masked[..., :size, :size].max()) == int(masked[..., :size, -size:].max()) == 0
    assert float(masked.double().mean()) == pytest.approx(9 * (1 - 2 / 16))


def test_a_restarted_method_begins_with_other_weights_that_depend_on_the_seed() -> None:
    still = Choice("erm", "does not move", options={}, restart=True)
    protocol = replace(shop().protocol, train=TrainConfig(steps=1, lr=1e-12))
    weights = []
    for _ in range(2):
        model = replace(shop(), protocol=protocol)._fit(still, "erm").model
        weights.append(model.state_dict()["head.weight"])
    assert torch.equal(*weights)
    assert float((weights[0] - shop().old.state_dict()["head.weight"]).abs().min()) > 1e-3


def test_an_accepted_method_is_trained_on_all_of_validation_and_the_record_states_it() -> None:
    (taken,), judged = shop().run_all([GOOD], strict=True)
    assert judged is not None
    model, record, refitted = shop().refit(taken, judged)
    assert refitted
    assert record is not None
    assert REFITTED in record.warnings
    assert record.data["counts"]["val"] == shop().holdout.whole.val.counts.tolist()
    assert not torch.equal(model.head.weight, judged.head.weight)  # type: ignore[arg-type]
    again = sp.fit(
        "class-balanced-head",
        shop().old,
        shop().holdout.whole,
        train=shop().protocol.train,
        compute=CPU,
        on="val",
        epochs=5,
    )
    assert torch.equal(model.head.weight, again.model.head.weight)  # type: ignore[arg-type]


def test_a_method_that_does_not_learn_from_validation_is_not_trained_again() -> None:
    (attempt,), _ = shop().run_all([replace(GOOD, options={"on": "train", "epochs": 1})], strict=True)
    judged = shop().old
    assert shop().refit(attempt, judged) == (judged, attempt.record, False)


def test_a_refit_that_is_worse_than_the_old_model_is_not_returned() -> None:
    (taken,), judged = shop().run_all([GOOD], strict=True)
    assert judged is not None
    ruined = replace(taken, choice=RUINED)  # the settings of another method stand for a refit that goes wrong
    assert shop().refit(ruined, judged) == (judged, taken.record, False)


def test_the_change_on_test_is_that_of_the_groups_of_test() -> None:
    (taken,), judged = shop().run_all([GOOD], strict=True)
    assert judged is not None
    assert taken.record is not None
    change = shop().measure_on_test(judged)
    assert change is not None
    assert change.after.value == pytest.approx(taken.record.metrics["worst_group"])
    assert change.is_improvement
    data = replace(shop().holdout.data, test=shop().holdout.data.test.hide_attributes())
    blind = replace(shop(), holdout=replace(shop().holdout, data=data))
    assert blind.measure_on_test(judged) is None
