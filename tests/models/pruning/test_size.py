"""Counting: parameters and multiply-adds by hand, and those of ResNet-18 as published."""

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.models import build
from spurless.models.pruning.learned_masks import add_learned_masks, get_mask_logits
from spurless.models.pruning.masks import prune
from spurless.models.pruning.size import (
    Size,
    count_flops,
    count_parameters,
    layer_sparsity,
    measure_size,
)


def tiny() -> nn.Sequential:
    """A 3x3 convolution from 2 to 4 channels on 5x5 pixels (3x3 remain), a norm, and a linear layer to 3 classes."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def test_a_small_net_by_hand() -> None:
    model, x = tiny(), torch.zeros(7, 2, 5, 5)
    assert count_parameters(model) == (72 + 4) + (4 + 4) + (108 + 3)
    assert count_flops(model, x) == 9 * 72 + 108  # nine places, a filter of 18 numbers for each of 4 channels
    assert count_flops(model, x[:1]) == count_flops(model, x)  # per example


def test_zeros_by_hand() -> None:
    model, x = tiny(), torch.zeros(1, 2, 5, 5)
    nn.init.ones_(model.get_parameter("0.weight"))
    nn.init.ones_(model.get_parameter("4.weight"))
    with torch.no_grad():
        model.get_parameter("0.weight")[1] = 0  # 18 of 72
        model.get_parameter("0.bias")[:] = 0  # not counted: it is no weight
    prune(model, {"4.weight": torch.arange(108).view(3, 36) < 81})  # 27 of 108
    assert layer_sparsity(model) == {"0.weight": 0.25, "4.weight": 0.25}
    size = measure_size(model, x)
    assert size.kept_parameters == 195 - 18 - 27
    assert size.kept_flops == 0.75 * 648 + 0.75 * 108


def test_everything_at_once_is_what_each_says_with_one_run_of_the_model() -> None:
    model, x = tiny(), torch.zeros(1, 2, 5, 5)
    prune(model, {"4.weight": torch.arange(108).view(3, 36) < 81})
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    found = measure_size(model, x)
    assert calls == [1]
    assert found == Size(27 / 180, 195 - 27, count_flops(model, x), round(648 + 0.75 * 108))
    assert model.training


def test_what_cannot_be_counted_is_none_and_no_error() -> None:
    assert measure_size(tiny(), torch.zeros(1, 9, 5, 5)) == Size(0.0, 195, None, None)  # of another kind
    assert measure_size(tiny(), torch.zeros(0, 2, 5, 5)) == Size(0.0, 195, None, None)  # no example
    assert measure_size(nn.Sequential(nn.Flatten()), torch.zeros(1, 2)) == Size(None, 0, None, None)  # no weights


def test_grouped_strided_and_transposed_convolutions_by_hand() -> None:
    x = torch.zeros(1, 4, 6, 6)
    assert (
        count_flops(nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=4)), x) == 8 * 9 * 9
    )  # 3x3 places, 1x3x3
    assert count_flops(nn.Sequential(nn.ConvTranspose2d(4, 8, 2, stride=2)), x) == 36 * 4 * (8 * 4)  # per input number


def test_resnet18_as_published() -> None:
    import torchvision

    with torch.device("meta"):  # shapes alone
        model = torchvision.models.resnet18()
        x = torch.zeros(1, 3, 224, 224)
    assert count_parameters(model) == 11_689_512  # "11.69 M"; torchvision's table
    assert count_flops(model, x) == 1_814_073_344  # "1.8 x 10^9", He et al. table 1; 1.814 in torchvision's table
    assert not any(module._forward_hooks for module in model.modules())


def test_the_prunable_weights_of_the_pooled_net_are_as_published() -> None:
    model = build("pooled-cnn", input_shape=(3, 28, 28), n_classes=10)
    with torch.no_grad():
        for name in layer_sparsity(model):
            model.get_parameter(name).zero_()
    assert count_parameters(model) - measure_size(model, torch.zeros(1, 3, 28, 28)).kept_parameters == 660_992


def test_a_layer_called_twice_works_twice_and_weighs_once() -> None:
    layer = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert (count_parameters(model), count_flops(model, torch.zeros(1, 3))) == (9, 18)


def test_a_shared_weight_has_its_zeros_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model.get_submodule("1").weight = model.get_parameter("0.weight")
    nn.init.zeros_(model.get_parameter("0.weight"))
    assert (count_parameters(model), measure_size(model, torch.zeros(1, 3)).kept_parameters) == (9, 0)


def test_learned_masks_are_no_parameters_and_draw_nothing() -> None:
    model = tiny()
    add_learned_masks(model, squashed=False)
    with torch.no_grad():
        get_mask_logits(model)["0.weight"][0] = -1.0
    state = torch.get_rng_state()
    assert count_parameters(model) == 195
    size = measure_size(model, torch.zeros(1, 2, 5, 5))
    assert size.kept_parameters == 195 - 18
    assert size.kept_flops == 0.75 * 648 + 108
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_text_by_hand() -> None:
    model = build("token-mean", input_shape=(6,), n_classes=2)
    x = {"input_ids": torch.ones(3, 6, dtype=torch.long), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    assert count_flops(model, x) == 32 * 128 + 128 * 64 + 64 * 2  # words are looked up and averaged for nothing


def test_counting_leaves_the_model_alone_even_when_it_fails() -> None:
    model = tiny()
    with pytest.raises(RuntimeError):
        count_flops(model, torch.zeros(1, 9, 5, 5))
    assert not any(module._forward_hooks for module in model.modules())
    assert model.training
    with pytest.raises(InputError, match=r"there is no example"):
        count_flops(nn.Sequential(nn.Linear(2, 2)), torch.zeros(0, 2))


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "densenet121"])
def test_published_nets_cost_what_torch_counts(name: str) -> None:
    """With depthwise convolutions, squeezing and concatenation."""
    import torchvision
    from torch.utils.flop_counter import FlopCounterMode

    net, x = torchvision.models.get_model(name, num_classes=3).eval(), torch.zeros(2, 3, 64, 64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(x)
    assert 2 * len(x) * count_flops(net, x) == counter.get_total_flops()
