"""Tests of ``fix``: the worst group rises at an agreed price, labels are respected, and the old model is safe."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import spurless as sp
from spurless.core.errors import InputError, MissingAttributesError, SpurlessWarning, UnknownNameError
from spurless.core.findings import Audit, Finding
from spurless.fixing import Fixed, fix
from spurless.fixing.choose import get_choice_info
from spurless.fixing.trials import RepairTrials
from spurless.reporting import fix_json
from spurless.train.run import Compute

CPU = Compute("cpu")
TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}
LEANS = Audit((Finding("error-slices", "Mistakes are alike", 0.5, True, 0.002, "b", "r"),))
SHORT = {"epochs": 4, "batches": 50}
RUIN = {"gamma": 200.0, "lr": 50.0, "steps": 100, "clip": 1e9}


@cache
def digits() -> sp.Splits:
    return sp.load("patched-digits", seed=1000)


@cache
def blind() -> sp.Splits:
    """The same without attributes; the test split keeps them, for the proof."""
    data = digits()
    return replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())


@cache
def cheat() -> sp.Classifier:
    """A net that leans on the square."""
    model = sp.build("small-cnn", digits(), seed=1000)
    return sp.fit("erm", model, digits(), train=TRAIN, seed=1000, compute=CPU).model


@cache
def with_attributes() -> Fixed:
    return fix(cheat(), digits(), budget=0.0, compute=CPU)


@cache
def without() -> Fixed:
    return fix(cheat(), blind(), train=TRAIN, budget=0.0, compute=CPU)


CORNER = Audit(
    (
        Finding(
            "transplants",
            "The model follows the top left corner",
            0.9,
            True,
            0.002,
            "b",
            "r",
            shortcut="the top left corner",
            numbers={"flagged: the top left corner": 1.0},
        ),
    )
)


@cache
def biased(seed: int = 1000) -> sp.Splits:
    """Data in which every example of train and validation agrees with the shortcut; only test has attributes."""
    data = sp.load("patched-digits", seed=seed, conflicting=0.0, val_conflicting=0.0)
    return replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())


@cache
def follower(seed: int = 1000) -> sp.Classifier:
    """A net that follows the square in the corner."""
    model = sp.build("small-cnn", biased(seed), seed=seed)
    return sp.fit("erm", model, biased(seed), train=TRAIN, seed=seed, compute=CPU).model


@cache
def repaired_without_conflicts() -> Fixed:
    """Within the budget, only the first method that trains the network is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RepairTrials, "estimate_minutes", lambda *_: 0.0)
        return fix(follower(), biased(), train=TRAIN, audit=CORNER, budget=1e-3, compute=CPU)


def run(**words: Any) -> Fixed:
    """Fix without asking the model again what it leans on."""
    return fix(cheat(), words.pop("data", blind()), audit=words.pop("audit", LEANS), compute=CPU, **words)


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_attributes, without])
def test_the_target_rises_beyond_chance_and_the_worst_group_of_test_with_it(make: Any) -> None:
    done = make()
    assert done.fixed
    assert done.change.is_improvement
    (taken,) = [attempt for attempt in done.attempts if attempt.outcome == "taken"]
    assert taken.change == done.change
    assert taken.cost.difference >= -done.tolerance
    worst = [record.metrics["worst_group"] for record in (done.before, done.after)]  # of test, which decided nothing
    assert worst[1] > worst[0] + 0.3
    assert done.test_change.after.value == pytest.approx(worst[1])
    assert done.summary[0].startswith("Repaired by ")
    assert "on the test split, the worst group rises from" in done.summary[0]
    assert done.audit_before.verdict == "shortcut"
    assert done.audit_after.facts["examples"] == done.audit_before.facts["examples"]


def test_data_without_any_conflicting_example_are_repaired_by_a_transplant() -> None:
    done = repaired_without_conflicts()
    before, after = (record.metrics["balanced_average"] or 0.0 for record in (done.before, done.after))
    assert before == pytest.approx(0.5, abs=0.05)  # it predicts by the square alone
    assert after > 0.9
    assert done.after.method == "transplant"
    assert done.evidence == "transplants"
    assert done.properties == ("the top left corner",)
    scores = [score.transplants.value for score in done.holdout_scores if score.transplants]
    assert scores == pytest.approx([before, after], abs=0.06)  # what validation cannot show without transplants
    assert done.holdout_scores[0].average.value == 1.0
    assert not any(done.after.supervision[key] for key in ("train_attributes", "val_attributes"))


def test_a_property_that_may_contain_the_object_is_repaired_only_if_it_is_named() -> None:
    (finding,) = CORNER.findings
    doubtful = Audit((replace(finding, doubt="A part of the object may be there."),))
    left = fix(follower(), biased(), audit=doubtful, budget=0.0, compute=CPU)
    assert (left.fixed, left.attempts, left.properties) == (False, (), ())
    assert "--property 'the top left corner'" in left.summary[-1]
    named = fix(
        follower(), biased(), audit=doubtful, properties=["the top left corner"], tries=["transplant"], compute=CPU
    )
    assert named.properties == ("the top left corner",)
    with pytest.raises(UnknownNameError, match="the top left corner"):
        fix(follower(), biased(), audit=doubtful, properties=["the top left comer"], compute=CPU)


