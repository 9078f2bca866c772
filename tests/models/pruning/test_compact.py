"""Shrinking: smaller layers, equal logits; and what cannot go stays."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.compact import compact_model
from spurless.models.pruning.learned_masks import add_learned_masks, finalize_masks, get_mask_logits
from spurless.models.pruning.masks import is_pruned, named_weight_layers, prune
from spurless.models.pruning.size import count_flops, count_parameters

SEEDS = Seeds(0)


def seasoned(model: nn.Module, share: float, seed: int = 0) -> nn.Module:
    """Make a model look trained (norms and biases far from 0), with a share of zero filters; the last layer stays."""
    generator = Seeds(seed).generator("seasoned")

    def normal(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator)

    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if name.endswith(("bias", "running_mean")):
                values.copy_(normal(values))
            elif name.endswith("running_var"):
                values.copy_(normal(values).abs() + 0.5)
        for _, layer in list(named_weight_layers(model))[:-1]:
            layer.weight[torch.rand(len(layer.weight), generator=generator) < share] = 0
    return model.eval()


def assert_same(model: nn.Module, small: nn.Module, *shape: int) -> None:
    x = torch.randn(8, *shape, generator=SEEDS.generator("x"))
    with torch.no_grad():
        before, after = model(x), small(x)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5 * max(1.0, float(before.abs().max())))


@pytest.mark.parametrize("share", [0.3, 0.9])
@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("small-cnn", (3, 20, 20), {}),
        ("mlp", (1, 4, 4), {"width": 40}),
        ("mlp", (1, 4, 4), {"width": 40, "bias": True, "activation": "tanh"}),
        ("pooled-cnn", (3, 16, 16), {"channels": (16, 24, 32)}),
        ("vgg11-small", (3, 32, 32), {}),
        ("vgg11-small", (3, 16, 16), {"bias": True}),
        ("resnet20", (3, 8, 8), {}),
        ("resnet20", (3, 8, 8), {"shortcut": "B"}),
        ("torchvision:resnet18", (3, 32, 32), {}),
    ],
)
def test_the_logits_stay_and_the_model_shrinks(
    name: str, shape: tuple[int, ...], options: dict[str, Any], share: float
) -> None:
    model = seasoned(build(name, input_shape=shape, n_classes=3, **options), share)
    x = torch.zeros(2, *shape)
    small = compact_model(model, x)
    assert_same(model, small.model, *shape)
    assert small.removed
    assert (small.parameters_before, small.flops_before) == (count_parameters(model), count_flops(model, x))
    assert (small.parameters_after, small.flops_after) == (count_parameters(small.model), count_flops(small.model, x))
    assert small.parameters_after < small.parameters_before
    assert small.flops_after < small.flops_before


def test_the_small_cnn_loses_every_zero_filter() -> None:
    """Nothing is padded there, so every constant can move: the width that is left is the number of live filters."""
    model = seasoned(build("small-cnn", input_shape=(1, 16, 16), n_classes=2, width=8, hidden=16), 0.5)
    live = {name: int((layer.weight != 0).flatten(1).any(1).sum()) for name, layer in named_weight_layers(model)}
    assert min(live.values()) > 0
    small = compact_model(model, torch.zeros(1, 1, 16, 16))
    assert {name: len(layer.weight) for name, layer in named_weight_layers(small.model)} == live
    assert small.unchanged == {}
    for i in (1, 2, 3, 4):
        assert small.model.get_submodule(f"backbone.norm{i}").num_features == live[f"backbone.conv{i}.weight"]


def test_residual_channels_stay() -> None:
    model = seasoned(build("resnet20", input_shape=(3, 8, 8), n_classes=2), 0.5)
    with torch.no_grad():
        for name, part in model.named_modules():
            if name.endswith("conv2"):
                part.get_parameter("weight").zero_()
    small = compact_model(model, torch.zeros(1, 3, 8, 8))
    assert all(name.endswith("conv1") and "layer" in name for name in small.removed)
    assert small.unchanged["backbone.layer2.1.conv2"].startswith("its output goes to add")
    assert_same(model, small.model, 3, 8, 8)


def conv_pair(**second: Any) -> nn.Sequential:
    """Two channels, the second constant 3, into a 3x3 convolution of ones."""
    first, last = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 1, 3, bias=False, **second)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([1.0, 0.0]).view(2, 1, 1, 1))
        first.bias.copy_(torch.tensor([0.0, 3.0]))  # type: ignore[union-attr]  # it has one
        last.weight.fill_(1.0)
    return nn.Sequential(first, nn.ReLU(), last).eval()


def test_a_constant_moves_into_a_bias_by_hand() -> None:
    small = compact_model(conv_pair(), torch.zeros(1, 1, 4, 4)).model
    assert small.get_parameter("2.bias").tolist() == [27.0]  # nine pixels of 3
    assert small.get_parameter("2.weight").shape == (1, 1, 3, 3)
    assert_same(conv_pair(), small, 1, 4, 4)


def test_a_constant_does_not_pass_zero_padding() -> None:
    model = conv_pair(padding=1)
    small = compact_model(model, torch.zeros(1, 1, 4, 4))
    assert small.removed == {}
    assert small.unchanged == {"0": "the next layer pads its 1 constant channels with zeros"}
    assert_same(model, small.model, 1, 4, 4)


@pytest.mark.parametrize("padding", [{"padding": "same"}, {"padding": (0, 1)}])
def test_zero_padding_by_other_names(padding: dict[str, Any]) -> None:
    assert compact_model(conv_pair(**padding), torch.zeros(1, 1, 4, 4)).removed == {}


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_a_constant_passes_other_padding(mode: str) -> None:
    model = conv_pair(padding=1, padding_mode=mode)
    small = compact_model(model, torch.zeros(1, 1, 4, 4))
    assert small.removed == {"0": 1}
    assert_same(model, small.model, 1, 4, 4)


def test_a_constant_zero_passes_all_padding() -> None:
    model = conv_pair(padding=1)
    with torch.no_grad():
        model.get_parameter("0.bias")[1] = -3.0  # nothing is left of it behind the relu
    small = compact_model(model, torch.zeros(1, 1, 4, 4))
    assert small.removed == {"0": 1}
    assert "2.bias" not in dict(small.model.named_parameters())  # nothing to move, so no bias is made
    assert_same(model, small.model, 1, 4, 4)


def test_a_channel_that_nobody_reads_goes() -> None:
    model = conv_pair(padding=1)
    with torch.no_grad():
        model.get_parameter("0.weight")[1] = 5.0  # not constant
        model.get_parameter("0.bias")[0] = 1.0
        model.get_parameter("2.weight")[:, 1] = 0
    small = compact_model(model, torch.zeros(1, 1, 4, 4))
    assert (small.removed, small.unchanged) == ({"0": 1}, {})  # of the other, only the bias is constant
    assert_same(model, small.model, 1, 4, 4)


def test_one_removal_leads_to_the_next_in_both_directions() -> None:
    """Forward: unit 0 of layer 2 reads nothing but the dead unit 0 of layer 1, so it is constant after that goes.

    Backward: unit 1 of layer 1 is read by unit 1 of layer 2 alone, which nobody reads.
    """
    model: Any = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].bias[0] = 2.0
        model[2].weight.copy_(torch.tensor([[5.0, 0, 0], [0, 4.0, 0], [0, 0, 3.0]]))
        model[4].weight[:, 1] = 0
    small = compact_model(model, torch.zeros(1, 3))
    assert small.removed == {"0": 2, "2": 2}
    assert small.parameters_after == (3 + 1) + (1 + 1) + (2 + 2)
    assert_same(model, small.model, 3)


def test_the_last_channel_stays() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(1.0)
    small = compact_model(model, torch.zeros(1, 2))
    assert small.removed == {"0": 2}
    assert small.unchanged == {}
    assert_same(model, small.model, 2)


def test_what_is_no_number_stays() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].bias[0] = torch.inf
    assert compact_model(model, torch.zeros(1, 2)).removed == {}


def test_a_norm_behind_a_flat_map_is_cut_position_by_position() -> None:
    model: Any = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(), nn.BatchNorm1d(36), nn.Sigmoid(), nn.Linear(36, 2))
    seasoned(model, 0.5, seed=1)
    assert int((model[0].weight == 0).sum()) in (1, 2, 3)
    small = compact_model(model, torch.zeros(2, 1, 3, 3))
    assert small.model.get_submodule("2").num_features == 9 * (4 - small.removed["0"])
    assert_same(model, small.model, 1, 3, 3)


def test_tokens_shrink_too() -> None:
    model: Any = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
    seasoned(model, 0.5)
    small = compact_model(model, torch.zeros(2, 7, 4))
    assert small.removed == {"0": int((model[0].weight == 0).all(1).sum())}
    assert_same(model, small.model, 7, 4)


def test_dropout_and_train_mode_change_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
    seasoned(model, 0.5).train()
    small = compact_model(model, torch.zeros(2, 4))
    assert small.model.training
    assert small.removed
    assert_same(model.eval(), small.model.eval(), 4)


def test_a_pruned_model_is_shrunk_in_a_copy() -> None:
    model = build("mlp", input_shape=(4,), n_classes=2, width=6)
    prune(model, {"backbone.1.weight": (torch.arange(6) > 1).view(6, 1).expand(6, 4)})
    small = compact_model(model, torch.zeros(1, 4))
    assert small.removed["backbone.1"] == 2
    assert is_pruned(model)
    assert not is_pruned(small.model)
    assert isinstance(small.model, Classifier)
    assert small.model.name == "compact mlp"
    assert_same(model.eval(), small.model.eval(), 4)
    small.model(torch.ones(3, 4)).sum().backward()  # it can be trained on
    assert all(p.grad is not None for p in small.model.parameters())


def test_settled_masks_shrink_and_learned_ones_do_not() -> None:
    model = build("mlp", input_shape=(4,), n_classes=2, width=6)
    add_learned_masks(model, squashed=False)
    with torch.no_grad():
        get_mask_logits(model)["backbone.3.weight"][:4] = -1.0
    with pytest.raises(InputError, match=r"masks that are not final. Call finalize_masks"):
        compact_model(model, torch.zeros(1, 4))
    finalize_masks(model)
    assert compact_model(model, torch.zeros(1, 4)).removed == {"backbone.3": 4}


def test_frozen_weights_stay_frozen() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        model[0].weight[0] = 0
        model[0].bias.fill_(1.0)
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in compact_model(model, torch.zeros(1, 2)).model.parameters())


def test_a_dense_model_keeps_all_it_has() -> None:
    model = build("small-cnn", input_shape=(1, 16, 16), n_classes=2, width=4, hidden=8)
    small = compact_model(model, torch.zeros(1, 1, 16, 16))
    assert (small.removed, small.unchanged) == ({}, {})
    assert small.parameters_after == small.parameters_before
    assert isinstance(small.model, Classifier)
    assert small.model.name == "small-cnn"


class Stubborn(nn.Module):
    """Looks at values, which no trace can follow."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(self.one(x))
        return y if y.sum() > 0 else -y


