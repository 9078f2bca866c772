"""MaskTune's small CNN."""

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.models.zoo.cnn import SmallCNNConfig, small_cnn


def test_parameters_by_hand() -> None:
    convolutions = (27 * 16 + 16) + (144 * 16 + 16) + (144 * 32 + 32) + (288 * 32 + 32)
    norms = 2 * (16 + 16 + 32 + 32) + 2 * 256
    linear = (512 * 256 + 256) + (256 * 2 + 2)
    assert convolutions + norms + linear == 149_202
    assert small_cnn((3, 28, 28), 2, SmallCNNConfig()).parameters_count == 149_202


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 28, 56), (3, 32, 32), (1, 16, 16), (4, 17, 64)])
def test_sizes_adapt(shape: tuple[int, int, int]) -> None:
    model = small_cnn(shape, 5, SmallCNNConfig(width=4, hidden=7))
    assert model.features(torch.zeros(2, *shape)).shape == (2, 7)
    assert model(torch.zeros(2, *shape)).shape == (2, 5)


def test_heat_maps_are_8x8_on_mnist() -> None:
    seen: list[Tensor] = []
    model = small_cnn((3, 28, 28), 2, SmallCNNConfig())
    model.backbone.get_submodule("relu4").register_forward_hook(lambda _m, _x, y: seen.append(y))
    model(torch.zeros(2, 3, 28, 28))
    assert seen[0].shape == (2, 32, 8, 8)


def test_features_are_not_negative() -> None:
    model = small_cnn((3, 28, 28), 2, SmallCNNConfig())
    assert isinstance(model.backbone.get_submodule("relu5"), nn.ReLU)
    assert bool((model.features(torch.randn(4, 3, 28, 28)) >= 0).all())


def test_fifteen_pixels_are_too_few() -> None:
    with pytest.raises(
        InputError, match=r"the input is too small for small-cnn .expected at least 16x16 pixels, got 15x40"
    ):
        small_cnn((1, 15, 40), 2, SmallCNNConfig())
