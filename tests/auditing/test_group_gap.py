"""Group gap on subjects made by hand: the group that was made worse is found, and an even model is left alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.group_gap import MIN_EFFECT, NAME, Gap, audit_group_gap
from spurless.core.figures import Figure
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier

BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))


def judged(y: Tensor, a: Tensor, wrong: Tensor, groups: Groups = BIRDS, seed: int = 0, **more: Any) -> AuditContext:
    """A context whose mistakes are given: the next label instead of the true one, surest at the end of the split."""
    classes = len(groups.labels)
    predicted = torch.where(wrong, (y + 1) % classes, y)
    logits = nn.functional.one_hot(predicted, classes) * torch.linspace(1, 2, len(y))[:, None]
    model = Classifier(nn.Identity(), nn.Linear(classes, classes))
    split = Split(torch.zeros(len(y), 1), y, a, groups)
    return AuditContext(model, split, logits, logits, None, Seeds(seed), **more)


def birds(seed: int, errors: tuple[float, float, float, float], n: int = 400) -> AuditContext:
    """Labels and attributes at random, and mistakes at the rate of each group."""
    generator = torch.Generator().manual_seed(seed)
    y, a = (torch.randint(2, (n,), generator=generator) for _ in range(2))
    wrong = torch.rand(n, generator=generator) < torch.tensor(errors)[2 * y + a]
    return judged(y, a, wrong, seed=seed)


def test_the_gap_of_newcombes_example() -> None:
    gap = Gap("y", "a", True, 0, worse=(48, 80), better=(56, 70))  # Newcombe 1998, example a, method 10

    assert gap.size == pytest.approx(0.2)
    assert gap.interval == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert gap.resolution == 1 / 80


def test_the_group_that_fares_worse_is_found_and_its_surest_mistakes_are_shown() -> None:
    context = birds(0, (0.05, 0.5, 0.05, 0.05))

    found = audit_group_gap(context)

    assert found.audit == NAME
    assert found.flagged
    assert found.p == 1 / 500
    assert found.shortcut == "water"
    assert found.title == "“landbird” is more often incorrect with “water”"
    assert "group-dro" in found.remedy
    bad = (context.y == 0) & (context.split.a == 1)
    assert found.numbers["gap"] == pytest.approx(
        float(context.incorrect[bad].double().mean() - context.incorrect[(context.y == 0) & ~bad].double().mean())
    )
    assert found.numbers["resolution"] == 1 / int(bad.sum())
    assert found.severity == found.numbers["low"] > MIN_EFFECT
    assert list(found.rows) == sorted((bad & context.incorrect).nonzero().flatten().tolist(), reverse=True)[:24]


def test_a_value_without_which_a_label_is_lost_is_named_for_its_help() -> None:
    digits = tuple("0123456789")
    groups = Groups(digits, tuple(f"colour {digit}" for digit in digits))
    y = torch.arange(300) % 10
    a = torch.where(torch.arange(300) < 270, y, (y + 1 + torch.arange(300) // 10 % 9) % 10)  # three of each conflict

    found = audit_group_gap(judged(y, a, a != y, groups))

    assert found.flagged
    assert found.title == "“0” is more often incorrect without “colour 0”"
    assert found.numbers["gap"] == 1.0
    assert all(int(y[row]) == 0 and int(a[row]) != 0 for row in found.rows)
    assert len(found.rows) == 3


def test_many_small_gaps_add_up() -> None:
    # In each of 20 labels 3 of 10 are wrong with the value and 1 of 10 without: none of them stands out.
    groups = Groups(tuple(f"label {i}" for i in range(20)), ("left", "right"))
    y = torch.arange(20).repeat_interleave(20)
    a = (torch.arange(400) % 20 < 10).long()
    place = torch.arange(400) % 10
    one = audit_group_gap(judged(y, a, torch.where(a == 1, place < 4, place < 1), groups))
    alone = (y == 0) & torch.where(a == 1, place < 4, place < 1)
    few = audit_group_gap(judged(y, a, alone | (place < 1), groups))

    assert one.p is not None
    assert few.p is not None
    assert one.p <= 0.01
    assert few.p > 0.2


def test_one_helpful_value_among_many_labels_stands_out() -> None:
    # Label 0 is right with the first of five values only; 80 other labels are wrong at random, so a sum drowns it.
    groups = Groups(tuple(f"label {i}" for i in range(81)), tuple("abcde"))
    y, place = torch.arange(81).repeat_interleave(20), torch.arange(20).repeat(81)
    a = torch.where(place < 8, 0, 1 + place % 4)
    wrong = torch.rand(81 * 20, generator=torch.Generator().manual_seed(0)) < 0.4
    found = audit_group_gap(judged(y, a, torch.where(y == 0, a > 0, wrong), groups))

    assert found.flagged
    assert found.p is not None
    assert found.p <= 0.02
    assert found.title == "“label 0” is more often incorrect without “a”"


def test_an_even_model_is_flagged_as_seldom_as_the_level_says() -> None:
    found = [audit_group_gap(birds(seed, (0.2, 0.2, 0.3, 0.3), 200)) for seed in range(40)]
    p = torch.tensor([finding.p for finding in found])

    assert int((p <= 0.05).sum()) <= 5  # of 40 at a level of 1 in 20, more than 5 come once in 70 times
    assert 0.3 < float(p.mean()) < 0.7
    assert sum(finding.flagged for finding in found) <= 2


def test_a_harder_label_is_no_gap() -> None:
    found = audit_group_gap(birds(3, (0.02, 0.02, 0.5, 0.5)))

    assert not found.flagged
    assert "Nothing to do" in found.remedy


def test_p_is_that_of_the_hypergeometric_distribution() -> None:
    # 12 of one label, 6 of them with the value, 4 wrong: all with it or all without are C(6,4) of C(12,4) each.
    y, a = torch.zeros(13, dtype=torch.long), (torch.arange(13) < 6).long()
    y[12] = 1
    wrong = torch.arange(13) < 4

    found = audit_group_gap(judged(y, a, wrong, permutations=9999))

    exact = 2 * math.comb(6, 4) / math.comb(12, 4)
    assert found.p == pytest.approx(exact, abs=4 * math.sqrt(exact / 9999))


def test_a_small_gap_in_many_examples_is_significant_and_not_flagged() -> None:
    found = audit_group_gap(birds(0, (0.05, 0.13, 0.05, 0.05), 8000))

    assert found.p == 1 / 500
    assert 0 < found.severity < MIN_EFFECT
    assert not found.flagged


def test_three_examples_vouch_for_a_third_of_their_gap() -> None:
    y = torch.zeros(300, dtype=torch.long)
    y[150:] = 1
    a = torch.zeros_like(y)
    a[:3] = 1
    wrong = torch.zeros(300, dtype=torch.bool)
    wrong[:2] = True

    found = audit_group_gap(judged(y, a, wrong))

    assert found.numbers["gap"] == pytest.approx(2 / 3)
    assert found.severity == pytest.approx(0.207, abs=5e-4)
    assert "one example is worth 33.3" in found.because


def test_overlapping_crossed_and_domains() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (600,), generator=generator)
    a = torch.randint(2, (600, 3), generator=generator)
    wrong = torch.rand(600, generator=generator) < torch.where((y == 1) & (a[:, 2] == 1), 0.6, 0.1)
    talk = Groups.overlapping(("civil", "toxic"), ("male", "female", "other"))
    faces = Groups.crossed(
        ("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old"), "place": ("inside", "outside")}
    )

    overlapping = audit_group_gap(judged(y, a, wrong, talk))
    crossed = audit_group_gap(judged(y, a, wrong, faces))
    domains = audit_group_gap(judged(y, a[:, 2], wrong, Groups.domains(("no", "yes"), ("here", "there"))))

    assert overlapping.flagged
    assert overlapping.title == "“toxic” is more often incorrect with “other”"
    assert crossed.flagged
    assert crossed.shortcut == "place"
    assert crossed.title.endswith(("with “outside” (place)", "without “inside” (place)"))
    assert domains.flagged
    assert (domains.shortcut, domains.numbers["gap"]) == ("there", overlapping.numbers["gap"])


def test_unknown_attributes_are_left_out() -> None:
    context = birds(0, (0.05, 0.5, 0.05, 0.05))
    a = context.split.a.clone()
    a[::2] = -1
    half = audit_group_gap(judged(context.y, a, context.incorrect))
    alone = audit_group_gap(judged(context.y[1::2], a[1::2], context.incorrect[1::2]))

    assert half.numbers == alone.numbers
    assert all(row % 2 for row in half.rows)

    talk = Groups.overlapping(("civil", "toxic"), ("male", "nobody knows"))
    columns = torch.stack([context.split.a, torch.full_like(a, -1)], dim=1)
    assert audit_group_gap(judged(context.y, columns, context.incorrect, talk)).shortcut == "male"


@pytest.mark.parametrize(
    ("a", "wrong", "why"),
    [
        ([-1, -1, -1, -1], [1, 0, 1, 0], "No example has a known attribute"),
        ([0, 1, 0, 1], [0, 0, 0, 0], "both errors and correct predictions"),
        ([0, 1, 0, 1], [1, 1, 1, 1], "both errors and correct predictions"),
        ([0, 0, 1, 1], [1, 0, 1, 0], "more than one attribute value"),
    ],
)
def test_what_cannot_be_asked(a: list[int], wrong: list[int], why: str) -> None:
    found = audit_group_gap(judged(torch.tensor([0, 0, 1, 1]), torch.tensor(a), torch.tensor(wrong).bool()))

    assert (found.p, found.severity, found.flagged) == (None, 0.0, False)
    assert why in found.because


def test_one_example_and_data_without_attributes() -> None:
    one = judged(torch.tensor([0]), torch.tensor([1]), torch.tensor([True]))
    none = judged(torch.tensor([0, 1]), torch.tensor([-1, -1]), torch.tensor([True, False]), Groups(("no", "yes")))

    assert audit_group_gap(one).p is None
    assert "no attribute" in audit_group_gap(none).because


def test_the_same_seed_says_the_same_and_the_global_generator_is_not_moved() -> None:
    context, state = birds(5, (0.1, 0.2, 0.1, 0.1)), torch.get_rng_state()

    assert audit_group_gap(context).p == audit_group_gap(context).p
    assert torch.equal(torch.get_rng_state(), state)


def test_the_figure_has_the_worst_groups_first_with_their_intervals() -> None:
    figure = audit_group_gap(birds(0, (0.05, 0.5, 0.05, 0.05))).items[0]

    assert isinstance(figure, Figure)
    trace = figure.spec["data"][0]
    assert trace["y"][0] == "landbird, water"
    assert trace["x"] == sorted(trace["x"])
    assert all(width > 0 for width in trace["error_x"]["arrayminus"])
    assert "landbird, water" in figure.alt
