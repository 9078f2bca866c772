"""Leaning: properties that are trusted too much are found and named; calibrated models are left alone."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing._overreliance import (
    calibrate_probabilities,
    compute_association,
    compute_log_lift,
    find_overreliance,
    plot_bins,
    plot_ranking,
    why_not_testable,
)
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def subject_of(logits: Tensor, y: Tensor, seed: int = 0, permutations: int = 199) -> AuditContext:
    split = Split(logits, y, torch.full_like(y, -1), Groups(tuple("abcdefghij"[: logits.shape[1]])))
    model = Classifier(nn.Identity(), nn.Linear(logits.shape[1], logits.shape[1]))
    return AuditContext(model, split, logits, logits, seeds=Seeds(seed), permutations=permutations)


def two(lead: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(lead), lead], dim=1)


def coins(n: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (n, columns), generator=generator)


def leaner(trust: float, n: int = 600, seed: int = 0) -> tuple[AuditContext, Tensor]:
    """A model of two labels that reads honest evidence, and by ``trust`` column 3, which says nothing of the label."""
    generator = torch.Generator().manual_seed(seed)
    honest = 2 * torch.randn(n, generator=generator)
    y = (torch.rand(n, generator=generator) < honest.sigmoid()).long()
    codes = coins(n, 6, generator)
    return subject_of(two(honest + trust * (2 * codes[:, 3] - 1)), y, seed), codes


def test_a_property_that_is_trusted_and_says_nothing_is_found() -> None:
    context, codes = leaner(2.5)
    found = find_overreliance(context, codes, "test")
    assert found is not None
    assert (found.best, found.p) == (3, 1 / 200)
    assert found.association_with_label < 0.1 < 0.6 < found.association_with_prediction
    # it says a without and b with the property: in the bin it is said of too many, and mistakes have it there
    assert found.label == found.bin
    first = found.find_errors(context)
    assert first
    assert all(int(codes[row, 3]) == int(context.predicted[row]) for row in first)


def test_a_property_without_exceptions_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = coins(400, 1, generator)
    y = torch.randint(2, (400,), generator=generator)
    found = find_overreliance(subject_of(two(8.0 * codes[:, 0] - 4), y), codes, "test")
    assert found is not None
    assert found.p == 1 / 200
    assert found.association_with_prediction == pytest.approx(1.0, abs=0.01)
    assert found.gap > 0.9


def test_label_and_bin_are_those_of_what_is_said_too_often() -> None:
    """Three labels, four bins: in the last bin the model says the first label, whatever is true."""
    generator = torch.Generator().manual_seed(0)
    codes, y = torch.randint(4, (800, 1), generator=generator), torch.randint(3, (800,), generator=generator)
    said = torch.where(codes[:, 0] == 3, 0, y)
    found = find_overreliance(subject_of(4.0 * torch.nn.functional.one_hot(said, 3), y), codes, "test")
    assert found is not None
    assert (found.label, found.bin) == (0, 3)


@pytest.mark.parametrize("boldness", [0.3, 1.0, 3.0])
def test_a_calibrated_model_is_seldom_suspected_however_bold(boldness: float) -> None:
    """Labels are drawn as an honest model believes, which reads properties that are true; 40 problems, level 0.05."""
    hits = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        codes = coins(300, 8, generator)
        lead = 0.8 * (2 * codes[:, :5] - 1).sum(dim=1) + torch.randn(300, generator=generator)
        y = (torch.rand(300, generator=generator) < lead.sigmoid()).long()
        found = find_overreliance(subject_of(boldness * two(lead), y, seed, permutations=99), codes, "test")
        assert found is not None
        assert len(found.searched) >= 4  # the largest of several is compared with the largest of several
        hits += found.p <= 0.05
    assert hits <= 5  # P(more | Binomial(40, 0.05)) = 0.01


def test_a_property_that_is_neglected_is_none_that_is_leant_on() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = coins(800, 1, generator)
    truth = 3.0 * (2 * codes[:, 0] - 1)
    y = (torch.rand(800, generator=generator) < truth.sigmoid()).long()
    found = find_overreliance(subject_of(two(0.2 * truth + torch.randn(800, generator=generator)), y), codes, "test")
    assert found is not None
    assert float(found.z) < 0
    assert found.p > 0.9
    assert found.gap < 0


def test_of_two_that_tell_the_same_the_first_is_named() -> None:
    context, codes = leaner(2.5)
    twice = torch.cat([codes, codes[:, 3:4]], dim=1)
    found = find_overreliance(context, twice.flip(1), "test")
    assert found is not None
    assert found.best == 0


def test_the_same_seed_draws_the_same_chance() -> None:
    context, codes = leaner(0.0)
    codes[:, 0] = context.logits[:, 1] > 0.5  # what an honest model reads
    one, two_, other = (
        find_overreliance(s, codes, "test") for s in (context, context, replace(context, seeds=Seeds(9)))
    )
    assert one is not None
    assert two_ is not None
    assert other is not None
    assert one.p == two_.p != other.p


def test_z_is_belief_over_truth_in_exact_deviations() -> None:
    """Example by example: the sum, and its variance under drawn labels."""
    context, codes = leaner(1.0, n=60)
    found = find_overreliance(context, codes, "test")
    assert found is not None
    p, mine = calibrate_probabilities(context.logits, context.y), codes[:, found.best]
    table = compute_log_lift(mine, p)
    over, variance = 0.0, 0.0
    for i in range(60):
        values = [float(table[mine[i], k]) for k in range(2)]
        mean = sum(float(p[i, k]) * values[k] for k in range(2))
        over += mean - values[int(context.y[i])]
        variance += sum(float(p[i, k]) * (values[k] - mean) ** 2 for k in range(2))
    at = int((found.searched == found.best).nonzero())
    assert float(found.z[at]) == pytest.approx(over / variance**0.5)


def test_belief_finds_the_boldness_and_the_taste_back() -> None:
    generator = torch.Generator().manual_seed(0)
    honest = 2 * torch.randn(20_000, 3, generator=generator)
    y = torch.multinomial(honest.softmax(dim=1), 1, generator=generator)[:, 0]
    found = calibrate_probabilities(3 * honest + torch.tensor([2.0, -1.0, 0.0]), y)
    assert float((found - honest.double().softmax(dim=1)).abs().max()) < 0.03


def test_belief_is_not_watered_down_without_end() -> None:
    """Coins for labels: the factor stops at a quarter, and 20 to 0 stays 5 to 0."""
    y = torch.arange(200) % 2
    lead = torch.where(torch.arange(200) < 100, 20.0, -20.0)
    assert float(calibrate_probabilities(two(lead), y)[0, 1]) == pytest.approx(
        torch.tensor(5.0).sigmoid().item(), abs=1e-4
    )


def test_going_with_is_0_for_chance_and_1_for_the_same() -> None:
    y = torch.arange(100) % 2
    assert compute_association(y, y) == pytest.approx(1.0, abs=0.01)
    assert compute_association((torch.arange(100) // 2) % 2, y) == 0.0


def test_what_is_told_can_be_counted() -> None:
    logits = two(torch.tensor([5.0] * 30 + [-5.0] * 30))
    y = torch.tensor([1] * 12 + [0] * 18 + [0] * 24 + [1] * 6)
    codes = torch.tensor([1] * 30 + [0] * 30)[:, None]
    context = subject_of(logits, y)
    found = find_overreliance(context, codes, "test")
    assert found is not None
    assert (found.label, found.bin) == (1, 1)
    said = found.describe(context, codes[:, 0], "With it")
    assert said.startswith(
        "With it, the model predicts b for 100 % (89 to 100), and the label is b for 40 % (25 to 58); "
    )
    assert "otherwise for 0 % (0 to 11), and the label is b for 20 % (10 to 37)" in said
    figure = plot_bins(context, found, codes[:, 0], ["without", "with"], "it")
    assert [trace["y"] for trace in figure.spec["data"]] == [[0.0, 100.0], [20.0, 40.0]]
    assert "predicted: without 0, with 100; true: without 20, with 40" in figure.alt
    assert found.numbers(7)["properties"] == 7
    assert plot_ranking(found, ["it"], "words").spec["data"][0]["y"] == ["it"]


def test_what_cannot_be_answered_is_said() -> None:
    y = torch.arange(100) % 2
    right = two(4.0 * (2 * y - 1))
    assert why_not_testable(subject_of(right, y)) == "the model makes 0 errors in 100 predictions, which is too few"
    assert (
        why_not_testable(subject_of(two(torch.ones(100)), y)) == "the model predicts the same label for every example"
    )
    one = subject_of(two(2.0 * y - 1), torch.zeros_like(y))
    assert why_not_testable(one) == "all examples have the same label"
    assert find_overreliance(leaner(1.0)[0], torch.zeros(600, 2, dtype=torch.long), "test") is None
