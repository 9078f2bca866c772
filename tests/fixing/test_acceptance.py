"""Tests of the acceptance rule: intervals by hand, few examples decide nothing, and chance is no repair."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spurless as sp
from spurless.core.groups import Groups
from spurless.core.repairs import SMALL_GROUP
from spurless.fixing.acceptance import (
    DRAWS,
    Judgement,
    judge_repair,
    list_targets,
    make_cost_target,
    make_group_target,
    measure_change,
    resample_means,
)
from spurless.fixing.scores import HeldOutExamples, Outputs
from spurless.train.transplant_accuracy import TransplantedExamples

GROUPS = Groups(("no", "yes"), ("left", "right"))
UNKNOWN = -1


def make_examples(y: Tensor, a: Tensor | None = None, suspected: Tensor | None = None) -> HeldOutExamples:
    a = torch.full_like(y, UNKNOWN) if a is None else a
    suspected = torch.zeros(len(y), dtype=torch.bool) if suspected is None else suspected
    return HeldOutExamples(sp.Split(torch.zeros(len(y), 1), y, a, GROUPS), suspected)


def make_cells(cells: dict[tuple[int, int], list[tuple[int, int, int]]]) -> tuple[HeldOutExamples, Outputs, Outputs]:
    """Return examples from (old correct, new correct, count) of every (label, attribute)."""
    rows = [
        (y, a, y if old else 1 - y, y if new else 1 - y)
        for (y, a), parts in cells.items()
        for old, new, n in parts
        for _ in range(n)
    ]
    y, a, old, new = torch.tensor(rows).T
    return make_examples(y, a), Outputs(old), Outputs(new)


def judge_cells(
    cells: dict[tuple[int, int], list[tuple[int, int, int]]], tolerance: float = 0.01, n: int = 1
) -> Judgement:
    examples, old, new = make_cells(cells)
    return judge_repair(examples, old, new, tolerance, n)


def both(n: int) -> list[tuple[int, int, int]]:
    return [(1, 1, n)]


def test_the_interval_is_the_normal_one_if_there_are_many_examples() -> None:
    n, gained, lost = 4000, 600, 200
    cells = {(0, 0): [(0, 1, gained), (1, 0, lost), (1, 1, n - gained - lost)], (1, 1): both(n)}
    examples, old, new = make_cells(cells)
    change = measure_change(make_group_target(examples.split, mean=True), old, new)
    p, q = gained / n, lost / n
    sd = ((p + q - (p - q) ** 2) / n) ** 0.5 / 2  # of the mean of two groups, one of which does not change
    assert change.difference == pytest.approx((p - q) / 2)
    assert change.low == pytest.approx((p - q) / 2 - 1.96 * sd, abs=2e-4)
    assert change.high == pytest.approx((p - q) / 2 + 1.96 * sd, abs=2e-4)


def test_the_resamples_are_multinomial_with_half_an_example_of_each_change() -> None:
    old, new = np.array([[1.0], [1.0], [0.0]]), np.array([[1.0], [0.0], [1.0]])
    draws = resample_means(old, new, np.zeros(3, dtype=np.int64))
    p = np.array([1.0, 1.0, 1.0, 0.5, 0.5]) / 4  # gained, lost, both (in order of the outcomes), and the halves
    counts = np.random.default_rng(0).multinomial(3, p, size=DRAWS)
    outcomes = np.array([[0, 1], [1, 0], [1, 1], [1, 0], [0, 1]])
    assert draws[0][:, 0, 0] == pytest.approx(counts @ outcomes[:, 0] / 3)
    assert draws[1][:, 0, 0] == pytest.approx(counts @ outcomes[:, 1] / 3)
    assert float((draws[1] - draws[0]).mean()) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(("gained", "accepted"), [(2, False), (3, False), (6, True)])
def test_two_or_three_of_seven_examples_are_not_a_repair(gained: int, accepted: bool) -> None:
    cells = {(0, 0): both(200), (1, 1): both(200), (0, 1): both(200), (1, 0): [(0, 1, gained), (0, 0, 7 - gained)]}
    judgement = judge_cells(cells)
    assert judgement.change.target == "the mean over groups"  # the group is too small to be the target
    assert judgement.change.difference == pytest.approx(gained / 7 / 4)
    assert (judgement.outcome == "passed over") is accepted


def test_all_of_three_examples_are_not_certain() -> None:
    cells = {(0, 0): both(200), (1, 1): both(200), (0, 1): both(200), (1, 0): [(0, 1, 3)]}
    assert judge_cells(cells).outcome == "no better"


def test_the_worst_group_is_the_target_if_all_groups_are_large_enough() -> None:
    large = {(0, 0): both(50), (1, 1): both(50), (0, 1): both(50), (1, 0): [(0, 1, 10), (0, 0, 10)]}
    judgement = judge_cells(large)
    assert judgement.change.target == "the worst group"
    assert (judgement.change.before.value, judgement.change.after.value) == (0.0, 0.5)
    assert judgement.change.after.of == "yes, left"
    small = {**large, (0, 1): both(SMALL_GROUP - 1)}
    assert judge_cells(small).change.target == "the mean over groups"


def test_small_groups_count_as_one_if_they_are_enough_together() -> None:
    cells = {(0, 0): both(200), (1, 1): both(200), (0, 1): [(0, 1, 9), (0, 0, 3)], (1, 0): [(0, 1, 9), (0, 0, 3)]}
    judgement = judge_cells(cells)
    assert judgement.outcome == "passed over"
    change = judgement.change
    assert (change.target, change.after.of, change.after.count) == ("the worst group", "2 small groups", 24)
    assert (change.before.value, change.after.value) == (0.0, 0.75)


def test_if_known_groups_are_too_small_transplants_can_decide_and_the_mean_over_groups_may_not_fall() -> None:
    examples, old, new = make_cells({(0, 0): both(60), (1, 1): both(60), (0, 1): both(2), (1, 0): both(2)})
    y = examples.split.y
    before, after = (torch.full((3, len(y)), value) for value in (False, True))
    followed = replace(examples, transplanted=make_transplanted({"the frame": before}, y))
    outputs = replace(old, transplanted={"the frame": before}), replace(new, transplanted={"the frame": after})
    judgement = judge_repair(followed, *outputs, 0.01)
    assert (judgement.outcome, judgement.change.target) == ("passed over", "the accuracy under transplants")
    harmed = replace(outputs[1], predicted=torch.where(examples.split.a != y, 1 - y, y))  # both groups of two are lost
    assert judge_repair(followed, outputs[0], harmed, 0.01).outcome == "too costly"


def test_the_average_of_aligned_examples_may_fall_and_the_mean_over_groups_may_not() -> None:
    repaired = {
        (0, 0): [(1, 1, 380), (1, 0, 100)],  # the old model profits from the shortcut here
        (1, 1): [(1, 1, 380), (1, 0, 100)],
        (0, 1): [(0, 1, 18), (0, 0, 2)],
        (1, 0): [(0, 1, 18), (0, 0, 2)],
    }
    examples, old, new = make_cells(repaired)
    scores = examples.score(old), examples.score(new)
    assert scores[1].average.value < scores[0].average.value - 0.15
    judgement = judge_repair(examples, old, new, 0.01)
    assert judgement.outcome == "passed over"
    assert judgement.cost.difference == pytest.approx((-2 * 100 / 480 + 2 * 0.9) / 4)
    ruined = {**repaired, (0, 0): [(1, 0, 480)], (1, 1): [(1, 0, 480)]}
    assert judge_cells(ruined).outcome == "too costly"


def test_more_methods_need_more_evidence() -> None:
    cells = {(0, 0): both(50), (1, 1): both(50), (0, 1): both(50), (1, 0): [(0, 1, 6), (0, 0, 14)]}
    one, many = judge_cells(cells), judge_cells(cells, n=50)
    assert one.change.low > many.change.low
    assert (one.outcome, many.outcome) == ("passed over", "no better")


def test_an_example_of_two_overlapping_groups_counts_in_both() -> None:
    groups = Groups.overlapping(("no", "yes"), ("left", "right"))
    y, a = torch.tensor([0] * 30 + [1] * 30), torch.tensor([[1, 1]] * 30 + [[1, 0]] * 30)
    split = sp.Split(torch.zeros(60, 1), y, a, groups)
    new = y.clone()
    new[:15] = 1  # half of both groups of the label 0
    change = measure_change(make_group_target(split, mean=True), Outputs(y), Outputs(new))
    assert change.before.value == 1.0
    assert change.after.value == pytest.approx((0.5 + 0.5 + 1) / 3)


def make_transplanted(correct: dict[str, Tensor], y: Tensor) -> TransplantedExamples:
    return TransplantedExamples(tuple(correct), torch.arange(len(y)), y, dict.fromkeys(correct))  # type: ignore[arg-type]


def test_without_attributes_the_target_is_the_strongest_transplant() -> None:
    y = torch.tensor([0] * 100 + [1] * 100)
    old = {"the frame": torch.zeros(3, 200, dtype=torch.bool), "the color": torch.ones(3, 200, dtype=torch.bool)}
    new = {name: part.clone() for name, part in old.items()}
    new["the frame"][:, ::2] = True  # half of the examples, with every donor
    new["the color"][:, :40] = False
    examples = replace(make_examples(y), transplanted=make_transplanted(old, y))
    judgement = judge_repair(examples, Outputs(y, old), Outputs(y, new), 0.01)
    assert judgement.outcome == "passed over"
    change = judgement.change
    assert (change.target, change.before.value, change.after.value) == ("the accuracy under transplants", 0.0, 0.5)
    assert (change.before.of, change.after.of) == ("the frame", "the frame")
    sd = (0.5 * 0.5 / 200) ** 0.5
    assert change.low == pytest.approx(0.5 - 1.96 * sd, abs=0.015)
    back = judge_repair(examples, Outputs(y, new), Outputs(y, old), 0.01)
    assert back.outcome == "too costly"


def test_attributes_come_before_transplants() -> None:
    y = torch.tensor([0, 1] * 60)
    part = {"the frame": torch.ones(3, 120, dtype=torch.bool)}
    known = replace(make_examples(y, torch.tensor([0, 0, 1, 1] * 30)), transplanted=make_transplanted(part, y))
    assert [target.name for target in list_targets(known)] == ["the worst group"]
    assert make_cost_target(known).name == "the mean over groups"


def predict(y: Tensor, wrong: Any) -> Outputs:
    predicted = y.clone()
    predicted[wrong] = 1 - predicted[wrong]
    return Outputs(predicted)


Y = torch.tensor([0] * 200 + [1] * 200)


def test_an_inferred_group_may_not_rise_at_the_cost_of_a_class() -> None:
    suspected = torch.zeros(400, dtype=torch.bool)
    suspected[:40] = True
    examples, old = make_examples(Y, suspected=suspected), predict(Y, slice(0, 40))  # all suspects are wrong
    helped = judge_repair(examples, old, predict(Y, slice(0, 10)), 0.02)
    assert (helped.outcome, helped.change.target) == ("passed over", "the worst inferred group")
    # 30 suspects are gained; of the other class 84 examples are lost: it is worse than the worst class was
    harmed = judge_repair(examples, old, predict(Y, [*range(10), *range(200, 284)]), 0.02)
    assert harmed.outcome != "passed over"


def test_a_class_must_rise_by_more_than_the_average_falls() -> None:
    examples, old = make_examples(torch.cat([Y, torch.ones(600, dtype=torch.long)])), None
    y = examples.split.y
    old = predict(y, slice(0, 100))  # 50 % of the small class
    fine = judge_repair(examples, old, predict(y, [*range(50), *range(200, 260)]), 0.01)
    assert (fine.outcome, fine.change.target) == ("passed over", "the worst class")
    costly = judge_repair(examples, old, predict(y, [*range(50), *range(200, 700)]), 0.01)
    assert costly.outcome != "passed over"


def count_accepted(suspects: bool, known: bool) -> int:
    """Return how many of 200 pairs of equally good models are accepted: both err at random, partly on the same."""
    accepted = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(2, (300,), generator=generator)
        rare = torch.rand(300, generator=generator) < 0.15
        rate = torch.where(rare, 0.5, 0.1)
        shared = torch.rand(300, generator=generator)
        old, new = (torch.rand(300, generator=generator) for _ in range(2))
        wrong = [torch.where(shared < 0.5, shared * 2, part) < rate for part in (old, new)]
        a = torch.where(rare, 1 - y, y) if known else torch.full_like(y, UNKNOWN)
        suspected = rare if suspects else torch.zeros_like(rare)
        examples = make_examples(y, a, suspected)
        accepted += judge_repair(examples, predict(y, wrong[0]), predict(y, wrong[1]), 0.01).outcome == "passed over"
    return accepted


@pytest.mark.parametrize(("suspects", "known"), [(False, False), (True, False), (False, True)])
def test_of_200_pairs_of_equal_models_at_most_5_percent_are_accepted(suspects: bool, known: bool) -> None:
    assert count_accepted(suspects, known) <= 10


def test_equal_models_under_transplants_are_accepted_in_at_most_5_percent() -> None:
    accepted = 0
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        y = torch.randint(2, (150,), generator=generator)
        hard = torch.rand(150, generator=generator)  # an example is as hard with every donor
        old, new = (
            {name: torch.rand(3, 150, generator=generator) > hard for name in ("the frame", "the color")}
            for _ in range(2)
        )
        examples = replace(make_examples(y), transplanted=make_transplanted(old, y))
        accepted += judge_repair(examples, Outputs(y, old), Outputs(y, new), 0.01).outcome == "passed over"
    assert accepted <= 10
