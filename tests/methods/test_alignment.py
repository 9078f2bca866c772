"""Alignment: both readings by hand and by brute force, and no batch without a number."""

import math

import pytest
import torch
from torch import Tensor

from spurless.methods._alignment import Alignment, alignment

# directions of 0, 60, 90 and 180 degrees, of any length
FEATURES = torch.tensor([[2.0, 0.0], [0.5, 0.75**0.5], [0.0, 3.0], [-1.0, 0.0]])
ROOT = math.sqrt(0.75)
COSINES: list[list[float]] = [
    [1.0, 0.5, 0.0, -1.0],
    [0.5, 1.0, ROOT, -0.5],
    [0.0, ROOT, 1.0, 0.0],
    [-1.0, -0.5, 0.0, 1.0],
]
Y = torch.tensor([0, 0, 0, 1])
TEMPERATURE = 0.5


def score(i: int, j: int) -> float:
    return COSINES[i][j] / TEMPERATURE


def against(i: int, *others: int) -> float:
    return math.log(sum(math.exp(score(i, a)) for a in others))


def loss(mined: list[int], how: Alignment, y: Tensor = Y) -> float:
    chosen = torch.tensor([i in mined for i in range(4)])
    return float(alignment(FEATURES, y, chosen, TEMPERATURE, how))


def test_the_authors_reading_by_hand() -> None:
    # example 2 is mined: a positive of 0 and 1; itself and 3 have none; set against all others
    first = against(0, 1, 2, 3) - score(0, 2)
    second = against(1, 0, 2, 3) - score(1, 2)
    assert loss([2], "authors") == pytest.approx((first + second) / 2, rel=1e-5)
    # two of one class: each is the other's positive, and 0 has both
    third = against(0, 1, 2, 3) - (score(0, 1) + score(0, 2)) / 2
    fourth, fifth = (against(i, *{0, 1, 2, 3} - {i}) - score(1, 2) for i in (1, 2))
    assert loss([1, 2], "authors") == pytest.approx((third + fourth + fifth) / 3, rel=1e-5)


def test_the_papers_reading_by_hand() -> None:
    # mined anchors 1 and 2: positives 0 and each other, set against each other alone;
    # other anchors 0 and 3: 0 has the positives 1 and 2, set against 3 alone; 3 has none
    first = score(1, 2) - (score(1, 0) + score(1, 2)) / 2
    second = score(2, 1) - (score(2, 0) + score(2, 1)) / 2
    third = score(0, 3) - (score(0, 1) + score(0, 2)) / 2
    assert loss([1, 2], "paper") == pytest.approx((first + second) / 2 + third, rel=1e-5)
    # a single mined example has nothing to be set against: the second term is left
    fourth = against(0, 1, 3) - score(0, 2)
    fifth = against(1, 0, 3) - score(1, 2)
    assert loss([2], "paper") == pytest.approx((fourth + fifth) / 2, rel=1e-5)


@pytest.mark.parametrize("how", ["authors", "paper"])
def test_by_brute_force(how: Alignment) -> None:
    features, y, mined = torch.randn(30, 5), torch.randint(4, (30,)), torch.rand(30) < 0.3
    unit = (features / features.norm(dim=1, keepdim=True)).double()

    def term(anchors: Tensor, positives: Tensor, rest: Tensor) -> float:
        losses = []
        for i in anchors.nonzero().flatten().tolist():
            own = [j for j in range(30) if j != i and positives[j] and y[j] == y[i]]
            others = [a for a in range(30) if a != i and rest[a]]
            if own and others:
                total = sum(math.exp(float(unit[i] @ unit[a]) / 0.07) for a in others)
                losses.append(-sum(float(unit[i] @ unit[j]) / 0.07 - math.log(total) for j in own) / len(own))
        return sum(losses) / len(losses)

    every = torch.ones(30, dtype=torch.bool)
    expected = (
        term(every, mined, every) if how == "authors" else term(mined, every, mined) + term(~mined, mined, ~mined)
    )
    assert float(alignment(features, y, mined, 0.07, how)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("how", ["authors", "paper"])
@pytest.mark.parametrize("mined", [[], [0, 1, 2, 3], [3], [0]])
@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_whatever_is_in_a_batch_loss_and_gradient_are_numbers(
    how: Alignment, mined: list[int], labels: list[int]
) -> None:
    features = FEATURES.clone().requires_grad_()
    chosen = torch.tensor([i in mined for i in range(4)])
    value = alignment(features, torch.tensor(labels), chosen, 0.07, how)
    value.backward()  # type: ignore[no-untyped-call]
    assert bool(value.isfinite())
    assert features.grad is not None
    assert bool(features.grad.isfinite().all())
    if not mined or labels == [0, 1, 2, 3]:  # no positive pair
        assert float(value.detach()) == 0.0
        assert not features.grad.any()


def test_a_step_down_moves_the_class_to_its_mined_member() -> None:
    features = torch.randn(8, 3, requires_grad=True)
    y, mined = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]), torch.arange(8) % 4 == 0

    def likeness(x: Tensor) -> float:
        unit = torch.nn.functional.normalize(x.detach(), dim=1)
        return float((unit[1:4] @ unit[0]).mean() + (unit[5:] @ unit[4]).mean())

    (gradient,) = torch.autograd.grad(alignment(features, y, mined, 0.5), features)
    assert likeness(features - 0.1 * gradient) > likeness(features)


def test_half_precision_around_it_does_not_reach_it() -> None:
    features, y, mined = torch.randn(16, 8), torch.arange(16) % 2, torch.arange(16) % 3 == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = alignment(features, y, mined, 0.07)
    assert torch.equal(inside, alignment(features, y, mined, 0.07))
