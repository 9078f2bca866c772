"""The MLP: depth counts linear layers."""

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.models.zoo.mlp import LinearConfig, MLPConfig, linear, mlp


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (MLPConfig(depth=1), 12 * 2),
        (MLPConfig(depth=3, width=5), 12 * 5 + 5 * 5 + 5 * 2),
        (MLPConfig(depth=3, width=5, features=4), 12 * 5 + 5 * 4 + 4 * 2),
        (MLPConfig(depth=3, width=5, bias=True), 12 * 5 + 5 + 5 * 5 + 5 + 5 * 2 + 2),
    ],
)
def test_parameters_by_hand(config: MLPConfig, count: int) -> None:
    model = mlp((3, 2, 2), 2, config)
    assert model.parameters_count == count
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == config.depth
    assert model(torch.zeros(4, 3, 2, 2)).shape == (4, 2)


def test_activation_by_hand() -> None:
    for activation, value in (("relu", 0.0), ("tanh", -torch.tanh(torch.tensor(2.0)).item())):
        model = mlp((1,), 2, MLPConfig(depth=2, width=3, activation=activation))  # type: ignore[arg-type]  # two of two
        nn.init.constant_(model.backbone.get_submodule("1").get_parameter("weight"), -2.0)
        torch.testing.assert_close(model.features(torch.ones(1, 1)), torch.full((1, 3), value))


def test_inputs_are_divided_by_the_divisor() -> None:
    plain, divided = (mlp((1, 2, 2), 2, MLPConfig(width=5, divisor=divisor)) for divisor in (1.0, 255.0))
    for ours, theirs in zip(divided.parameters(), plain.parameters(), strict=True):
        ours.data.copy_(theirs)
    x = torch.rand(3, 1, 2, 2)
    torch.testing.assert_close(divided(x), plain(x / 255))
    assert "backbone.1.weight" in plain.state_dict()  # as in files of weights from before the option
    with pytest.raises(InputError, match=r"divisor must be above 0 .got 0"):
        MLPConfig(divisor=0)


def test_linear_is_one_layer_on_the_raw_input() -> None:
    model, x = linear((1, 2, 2), 3, LinearConfig()), torch.randn(2, 1, 2, 2)
    assert torch.equal(model.features(x), x.flatten(1))
    assert model.parameters_count == 4 * 3 + 3
    assert linear((4,), 3, LinearConfig(bias=False)).parameters_count == 4 * 3


def test_no_layer_is_refused() -> None:
    with pytest.raises(InputError, match=r"depth must be at least 1"):
        MLPConfig(depth=0)
    with pytest.raises(InputError, match=r"features must be at least 1"):
        MLPConfig(features=0)
    with pytest.raises(InputError, match=r"option 'features' of mlp needs a hidden layer"):
        MLPConfig(depth=1, features=3)
