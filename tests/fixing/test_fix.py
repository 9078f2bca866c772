"""Tests of ``fix``: the worst group rises at an agreed price, labels are respected, and the old model is safe."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

import spurless as sp
from spurless.core.errors import BadInput, MissingAttributes, SpurlessWarning, UnknownName
from spurless.core.findings import Audit, Finding
from spurless.fixing import Fixed, fix
from spurless.fixing.choosing import info_of
from spurless.reporting import fix_json
from spurless.train.run import Engine

CPU = Engine("cpu")
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
    return sp.fit("erm", model, digits(), train=TRAIN, seed=1000, engine=CPU).model


@cache
def with_attributes() -> Fixed:
    return fix(cheat(), digits(), engine=CPU)


@cache
def without() -> Fixed:
    return fix(cheat(), blind(), train=TRAIN, engine=CPU)


def run(**words: Any) -> Fixed:
    """Fix without asking the model again what it leans on."""
    return fix(cheat(), words.pop("data", blind()), audit=words.pop("audit", LEANS), engine=CPU, **words)


@pytest.mark.parametrize("make", [with_attributes, without])
def test_the_worst_group_rises_and_the_average_is_no_worse_than_agreed(make: Any) -> None:
    done = make()
    before, after = done.judged
    assert done.fixed
    assert after.average.value >= before.average.value - done.tolerance
    assert after.raised_over(before, done.tolerance) is not None
    worst = [record.metrics["worst_group"] for record in (done.before, done.after)]  # of test, which decided nothing
    assert worst[1] > worst[0] + 0.3
    assert done.audit_before.verdict == "leans"
    assert len(done.audit_after.proven) < len(done.audit_before.proven)
    assert done.audit_after.facts["examples"] == done.audit_before.facts["examples"]


def test_known_attributes_are_used_and_unknown_ones_are_not_needed() -> None:
    known = with_attributes()
    assert "dfr" in {attempt.choice.method for attempt in known.tried}
    worst = [attempt.score.worst_group.value for attempt in known.tried if attempt.score]  # type: ignore[union-attr]
    assert known.judged[1].worst_group.value == max(worst)  # type: ignore[union-attr]  # what fits best by true groups
    assert run(data=digits(), method="dfr").after.supervision["val_attributes"]
    done = without()
    assert done.judged[0].worst_group is None
    for attempt in done.tried:
        assert not info_of(attempt.choice).val_attributes
        assert not info_of(attempt.choice).train_attributes
    assert not any(done.after.supervision[key] for key in ("train_attributes", "val_attributes"))


def test_a_model_that_learnt_from_the_audited_examples_is_flattered_and_says_so() -> None:
    dfr = run(data=digits(), method="dfr")
    assert dfr.audit_after.facts["examples"] == len(digits().val)  # type: ignore[union-attr]
    assert without().audit_before.facts["examples"] == len(digits().val)  # asking learns nothing, so all are asked
    assert any("flatters it" in limit for limit in dfr.audit_after.limits)  # type: ignore[union-attr]
    masktune = run(method="masktune", train=TRAIN)  # learns from train
    assert not any("flatters it" in limit for limit in masktune.audit_after.limits)  # type: ignore[union-attr]


def test_a_method_that_ruins_the_average_is_refused_and_the_old_weights_come_back_bit_for_bit() -> None:
    weights = {name: value.clone() for name, value in cheat().state_dict().items()}
    done = run(method="afr", options=RUIN, data=digits())
    assert not done.fixed
    assert done.tried[0].fate == "too costly"
    assert done.after is done.before
    assert done.judged[0] == done.judged[1]
    assert done.audit_after is None
    assert "costs" in done.said[0]
    for name, value in done.model.state_dict().items():
        assert torch.equal(value, weights[name])


def test_where_nothing_is_found_nothing_is_done_unless_a_method_is_named() -> None:
    nothing = Audit(())
    for tries in ((), "repairs"):
        done = run(audit=nothing, tries=tries)
        assert (done.fixed, done.tried, done.choice) == (False, (), None)
        assert done.model is cheat()
        assert "nothing was done" in done.said[0]
    named = run(audit=nothing, method="class-balanced-head", options=SHORT)
    assert named.fixed


def test_several_are_ranked_by_the_criterion_with_the_oracle_beside_it() -> None:
    done = run(data=digits(), tries=["class-balanced-head", "self", "dcwp", "dfr"])
    values = [attempt.score.criterion.value for attempt in done.tried if attempt.score is not None]
    assert values == sorted(values, reverse=True)
    assert len(values) == 3
    assert all(attempt.score.worst_group is not None for attempt in done.tried if attempt.score is not None)
    failed = done.tried[-1]
    assert (failed.choice.method, failed.fate) == ("dcwp", "failed")
    assert "untrained model" in failed.error
    assert [attempt.fate for attempt in done.tried].count("taken") == 1
    assert done.tried[0].fate == "taken"


def test_the_same_seed_gives_the_same_weights() -> None:
    one, two = (run(method="class-balanced-head", options=SHORT, seed=3) for _ in range(2))
    assert one.judged == two.judged
    for name, value in one.model.state_dict().items():
        assert torch.equal(value, two.model.state_dict()[name])


def test_a_small_validation_split_judges_and_is_not_learnt_from() -> None:
    data = blind()
    small = replace(data, val=data.val.select(torch.arange(30)))
    done = run(data=small, method="class-balanced-head", options=SHORT)
    assert any("too small to be cut" in line for line in done.said)
    assert done.tried[0].choice.options["on"] == "train"
    assert done.judged[0].average.count == 30
    hidden = replace(LEANS.findings[0], audit="hidden-regions")
    chosen = run(data=small, audit=Audit((hidden,)), train=TRAIN)
    assert chosen.tried
    assert not any(info_of(attempt.choice).val_labels for attempt in chosen.tried)


def test_a_plain_module_is_taken_and_left_as_it_was() -> None:
    data = sp.load("planted", seed=1000, n_train=400, n_val=400, n_test=200)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    done = fix(net, data, method="class-balanced-head", options=SHORT, audit=LEANS, engine=CPU)
    assert isinstance(done.model, sp.Classifier)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        ({"method": "arf"}, UnknownName, r"Did you mean 'afr'"),
        ({"method": "afr", "options": {"gama": 1}}, BadInput, r"has no option 'gama'"),
        ({"method": "afr", "preset": "waterbird"}, UnknownName, r"Did you mean 'waterbirds'"),
        ({"method": "dfr"}, MissingAttributes, r"dfr needs the attribute a of every example of the val split"),
        ({"tries": ["afr", "dfr"]}, MissingAttributes, r"dfr needs the attribute a"),
        ({"method": "afr", "tries": "all"}, BadInput, r"method names one, and tries several"),
        ({"preset": "waterbirds"}, BadInput, r"preset and options are those of a method"),
        ({"tries": "everything"}, UnknownName, r"No set of methods is called 'everything'"),
        ({"tolerance": 5}, BadInput, r"the tolerance is a share"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_run(words: Any, error: Any, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        run(**words)


def test_one_split_and_an_untrained_model_are_refused() -> None:
    with pytest.raises(BadInput, match=r"one split was given \(expected Splits, got Grouped\)"):
        fix(cheat(), digits().val)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"the model is untrained"):
        fix(sp.build("small-cnn", digits()), digits())


def test_a_model_that_is_no_better_than_guessing_is_to_be_trained_first() -> None:
    model = sp.build("small-cnn", digits())
    model.trained = True  # as where weights were loaded
    with (
        pytest.warns(SpurlessWarning, match="every example"),
        pytest.raises(BadInput, match=r"Fit 'erm' first") as said,
    ):
        fix(model, blind(), engine=CPU)
    assert "no better than guessing, so there is nothing to repair" in str(said.value)
    with pytest.raises(BadInput, match="no better than guessing"):
        run(audit=replace(LEANS, guesses="The model guesses."), tries="repairs")
    named = run(audit=replace(LEANS, guesses="The model guesses."), method="class-balanced-head", options=SHORT)
    assert [attempt.choice.method for attempt in named.tried] == ["class-balanced-head"]


def test_a_notebook_and_machines_read_it() -> None:
    done = with_attributes()
    assert "<script" not in done._repr_html_()
    assert done.said[0] in done._repr_html_().replace("\u00a0", " ")
    assert repr(done).startswith("Fixed('Repaired by ")
    found = json.loads(fix_json(done))
    assert found["fixed"] is True
    (taken,) = [row for row in found["tried"] if row["fate"] == "taken"]
    assert found["choice"]["method"] == taken["method"]
    assert taken["oracle"] == done.judged[1].worst_group.value  # type: ignore[union-attr]


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
        fixed = fix(Cut(), digits(), tries=["masktune", "dfr"], engine=CPU)
    named = {attempt.choice.method: attempt for attempt in fixed.tried}
    assert named["masktune"].fate == "failed"
    assert "no gradient of Cut reaches its input" in named["masktune"].error
    assert named["dfr"].fate == "taken"
