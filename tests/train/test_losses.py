"""Losses, by their formulas."""

import torch

from spurless.train.losses import generalised_cross_entropy


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
    plain = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    assert torch.allclose(generalised_cross_entropy(logits, y, 1e-6) / 1e-6, plain, atol=1e-4)
