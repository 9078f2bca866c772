"""rebias-cnn: the convolutional network of ReBias, and of EnD with three options."""

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.models.zoo.cnn import ReBiasCNNConfig, rebias_cnn


def test_parameters_by_hand() -> None:
    model = rebias_cnn((3, 28, 28), 10, ReBiasCNNConfig())
    convolutions = 49 * (3 * 16 + 16 * 32 + 32 * 64 + 64 * 128) + 240
    assert model.parameters_count == convolutions + 2 * 240 + 128 * 10 + 10
    maps = nn.Sequential(*list(model.backbone.children())[:12])
    assert maps(torch.zeros(2, 3, 28, 28)).shape == (2, 128, 28, 28)


def test_weights_have_hes_normal_initialization_by_the_outputs() -> None:
    torch.manual_seed(0)
    weight = rebias_cnn((3, 28, 28), 10, ReBiasCNNConfig()).get_parameter("backbone.conv4.weight")
    assert float(weight.detach().std()) == pytest.approx((2 / (128 * 49)) ** 0.5, rel=0.01)


def test_the_options_of_end_by_hand() -> None:
    config = ReBiasCNNConfig(channels=(4, 6), last="tanh", unit=True, centred=True)
    model, x = rebias_cnn((3, 12, 10), 2, config).eval(), torch.rand(5, 3, 12, 10)
    part = model.backbone.get_submodule
    with torch.no_grad():
        first = part("norm1")(part("conv1")(2 * x - 1)).clamp(min=0)
        pooled = part("norm2")(part("conv2")(first)).tanh().mean(dim=(2, 3))
        torch.testing.assert_close(model.features(x), pooled / pooled.norm(dim=1, keepdim=True))


def test_other_images_and_bad_options() -> None:
    assert rebias_cnn((1, 9, 7), 3, ReBiasCNNConfig(kernel=1))(torch.zeros(2, 1, 9, 7)).shape == (2, 3)
    with pytest.raises(InputError, match="option 'kernel' of rebias-cnn must be odd"):
        ReBiasCNNConfig(kernel=4)
    with pytest.raises(InputError, match="channels must be at least 1"):
        ReBiasCNNConfig(channels=(4, 0))
