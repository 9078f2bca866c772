"""Linear bits: what each bit is, and where the spurious weights go."""

from math import inf, log

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.synthetic import LinearBitsConfig, linear_bits, spurious_limit
from spurless.data.split import Split


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


def test_the_first_bit_is_the_label_and_all_are_signs() -> None:
    data = linear_bits()
    for split in (data.train, data.val, data.test):
        x = inputs(split)
        assert x.shape == (10_000, 16)
        assert torch.unique(x).tolist() == [-1.0, 1.0]
        assert torch.equal(x[:, 0], 2.0 * split.y - 1)


def test_each_spurious_bit_agrees_as_often_as_asked() -> None:
    data = linear_bits(LinearBitsConfig(p=0.8))
    for split, p in ((data.train, 0.8), (data.val, 0.5), (data.test, 0.5)):
        agrees = (inputs(split)[:, 1:] == inputs(split)[:, :1]).double().mean(dim=0)
        assert (agrees - p).abs().max() < 4 * (p * (1 - p) / 10_000) ** 0.5


def test_the_spurious_bits_are_independent_given_the_label() -> None:
    agrees = (inputs(linear_bits(LinearBitsConfig(p=0.8)).train)[:, 1:] == 1).double()
    agrees = torch.where(linear_bits(LinearBitsConfig(p=0.8)).train.y[:, None] == 1, agrees, 1 - agrees)
    off_diagonal = torch.corrcoef(agrees.T) - torch.eye(15, dtype=torch.double)
    assert off_diagonal.abs().max() < 5 / 10_000**0.5  # 105 pairs, so five standard errors


def test_the_attribute_is_the_vote_of_the_spurious_bits() -> None:
    split = linear_bits(LinearBitsConfig(spurious=3)).test
    votes = [[-1.0, 1.0, 1.0], [1.0, -1.0, -1.0]]  # the first bit and the majority differ
    for vote, winner in zip(votes, (1, 0), strict=True):
        same = (inputs(split)[:, 1:] == torch.tensor(vote)).all(dim=1)
        assert same.any()
        assert torch.unique(split.a[same]).tolist() == [winner]


def test_the_limit_by_hand() -> None:
    assert spurious_limit(LinearBitsConfig(p=0.5)) == 0.0
    assert spurious_limit(LinearBitsConfig(p=0.9)) == pytest.approx(log(9) / 2)
    assert spurious_limit(LinearBitsConfig(p=1.0)) == inf


def test_gradient_flow_on_the_exponential_loss_ends_at_the_limit() -> None:
    config = LinearBitsConfig(p=0.9, spurious=5)
    w = torch.full((6,), 0.05, dtype=torch.double, requires_grad=True)
    for _ in range(4000):
        factors = config.p * torch.exp(-w[1:]) + (1 - config.p) * torch.exp(w[1:])
        loss = -w[0] + factors.log().sum()  # log E exp(-y w x): the flow's path, at a pace that does not die out
        (gradient,) = torch.autograd.grad(loss, w)
        w = (w - 0.01 * gradient).detach().requires_grad_()
    torch.testing.assert_close(w[1:].detach(), torch.full((5,), spurious_limit(config)).double(), atol=1e-6, rtol=0)
    assert float(w[0].detach()) > 10 * spurious_limit(config)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("spurious", 14),
        ("spurious", -1),
        ("p", 0.4),
        ("n_val", 0),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("linear-bits", **{option: value})
