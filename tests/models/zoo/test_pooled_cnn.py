"""DCWP's CNN."""

import pytest
import torch

from spurless.core.errors import InputError
from spurless.models.pruning.masks import get_weight_masks
from spurless.models.zoo.cnn import PooledCNNConfig, pooled_cnn


def test_prunable_weights_are_the_papers() -> None:
    model = pooled_cnn((3, 28, 28), 10, PooledCNNConfig())
    assert 3 * 64 * 16 + 64 * 128 * 16 + 128 * 256 * 16 + 256 * 10 == 660_992
    assert sum(mask.numel() for mask in get_weight_masks(model).values()) == 660_992
    assert model.parameters_count == 660_992 + 2 * (64 + 128 + 256) + 10


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 28, 56), (3, 8, 8), (3, 33, 47)])
def test_features_are_pooled_whatever_the_size(shape: tuple[int, int, int]) -> None:
    model = pooled_cnn(shape, 4, PooledCNNConfig(channels=(4, 8, 6)))
    assert model.features(torch.zeros(2, *shape)).shape == (2, 6)
    assert model(torch.zeros(2, *shape)).shape == (2, 4)


def test_each_convolution_halves_the_sides() -> None:
    model = pooled_cnn((3, 28, 28), 10, PooledCNNConfig())
    maps = model.backbone.get_submodule("conv1")(torch.zeros(1, 3, 28, 28))
    assert maps.shape == (1, 64, 14, 14)
    with pytest.raises(InputError, match="at least 8x8 pixels, got 7x28"):
        pooled_cnn((3, 7, 28), 10, PooledCNNConfig())


def test_the_head_reads_features_of_length_1_on_request() -> None:
    plain, unit = (pooled_cnn((3, 8, 8), 4, PooledCNNConfig((4, 8), unit=unit)).eval() for unit in (False, True))
    unit.load_state_dict(plain.state_dict())
    x = torch.rand(5, 3, 8, 8)
    x[0] = 0.0  # features of length 0 have no direction
    with torch.no_grad():
        given, features = plain.features(x), unit.features(x)
        lengths = given.norm(dim=1, keepdim=True)
        assert bool((lengths[1:] > 0).all())
        assert float(lengths[0]) == 0.0
        torch.testing.assert_close(features[1:], given[1:] / lengths[1:])
        assert torch.equal(features[0], torch.zeros(8))
        torch.testing.assert_close(unit(x), unit.head(features))


def test_no_channels_are_refused() -> None:
    with pytest.raises(InputError, match="option 'channels' of pooled-cnn must be positive"):
        PooledCNNConfig(channels=())
