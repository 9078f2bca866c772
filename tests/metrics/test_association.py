"""Association on tables one can count, and against scipy and scikit-learn."""

import math

import pytest
import torch

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.metrics.association import (
    associate,
    cramers_v,
    goodman_kruskal,
    mutual_information,
    normalised_information,
)

GROUPS = Groups(("no", "yes"), ("left", "right"))
TALK = Groups.overlapping(("civil", "toxic"), ("male", "female"))
QUARTER = 2 - 0.75 * math.log2(3)  # bits of a 75/25 split: 1/4 log 4 + 3/4 log 4/3


def square(*cells: int) -> torch.Tensor:
    return torch.tensor(cells).reshape(2, 2)


@pytest.mark.parametrize(
    ("cells", "severity"),
    [
        ((50, 0, 0, 50), 1.0),  # a is y
        ((25, 25, 25, 25), 0.0),  # a says nothing
        ((45, 5, 5, 45), 0.8),  # majority 50, informed 90: (90 - 50) / 50
        ((75, 0, 0, 25), 1.0),  # majority 75, not the index of the majority class
        ((60, 20, 10, 10), 0.0),  # the majority label wins for both attributes
        ((0, 0, 0, 10), 0.0),  # one label: nothing to guess
    ],
)
def test_lambda_by_hand(cells: tuple[int, ...], severity: float) -> None:
    assert goodman_kruskal(square(*cells)) == pytest.approx(severity)


@pytest.mark.parametrize(
    ("cells", "v"),
    [
        ((50, 0, 0, 50), 1.0),
        ((25, 25, 25, 25), 0.0),
        ((45, 5, 5, 45), 0.8),  # (45 * 45 - 5 * 5) / (50 * 50)
        ((75, 0, 0, 25), 1.0),
        ((60, 20, 10, 10), 400 / math.sqrt(80 * 20 * 70 * 30)),  # (60 * 10 - 20 * 10) / sqrt of the margins
        ((0, 0, 0, 10), 0.0),
        ((10, 0, 10, 0), 0.0),  # one attribute value
    ],
)
def test_v_by_hand(cells: tuple[int, ...], v: float) -> None:
    assert cramers_v(square(*cells)) == pytest.approx(v)


def test_v_agrees_with_scipy() -> None:
    from scipy.stats.contingency import association

    counts = torch.tensor([[10, 20, 5], [3, 40, 9]])
    assert cramers_v(counts) == pytest.approx(association(counts.numpy(), method="cramer"))


def test_a_value_that_never_occurs_changes_nothing() -> None:
    assert cramers_v(torch.tensor([[45, 5, 0], [5, 45, 0], [0, 0, 0]])) == pytest.approx(0.8)


def test_corrected_v_by_hand() -> None:
    # n = 100, phi^2 = 0.64; 0.64 - 1/99, over (2 - 1/99) - 1
    assert cramers_v(square(45, 5, 5, 45), corrected=True) == pytest.approx(math.sqrt((0.64 - 1 / 99) / (98 / 99)))
    assert cramers_v(square(3, 2, 2, 3), corrected=True) == 0.0  # phi^2 = 0.04 is below 1/9
    assert cramers_v(square(1, 0, 0, 1), corrected=True) == 0.0  # two examples leave no room
    assert cramers_v(square(50, 0, 0, 50), corrected=True) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("cells", "bits", "share"),
    [
        ((50, 0, 0, 50), 1.0, 1.0),
        ((25, 25, 25, 25), 0.0, 0.0),
        ((75, 0, 0, 25), QUARTER, 1.0),
        # labels 1/4, 3/4; attributes 1/2, 1/2; cells 1/4, 1/4, 1/2: I = H(1/4) + 1 - 1.5
        ((1, 0, 1, 2), QUARTER - 0.5, 1 - 0.5 / QUARTER),
        ((0, 0, 0, 10), 0.0, 0.0),
    ],
)
def test_information_by_hand(cells: tuple[int, ...], bits: float, share: float) -> None:
    assert mutual_information(square(*cells)) == pytest.approx(bits, abs=1e-12)
    assert normalised_information(square(*cells)) == pytest.approx(share, abs=1e-12)


