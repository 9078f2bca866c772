"""Selectivity: neuron by neuron with a pencil, and against loops."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.selectivity import EPSILON, selectivity

Y = torch.tensor([0, 0, 1, 1, 2, 2])
Z = torch.tensor(
    [  # selective; half covered; indifferent; silent
        [0.0, 0.0, 2.0, 0.0],
        [0.0, 0.0, 2.0, 0.0],
        [6.0, 8.0, 2.0, 0.0],
        [2.0, 0.0, 2.0, 0.0],
        [1.0, 0.0, 2.0, 0.0],
        [1.0, 2.0, 2.0, 0.0],
    ]
)


def test_by_hand() -> None:
    found = selectivity(Z, Y)
    # class means 0, 4, 1 -> (4 - .5) / (4 + .5); 0, 4, 1 again, of which one of two fires
    torch.testing.assert_close(found.contrast, torch.tensor([3.5 / 4.5, 3.5 / 4.5, 0, 0]).double(), atol=1e-6, rtol=0)
    assert found.coverage.tolist() == [1.0, 0.5, 1.0, 0.0]
    assert found.preferred.tolist() == [1, 1, 0, 0]
    assert found.active.tolist() == [True, True, True, False]
    assert found.mean == pytest.approx((3.5 / 4.5) * 1.5 / 3, abs=1e-6)  # over the three that are active
    assert found.unweighted == pytest.approx(3.5 / 4.5, abs=1e-6)  # over the two that prefer anything


def test_epsilon_is_the_papers() -> None:
    found = selectivity(torch.tensor([[EPSILON], [0.0]]).double(), torch.tensor([0, 1]))
    assert found.index.item() == pytest.approx(0.5)


def by_loops(z: Tensor, y: Tensor) -> float:
    """Return the mean index as the text says it, one neuron after another."""
    indices = []
    for neuron in z.numpy().astype(np.float64).T:
        if not neuron.any():
            continue
        means = [neuron[y.numpy() == k].mean() for k in np.unique(y)]
        best = int(np.argmax(means))
        others = np.mean([m for k, m in enumerate(means) if k != best])
        rho = (neuron[y.numpy() == np.unique(y)[best]] > 0).mean()
        indices.append(rho * (means[best] - others) / (means[best] + others + 1e-6))
    return float(np.mean(indices))


@pytest.mark.parametrize("seed", range(3))
def test_against_loops(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(90, 15, generator=generator).relu()
    z[:, 3] = 0
    y = 3 * torch.randint(4, (90,), generator=generator)  # labels with gaps
    found = selectivity(z, y)
    assert found.mean == pytest.approx(by_loops(z, y), abs=1e-9)
    assert set(found.preferred.tolist()) <= {0, 3, 6, 9}
    assert max(found.preferred.tolist()) > 3


def test_labels_and_attributes_tell_core_from_spurious_neurons() -> None:
    y = torch.arange(4).repeat(4)
    a = torch.arange(4).repeat_interleave(4)  # says nothing about y
    core, spurious = torch.eye(4)[y], torch.eye(4)[a]
    assert selectivity(core, y).mean == pytest.approx(1.0, abs=1e-5)
    assert selectivity(core, a).mean == 0.0
    assert selectivity(spurious, y).mean == 0.0
    assert selectivity(spurious, a).mean == pytest.approx(1.0, abs=1e-5)
    both = torch.cat([core, spurious], dim=1)
    assert selectivity(both, y).mean == pytest.approx(0.5, abs=1e-5)


def test_balanced_no_pair_counts_for_more_because_it_is_frequent() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    a = torch.tensor([0, 0, 1, 1, 1, 0])
    z = (a == 0).float()[:, None]  # a neuron of the attribute
    assert selectivity(z, y).mean == pytest.approx(2 / 3 * (2 - 1) / (2 + 1), abs=1e-5)
    assert selectivity(z, y, balance=a).mean == 0.0
    assert selectivity(z, a, balance=y).mean == pytest.approx(1.0, abs=1e-5)
    # of label 0 attribute 1 is left out: its mean is that of the one pair there is
    missing = selectivity(z[[0, 1, 3, 4, 5]], y[[0, 1, 3, 4, 5]], balance=a[[0, 1, 3, 4, 5]])
    assert missing.contrast.item() == pytest.approx((1 - 0.5) / (1 + 0.5), abs=1e-5)


def test_where_all_are_silent_there_is_no_mean() -> None:
    found = selectivity(torch.zeros(4, 3), torch.tensor([0, 0, 1, 1]))
    assert math.isnan(found.mean)
    assert math.isnan(found.unweighted)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"negative \(got -8.0\). Pass absolute values: z.abs\(\)"):
        selectivity(-Z, Y)
    with pytest.raises(InputError, match=r"needs at least two classes \(got only label 7\)"):
        selectivity(Z, torch.full((6,), 7))
    with pytest.raises(InputError, match="that is unknown"):
        selectivity(Z, Y - 1)
