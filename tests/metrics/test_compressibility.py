"""Compressibility: by hand, and on vectors whose answer is known."""

import math

import pytest
import torch

from spurless.core.errors import InputError
from spurless.metrics.compressibility import activation_sparsity, compressibility, pq_index


def test_sparsity_counts_exact_zeros_alone() -> None:
    z = torch.tensor([[0.0, 1e-30, -0.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    assert activation_sparsity(z) == 6 / 8


def test_compressibility_by_hand() -> None:
    z = torch.tensor([[3.0, 0.0, -4.0, 12.0], [1.0, 1.0, 1.0, 1.0]])
    # kappa .25 keeps one of four: what is left has norm 5 of 13, and sqrt 3 of 2
    assert compressibility(z, kappa=0.25) == pytest.approx(((1 - 5 / 13) + (1 - math.sqrt(3) / 2)) / 2)
    assert compressibility(z, kappa=0.25, q=1) == pytest.approx(((1 - 7 / 19) + 1 / 4) / 2)
    assert compressibility(z, kappa=0.5) == pytest.approx(((1 - 3 / 13) + (1 - math.sqrt(2) / 2)) / 2)
    assert compressibility(z, kappa=1.0) == 1.0


@pytest.mark.parametrize(
    ("d", "kappa", "kept"),
    [(10, 0.1, 1), (11, 0.1, 2), (512, 0.1, 52), (200, 0.1, 20), (10, 0.9, 9), (100, 0.07, 7), (3, 0.01, 1)],
)
def test_the_share_that_is_kept_is_rounded_up_and_not_by_rounding_errors(d: int, kappa: float, kept: int) -> None:
    assert compressibility(torch.ones(2, d), kappa=kappa, q=1) == pytest.approx(kept / d)
    if kappa == 0.1:
        assert kept == d - int((1 - kappa) * d)  # the formula of the authors' code


def test_neither_sign_nor_scale_matters() -> None:
    z = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    assert compressibility(-3 * z) == pytest.approx(compressibility(z))
    assert pq_index(-3 * z) == pytest.approx(pq_index(z))
    for scale in (1e-200, 1e200):  # whose squares are all zero, and infinite
        assert compressibility(scale * z.double()) == pytest.approx(compressibility(z))
        assert pq_index(scale * z.double()) == pytest.approx(pq_index(z))
    assert compressibility(1e-38 * z, q=10) == pytest.approx(compressibility(z, q=10))


def test_the_pq_index_by_hand() -> None:
    z = torch.tensor([[3.0, -4.0, 0.0, 0.0]])
    assert pq_index(z) == pytest.approx(1 - 4 ** (1 / 2 - 1) * 7 / 5)
    assert pq_index(z, p=0.5, q=1) == pytest.approx(1 - 4 ** (1 - 2) * (math.sqrt(3) + 2) ** 2 / 7)


@pytest.mark.parametrize("d", [2, 9, 100])
@pytest.mark.parametrize("alive", [1, 2])
def test_the_pq_index_of_equal_numbers_says_how_many_there_are(d: int, alive: int) -> None:
    z = torch.zeros(1, d)
    z[0, :alive] = 0.1
    assert pq_index(z) == pytest.approx(1 - math.sqrt(alive / d), abs=1e-12)


def test_the_pq_index_of_equal_numbers_is_never_below_zero() -> None:
    assert all(0 <= pq_index(torch.full((1, d), 0.1)) < 1e-12 for d in range(1, 40))  # at 13, rounding would make it so


def test_means_are_over_samples_and_leave_out_rows_of_zeros() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    assert compressibility(z, kappa=0.5) == pytest.approx((1 + 1 - 1 / math.sqrt(2)) / 2)
    assert pq_index(z) == pytest.approx((1 - 1 / math.sqrt(2)) / 2)
    assert math.isnan(compressibility(torch.zeros(2, 3)))
    assert math.isnan(pq_index(torch.zeros(2, 3)))
    assert activation_sparsity(torch.zeros(2, 3)) == 1.0


def test_what_is_refused() -> None:
    z = torch.ones(2, 3)
    with pytest.raises(InputError, match=r"one row per example \(expected float, \(N, d\), got torch.float32 of shape"):
        compressibility(torch.ones(3))
    with pytest.raises(InputError, match=r"kappa must be a fraction \(expected above 0, at most 1, got 0\)"):
        compressibility(z, kappa=0)
    with pytest.raises(InputError, match="q must be the order of a norm"):
        compressibility(z, q=0)
    with pytest.raises(InputError, match=r"p must be smaller than q \(expected 0 < p < q < inf, got p=2, q=1\)"):
        pq_index(z, p=2, q=1)  # the paper's caption
    for metric in (activation_sparsity, pq_index, compressibility):
        for bad in (math.nan, math.inf):
            with pytest.raises(InputError, match="a representation is not finite"):
                metric(torch.tensor([[bad, 1.0], [1.0, 0.0]]))
    for metric in (activation_sparsity, pq_index):
        with pytest.raises(InputError, match="one row per example"):
            metric(torch.ones(2, 3, dtype=torch.long))