def test_information_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import mutual_info_score

    counts = torch.tensor([[10, 20, 5], [3, 40, 9]])
    nats = mutual_info_score(None, None, contingency=counts.numpy())
    assert mutual_information(counts) == pytest.approx(nats / math.log(2))


def test_associate_counts_and_measures() -> None:
    y, a = torch.tensor([0] * 50 + [1] * 50), torch.tensor([0] * 45 + [1] * 50 + [0] * 5)
    found = associate(y, a, GROUPS)
    assert found.counts.tolist() == [[45, 5], [5, 45]]
    assert (found.n, found.attribute, found.columns) == (100, "", ())
    assert (found.goodman_kruskal, found.cramers_v) == pytest.approx((0.8, 0.8))
    assert found.cramers_v_corrected == cramers_v(found.counts, corrected=True) != found.cramers_v
    assert found.mutual_information == pytest.approx(1 + 0.9 * math.log2(0.9) + 0.1 * math.log2(0.1))
    assert found.normalised == pytest.approx(found.mutual_information)  # H(y) is one bit


def test_hidden_attributes_are_left_out() -> None:
    found = associate(torch.tensor([0, 1, 1, 1]), torch.tensor([0, 1, -1, -1]), GROUPS)
    assert (found.n, found.counts.tolist(), found.normalised) == (2, [[1, 0], [0, 1]], 1.0)


def test_crossed_attributes_are_measured_by_combination() -> None:
    faces = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})
    # the label is gender xor age: neither column alone says anything
    a = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    found = associate(torch.tensor([0, 1, 1, 0]), a, faces)
    assert found.counts.tolist() == [[1, 0, 0, 1], [0, 1, 1, 0]]
    assert found.normalised == pytest.approx(1.0)


def test_overlapping_attributes_are_measured_one_by_one_and_the_strongest_leads() -> None:
    y = torch.tensor([0, 0, 1, 1])
    a = torch.tensor([[0, 0], [1, 0], [0, 1], [1, 1]])  # male says nothing, female is the label
    found = associate(y, a, TALK)
    assert found.attribute == "female"
    assert [(c.attribute, c.normalised) for c in found.columns] == [("male", 0.0), ("female", 1.0)]
    assert found.counts.tolist() == [[2, 0], [0, 2]]


def test_a_hidden_overlapping_column_is_left_out() -> None:
    found = associate(torch.tensor([0, 1]), torch.tensor([[-1, 0], [-1, 1]]), TALK)
    assert [c.attribute for c in found.columns] == ["female"]


@pytest.mark.parametrize(
    ("groups", "a", "message"),
    [
        (GROUPS, torch.full((2,), -1), "unknown for every example.* Pass data with attributes"),
        (TALK, torch.full((2, 2), -1), "unknown for every example"),
        (Groups(("no", "yes")), torch.zeros(2).long(), "the groups have no attribute"),
        (GROUPS, torch.tensor([0, 2]), "attribute of example 1 is out of range"),
    ],
)
def test_says_what_is_missing(groups: Groups, a: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        associate(torch.tensor([0, 1]), a, groups)


@pytest.mark.parametrize("counts", [torch.zeros(2, 2), torch.ones(4), torch.tensor([[1, -1], [1, 1]])])
def test_a_table_must_hold_counts(counts: torch.Tensor) -> None:
    with pytest.raises(InputError, match="counts must be a non-empty table of labels by attributes"):
        goodman_kruskal(counts)


def test_domains_are_measured_as_attributes() -> None:
    y = torch.tensor([0, 0, 1, 1, 1, 1])
    for names, a in ((("A", "B"), y), (("A", "B", "C"), torch.tensor([0, 0, 1, 1, 2, 2]))):
        found = associate(y, a, Groups.domains(("no", "yes"), names))
        assert found.counts.sum() == 6
        assert found.cramers_v == pytest.approx(1.0)
