"""Loss ratio: by hand, and proposition 1 in numbers."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from spurless.core.errors import InputError
from spurless.metrics.loss_ratio import LossTrace, loss_odds, loss_parts, loss_ratio, odds_of_scaled_logits


def test_by_hand() -> None:
    loss, wrong = torch.tensor([1.0, 2.0, 5.0]), torch.tensor([False, True, True])
    assert loss_ratio(loss, wrong) == 7 / 8
    assert loss_odds(loss, wrong) == 7.0
    assert loss_ratio(loss, ~wrong) == 1 / 8
    assert loss_ratio(loss, torch.zeros(3, dtype=torch.bool)) == 0.0
    assert math.isnan(loss_ratio(torch.zeros(3), wrong))
    assert math.isnan(loss_odds(torch.zeros(3), wrong))
    assert loss_odds(torch.tensor([0.0, 2.0]), torch.tensor([False, True])) == math.inf


def scaled(k: float, aligned: Tensor, conflicting: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses of a model of two classes that follows the shortcut, logits times k, and who conflicts."""
    margin = torch.cat([aligned, -conflicting]).double()  # right minus wrong logit
    return -logsigmoid(k * margin), torch.arange(len(margin)) >= len(aligned)


MARGINS = [
    (torch.full((97,), 1.0), torch.full((3,), 2.0)),  # as in the proof: one margin for each kind
    (torch.tensor([0.5, 0.7, 3.0, 4.0]), torch.tensor([0.1, 5.0])),  # many: the smallest aligned one decides
]


def test_the_losses_are_those_of_cross_entropy() -> None:
    aligned, conflicting = MARGINS[1]
    loss, _ = scaled(1.5, aligned, conflicting)
    logits = torch.cat([aligned, -conflicting]).double()[:, None] * torch.tensor([0.5, -0.5]).double()
    torch.testing.assert_close(loss, cross_entropy(1.5 * logits, torch.zeros(6, dtype=torch.long), reduction="none"))


@pytest.mark.parametrize(("aligned", "conflicting"), MARGINS)
def test_proposition_1_the_odds_tend_to_k_exp_alpha_k(aligned: Tensor, conflicting: Tensor) -> None:
    errors = []
    for k in (5.0, 20.0, 80.0, 320.0):
        said = odds_of_scaled_logits(k, aligned=aligned, conflicting=conflicting)
        errors.append(abs(loss_odds(*scaled(k, aligned, conflicting)) / said - 1))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


def test_proposition_1_with_one_margin_is_the_formula_of_the_proof() -> None:
    aligned, conflicting = MARGINS[0]
    for k in (1.0, 10.0):
        formula = 3 * 2.0 * k / (97 * math.exp(-1.0 * k))  # n beta k / (n' exp(-alpha k))
        assert odds_of_scaled_logits(k, aligned=aligned, conflicting=conflicting) == pytest.approx(formula)


@pytest.mark.parametrize(("aligned", "conflicting"), MARGINS)
def test_the_growth_rate_is_the_smallest_aligned_margin(aligned: Tensor, conflicting: Tensor) -> None:
    def log_odds(k: float) -> float:
        return math.log(loss_odds(*scaled(k, aligned, conflicting)) / k)

    assert (log_odds(300.0) - log_odds(200.0)) / 100 == pytest.approx(float(aligned.min()), rel=1e-6)


@pytest.mark.parametrize(("aligned", "conflicting"), MARGINS)
def test_the_ratio_to_the_total_grows_with_the_logits_and_tends_to_one(aligned: Tensor, conflicting: Tensor) -> None:
    ratios = [loss_ratio(*scaled(k, aligned, conflicting)) for k in (0.0, 1.0, 3.0, 10.0, 30.0)]
    assert ratios[0] == pytest.approx(len(conflicting) / (len(aligned) + len(conflicting)))  # all lose log 2
    assert ratios == sorted(ratios)
    assert 1 - ratios[-1] < 1e-6


def test_a_trace_has_ratios_of_sums_in_windows() -> None:
    steps = [loss_parts(torch.tensor([float(i), 1.0]), torch.tensor([True, False])) for i in range(5)]
    trace = LossTrace.of(steps)
    assert trace.conflicting.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert trace.total.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    torch.testing.assert_close(trace.ratios(), torch.tensor([0, 1 / 2, 2 / 3, 3 / 4, 4 / 5]))
    torch.testing.assert_close(trace.ratios(window=2), torch.tensor([1 / 3, 5 / 7, 4 / 5]))  # the last has one step
    torch.testing.assert_close(trace.ratios(window=100), torch.tensor([10 / 15]))
    assert trace.maximum() == pytest.approx(4 / 5)
    assert trace.maximum(window=5) == pytest.approx(10 / 15)


def test_a_step_without_loss_is_never_the_maximum_and_no_steps_have_none() -> None:
    trace = LossTrace(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 4.0]))
    assert trace.maximum() == 0.25
    assert math.isnan(LossTrace.of([]).maximum())
    assert math.isnan(LossTrace(torch.zeros(2), torch.zeros(2)).maximum())


def test_parts_have_no_gradient_and_half_precision_does_not_swallow_small_losses() -> None:
    loss = torch.full((4096,), 1.0, dtype=torch.float16, requires_grad=True)
    parts = loss_parts(loss, torch.arange(4096) < 1024)
    assert not parts.requires_grad
    assert parts.tolist() == [1024.0, 4096.0]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"one value per example .* reduction=\"none\""):
        loss_ratio(torch.tensor(1.0), torch.tensor(True))
    with pytest.raises(InputError, match="one value per example"):
        loss_ratio(torch.ones(2), torch.ones(2))
    with pytest.raises(InputError, match=r"one number per step .* got \(2,\) and \(3,\)"):
        LossTrace(torch.ones(2), torch.ones(3))
    with pytest.raises(InputError, match=r"window must be at least 1 \(got 0\)"):
        LossTrace(torch.ones(2), torch.ones(2)).ratios(window=0)
