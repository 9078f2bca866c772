"""Tests of the criterion: numbers by hand, groups inferred once from the old model, true groups only beside it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spurless as sp
from spurless.core.groups import Groups
from spurless.core.repairs import Accuracy, Attempt, Choice, RepairScore
from spurless.fixing.scores import find_holdout_suspects, score_predictions
from spurless.fixing.trials import rank_attempts
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

GROUPS = Groups(("no", "yes"), ("left", "right"))


def split(y: Tensor, a: Tensor) -> sp.Split:
    return sp.Split(torch.zeros(len(y), 1), y, a, GROUPS)


Y = torch.tensor([0] * 10 + [1] * 10)
A = torch.tensor(([0] * 5 + [1] * 5) * 2)
N = 4  # repetitions, where a group needs 20 examples to decide


def test_the_balanced_accuracy_counts_classes_alike_with_an_interval_of_both() -> None:
    y = torch.tensor([0] * 100 + [1] * 25)
    pred = torch.tensor([0] * 80 + [1] * 20 + [1] * 10 + [0] * 15)  # 80 % of one, 40 % of the other
    balanced = score_predictions(pred, split(y, torch.zeros_like(y)), torch.zeros(125, dtype=torch.bool)).balanced
    assert balanced.value == pytest.approx(0.6)
    assert balanced.count == 125
    # Wilson: 0.7111 to 0.8666 and 0.2340 to 0.5926, so half of the root of 0.0889^2 + 0.1660^2, and of the others
    assert balanced.low == pytest.approx(0.6 - 0.0942, abs=1e-3)
    assert balanced.high == pytest.approx(0.6 + 0.1019, abs=1e-3)
    perfect = score_predictions(y, split(y, torch.zeros_like(y)), torch.zeros(125, dtype=torch.bool)).balanced
    assert perfect.low < perfect.value == perfect.high == 1.0


def test_numbers_by_hand() -> None:
    suspected = torch.zeros(20, dtype=torch.bool)
    suspected[:5] = True
    pred = Y.clone()
    pred[:3] = 1  # of the five suspects three are wrong, of the label 7 of 10 are right; all of it four times
    score = score_predictions(pred.repeat(N), split(Y.repeat(N), A.repeat(N)), suspected.repeat(N))
    assert (score.average.value, score.average.count) == (0.85, 80)
    assert (score.worst_class.value, score.worst_class.of) == (0.7, "no")
    assert score.inferred is not None
    assert (score.inferred.value, score.inferred.of, score.inferred.count) == (0.4, "no, suspected", 20)
    assert score.worst_group is not None
    assert (score.worst_group.value, score.worst_group.of) == (0.4, "no, left")
    assert score.group_mean is not None
    assert score.group_mean.value == pytest.approx((0.4 + 3) / 4)
    assert not score.has_small_groups
    assert score.average.low < 0.85 < score.average.high
    assert score_predictions(pred, split(Y, A), suspected).has_small_groups


def test_the_true_groups_say_nothing_to_the_criterion() -> None:
    suspected = torch.arange(20) % 3 == 0
    pred = torch.where(torch.arange(20) % 4 == 0, 1 - Y, Y)
    known, mixed, blind = (
        score_predictions(pred, part, suspected)
        for part in (split(Y, A), split(Y, 1 - A), split(Y, torch.full((20,), -1)))
    )
    assert known.criterion == mixed.criterion == blind.criterion
    assert blind.worst_group is None


def test_few_suspects_of_each_label_are_one_group_and_too_few_are_none() -> None:
    y = Y.repeat(N)
    pred, suspected = y.clone(), torch.zeros(80, dtype=torch.bool)
    no, yes = (y == 0).nonzero().flatten(), (y == 1).nonzero().flatten()
    wrong = torch.cat([no[:4], yes[:4]])
    pred[wrong] = 1 - pred[wrong]
    suspected[torch.cat([no[:15], yes[:4]])] = True
    known = split(y, A.repeat(N))
    assert score_predictions(pred, known, suspected).inferred is None  # 19
    suspected[yes[4]] = True
    pooled = score_predictions(pred, known, suspected).inferred
    assert pooled is not None
    assert (pooled.of, pooled.value, pooled.count) == ("suspected", 0.6, 20)
    assert score_predictions(pred, known, torch.zeros(80, dtype=torch.bool)).inferred is None


def test_a_group_of_four_has_no_accuracy_and_no_other_speaks_for_it() -> None:
    y = Y.repeat(N)  # 40 examples of each label
    a = torch.zeros_like(y)
    no = (y == 0).nonzero().flatten()
    a[no[4:]] = 1  # four of "no, left", 36 of "no, right", 40 of "yes, left"
    pred = y.clone()
    pred[no[0]] = 1  # in the group of four
    score = score_predictions(pred, split(y, a), torch.zeros(80, dtype=torch.bool))
    assert score.worst_group is None  # all others are right, and the worst class is not
    assert score.targets == {"the mean over groups": score.group_mean}
    assert score.group_mean is not None
    assert score.group_mean.value == pytest.approx(2.75 / 3)
    a[no[4]] = 0  # of five
    five = score_predictions(pred, split(y, a), torch.zeros(80, dtype=torch.bool))
    assert five.worst_group is not None
    assert (five.worst_group.of, five.worst_group.count, five.worst_group.value) == ("1 small groups", 5, 0.8)
    assert five.has_small_groups
    assert list(five.targets) == ["the mean over groups"]  # five examples decide nothing


def test_small_groups_are_one_together() -> None:
    y = Y.repeat(N)
    no, yes = (y == 0).nonzero().flatten(), (y == 1).nonzero().flatten()
    a = torch.zeros_like(y)
    a[no[12:]], a[yes[10:]] = 1, 1  # 12 and 10 are small, 28 and 30 are not
    pred = y.clone()
    wrong = torch.cat([no[:6], yes[:5], no[12:14]])  # half of the small ones, two of the 28
    pred[wrong] = 1 - pred[wrong]
    score = score_predictions(pred, split(y, a), torch.zeros(80, dtype=torch.bool))
    worst = score.worst_group
    assert worst is not None
    assert (worst.of, worst.count, worst.value) == ("2 small groups", 22, 0.5)
    assert list(score.targets) == ["the worst group"]
    pairs = split(Y[2:18], torch.tensor([0, 1] * 8))
    every = score_predictions(pred[2:18], pairs, torch.zeros(16, dtype=torch.bool))
    assert every.worst_group is None  # all together would be no group, but the average


def test_the_old_model_suspects_those_that_break_its_shortcut() -> None:
    data = sp.load("planted", agreement=0.97, n_train=400, n_val=600, n_test=100)
    train = {"steps": 150, "batch_size": 64, "lr": 0.05}
    old = sp.fit("erm", sp.build("linear", data), data, train=train, compute=Compute("cpu")).model
    aligned = (data.val.a == data.val.y).nonzero().flatten()
    biased = data.val.select(torch.cat([aligned, (data.val.a != data.val.y).nonzero().flatten()[:40]]))
    found = find_holdout_suspects(
        old, replace(biased, a=torch.full_like(biased.a, -1)), make_run(Compute("cpu"), 0, TrainConfig())
    )
    breaks = biased.a != biased.y
    assert float(breaks[found].double().mean()) > 3 * float(breaks.double().mean())


def attempt(name: str, criterion: float | None, average: float = 0.9) -> Attempt:
    if criterion is None:
        return Attempt(Choice(name, ""), "failed", 1.0, error="no")
    worst, mean = (Accuracy(value, 0.0, 1.0, 10) for value in (criterion, average))
    return Attempt(Choice(name, ""), "no better", 1.0, RepairScore(mean, mean, worst))


@pytest.mark.parametrize("turn", range(4))
def test_the_rank_is_by_criterion_then_average_and_what_failed_is_last(turn: int) -> None:
    tried = [attempt("a", 0.5), attempt("b", None), attempt("c", 0.7, 0.8), attempt("d", 0.7, 0.9)]
    turned = tried[turn:] + tried[:turn]
    assert [one.choice.method for one in rank_attempts(turned)] == ["d", "c", "a", "b"]
    assert [one.choice.method for one in rank_attempts([attempt("z", 0.0), attempt("b", None)])] == ["z", "b"]
