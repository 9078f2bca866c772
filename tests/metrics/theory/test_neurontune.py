"""The theory of NeuronTune, against linear models that are trained on its data."""

import math

import pytest
import torch
from torch import Tensor

from spurless.core.seeds import Seeds
from spurless.metrics.spuriousness import biased_features, spuriousness
from spurless.metrics.theory.neurontune import (
    NeuronModel,
    absolute_score,
    least_squares,
    lemma_1,
    lemma_2,
    theorem_4_2,
)

N, D1, D2 = 400_000, 3, 2
BETA = torch.tensor([2.0, -1.0, 2.0], dtype=torch.float64) / 3
GAMMA = torch.tensor([0.6, 0.8], dtype=torch.float64)


def drawn(model: NeuronModel, core: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Draw what follows from the core component: all inputs, targets, and whether the shortcut holds."""
    generator = Seeds(seed).generator("theory")
    noise = torch.randn(len(core), 1 + D2, generator=generator, dtype=torch.float64)
    y = core @ BETA + model.core**0.5 * noise[:, 0]
    holds = torch.rand(len(core), generator=generator) < model.p
    spurious = (2 * holds.double() - 1)[:, None] * y[:, None] * GAMMA + model.spurious**0.5 * noise[:, 1:]
    return torch.cat([core, spurious], dim=1), y, holds


def fitted(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Train by least squares; return the weights of both parts."""
    u = torch.linalg.solve(x.T @ x, x.T @ y)
    return u[:D1], u[D1:]


def core_of(model: NeuronModel, seed: int = 1) -> Tensor:
    generator = Seeds(seed).generator("core")
    return math.sqrt(model.signal) * torch.randn(N, D1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("p", [0.5, 0.8, 0.95, 1.0])
def test_a_trained_model_has_the_weights_of_the_closed_form(p: float) -> None:
    model = NeuronModel(p=p, core=1.0, spurious=0.05, signal=1.0)
    x, y, _ = drawn(model, core_of(model))
    core, spurious = fitted(x, y)
    u, z = least_squares(model)
    torch.testing.assert_close(core, u * BETA, atol=0.01, rtol=0)
    torch.testing.assert_close(spurious, z * GAMMA, atol=0.01, rtol=0)


@pytest.mark.parametrize("model", [NeuronModel(p=1.0, signal=1.0), NeuronModel(p=0.95, signal=1e-4)])
def test_lemma_1_is_the_limit_of_a_shortcut_that_always_holds_or_of_a_core_that_hardly_varies(
    model: NeuronModel,
) -> None:
    x, y, _ = drawn(model, core_of(model))
    _, spurious = fitted(x, y)
    torch.testing.assert_close(spurious, lemma_1(model)[1] * GAMMA, atol=0.01, rtol=0)
    assert least_squares(model)[1] == pytest.approx(lemma_1(model)[1], abs=1e-4)


def test_lemma_1_overstates_the_shortcut_where_the_core_varies() -> None:
    model = NeuronModel(p=0.95, core=1.0, spurious=0.01, signal=5.0)
    x, y, _ = drawn(model, core_of(model))
    core, spurious = fitted(x, y)
    assert float(spurious @ GAMMA) == pytest.approx(0.9 / 1.96, abs=0.01)  # 1 + .01 + 5 * (1 - .81)
    assert lemma_1(model)[1] == pytest.approx(0.9 / 1.01)
    assert float(core @ BETA) == pytest.approx(1 - 0.9 * 0.9 / 1.96, abs=0.01)


def test_unbiased_data_make_an_unbiased_model() -> None:  # corollary 1
    assert lemma_1(NeuronModel(p=0.5)) == least_squares(NeuronModel(p=0.5)) == (1.0, 0.0)


@pytest.mark.parametrize("p", [0.7, 0.95])
def test_lemma_3_last_layers_alone_end_at_the_weights_of_the_data_they_are_tuned_on(p: float) -> None:
    model = NeuronModel(p=p, signal=1e-4)
    x, y, _ = drawn(model, core_of(model))
    embedding = torch.randn(8, D1 + D2, generator=Seeds(4).generator("W"), dtype=torch.float64)  # more than inputs
    last = torch.linalg.lstsq(x @ embedding.T, y[:, None], driver="gelsd").solution[:, 0]
    u = embedding.T @ last
    torch.testing.assert_close(u[D1:], lemma_1(model)[1] * GAMMA, atol=0.01, rtol=0)
    torch.testing.assert_close(u, torch.cat(fitted(x, y)), atol=1e-6, rtol=0)  # as if all were trained


MU = 2.0
SETTING = NeuronModel(p=0.9, core=0.02, spurious=0.001)


def classes(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw two labels, predicted by the weights of lemma 1; return inputs, labels, predictions, and who is aligned."""
    generator = Seeds(seed).generator("classes")
    y = torch.randint(2, (N // 4,), generator=generator)
    centre = MU * (2 * y - 1)[:, None] * BETA
    core = centre + 0.1 * torch.randn(len(y), D1, generator=generator, dtype=torch.float64)
    x, _, holds = drawn(SETTING, core, seed)
    u, z = lemma_1(SETTING)
    return x, y, (x @ torch.cat([u * BETA, z * GAMMA]) >= 0).long(), holds


def test_theorem_4_2_the_score_is_minus_two_mu_times_the_weight_along_gamma() -> None:
    x, y, pred, _ = classes()
    weights = torch.randn(40, D1 + D2, generator=Seeds(9).generator("W"), dtype=torch.float64)
    found = spuriousness((x @ weights.T).float(), y, pred, 2, absolute=False).delta.double()
    expected = theorem_4_2(MU, weights[:, D1:] @ GAMMA)
    torch.testing.assert_close(found[1], expected, atol=0.06, rtol=0.05)
    torch.testing.assert_close(found[0], -expected, atol=0.06, rtol=0.05)
    clear = expected.abs() > 0.3
    assert bool((((found[1] > 0) == (weights[:, D1:] @ GAMMA < 0)) | ~clear).all())  # proposition 4.1


def test_signed_scores_select_every_neuron_and_absolute_ones_do_not() -> None:
    x, y, pred, _ = classes(1)
    weights = torch.randn(40, D1 + D2, generator=Seeds(10).generator("W"), dtype=torch.float64)
    features = (x @ weights.T).float()
    assert bool(biased_features(spuriousness(features, y, pred, 2, absolute=False)).all())
    found = spuriousness(features, y, pred, 2)
    expected = absolute_score(MU, weights[:, :D1] @ BETA, weights[:, D1:] @ GAMMA)
    clear = expected.abs() > 0.5
    assert 5 < int((expected[clear] > 0).sum()) < int(clear.sum()) - 5
    assert torch.equal(biased_features(found)[clear], expected[clear] > 0)
    torch.testing.assert_close(found.delta[1].double()[clear], expected[clear], atol=0.1, rtol=0.1)


def test_lemma_2_hits_are_those_with_the_shortcut_and_mistakes_those_without() -> None:
    _, y, pred, holds = classes(2)
    right, plus = pred == y, y == 1
    hits, mistakes = lemma_2(SETTING, MU, spread=0.01)
    assert float(holds[right & plus].double().mean()) == pytest.approx(hits, abs=0.01)
    assert float((~holds)[~right & plus].double().mean()) == pytest.approx(mistakes, abs=0.01)
    assert min(hits, mistakes) > 0.5
    noisy = NeuronModel(p=0.9, core=1.0, spurious=0.01)  # both shares are then away from 1
    core = MU * BETA + 0.5 * torch.randn(N, D1, generator=Seeds(3).generator("core"), dtype=torch.float64)
    x, _, holds = drawn(noisy, core)
    u, z = lemma_1(noisy)
    right = x @ torch.cat([u * BETA, z * GAMMA]) >= 0
    hits, mistakes = lemma_2(noisy, MU, spread=0.25)
    assert 0.5 < mistakes < 0.95
    assert float(holds[right].double().mean()) == pytest.approx(hits, abs=0.005)
    assert float((~holds)[~right].double().mean()) == pytest.approx(mistakes, abs=0.01)