def test_what_cannot_be_traced_is_returned_as_it_is() -> None:
    model = Stubborn()
    nn.init.zeros_(model.one.weight)
    small = compact_model(model, torch.zeros(1, 2))
    assert small.removed == {}
    assert set(small.unchanged) == {"one", "two"}
    assert_same(model, small.model, 2)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1"])
def test_published_nets_keep_their_logits(name: str) -> None:
    """Depthwise, split and shuffled, concatenated; filters that are zero at random, norms as if trained."""
    import torchvision

    net, x = torchvision.models.get_model(name, num_classes=3).eval(), torch.randn(2, 3, 64, 64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, layer in named_weight_layers(net):
            layer.weight[torch.rand(len(layer.weight), generator=generator) < 0.4] = 0
        for part in net.modules():
            if isinstance(part, nn.BatchNorm2d):
                for values in (part.weight, part.bias, part.running_mean):
                    values.normal_(generator=generator)  # type: ignore[union-attr]  # all three are there
        small = compact_model(net, x)
        torch.testing.assert_close(small.model(x), net(x), rtol=1e-4, atol=1e-4 * float(net(x).abs().max()))
    assert small.removed
    assert small.parameters_after < small.parameters_before


@pytest.mark.parametrize("x", [torch.zeros(2, 7), b"x", {"x": torch.zeros(2, 2)}])
def test_inputs_that_the_model_does_not_accept_are_refused(x: Any) -> None:
    with pytest.raises(InputError):
        compact_model(nn.Sequential(nn.Linear(2, 2)), x)
