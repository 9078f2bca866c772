"""Losses, by their formulas."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from spurless.train.losses import focal_loss, generalised_cross_entropy


def test_the_gradient_is_q_times_that_of_the_published_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y, q = torch.tensor([0, 1, 2, 3, 0, 1]), 0.7
    ours = torch.autograd.grad(generalised_cross_entropy(logits, y, q).sum(), logits)[0]
    p = logits.softmax(dim=1).gather(1, y[:, None]).squeeze(1)
    published = torch.autograd.grad(((1 - p**q) / q).sum(), logits)[0]
    assert torch.allclose(ours, q * published)


def test_with_a_small_q_every_example_counts_alike() -> None:
    logits, y = torch.tensor([[3.0, 0.0], [-3.0, 0.0]]), torch.tensor([0, 0])
    plain = cross_entropy(logits, y, reduction="none")
    assert torch.allclose(generalised_cross_entropy(logits, y, 1e-6) / 1e-6, plain, atol=1e-4)


def test_the_focal_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.75, 0.25], [0.5, 0.5]]))
    expected = torch.tensor([math.log(4 / 3) / 16, math.log(2) / 4])  # (1/4)^2 and (1/2)^2 of the cross-entropy
    torch.testing.assert_close(focal_loss(logits, torch.tensor([0, 1]), 2.0), expected)


def test_focal_loss_without_gamma_is_the_cross_entropy_to_the_bit() -> None:
    logits = torch.tensor([[3.0, -1.0, 0.5], [200.0, 0.0, 0.0], [-200.0, 0.0, 1.0]], requires_grad=True)
    y = torch.tensor([1, 0, 0])
    ours, plain = focal_loss(logits, y, 0.0), cross_entropy(logits, y, reduction="none")
    assert torch.equal(ours, plain)
    assert torch.equal(torch.autograd.grad(ours.sum(), logits)[0], torch.autograd.grad(plain.sum(), logits)[0])


@pytest.mark.parametrize("gamma", [0.5, 2.0, 25.0])
def test_the_slope_of_the_focal_loss_is_that_of_its_value(gamma: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    assert torch.autograd.gradcheck(lambda x: focal_loss(x, y, gamma), (logits,))


@pytest.mark.parametrize("gamma", [0.001, 0.5, 1.0, 2.0, 25.0])
def test_an_example_that_is_sure_has_no_focal_loss_and_no_slope(gamma: float) -> None:
    logits = torch.tensor([[200.0, 0.0], [18.0, 0.0], [14.0, 0.0]], requires_grad=True)  # 1 - p is 0, 0 and 1e-6
    losses = focal_loss(logits, torch.tensor([0, 0, 0]), gamma)
    (slope,) = torch.autograd.grad(losses.sum(), logits)
    assert losses[:2].tolist() == [0.0, 0.0]
    assert bool((slope.abs() < 1e-5).all())  # and no NaN, which is under nothing


def test_the_factor_of_the_focal_loss_is_exact_near_certainty() -> None:
    logits, y = torch.stack([torch.linspace(6, 14, 50), torch.zeros(50)], dim=1), torch.zeros(50, dtype=torch.long)
    losses = cross_entropy(logits, y, reduction="none").double()
    expected = -torch.expm1(-losses) * losses
    found = focal_loss(logits, y, 1.0).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0.0)  # 1 - exp is off by 15 times that
