"""The VGG11-like net."""

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.models.zoo.cnn import VGG11Config, vgg11


def test_parameters_by_hand() -> None:
    pairs = [(3, 64), (64, 128), (128, 256), (256, 256), (256, 512), (512, 512), (512, 512), (512, 512)]
    convolutions = sum(9 * n_in * n_out for n_in, n_out in pairs)
    assert convolutions == 9_217_728
    assert vgg11((3, 32, 32), 10, VGG11Config()).parameters_count == convolutions + 512 * 10


def test_nothing_but_weights() -> None:
    model = vgg11((3, 32, 32), 10, VGG11Config())
    assert all(name.endswith("weight") for name, _ in model.named_parameters())
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == 1
    with_bias = vgg11((3, 32, 32), 10, VGG11Config(bias=True))
    assert with_bias.parameters_count - model.parameters_count == 64 + 128 + 2 * 256 + 4 * 512 + 10


@pytest.mark.parametrize(
    ("shape", "pools", "features"),
    [
        ((3, 32, 32), 5, 512),
        ((1, 28, 28), 4, 512),  # 28, 14, 7, 3, 1: a fifth pool would leave nothing
        ((1, 28, 56), 4, 512 * 1 * 3),
        ((3, 64, 32), 5, 512 * 2 * 1),
        ((3, 16, 16), 4, 512),
    ],
)
def test_pools_adapt(shape: tuple[int, int, int], pools: int, features: int) -> None:
    model = vgg11(shape, 10, VGG11Config())
    assert sum(isinstance(m, nn.MaxPool2d) for m in model.modules()) == pools
    assert model.features(torch.zeros(1, *shape)).shape == (1, features)


def test_too_small_is_refused() -> None:
    with pytest.raises(InputError, match=r"too small for vgg11-small .expected at least 16x16 pixels, got 15x15"):
        vgg11((1, 15, 15), 10, VGG11Config())


def test_the_signal_survives_the_first_pass() -> None:
    # torch's default initialisation gives about 1e-3 here: a factor of 1/sqrt(6) at each of eight layers
    with Seeds(0).seed_global_rng("init"):
        model = vgg11((3, 32, 32), 10, VGG11Config())
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert 0.03 < float(model.features(x).std()) < 10
