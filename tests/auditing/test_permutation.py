"""Chance: strata hold what the model says alike, permutations stay within them, and p is what it says."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from spurless.auditing import _permutation as module
from spurless.auditing._permutation import (
    MAX_BINS,
    MIN_STRATUM_SIZE,
    adjust_p_values,
    assign_strata,
    best_p_value,
    iter_permutations,
    p_value,
    permute_within_strata,
)


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def said(n: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randn(n, classes, generator=draw(seed))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_a_stratum_has_one_first_guess_and_follows_the_margin(classes: int) -> None:
    logits = said(2000, classes)
    found, top = assign_strata(logits), logits.double().topk(2, dim=1)
    margin = top.values[:, 0] - top.values[:, 1]
    for number in range(int(found.max()) + 1):
        mine = found == number
        assert mine.any()
        assert len(set(top.indices[mine, 0].tolist())) == 1
    for first in range(2):  # of the same two guesses, a later stratum is surer
        pair = (top.indices[:, 0] == first) & (top.indices[:, 1] == 1 - first)
        if int(pair.sum()) >= MIN_STRATUM_SIZE:
            ranges = [
                (margin[pair & (found == s)].min(), margin[pair & (found == s)].max())
                for s in set(found[pair].tolist())
            ]
            ranges.sort()
            assert all(low[1] <= high[0] for low, high in pairwise(ranges))


def test_strata_are_neither_tiny_nor_many() -> None:
    counts = torch.bincount(assign_strata(said(5000, 2)))
    assert len(counts) == 2 * MAX_BINS
    assert int(counts.min()) >= MIN_STRATUM_SIZE


def test_rare_second_guesses_are_put_together() -> None:
    logits = torch.zeros(60, 4)
    logits[:, 0] = 2.0
    logits[torch.arange(60), 1 + torch.arange(60) % 3] = 1.0  # 20 each: enough
    assert len(torch.bincount(assign_strata(logits))) == 3
    assert len(torch.bincount(assign_strata(logits[:57]))) == 2  # 19 each: one stratum of 57, in two bins


def test_a_permutation_keeps_everybody_within_their_stratum_and_moves_them() -> None:
    within = torch.arange(300) % 7
    rows = permute_within_strata(within, 50, draw(1))
    assert torch.equal(within[rows], within.expand(50, -1))
    assert torch.equal(rows.sort(dim=1).values, torch.arange(300).expand(50, -1))
    assert float((rows != torch.arange(300)).double().mean()) > 0.9
    assert torch.equal(rows, permute_within_strata(within, 50, draw(1)))


def test_every_order_of_a_stratum_is_equally_likely() -> None:
    rows = permute_within_strata(torch.tensor([5, 2, 5, 5]), 6000, draw(0))
    orders = (rows[:, [0, 2, 3]] * torch.tensor([16, 4, 1])).sum(dim=1)
    counts = torch.bincount(orders)[torch.bincount(orders) > 0]
    assert len(counts) == 6
    assert int(counts.min()) > 850  # of 1,000 expected; five deviations are 144
    assert bool((rows[:, 1] == 1).all())


def test_p_is_uniform_where_there_is_nothing() -> None:
    values = torch.randn(400, 100, generator=draw(2), dtype=torch.double)
    p = torch.tensor([p_value(float(row[0]), row[1:]) for row in values])
    assert abs(float((p <= 0.05).double().mean()) - 0.05) < 0.033  # three deviations
    assert float(p.min()) == pytest.approx(0.01)


def test_a_tie_is_as_well() -> None:
    assert p_value(1.0, [1.0, 1.0, 0.0]) == 0.75
    assert p_value(2.0, []) == 1.0


def test_labels_that_follow_what_the_model_says_are_exchangeable_within_strata() -> None:
    """The null hypothesis itself: labels drawn from the model's own probabilities; a feature that decides them."""
    generator, hits = draw(3), 0
    for _ in range(60):
        feature = torch.randn(600, generator=generator, dtype=torch.double)
        logits = torch.stack([torch.zeros(600, dtype=torch.double), 2 * feature], dim=1)
        y = torch.multinomial(logits.softmax(dim=1), 1, generator=generator).squeeze(1)
        within = assign_strata(logits)
        wrong = logits.argmax(dim=1) != y
        shuffled = y[permute_within_strata(within, 99, generator)] != logits.argmax(dim=1)
        statistic = torch.cat([wrong[None], shuffled]).double() @ feature  # mistakes differ in the feature, of course
        hits += p_value(float(statistic[0]), statistic[1:]) <= 0.05
    assert hits <= 8  # 3 expected; three deviations above


def test_the_best_of_several_statistics_pays_for_the_search() -> None:
    chance = torch.rand(400, 200, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 2, 30, 1, 1])
    p = torch.tensor([best_p_value(one)[0] for one in chance])

    assert int((p <= 0.05).sum()) == pytest.approx(20, abs=9)  # 2 deviations; taking the smallest p would give 90
    assert best_p_value(torch.tensor([[0.0, 3.0], [1.0, 1.0], [2.0, 2.0]])) == (2 / 3, 1)  # the last is as good


def test_each_of_several_statistics_is_compared_with_the_largest_of_every_permutation() -> None:
    # deviations from the mean, in standard deviations: 1.5, -0.5, -0.5, -0.5 and -0.5, 1.5, -0.5, -0.5
    two = torch.tensor([[4.0, 10.0], [0.0, 50.0], [0.0, 10.0], [0.0, 10.0]])
    assert adjust_p_values(two).tolist() == [2 / 4, 1.0]  # the first permutation is as large in its second statistic
    chance = torch.rand(400, 200, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1, 2, 30, 1, 1])
    smallest = torch.tensor([float(adjust_p_values(one).min()) for one in chance])
    assert int((smallest <= 0.05).sum()) == pytest.approx(20, abs=9)  # 2 deviations
    assert float(adjust_p_values(chance[0][:, :1])[0]) == p_value(float(chance[0, 0, 0]), chance[0, 1:, 0])
    strong = torch.rand(100, 20, generator=torch.Generator().manual_seed(1))
    strong[0, 7] = 50
    assert float(adjust_p_values(strong)[7]) == 1 / 100  # as if it were the only one
    assert best_p_value(strong)[0] > 0.1


def test_permutations_in_parts_are_those_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    within = torch.tensor([0, 1, 0, 1, 0])
    whole = permute_within_strata(within, 7, torch.Generator().manual_seed(1))
    monkeypatch.setattr(module, "MAX_ELEMENTS", 20)

    parts = list(iter_permutations(within, 7, torch.Generator().manual_seed(1), width=2))

    assert [len(part) for part in parts] == [2, 2, 2, 1]
    assert torch.equal(torch.cat(parts), whole)


def test_what_is_no_number_is_no_evidence() -> None:
    assert p_value(float("nan"), [1.0, 2.0, 3.0]) == 1.0
    nothing = torch.tensor([[float("nan"), 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 1.0]])
    assert best_p_value(nothing)[0] == 1.0
