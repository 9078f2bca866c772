"""Attribute association on tables one can count: presence is found, named and told apart from use."""

import math

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing._context import AuditContext
from spurless.auditing.attribute_association import (
    MIN_EFFECT,
    _adjusted_residuals,
    audit_attribute_association,
    batched_cramers_v,
    select_known,
)
from spurless.core.figures import Figure
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.metrics.association import cramers_v
from spurless.models.classifier import Classifier

BIRDS = Groups(("landbird", "waterbird"), ("land", "water"))
MODEL = Classifier(nn.Identity(), nn.Linear(1, 2))


def grouped(y: Tensor, a: Tensor, groups: Groups = BIRDS) -> Split:
    return Split(torch.zeros(len(y), 1), y, a, groups)


def counted(*cells: int) -> Split:
    """As many examples of landbird on land, landbird on water, waterbird on land, waterbird on water."""
    g = torch.arange(4).repeat_interleave(torch.tensor(cells))
    return grouped(g // 2, g % 2)


def context(split: Split, train: Split | None = None, seed: int = 0, permutations: int = 199) -> AuditContext:
    """A model that is always right."""
    logits = nn.functional.one_hot(split.y, len(split.groups.labels)).float()
    return AuditContext(MODEL, split, logits, logits, train, Seeds(seed), permutations)


def test_the_association_of_the_training_split_by_hand() -> None:
    train, split = counted(450, 50, 50, 450), counted(30, 20, 20, 30)

    found = audit_attribute_association(context(split, train))

    assert found.flagged
    assert not found.shows_use
    assert "presence, not use" in found.title
    assert "“landbird” and “land” are associated in the training examples" in found.title
    assert "attribute-use" in found.remedy
    assert found.numbers["goodman_kruskal"] == 0.8
    assert found.severity == pytest.approx(0.8, abs=1e-3)  # (450^2 - 50^2) / 500^2, the bias taken off
    assert found.numbers["low"] < 0.8 < found.numbers["high"]
    assert "90.0 % of “landbird” have “land”, and 10.0 % of the others" in found.because
    assert found.p == 1 / 200
    rare = [row for row in range(100) if int(split.y[row]) != int(split.a[row])]
    assert list(found.rows) == rare[:24]


@pytest.mark.parametrize(
    "train",
    [
        None,
        counted(450, 50, 50, 450).hide_attributes(),
        grouped(torch.zeros(9).long(), torch.zeros(9).long(), Groups(("a", "b"))),
    ],
)
def test_the_audited_split_is_asked_where_training_tells_nothing(train: Split | None) -> None:
    found = audit_attribute_association(context(counted(90, 10, 10, 90), train))

    assert found.flagged
    assert "the audited examples" in found.title
    assert found.numbers["from_train"] == 0
    assert found.numbers["examples"] == 200


def test_mistakes_come_first_among_equally_rare_examples() -> None:
    split = counted(80, 20, 20, 80)
    look = context(split)
    logits = look.logits.clone()
    logits[110] = logits[110].flip(0)  # a waterbird on land

    found = audit_attribute_association(AuditContext(MODEL, split, logits, logits, None, Seeds(0), 199))

    assert found.rows[0] == 110
    assert found.rows[1] == 80


def test_the_rarest_pairs_come_first() -> None:
    groups = Groups(("no", "yes"), ("left", "middle", "right"))
    y = torch.tensor([0] * 100 + [1] * 100)
    a = torch.tensor([0] * 60 + [1] * 30 + [2] * 10 + [0] * 20 + [1] * 40 + [2] * 40)

    found = audit_attribute_association(context(grouped(y, a, groups)))

    # times as often as by chance: no, right 10/25; yes, left 20/40; no, middle 30/35
    assert [(int(y[row]), int(a[row])) for row in found.rows] == [(0, 2)] * 10 + [(1, 0)] * 14


def test_the_adjusted_residual_of_two_by_two_is_the_root_of_chi_squared() -> None:
    counts = torch.tensor([[60, 20], [10, 10]])

    z = _adjusted_residuals(counts)

    assert (z**2).flatten().tolist() == pytest.approx([100 * cramers_v(counts) ** 2] * 4)
    assert (z > 0).tolist() == [[True, False], [False, True]]


def test_independent_labels_and_attributes_are_flagged_as_seldom_as_the_level_says() -> None:
    found = []
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        y, a = torch.randint(2, (150,), generator=generator), torch.randint(3, (150,), generator=generator)
        found.append(
            audit_attribute_association(context(grouped(y, a, Groups(("n", "y"), ("a", "b", "c"))), seed=seed))
        )
    p = torch.tensor([finding.p for finding in found])

    assert int((p <= 0.05).sum()) <= 5
    assert 0.35 < float(p.mean()) < 0.65
    assert sum(finding.flagged for finding in found) <= 5


def test_p_is_fishers() -> None:
    from scipy.stats import fisher_exact

    found = audit_attribute_association(context(counted(9, 3, 3, 9), permutations=1999))

    exact = float(fisher_exact([[9, 3], [3, 9]])[1])
    assert found.p == pytest.approx(exact, abs=4 * math.sqrt(exact / 1999))


def test_a_weak_association_of_many_is_significant_and_not_flagged() -> None:
    found = audit_attribute_association(context(counted(5300, 4700, 4700, 5300)))

    assert found.p == 1 / 200
    assert found.severity == pytest.approx(0.06, abs=1e-3)
    assert found.severity < MIN_EFFECT
    assert not found.flagged
    assert found.rows == ()


def test_the_interval_covers_the_truth() -> None:
    # V of the population is 0.4: (0.7 - 0.3) of two even labels.
    covered = 0
    for seed in range(60):
        y = torch.arange(240) % 2
        agrees = torch.rand(240, generator=torch.Generator().manual_seed(seed)) < 0.7
        found = audit_attribute_association(
            context(grouped(y, torch.where(agrees, y, 1 - y)), seed=seed, permutations=1)
        )
        covered += found.numbers["low"] <= 0.4 <= found.numbers["high"]

    assert covered >= 52  # of 60 at 95 %: 57 on average, fewer than 52 once in 70 times


def test_of_overlapping_attributes_the_one_that_goes_with_the_label_is_named() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(2, (400,), generator=generator)
    a = torch.randint(2, (400, 3), generator=generator)
    a[:, 1] = torch.where(torch.rand(400, generator=generator) < 0.9, y, a[:, 1])
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female", "other"))

    found = audit_attribute_association(context(grouped(y, a, groups)))

    assert found.flagged
    assert found.shortcut == "female"
    assert found.severity == pytest.approx(0.9, abs=0.05)
    assert all(int(a[row, 1]) != int(y[row]) for row in found.rows)


def test_crossed_attributes_are_one() -> None:
    generator = torch.Generator().manual_seed(0)
    y, a = torch.randint(2, (400,), generator=generator), torch.randint(2, (400, 2), generator=generator)
    a[:, 0] = y
    groups = Groups.crossed(("no", "yes"), {"gender": ("f", "m"), "age": ("young", "old")})

    found = audit_attribute_association(context(grouped(y, a, groups)))

    assert found.severity == pytest.approx(1, abs=0.01)
    assert found.flagged


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (counted(5, 5, 0, 0), "the same label"),
        (counted(5, 0, 5, 0), "the same attribute value"),
        (counted(5, 5, 5, 5).hide_attributes(), "No example has a known attribute"),
        (grouped(torch.tensor([0, 1]), torch.tensor([-1, -1]), Groups(("n", "y"))), "no attribute"),
        (counted(1, 0, 0, 0), "the same label"),
    ],
)
def test_what_cannot_be_asked(split: Split, why: str) -> None:
    found = audit_attribute_association(context(split))

    assert (found.p, found.severity, found.flagged, found.shows_use) == (None, 0.0, False, False)
    assert why in found.because


