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
    return fix(cheat(), digits(), compute=CPU)


@cache
def without() -> Fixed:
    return fix(cheat(), blind(), train=TRAIN, compute=CPU)


def run(**words: Any) -> Fixed:
    """Fix without asking the model again what it leans on."""
    return fix(cheat(), words.pop("data", blind()), audit=words.pop("audit", LEANS), compute=CPU, **words)


@pytest.mark.slow
@pytest.mark.parametrize("make", [with_attributes, without])
def test_the_worst_group_rises_and_the_average_is_no_worse_than_agreed(make: Any) -> None:
    done = make()
    before, after = done.holdout_scores
    assert done.fixed
    assert after.average.value >= before.average.value - done.tolerance
    assert after.best_improvement(before, done.tolerance) is not None
    worst = [record.metrics["worst_group"] for record in (done.before, done.after)]  # of test, which decided nothing
    assert worst[1] > worst[0] + 0.3
    assert done.audit_before.verdict == "shortcut"
    assert len(done.audit_after.confirmed) < len(done.audit_before.confirmed)
    assert done.audit_after.facts["examples"] == done.audit_before.facts["examples"]


def test_known_attributes_are_used_and_unknown_ones_are_not_needed() -> None:
    known = with_attributes()
    assert "dfr" in {attempt.choice.method for attempt in known.attempts}
    worst = [attempt.score.worst_group.value for attempt in known.attempts if attempt.score]  # type: ignore[union-attr]
    assert known.holdout_scores[1].worst_group.value == max(worst)  # type: ignore[union-attr]  # what fits best by true groups
    assert run(data=digits(), method="dfr").after.supervision["val_attributes"]
    done = without()
    assert done.holdout_scores[0].worst_group is None
    for attempt in done.attempts:
        assert not get_choice_info(attempt.choice).val_attributes
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
    done = run(data=digits(), tries=["class-balanced-head", "self", "dcwp", "dfr"])
    values = [attempt.score.criterion.value for attempt in done.attempts if attempt.score is not None]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert all(attempt.score.worst_group is not None for attempt in done.attempts if attempt.score is not None)
    failed = done.attempts[-1]
    assert (failed.choice.method, failed.outcome) == ("dcwp", "failed")
    assert "untrained model" in failed.error
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
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_run(words: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run(**words)


def test_one_split_and_an_untrained_model_are_refused() -> None:
    with pytest.raises(InputError, match=r"one split was given \(expected Splits, got Split\)"):
        fix(cheat(), digits().val)  # type: ignore[arg-type]
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
