"""Normalising: what the weights expect, and nothing in the state dict."""

import torch

from spurless.models.zoo.normalize import Normalize


def test_each_channel_has_its_own_numbers() -> None:
    x = torch.rand(2, 3, 4, 5)
    out = Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(x)
    for channel, (mean, std) in enumerate([(0.1, 1.0), (0.2, 2.0), (0.3, 4.0)]):
        torch.testing.assert_close(out[:, channel], (x[:, channel] - mean) / std)


def test_one_number_serves_grey_images_and_none_is_saved() -> None:
    layer = Normalize((0.5,), (0.5,))
    assert layer(torch.ones(1, 1, 2, 2)).unique().tolist() == [1.0]
    assert layer.state_dict() == {}
