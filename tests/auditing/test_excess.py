"""Excess: what is accounted for is gone, and what others foresee is what refitting without the example gives."""

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import excess
from spurless.auditing.excess import (
    Foresight,
    Said,
    bootstrap,
    chunks,
    correlation,
    label_name,
    orders,
    principal,
    said,
    unanswerable,
)
from spurless.auditing.subject import Subject
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.models.classifier import Classifier


def subject(features: Tensor, logits: Tensor, y: Tensor, labels: tuple[str, ...] = ("no", "yes")) -> Subject:
    split = Grouped(features, y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(features.shape[1], logits.shape[1]))
    return Subject(model, split, features, logits, seeds=Seeds(0))


def drawn(seed: int, n: int = 60, d: int = 5) -> Subject:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 2, generator=g)
    return subject(torch.randn(n, d, generator=g), logits, torch.randint(2, (n,), generator=g))


def accounted(what: Said) -> Tensor:
    """The columns that are accounted for: a stratum each, and certainty per first guess."""
    strata = nn.functional.one_hot(what.within).double()
    sure = what.sure[:, None] * nn.functional.one_hot(what.label).double()
    return torch.cat([strata, sure], dim=1)


def test_nothing_that_the_model_says_is_left() -> None:
    found = drawn(0)
    what = said(found)
    left = what.excess(torch.randn(60, 3))
    assert accounted(what).T @ left == pytest.approx(torch.zeros(accounted(what).shape[1], 3), abs=1e-9)
    sure = found.probabilities.amax(dim=1)
    for label in range(2):
        mine = what.label == label
        assert float((left[mine] * sure[mine, None]).sum(dim=0).abs().max()) < 1e-9
    assert what.excess(left) == pytest.approx(left, abs=1e-12)


def test_what_is_accounted_for_weighs_as_its_hat_matrix_says() -> None:
    what = said(drawn(1))
    z = accounted(what)
    hat = z @ torch.linalg.pinv(z)
    assert what.leverage == pytest.approx(hat.diagonal(), abs=1e-9)


def test_what_others_foresee_is_what_a_fit_without_the_example_gives() -> None:
    found = drawn(2)
    what, shrink = said(found), 0.3
    x, w = what.excess(found.features), found.wrong.double()
    foreseen = Foresight(found.features, what, shrink).of(what.excess(w[:, None]))[:, 0]
    for i in (0, 7, 31):
        mine = what.label == what.label[i]
        others = mine.clone()
        others[i] = False
        z = accounted(what)
        weight = shrink * x[mine].pow(2).sum() / x.shape[1]  # mean squared singular value, of d directions
        both = torch.cat([z[others], x[others]], dim=1)
        ridge = torch.cat([torch.zeros(x.shape[1], z.shape[1]), weight.sqrt() * torch.eye(x.shape[1])], dim=1)
        target = torch.cat([w[others], torch.zeros(x.shape[1])])
        full = torch.linalg.pinv(torch.cat([both, ridge])) @ target
        plain = torch.linalg.pinv(z[others]) @ w[others]
        expected = torch.cat([z[i], x[i]]) @ full - z[i] @ plain
        assert float(foreseen[i]) == pytest.approx(float(expected), abs=1e-8)


def test_one_who_is_alone_in_a_stratum_is_not_foreseen() -> None:
    what = Said(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 1]), torch.zeros(4, dtype=torch.double))
    left = what.excess(torch.tensor([[1.0], [0.0], [0.0], [1.0]]))
    assert left[3] == 0
    assert Foresight(torch.randn(4, 2), what).of(left)[3] == 0


def test_principal_directions_are_those_of_the_singular_values() -> None:
    x = torch.randn(30, 6).double() * torch.tensor([5.0, 3.0, 1.0, 1.0, 0.5, 0.1])
    u, s, _ = torch.linalg.svd(x - x.mean(dim=0), full_matrices=False)
    assert principal(x, 3).abs() == pytest.approx((u * s)[:, :3].abs(), abs=1e-9)
    assert principal(torch.ones(5, 3)).shape == (5, 0)
    thrice = principal(torch.cat([x[:, :2]] * 3, dim=1))
    assert thrice.shape == (30, 2)
    assert float(thrice.norm()) == pytest.approx(3**0.5 * float((x - x.mean(dim=0))[:, :2].norm()))


def test_the_truth_comes_first_and_permutations_keep_strata() -> None:
    within = torch.tensor([0, 1, 0, 1, 1])
    found = orders(within, 20, torch.Generator().manual_seed(0))
    assert found.shape == (21, 5)
    assert found[0].tolist() == [0, 1, 2, 3, 4]
    assert bool((within[found] == within).all())


def test_a_permutation_keeps_the_mistakes_of_every_stratum() -> None:
    found = drawn(3, 200)
    what = said(found)
    order = orders(what.within, 50, torch.Generator().manual_seed(0))
    wrong = (what.label != found.y[order]).double()
    per_stratum = wrong @ nn.functional.one_hot(what.within).double()
    assert bool((per_stratum == per_stratum[0]).all())


def test_the_interval_holds_the_correlation_and_narrows_with_examples() -> None:
    one, noise = torch.randn(2000).double(), torch.randn(2000).double()
    two = 0.6 * one + 0.8 * noise
    generator = torch.Generator().manual_seed(0)
    low, high = bootstrap(one, two, generator)
    assert low < float(correlation(one, two)) < high
    few_low, few_high = bootstrap(one[:100], two[:100], generator)
    assert 3 < (few_high - few_low) / (high - low) < 7  # the square root of 20 is 4.5
    assert bootstrap(one, one, generator) == pytest.approx((1.0, 1.0))


def test_nothing_correlates_with_nothing() -> None:
    assert correlation(torch.zeros(3, 1), torch.ones(3, 1)).tolist() == [0.0]


def test_chunks_cover_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excess, "ROOM", 100)
    assert [i for part in chunks(11, 30) for i in range(11)[part]] == list(range(11))
    assert len(chunks(11, 30)) == 4
    assert len(chunks(2, 10**6)) == 2


@pytest.mark.parametrize(
    ("wrong", "features", "why"),
    [
        (14, torch.eye(60), "makes 14 mistakes in 60; it takes 15"),
        (46, torch.eye(60), "right 14 times in 60"),
        (20, torch.ones(60, 3), "same for every example"),
        (20, torch.eye(60), None),
    ],
)
def test_what_cannot_be_answered_is_said(wrong: int, features: Tensor, why: str | None) -> None:
    y = torch.zeros(60, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(60, 1)
    logits[:wrong] = torch.tensor([0.0, 1.0])
    found = unanswerable(subject(features, logits, y))
    assert (found is None) if why is None else (found is not None and why in found)


def test_a_label_without_a_name_has_a_number() -> None:
    found = subject(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 0]))
    assert [label_name(found, label) for label in range(3)] == ["no", "yes", "label 2"]
