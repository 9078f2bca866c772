"""Excess: what is accounted for is gone, and what others foresee is what refitting without the example gives."""

import pytest
import torch
from torch import Tensor, nn

from spurless.auditing import _residuals as excess
from spurless.auditing._context import AuditContext
from spurless.auditing._residuals import (
    PredictionStrata,
    ResidualPredictor,
    bootstrap_correlation,
    correlate_columns,
    make_orders,
    principal_components,
    split_into_chunks,
    stratify_predictions,
    why_not_testable,
)
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split
from spurless.models.classifier import Classifier


def context(features: Tensor, logits: Tensor, y: Tensor, labels: tuple[str, ...] = ("no", "yes")) -> AuditContext:
    split = Split(features, y, torch.full_like(y, -1), Groups(labels))
    model = Classifier(nn.Identity(), nn.Linear(features.shape[1], logits.shape[1]))
    return AuditContext(model, split, features, logits, seeds=Seeds(0))


def drawn(seed: int, n: int = 60, d: int = 5) -> AuditContext:
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, 2, generator=g)
    return context(torch.randn(n, d, generator=g), logits, torch.randint(2, (n,), generator=g))


def accounted(strata: PredictionStrata) -> Tensor:
    """The columns that are accounted for: a stratum each, and certainty per first guess."""
    indicators = nn.functional.one_hot(strata.stratum).double()
    sure = strata.confidence[:, None] * nn.functional.one_hot(strata.predicted).double()
    return torch.cat([indicators, sure], dim=1)


def test_nothing_that_the_model_says_is_left() -> None:
    found = drawn(0)
    strata = stratify_predictions(found)
    left = strata.residuals(torch.randn(60, 3))
    assert accounted(strata).T @ left == pytest.approx(torch.zeros(accounted(strata).shape[1], 3), abs=1e-9)
    sure = found.probabilities.amax(dim=1)
    for label in range(2):
        mine = strata.predicted == label
        assert float((left[mine] * sure[mine, None]).sum(dim=0).abs().max()) < 1e-9
    assert strata.residuals(left) == pytest.approx(left, abs=1e-12)


def test_what_is_accounted_for_weighs_as_its_hat_matrix_says() -> None:
    strata = stratify_predictions(drawn(1))
    z = accounted(strata)
    hat = z @ torch.linalg.pinv(z)
    assert strata.leverage == pytest.approx(hat.diagonal(), abs=1e-9)


def test_what_others_foresee_is_what_a_fit_without_the_example_gives() -> None:
    found = drawn(2)
    strata, shrink = stratify_predictions(found), 0.3
    x, w = strata.residuals(found.features), found.incorrect.double()
    foreseen = ResidualPredictor(found.features, strata, shrink).predict(strata.residuals(w[:, None]))[:, 0]
    for i in (0, 7, 31):
        mine = strata.predicted == strata.predicted[i]
        others = mine.clone()
        others[i] = False
        z = accounted(strata)
        weight = shrink * x[mine].pow(2).sum() / x.shape[1]  # mean squared singular value, of d directions
        both = torch.cat([z[others], x[others]], dim=1)
        ridge = torch.cat([torch.zeros(x.shape[1], z.shape[1]), weight.sqrt() * torch.eye(x.shape[1])], dim=1)
        target = torch.cat([w[others], torch.zeros(x.shape[1])])
        full = torch.linalg.pinv(torch.cat([both, ridge])) @ target
        plain = torch.linalg.pinv(z[others]) @ w[others]
        expected = torch.cat([z[i], x[i]]) @ full - z[i] @ plain
        assert float(foreseen[i]) == pytest.approx(float(expected), abs=1e-8)


def test_one_who_is_alone_in_a_stratum_is_not_foreseen() -> None:
    strata = PredictionStrata(
        torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 1]), torch.zeros(4, dtype=torch.double)
    )
    left = strata.residuals(torch.tensor([[1.0], [0.0], [0.0], [1.0]]))
    assert left[3] == 0
    assert ResidualPredictor(torch.randn(4, 2), strata).predict(left)[3] == 0


def test_principal_directions_are_those_of_the_singular_values() -> None:
    x = torch.randn(30, 6).double() * torch.tensor([5.0, 3.0, 1.0, 1.0, 0.5, 0.1])
    u, s, _ = torch.linalg.svd(x - x.mean(dim=0), full_matrices=False)
    assert principal_components(x, 3).abs() == pytest.approx((u * s)[:, :3].abs(), abs=1e-9)
    assert principal_components(torch.ones(5, 3)).shape == (5, 0)
    thrice = principal_components(torch.cat([x[:, :2]] * 3, dim=1))
    assert thrice.shape == (30, 2)
    assert float(thrice.norm()) == pytest.approx(3**0.5 * float((x - x.mean(dim=0))[:, :2].norm()))


def test_the_truth_comes_first_and_permutations_keep_strata() -> None:
    within = torch.tensor([0, 1, 0, 1, 1])
    found = make_orders(within, 20, torch.Generator().manual_seed(0))
    assert found.shape == (21, 5)
    assert found[0].tolist() == [0, 1, 2, 3, 4]
    assert bool((within[found] == within).all())


def test_a_permutation_keeps_the_mistakes_of_every_stratum() -> None:
    found = drawn(3, 200)
    strata = stratify_predictions(found)
    order = make_orders(strata.stratum, 50, torch.Generator().manual_seed(0))
    wrong = (strata.predicted != found.y[order]).double()
    per_stratum = wrong @ nn.functional.one_hot(strata.stratum).double()
    assert bool((per_stratum == per_stratum[0]).all())


def test_the_interval_holds_the_correlation_and_narrows_with_examples() -> None:
    one, noise = torch.randn(2000).double(), torch.randn(2000).double()
    two = 0.6 * one + 0.8 * noise
    generator = torch.Generator().manual_seed(0)
    low, high = bootstrap_correlation(one, two, generator)
    assert low < float(correlate_columns(one, two)) < high
    few_low, few_high = bootstrap_correlation(one[:100], two[:100], generator)
    assert 3 < (few_high - few_low) / (high - low) < 7  # the square root of 20 is 4.5
    assert bootstrap_correlation(one, one, generator) == pytest.approx((1.0, 1.0))


def test_nothing_correlates_with_nothing() -> None:
    assert correlate_columns(torch.zeros(3, 1), torch.ones(3, 1)).tolist() == [0.0]


def test_chunks_cover_everything_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(excess, "MAX_ELEMENTS", 100)
    assert [i for part in split_into_chunks(11, 30) for i in range(11)[part]] == list(range(11))
    assert len(split_into_chunks(11, 30)) == 4
    assert len(split_into_chunks(2, 10**6)) == 2


@pytest.mark.parametrize(
    ("wrong", "features", "why"),
    [
        (14, torch.eye(60), "makes 14 errors in 60 predictions; at least 15"),
        (46, torch.eye(60), "makes 14 correct predictions in 60"),
        (20, torch.ones(60, 3), "same for every example"),
        (20, torch.eye(60), None),
    ],
)
def test_what_cannot_be_answered_is_said(wrong: int, features: Tensor, why: str | None) -> None:
    y = torch.zeros(60, dtype=torch.long)
    logits = torch.tensor([[1.0, 0.0]]).repeat(60, 1)
    logits[:wrong] = torch.tensor([0.0, 1.0])
    found = why_not_testable(context(features, logits, y))
    assert (found is None) if why is None else (found is not None and why in found)