def test_what_the_budget_did_not_allow_is_listed_and_cheap_methods_are_run() -> None:
    done = repaired_without_conflicts()
    outcomes = {attempt.choice.display_name: attempt.outcome for attempt in done.attempts}
    assert [name for name, outcome in outcomes.items() if outcome == "not tried"] == ["LfF", "JTT", "DCWP"]
    assert outcomes["Transplant training"] == "taken"
    assert outcomes["Class-balanced head"] == outcomes["AFR"] == "no better"
    assert any(
        line.startswith("Not tried, because there was not enough time: LfF, JTT and DCWP.") for line in done.summary
    )
    assert [attempt.outcome for attempt in done.attempts][-3:] == ["not tried"] * 3


@pytest.mark.slow
def test_the_default_call_finds_and_repairs_it_without_being_told_anything() -> None:
    done = fix(follower(1001), biased(1001), train=TRAIN, compute=CPU)
    before, after = (record.metrics["balanced_average"] or 0.0 for record in (done.before, done.after))
    assert after > before + 0.3
    assert done.summary[0].startswith("Repaired by ")
    best = max(a.record.metrics["balanced_average"] or 0.0 for a in done.attempts if a.record is not None)
    assert after > best - 0.03


@pytest.mark.slow
def test_a_model_whose_criterion_fell_is_never_returned() -> None:
    for method, options in (("afr", RUIN), ("class-balanced-head", SHORT), ("masktune", {}), ("jtt", {})):
        done = fix(follower(), biased(), method=method, options=options, train=TRAIN, audit=CORNER, compute=CPU)
        before, after = (score.criterion.value for score in done.holdout_scores)
        assert after > before if done.fixed else done.model is follower()
        if not done.fixed:
            assert "Repaired" not in done.summary[0]


@pytest.mark.slow
def test_known_attributes_are_used_and_unknown_ones_are_not_needed() -> None:
    known = with_attributes()
    assert "dfr" in {attempt.choice.method for attempt in known.attempts}
    worst = [attempt.score.worst_group.value for attempt in known.attempts if attempt.score]  # type: ignore[union-attr]
    assert known.holdout_scores[1].worst_group.value == max(worst)  # type: ignore[union-attr]  # what fits best by true groups
    assert run(data=digits(), method="dfr").after.supervision["val_attributes"]
    done = without()
    assert done.holdout_scores[0].worst_group is None
    for attempt in done.attempts:
        assert attempt.choice.infers_groups or not get_choice_info(attempt.choice).val_attributes
        assert not get_choice_info(attempt.choice).train_attributes
    assert not any(done.after.supervision[key] for key in ("train_attributes", "val_attributes"))


@pytest.mark.slow
def test_a_model_that_learnt_from_the_audited_examples_is_flattered_and_says_so() -> None:
    dfr = run(data=digits(), method="dfr")
    assert dfr.audit_after.facts["examples"] == len(digits().val)  # type: ignore[union-attr]
    assert without().audit_before.facts["examples"] == len(digits().val)  # asking learns nothing, so all are asked
    assert any("is optimistic" in limit for limit in dfr.audit_after.limits)  # type: ignore[union-attr]
    masktune = run(method="masktune", train=TRAIN)  # learns from train
    assert not any("is optimistic" in limit for limit in masktune.audit_after.limits)  # type: ignore[union-attr]


def test_a_method_that_ruins_the_average_is_refused_and_the_old_weights_come_back_bit_for_bit() -> None:
    weights = {name: value.clone() for name, value in cheat().state_dict().items()}
    done = run(method="afr", options=RUIN, data=digits())
    assert not done.fixed
    assert done.attempts[0].outcome == "too costly"
    assert done.after is done.before
    assert done.holdout_scores[0] == done.holdout_scores[1]
    assert done.audit_after is None
    assert "costs" in done.summary[0]
    assert "of the accuracy with groups weighted alike" in done.summary[0]
    for name, value in done.model.state_dict().items():
        assert torch.equal(value, weights[name])


def test_where_nothing_is_found_nothing_is_done_unless_a_method_is_named() -> None:
    nothing = Audit(())
    for tries in ((), "repairs"):
        done = run(audit=nothing, tries=tries)
        assert (done.fixed, done.attempts, done.choice) == (False, (), None)
        assert done.model is cheat()
        assert "nothing was done" in done.summary[0]
    named = run(audit=nothing, method="class-balanced-head", options=SHORT)
    assert named.fixed


@pytest.mark.slow
def test_several_are_ranked_by_the_criterion_with_the_oracle_beside_it() -> None:
    done = run(data=digits(), tries=["class-balanced-head", "self", "transplant", "dfr"])
    values = [attempt.score.criterion.value for attempt in done.attempts if attempt.score is not None]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert all(attempt.score.worst_group is not None for attempt in done.attempts if attempt.score is not None)
    failed = done.attempts[-1]
    assert (failed.choice.method, failed.outcome) == ("transplant", "failed")
    assert "needs the names of the properties" in failed.error
    assert [attempt.outcome for attempt in done.attempts].count("taken") == 1
    assert done.attempts[0].outcome == "taken"


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two = (run(method="class-balanced-head", options=SHORT, seed=3) for _ in range(2))
    assert one.holdout_scores == two.holdout_scores
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, two.model.state_dict()[name])


