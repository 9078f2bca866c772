"""Separation: against all pairs, and where the answer is known."""

import math

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics import separation as module
from spurless.metrics.separation import separation


def by_pairs(z: Tensor, y: Tensor) -> tuple[float, float]:
    """Return both mean distances with every pair visited, as the formula is printed."""
    labels = torch.unique(y).tolist()
    distance = 1 - torch.nn.functional.cosine_similarity(z[:, None].double(), z[None].double(), dim=2)
    between = torch.tensor([[float(distance[y == j][:, y == k].mean()) for k in labels] for j in labels])
    return float(between.diagonal().mean()), float(between.mean())


@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_is_the_mean_over_all_pairs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(5, (150,), generator=generator) ** 2  # classes of unequal size, and labels with gaps
    z = torch.randn(150, 12, generator=generator) + torch.randn(17, 12, generator=generator)[y]
    z = z.abs() if seed % 2 else z
    within, total = by_pairs(z, y)
    found = separation(z, y)
    assert found.within_class == pytest.approx(within, abs=1e-6)
    assert found.total == pytest.approx(total, abs=1e-6)
    assert found.r2 == pytest.approx(1 - within / total, abs=1e-6)


def test_many_rows_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    z, y = torch.rand(100, 6, generator=generator), torch.randint(3, (100,), generator=generator)
    whole = separation(z, y)
    monkeypatch.setattr(module, "ROWS_PER_BATCH", 7)
    assert separation(z, y).r2 == pytest.approx(whole.r2, abs=1e-12)


def test_classes_that_are_directions_are_separated_wholly() -> None:
    y = torch.arange(4).repeat(5)
    z = torch.eye(4)[y] * torch.arange(1.0, 21.0)[:, None]  # lengths do not matter
    found = separation(z, y)
    assert (found.within_class, found.total, found.r2) == (0.0, 0.75, 1.0)  # a quarter of class pairs is at distance 0


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e200])
def test_lengths_do_not_matter_where_their_squares_are_no_numbers(scale: float) -> None:
    z = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert separation(scale * z, torch.tensor([0, 0, 1, 1])).r2 == pytest.approx(1 / 3)


def test_classes_that_mean_nothing_are_not_separated() -> None:
    z = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    assert separation(z.repeat(3, 1), torch.arange(3).repeat_interleave(5)).r2 == pytest.approx(0.0, abs=1e-12)
    assert separation(z, torch.zeros(5, dtype=torch.long)).r2 == 0.0  # one class


def test_classes_count_alike_whatever_their_size() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert separation(z, torch.tensor([0, 0, 0, 1])).total == 0.5


def test_where_all_point_one_way_there_is_no_answer() -> None:
    one = torch.rand(1, 50, generator=torch.Generator().manual_seed(0))
    for n in range(2, 12):  # distances are then 1e-16 or so, and not always 0
        assert math.isnan(separation(one * torch.arange(1.0, n + 1)[:, None], torch.arange(n) % 2).r2)


def test_rows_of_zeros_are_left_out_and_so_is_a_class_of_them() -> None:
    z = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([0, 0, 2, 2])
    dead = torch.zeros(3, 2)
    assert separation(torch.cat([dead, z]), torch.cat([torch.tensor([0, 1, 9]), y])) == separation(z, y)
    with pytest.raises(InputError, match="every representation is zero"):
        separation(dead, torch.zeros(3, dtype=torch.long))


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="one row per example"):
        separation(torch.ones(4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(
        InputError, match=r"one label \(int64\) per representation \(expected \(4,\), got torch.int64 of"
    ):
        separation(torch.ones(4, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(InputError, match=r"unknown \(got -1\). Remove these examples"):
        separation(torch.ones(2, 2), torch.tensor([0, -1]))
