"""Parity: the products, how often they agree, and that the bits are otherwise free."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.synthetic import ParityConfig, parity
from spurless.data.split import Split


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


@pytest.mark.parametrize(("core", "spurious"), [(4, 1), (5, 3), (1, 2)])
def test_the_products_are_the_signs_of_label_and_attribute(core: int, spurious: int) -> None:
    data = parity(ParityConfig(core=core, spurious=spurious, noise=2))
    for split in (data.train, data.val, data.test):
        x = inputs(split)
        assert x.shape == (10_000, core + spurious + 2)
        assert torch.unique(x).tolist() == [-1.0, 1.0]
        assert torch.equal(x[:, :core].prod(dim=1), 2.0 * split.y - 1)
        assert torch.equal(x[:, core : core + spurious].prod(dim=1), 2.0 * split.a - 1)


def test_even_means_an_even_number_of_minus_ones() -> None:
    split = parity().train
    minus = (inputs(split)[:, :4] == -1).sum(dim=1)
    assert [split.groups.labels[int(label)] for label in split.y[:50]] == [
        "odd" if int(n) % 2 else "even" for n in minus[:50]
    ]


def test_the_shortcut_misleads_as_often_as_asked() -> None:
    data = parity()
    for split, share in ((data.train, 0.1), (data.val, 0.5), (data.test, 0.5)):
        conflicting = float((split.a != split.y).double().mean())
        assert abs(conflicting - share) < 4 * (share * (1 - share) / 10_000) ** 0.5


def test_given_its_parity_every_spurious_vector_is_equally_likely() -> None:
    split = parity(ParityConfig(spurious=3, noise=0, n_train=40_000)).train
    bits = (inputs(split)[:, 4:] > 0).long() @ torch.tensor([4, 2, 1])
    for label in (0, 1):
        for attribute in (0, 1):
            cell = bits[(split.y == label) & (split.a == attribute)]
            counts = torch.bincount(cell, minlength=8).double()
            seen = counts[counts > 0]
            assert len(seen) == 4  # half of the eight vectors have that parity
            assert ((seen - len(cell) / 4).abs() < 4.5 * (len(cell) * 3 / 16) ** 0.5).all()


def test_no_single_core_or_noise_bit_tells_the_label() -> None:
    split = parity().train
    sign = 2.0 * split.y - 1
    correlation = (inputs(split) * sign[:, None]).mean(dim=0)
    others = torch.cat([correlation[:4], correlation[5:]])
    assert others.abs().max() < 4.5 / 10_000**0.5
    assert float(correlation[4]) == pytest.approx(0.8, abs=4 * 0.6 / 100)  # 0.9 - 0.1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("conflicting", 1.01),
        ("core", 0),
        ("spurious", 0),
        ("noise", -1),
        ("n_train", 0),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("parity", **{option: value})
