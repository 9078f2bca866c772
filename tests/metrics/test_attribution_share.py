"""Attribution share: clipping against numpy, shares and entropies by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.attribution_share import (
    attribution_entropy,
    attribution_share,
    background_share,
    map_entropy,
    normalise,
    region_share,
    spurious_utilisation,
)

LEFT = torch.tensor([[True, False], [True, False]])


def as_a_picture(map_: Tensor, outliers: float) -> np.ndarray:
    """Return one map scaled as captum scales it for pictures: walk up until 98 % of the sum is reached."""
    sizes = np.abs(map_.numpy().astype(np.float64))
    so_far = 0.0
    for top in np.sort(sizes.ravel()):
        so_far += top
        if so_far >= (1 - outliers) * sizes.sum():
            break
    scaled: np.ndarray = np.minimum(sizes / top, 1)
    return scaled


@pytest.mark.parametrize("outliers", [0.0, 0.02, 0.3])
def test_each_example_is_scaled_by_its_own_threshold(outliers: float) -> None:
    maps = torch.randn(5, 1, 31, 37, generator=torch.Generator().manual_seed(0))
    maps *= torch.tensor([1e-6, 1.0, 10.0, 1e6, 3.0]).view(-1, 1, 1, 1)
    found = normalise(maps, outliers=outliers)
    assert found.shape == (5, 31, 37)
    for map_, ours in zip(maps, found, strict=True):
        np.testing.assert_allclose(ours.numpy(), as_a_picture(map_[0], outliers), rtol=1e-5)
    assert ((found == 1).flatten(1).sum(dim=1) > 1).all() == (outliers > 0)


def test_outliers_are_a_share_of_the_sum_and_not_of_the_pixels() -> None:
    row = torch.ones(1, 100)
    row[0, 0] = 2.0  # 99 ones are more than 98 % of 101
    assert region_share(normalise(row), torch.arange(100) < 1).item() == pytest.approx(1 / 100)
    row[0, 0] = 3.0  # 99 ones are less than 98 % of 102
    assert region_share(normalise(row), torch.arange(100) < 1).item() == pytest.approx(3 / 102)


def test_channels_add_up_by_size_or_cancel() -> None:
    found = torch.tensor([[[[2.0, 1.0]], [[-2.0, 1.0]]]])
    left = torch.tensor([[True, False]])
    assert region_share(normalise(found), left).item() == pytest.approx(4 / 6)
    assert region_share(normalise(found, cancel_channels=True), left).item() == 0.0
    assert region_share(normalise(-found, cancel_channels=True), ~left).item() == 1.0  # a negative sum has a size, too


def test_shares_of_regions_are_means_over_examples_and_add_up_to_one() -> None:
    found = torch.tensor([[[[1.0, 1.0], [-1.0, 1.0]]], [[[0.0, 4.0], [0.0, 0.0]]], [[[0.0, 0.0], [0.0, 0.0]]]])
    top = torch.tensor([[True, True], [False, False]])
    shares = attribution_share(found, {"core": LEFT, "spurious": ~LEFT & top, "noise": ~LEFT & ~top})
    assert shares == {"core": 0.25, "spurious": 0.625, "noise": 0.125}  # the empty third map is left out
    assert normalise(found)[2].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert region_share(normalise(found), LEFT)[2].isnan()


def test_a_model_that_reads_two_of_many_features_is_seen_to() -> None:
    x = torch.randn(50, 10, generator=torch.Generator().manual_seed(0))
    weight = torch.zeros(10)
    weight[:2] = torch.tensor([3.0, -1.0])
    shares = attribution_share(weight * x, {"core": torch.arange(10) < 2, "noise": torch.arange(10) >= 2})
    assert shares == {"core": 1.0, "noise": 0.0}


def test_background_is_each_images_own() -> None:
    found = torch.tensor([[[[1.0, 3.0], [0.0, 0.0]]], [[[1.0, 3.0], [0.0, 0.0]]]])
    assert background_share(found, torch.stack([LEFT, ~LEFT])) == pytest.approx((0.25 + 0.75) / 2)


def test_entropy_of_even_maps_is_the_logarithm_of_their_size() -> None:
    for n in (1, 4, 25):
        row = torch.zeros(1, 25)
        row[0, :n] = -3.0
        assert attribution_entropy(row) == pytest.approx(math.log(n))
    two = torch.tensor([[1.0, 3.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    uneven = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert attribution_entropy(two) == pytest.approx((uneven + math.log(4)) / 2, abs=1e-6)


def test_maps_are_clipped_once() -> None:
    row = (torch.arange(1, 1569) ** -0.5)[None]
    sizes = row.clamp(max=float(row[0, 1])).double()  # the first has 1.3 % of the sum, the first two have 2.2 %
    share = (sizes / sizes.sum()).numpy()
    expected = -float((share * np.log(share)).sum())
    assert attribution_entropy(row) == map_entropy(normalise(row)) == pytest.approx(expected)


def test_utilisation_of_a_neuron_follows_its_weights_through_training() -> None:
    x = torch.ones(3, 4)
    checkpoints = [torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 0, 1, 0]), torch.tensor([0.0, 0, 0, -2])]
    found = spurious_utilisation((w * x for w in checkpoints), torch.tensor([False, False, True, True]))
    assert found.tolist() == [0.0, 0.5, 1.0]


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"one map per example \(expected float"):
        normalise(torch.ones(3))
    with pytest.raises(InputError, match="not finite"):
        normalise(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(InputError, match=r"outliers must be a fraction \(expected from 0, below 1, got 2\)"):
        normalise(torch.ones(1, 3), outliers=2)
    with pytest.raises(
        InputError, match=r"does not fit the maps \(expected bool, \(3,\) or \(2, 3\), got torch.float32"
    ):
        region_share(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(InputError, match="does not fit the maps"):
        region_share(torch.ones(2, 3), torch.ones(1, dtype=torch.bool))


def test_channels_of_half_precision_do_not_overflow() -> None:
    half = torch.full((1, 3, 2, 2), 3e4, dtype=torch.float16)
    assert background_share(half, torch.tensor([[True, False], [False, False]])) == pytest.approx(0.25)
