"""Worst class: the gap by hand, its published interval, the exact chance, and no shortcut by itself."""

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import _permutation, worst_class
from spurless.auditing._context import AuditContext
from spurless.auditing.worst_class import audit_worst_class
from spurless.core.figures import Figure
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def counted(
    hits: list[int], counts: list[int], labels: tuple[str, ...] | None = None, permutations: int = 199
) -> AuditContext:
    """So many of each class are right; the others are taken for the next class."""
    n = len(counts)
    y = torch.repeat_interleave(torch.arange(n), torch.tensor(counts))
    right = torch.cat([torch.arange(count) < k for k, count in zip(hits, counts, strict=True)])
    return said(y, torch.where(right, y, (y + 1) % n), n, labels or tuple(f"class {i}" for i in range(n)), permutations)


def said(
    y: Tensor, predicted: Tensor, n: int, labels: tuple[str, ...], permutations: int = 199, seed: int = 0
) -> AuditContext:
    logits = nn.functional.one_hot(predicted, n) * (1 + 0.01 * torch.arange(len(y)))[:, None]
    split = Split(torch.zeros(len(y), 2), y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(2, n))
    return AuditContext(model, split, torch.zeros(len(y), 2), logits, seeds=Seeds(seed), permutations=permutations)


def test_the_gap_and_its_published_interval() -> None:
    """56 of 70 against 48 of 80 is the first example of Newcombe 1998: by method 10, 0.0524 to 0.3339."""
    finding = audit_worst_class(counted([56, 48], [70, 80], ("good", "bad")))
    assert finding.severity == pytest.approx(0.2)
    assert finding.numbers["low"] == pytest.approx(0.0524, abs=5e-5)
    assert finding.numbers["high"] == pytest.approx(0.3339, abs=5e-5)
    assert finding.flagged
    assert finding.title == "The model is worse on “bad” than on other classes"
    assert "It is predicted as “good” in 32 of 32 errors." in finding.because
    assert not finding.shows_use
    assert finding.shortcut is None


def test_its_chance_is_that_of_the_hypergeometric() -> None:
    """With two classes z of the one is -z of the other, so p is two-sided: 15 of 20 wrong among 27 of 60."""
    from scipy.stats import hypergeom

    found = counted([5, 28], [20, 40], permutations=4999)
    finding = audit_worst_class(found)
    chance = hypergeom(60, 27, 20)
    exact = sum(chance.pmf(k) for k in range(21) if abs(k - 9) >= 6)
    assert finding.p == pytest.approx(exact, abs=4 * (exact / 5000) ** 0.5)


def test_every_class_deviates_as_the_hypergeometric_does() -> None:
    from scipy.stats import hypergeom

    counts, wrong = torch.tensor([10, 30, 60]), torch.tensor([[6, 9, 10]])
    z = worst_class._compute_deviations(wrong, counts)[0]
    for label, (n, k) in enumerate(zip(counts.tolist(), wrong[0].tolist(), strict=True)):
        chance = hypergeom(100, 25, n)
        assert float(z[label]) == pytest.approx((k - chance.mean()) / chance.std())


def test_a_class_of_two_is_weighed_by_its_size() -> None:
    """Both of a tiny class are wrong, and a third of a large one: the large one is no chance, the tiny one may be."""
    finding = audit_worst_class(counted([0, 60, 280], [2, 90, 300]))
    assert finding.numbers["class"] == 1


def test_rows_are_its_mistakes_the_surest_first() -> None:
    found = counted([10, 40, 40], [40, 42, 42])
    finding = audit_worst_class(found)
    rows = torch.tensor(finding.rows)
    assert bool((found.y[rows] == 0).all())
    assert bool(found.incorrect[rows].all())
    assert bool((found.margin[rows][:-1] >= found.margin[rows][1:]).all())


def test_classes_alike_are_flagged_as_rarely_as_the_level_allows() -> None:
    p = []
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        y = torch.randint(5, (200,), generator=g)
        wrong = torch.rand(200, generator=g) < 0.2
        p.append(audit_worst_class(said(y, torch.where(wrong, (y + 1) % 5, y), 5, tuple("abcde"), 99, seed)).p or 1)
    assert sum(value <= 0.05 for value in p) <= 6  # 99.7 % of binomial(40, 0.05)
    assert 0.3 < sum(p) / 40 < 0.7


def test_a_small_gap_is_below_the_floor_however_sure() -> None:
    finding = audit_worst_class(counted([900, 1900], [1000, 2000]))
    assert finding.p == 1 / 200
    assert finding.severity == pytest.approx(0.05)
    assert not finding.flagged
    assert finding.rows == ()


def test_it_is_the_same_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = counted([30, 35, 40], [50, 50, 50])
    once = audit_worst_class(found).p
    monkeypatch.setattr(_permutation, "MAX_ELEMENTS", 1000)
    assert audit_worst_class(found).p == once


@pytest.mark.parametrize(
    ("hits", "counts", "why"),
    [
        ([20, 20], [20, 20], "All 40 predictions are correct"),
        ([0, 0], [20, 20], "All 40 predictions are incorrect"),
        ([10, 0], [20, 0], "same class"),
        ([1, 0], [1, 0], "same class"),
    ],
)
def test_what_cannot_be_asked_is_said(hits: list[int], counts: list[int], why: str) -> None:
    finding = audit_worst_class(counted(hits, counts))
    assert (finding.p, finding.severity, finding.flagged) == (None, 0.0, False)
    assert why in finding.because


def test_a_class_that_is_empty_is_neither_worst_nor_drawn() -> None:
    finding = audit_worst_class(counted([30, 0, 10], [40, 0, 40]))
    assert finding.numbers["class"] == 2
    (figure,) = finding.items
    assert isinstance(figure, Figure)
    assert figure.spec["data"][0]["y"] == ["class 2", "class 0"]
    assert figure.spec["data"][0]["x"] == [25.0, 75.0]
    assert figure.alt == "Bars, accuracy in %. accuracy: class 2 25, class 0 75."


def test_many_classes_are_drawn_by_their_worst() -> None:
    finding = audit_worst_class(counted(list(range(30)), [30] * 30))
    (figure,) = finding.items
    assert isinstance(figure, Figure)
    assert len(figure.spec["data"][0]["y"]) == worst_class.MAX_BARS
    assert figure.spec["data"][0]["y"][0] == "class 0"
