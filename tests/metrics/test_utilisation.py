"""Utilisation: neurons whose use is known, however label and attribute go together."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.selectivity import selectivity
from spurless.metrics.utilisation import Utilisation, utilisation


def biased(n: int = 200, conflicting: int = 5) -> tuple[Tensor, Tensor]:
    """Two labels; the attribute is another one in ``conflicting`` of the ``n`` examples of each."""
    y = torch.arange(2).repeat_interleave(n)
    a = y.clone()
    for k in range(2):
        a[k * n : k * n + conflicting] = 1 - k
    return y, a


def test_bias_changes_nothing_of_who_uses_what() -> None:
    for conflicting in (1, 5, 100):
        y, a = biased(conflicting=conflicting)
        z = torch.stack([y, a, torch.ones_like(y)], dim=1).float()
        found = utilisation(z, y, a)
        torch.testing.assert_close(found.spurious, torch.tensor([0.0, 1.0, 0.0]).double(), atol=1e-5, rtol=0)
        torch.testing.assert_close(found.core, torch.tensor([1.0, 0.0, 0.0]).double(), atol=1e-5, rtol=0)
    plain = selectivity(z := torch.stack([biased()[0]], dim=1).float(), biased()[1])
    assert plain.mean > 0.9, z.shape  # unbalanced, a neuron of the label looks like one of the shortcut


def test_a_neuron_by_hand() -> None:
    # the pairs (0, 0), (0, 1), (1, 0), (1, 1) have 3, 1, 1 and 2 examples; one neuron fires by 6, 2, 2, 0 in them
    y, a = torch.tensor([0, 0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 0, 1, 0, 1, 1])
    z = torch.tensor([6.0, 12.0, 0.0, 2.0, 2.0, 0.0, 0.0])[:, None]
    found = utilisation(z, y, a)
    # attribute 0: mean of 6 and 2, fires in 2/3 and all; attribute 1: mean of 2 and 0
    assert found.spurious.item() == pytest.approx((2 / 3 + 1) / 2 * (4 - 1) / (4 + 1), abs=1e-6)
    # label 0: mean of 6 and 2, fires in 2/3 and all; label 1: mean of 2 and 0
    assert found.core.item() == pytest.approx((2 / 3 + 1) / 2 * (4 - 1) / (4 + 1), abs=1e-6)
    lonely = utilisation(z[[0, 1, 2, 4, 5, 6]], y[[0, 1, 2, 4, 5, 6]], a[[0, 1, 2, 4, 5, 6]])  # without (0, 1)
    assert lonely.spurious.item() == pytest.approx((2 / 3 + 1) / 2 * (4 - 0) / (4 + 0), abs=1e-6)
    assert lonely.core.item() == pytest.approx(2 / 3 * (6 - 1) / (6 + 1), abs=1e-6)


def test_where_every_pair_is_as_frequent_it_is_plain_selectivity() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(90, 7, generator=generator).relu()
    y, a = torch.arange(3).repeat(30), torch.arange(3).repeat_interleave(30)
    found = utilisation(z, y, a)
    torch.testing.assert_close(found.spurious, selectivity(z, a).index)
    torch.testing.assert_close(found.core, selectivity(z, y).index)


def test_numbers_are_of_active_neurons() -> None:
    spurious = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.0]).double()
    active = torch.ones(12, dtype=torch.bool)
    active[-1] = False
    core = torch.full((12,), 0.25).double()
    core[-1] = 9.0
    assert Utilisation(spurious, core, active).numbers() == pytest.approx(
        {
            "spurious_utilisation": 0.5,
            "spurious_utilisation_10": 0.1,
            "spurious_utilisation_50": 0.5,
            "spurious_utilisation_90": 0.9,
            "core_utilisation": 0.25,
        }
    )
    assert Utilisation(spurious, core, ~active | False).numbers()["spurious_utilisation"] == 0.0
    assert Utilisation(spurious, core, active & False).numbers() == {}


def test_what_cannot_be_told_apart_is_refused() -> None:
    y = torch.tensor([0, 0, 1, 1])
    with pytest.raises(InputError, match=r"each attribute occurs with only one label"):
        utilisation(torch.rand(4, 2), y, 1 - y)
    four = torch.tensor([0, 1, 2, 3])
    with pytest.raises(InputError, match=r"each label occurs with only one attribute"):
        utilisation(torch.rand(4, 2), four, four // 2)
    with pytest.raises(InputError, match=r"that is unknown"):
        utilisation(torch.rand(4, 2), y - 1, y)