def test_two_examples_are_answered() -> None:
    found = audit_attribute_association(context(counted(1, 0, 0, 1)))

    assert found.p == 1
    assert not found.flagged


@pytest.mark.parametrize("corrected", [False, True])
def test_v_of_many_tables_is_v_of_each(corrected: bool) -> None:
    tables = torch.randint(0, 4, (200, 3, 4), generator=torch.Generator().manual_seed(0))
    tables[:20, 1], tables[10:30, :, 2], tables[30:40, 1:] = 0, 0, 0
    tables[:, 0, 0] += 1

    one_by_one = [cramers_v(table, corrected) for table in tables]

    assert batched_cramers_v(tables, corrected).tolist() == pytest.approx(one_by_one)


def test_what_is_known_of_a_split() -> None:
    groups = Groups.overlapping(("civil", "toxic"), ("male", "female", "other"))
    a = torch.tensor([[1, -1, 0], [0, -1, 1], [-1, -1, 1]])
    known = select_known(grouped(torch.tensor([0, 1, 1]), a, groups))

    assert known.rows.tolist() == [0, 1]  # the second column is known of nobody, the last row lacks the first
    assert [column.name for column in known.columns] == ["male", "other"]
    assert known.columns[1].values == ("not other", "other")
    assert known.columns[1].a.tolist() == [0, 1]


def test_the_figure_says_its_shares() -> None:
    figure = audit_attribute_association(context(counted(90, 10, 10, 90))).items[0]

    assert isinstance(figure, Figure)
    assert [trace["name"] for trace in figure.spec["data"]] == ["land", "water"]
    assert figure.spec["data"][1]["x"] == pytest.approx([10, 90])
    assert "land: landbird 90, waterbird 10" in figure.alt