@pytest.mark.slow
def test_a_small_validation_split_judges_and_is_not_learnt_from() -> None:
    data = blind()
    small = replace(data, val=data.val.select(torch.arange(30)))
    done = run(data=small, method="class-balanced-head", options=SHORT)
    assert any("too small to be split" in line for line in done.summary)
    assert done.attempts[0].choice.options["on"] == "train"
    assert done.holdout_scores[0].average.count == 30
    hidden = replace(LEANS.findings[0], audit="hidden-regions")
    chosen = run(data=small, audit=Audit((hidden,)), train=TRAIN)
    assert chosen.attempts
    assert not any(get_choice_info(attempt.choice).val_labels for attempt in chosen.attempts)


def test_a_plain_module_is_taken_and_left_as_it_was() -> None:
    data = sp.load("planted", seed=1000, n_train=400, n_val=400, n_test=200)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    done = fix(net, data, method="class-balanced-head", options=SHORT, audit=LEANS, compute=CPU)
    assert isinstance(done.model, sp.Classifier)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        ({"method": "arf"}, UnknownNameError, r"Did you mean 'afr'"),
        ({"method": "afr", "options": {"gama": 1}}, InputError, r"has no option 'gama'"),
        ({"method": "afr", "preset": "waterbird"}, UnknownNameError, r"Did you mean 'waterbirds'"),
        ({"method": "dfr"}, MissingAttributesError, r"dfr needs the attribute a of every example of the val split"),
        ({"tries": ["afr", "dfr"]}, MissingAttributesError, r"dfr needs the attribute a"),
        ({"method": "afr", "tries": "all"}, InputError, r"method and tries cannot be combined"),
        ({"preset": "waterbirds"}, InputError, r"preset and options need a method"),
        ({"tries": "everything"}, UnknownNameError, r"No set of methods is called 'everything'"),
        ({"tolerance": 5}, InputError, r"the tolerance must be a fraction"),
        ({"budget": -1.0}, InputError, r"the budget must be a number of minutes"),
        ({"budget": float("nan")}, InputError, r"the budget must be a number of minutes"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_run(words: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run(**words)


def test_one_split_and_an_untrained_model_are_refused() -> None:
    with pytest.raises(InputError, match=r"one split was given \(expected Splits, got Split\)"):
        fix(cheat(), digits().val)
    with pytest.raises(InputError, match=r"the model is untrained"):
        fix(sp.build("small-cnn", digits()), digits())


def test_a_model_that_is_no_better_than_guessing_is_to_be_trained_first() -> None:
    model = sp.build("small-cnn", digits())
    model.trained = True  # as where weights were loaded
    with (
        pytest.warns(SpurlessWarning, match="every example"),
        pytest.raises(InputError, match=r"Fit 'erm' first") as said,
    ):
        fix(model, blind(), compute=CPU)
    assert "not better than guessing, so there is nothing to repair" in str(said.value)
    with pytest.raises(InputError, match="not better than guessing"):
        run(audit=replace(LEANS, chance_level_reason="The model guesses."), tries="repairs")
    named = run(
        audit=replace(LEANS, chance_level_reason="The model guesses."), method="class-balanced-head", options=SHORT
    )
    assert [attempt.choice.method for attempt in named.attempts] == ["class-balanced-head"]


@pytest.mark.slow
def test_a_notebook_and_machines_read_it() -> None:
    done = with_attributes()
    assert "<script" not in done._repr_html_()
    assert done.summary[0] in done._repr_html_().replace("\u00a0", " ")
    assert repr(done).startswith("Fixed('Repaired by ")
    found = json.loads(fix_json(done))
    assert found["fixed"] is True
    assert found["evidence"] == "groups"
    assert found["change"]["low"] > 0
    assert found["refitted"] is get_choice_info(done.choice).val_labels  # type: ignore[arg-type]
    (taken,) = [row for row in found["tried"] if row["fate"] == "taken"]
    assert found["choice"]["method"] == taken["method"]
    assert taken["oracle"] == done.holdout_scores[1].worst_group.value  # type: ignore[union-attr]


def test_a_model_that_lets_no_gradient_through_is_repaired_by_the_other_methods() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.last = cheat().backbone, cheat().head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                x = self.backbone(x)
            out: torch.Tensor = self.last(x)
            return out

    with pytest.warns(SpurlessWarning, match="No gradient of Cut reaches its input"):  # the audit, which goes on
        fixed = fix(Cut(), digits(), tries=["masktune", "dfr"], compute=CPU)
    named = {attempt.choice.method: attempt for attempt in fixed.attempts}
    assert named["masktune"].outcome == "failed"
    assert "Cut has no gradient with respect to its input" in named["masktune"].error
    assert named["dfr"].outcome == "taken"
