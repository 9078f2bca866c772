"""The target layer: the one that a person would name, found by itself in nets of every kind."""

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.explain.cam import activations_and_gradients, xgradcam
from spurless.explain.target_layer import (
    NoFeatureMapError,
    TargetLayer,
    find_target_layer,
    infer_token_grid,
    resolve_layer_name,
)
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.pruning.masks import get_weight_masks, prune
from spurless.models.wrapping import wrap


def small_vit() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    net: nn.Module = VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=5)
    return net


@pytest.mark.parametrize(
    ("name", "shape", "layer"),
    [
        ("small-cnn", (3, 28, 28), "relu4"),  # MaskTune's: the last ReLU before the second pool
        ("small-cnn", (1, 40, 32), "relu4"),
        ("resnet20", (3, 32, 32), "layer3.2"),
        ("resnet32", (3, 32, 32), "layer3.4"),  # MaskTune's
        ("vgg11-small", (3, 32, 32), "relu5_2"),
        ("vgg11-small", (3, 28, 28), "relu4_2"),  # stage 5 has one pixel
        ("pooled-cnn", (3, 28, 28), "relu3"),
        ("torchvision:resnet18", (3, 64, 64), "layer4.1"),
        ("torchvision:resnet18", (1, 64, 64), "1.layer4.1"),  # behind the layer that repeats the grey channel
        ("torchvision:resnet18", (3, 28, 28), "layer3.1"),  # stage 4 has one pixel
        ("torchvision:vgg11", (3, 64, 64), "features.19"),
        ("torchvision:densenet121", (3, 64, 64), "features.norm5"),
        ("torchvision:mobilenet_v3_small", (3, 64, 64), "features.12"),
        ("torchvision:squeezenet1_1", (3, 64, 64), "features.12"),
        ("torchvision:convnext_tiny", (3, 64, 64), "features.7.2"),
        ("torchvision:swin_t", (3, 64, 96), "permute"),
    ],
)
def test_the_layer_that_a_person_would_name(name: str, shape: tuple[int, int, int], layer: str) -> None:
    model = build(name, input_shape=shape, n_classes=3)
    assert find_target_layer(model, torch.rand(2, *shape)) == TargetLayer(f"backbone.{layer}")


@pytest.mark.parametrize(
    ("name", "size", "layer", "grid"),
    [
        ("test_resnet", (64, 64), "layer4.0", None),
        ("test_vit", (64, 96), "blocks.5.norm1", (4, 6)),  # a class token is read: the input of the last attention
        ("test_vit3", (64, 64), "norm", (4, 4)),  # the mean of the tokens is read: their last norm
        ("swin_tiny_patch4_window7_224", (224, 224), "norm", None),  # (N, h, w, C)
    ],
)
def test_the_layer_in_models_of_timm(
    name: str, size: tuple[int, int], layer: str, grid: tuple[int, int] | None
) -> None:
    timm = pytest.importorskip("timm", reason="the extra timm is not installed")
    options = {} if name == "test_resnet" else {"img_size": size}
    model = wrap(timm.create_model(name, num_classes=3, **options))
    assert find_target_layer(model, torch.rand(1, 3, *size)) == TargetLayer(f"backbone.{layer}", grid)


def test_a_transformer_whose_head_is_still_zero() -> None:
    model = wrap(small_vit())
    assert not model.head.get_parameter("weight").any()
    assert find_target_layer(model, torch.rand(1, 3, 32, 32)) == TargetLayer(
        "backbone.encoder.layers.encoder_layer_1.ln_1", (4, 4)
    )


def test_tokens_become_a_grid_and_the_class_token_is_dropped() -> None:
    tokens = torch.arange(7.0)[None, :, None] * torch.tensor([1.0, 10.0])  # a class token, then 2 x 3 patches
    found = TargetLayer("x", (2, 3)).as_map(tokens, (32, 48))
    assert found.shape == (1, 2, 2, 3)
    assert found[0, 0].tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert found[0, 1].tolist() == [[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]]
    assert torch.equal(TargetLayer("x").as_map(tokens, (32, 48)), found)  # the proportions of the image tell the grid


def test_channels_may_come_last() -> None:
    x = torch.rand(2, 8, 4, 6)
    target = TargetLayer("x")
    assert torch.equal(target.as_map(x, (64, 96)), x)
    assert torch.equal(target.as_map(x.permute(0, 2, 3, 1), (64, 96)), x)
    square = torch.rand(2, 4, 4, 4)
    assert target.as_map(square, (64, 64)) is square  # where both readings fit, channels first
    with pytest.raises(
        InputError, match=r"the output of layer 'x' is not a map of the image \(expected .*got \(2, 7\)"
    ):
        target.as_map(torch.rand(2, 7), (64, 64))
    with pytest.raises(InputError, match="not a map of the image"):
        target.as_map(torch.rand(2, 35, 3), (64, 64))


def test_grids() -> None:
    assert infer_token_grid(197, (224, 224)) == (14, 14)
    assert infer_token_grid(198, (384, 384)) == (14, 14)  # distilled: two tokens before the patches
    assert infer_token_grid(141, (224, 160)) == (14, 10)
    assert infer_token_grid(4, (8, 8)) == (2, 2)
    assert infer_token_grid(2, (8, 8)) is None


def test_a_layer_is_looked_up_by_its_name_with_or_without_the_backbone() -> None:
    model, x = build("resnet20", input_shape=(3, 32, 32), n_classes=3), torch.rand(1, 3, 32, 32)
    assert (
        find_target_layer(model, x, "backbone.layer2")
        == find_target_layer(model, x, "layer2")
        == TargetLayer("backbone.layer2")
    )
    vit = wrap(small_vit())
    assert find_target_layer(vit, x, "encoder.ln") == TargetLayer("backbone.encoder.ln", (4, 4))
    with pytest.raises(
        InputError, match=r"has no layer 'layer5'. Did you mean 'backbone.layer\d'\? Layers with a map: .*"
    ):
        find_target_layer(model, x, "layer5")
    with pytest.raises(InputError, match=r"has no layer 'backbone.layr3'. Did you mean 'backbone.layer3'\?"):
        resolve_layer_name(model, "backbone.layr3")
    with pytest.raises(InputError, match="has no layer ''"):
        resolve_layer_name(model, "")


@pytest.mark.parametrize("name", ["mlp", "linear"])
def test_a_net_without_maps_says_what_to_use(name: str) -> None:
    model = build(name, input_shape=(1, 8, 8), n_classes=2)
    with pytest.raises(NoFeatureMapError, match=f'{name} has no feature map of the image.* Use "integrated-gradients"'):
        find_target_layer(model, torch.rand(1, 1, 8, 8))


def test_normalised_pixels_are_no_features() -> None:
    net = nn.Sequential(nn.Upsample(scale_factor=2), nn.Flatten(), nn.Linear(64, 4), nn.ReLU())
    with pytest.raises(NoFeatureMapError):
        find_target_layer(Classifier(net, nn.Linear(4, 2)), torch.rand(1, 1, 4, 4))


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (torch.rand(2, 5), r"needs images \(expected .* got a tensor of shape \(2, 5\)\). For rows of features, use"),
        ({"input_ids": torch.ones(1, 3)}, "got dict.* For text, use attribute_tokens"),
        (torch.rand(0, 3, 8, 8), "needs images"),
        (torch.rand(1, 2, 28, 28), "small-cnn does not accept this input"),
    ],
)
def test_what_is_no_image_is_refused(x: Tensor | dict[str, Tensor], said: str) -> None:
    with pytest.raises(InputError, match=said):
        find_target_layer(build("small-cnn", input_shape=(3, 28, 28), n_classes=2), x)


def test_a_relu_in_place_is_told_from_the_layer_whose_tensor_it_returns() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert find_target_layer(Classifier(net, nn.Linear(3, 2)), torch.rand(1, 1, 8, 8)) == TargetLayer("backbone.1")


def test_a_net_that_writes_into_its_input() -> None:
    net = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(1, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = -torch.rand(1, 1, 8, 8)
    assert find_target_layer(Classifier(net, nn.Linear(3, 2)), x) == TargetLayer("backbone.1")
    assert (x < 0).all()


class SharedReLU(nn.Module):
    """One ReLU for all: its second run makes the last map, its third has none."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc, self.relu = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3), nn.Linear(3, 4), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.two(self.relu(self.one(x))))
        features: Tensor = self.relu(self.fc(x.mean(dim=(2, 3))))
        return features


def test_of_a_layer_that_runs_again_and_again_the_run_is_told() -> None:
    model, x = Classifier(SharedReLU(), nn.Linear(4, 2)), torch.rand(1, 1, 8, 8)
    assert find_target_layer(model, x) == find_target_layer(model, x, "relu") == TargetLayer("backbone.relu", run=1)
    activations, _ = activations_and_gradients(model, x, None, find_target_layer(model, x))
    net = model.backbone
    assert isinstance(net, SharedReLU)
    torch.testing.assert_close(activations, net.two(net.one(x).relu()).relu().detach())
    assert xgradcam(model, x, layer="relu").shape == (1, 8, 8)


class Patches(nn.Module):
    """A transformer's skeleton, with patches that are not as wide as they are high."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.first, self.last = nn.Conv2d(1, 6, (8, 4), (8, 4)), nn.LayerNorm(6), nn.LayerNorm(6)
        self.attention = HeadAttention()
        self.token = nn.Parameter(torch.rand(1, 1, 6))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        tokens = self.first(torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1))
        last: Tensor = self.last(tokens + self.attention(tokens))
        return last.mean(dim=1)


class HeadAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.split = nn.Identity()

    def forward(self, tokens: Tensor) -> Tensor:
        heads: Tensor = self.split(tokens.reshape(len(tokens), -1, 2, 3).transpose(1, 2))  # (N, heads, length, width)
        return heads.transpose(1, 2).flatten(2)


def test_tokens_have_the_grid_of_the_map_they_were_made_of() -> None:
    model, x = Classifier(Patches(), nn.Linear(6, 2)), torch.rand(1, 1, 32, 32)
    assert find_target_layer(model, x) == TargetLayer(
        "backbone.last", (4, 8)
    )  # no grid of a square image has 32 places


class Windows(nn.Module):
    """Four windows of every image become rows of their own for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.inner = nn.Conv2d(1, 3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        n = len(x)
        windows: Tensor = self.inner(x.reshape(n, 3, 2, 3, 2, 3).permute(0, 2, 4, 3, 5, 1).reshape(n * 4, 9, 3))
        return windows.reshape(n, -1, 3).mean(dim=1)


def test_windows_are_no_maps_of_the_image() -> None:
    model = Classifier(Windows(), nn.Linear(3, 2))
    assert find_target_layer(model, torch.rand(1, 1, 8, 8)) == TargetLayer("backbone.conv")


def test_what_nobody_reads_is_passed_over() -> None:
    class TwoBranches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.unread, self.tokens = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.read(x)
            self.tokens(self.unread(x).flatten(2).transpose(1, 2))
            return x.mean(dim=(2, 3))

    assert (
        find_target_layer(Classifier(TwoBranches(), nn.Linear(3, 2)), torch.rand(1, 1, 8, 8)).layer == "backbone.read"
    )


def test_a_flattened_map_is_not_taken_for_tokens() -> None:
    net = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(2), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    assert find_target_layer(Classifier(net, nn.Linear(16, 2)), torch.rand(1, 1, 8, 8)) == TargetLayer("backbone.1")


def test_masks_of_weights_are_not_taken_for_maps() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 2, 3), nn.Flatten())
    model = Classifier(net, nn.Linear(2, 2))
    prune(model, get_weight_masks(model))
    assert find_target_layer(model, torch.rand(2, 1, 8, 8)) == TargetLayer("backbone.1")  # behind it, one pixel is left


def test_parts_of_attention_count_only_where_there_is_nothing_else() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.gate = nn.Conv2d(1, 3, 3), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            gated: Tensor = x * self.gate(x)
            return gated.mean(dim=(2, 3))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention = nn.Conv2d(1, 1, 3), Attention()

        def forward(self, x: Tensor) -> Tensor:
            features: Tensor = self.attention(self.first(x))
            return features

    x = torch.rand(1, 1, 8, 8)
    assert find_target_layer(Classifier(Wrapped(), nn.Linear(3, 2)), x).layer == "backbone.first"
    alone = nn.Sequential(nn.Identity(), Attention())
    assert find_target_layer(Classifier(alone, nn.Linear(3, 2)), x).layer == "backbone.1.gate"


def test_looking_leaves_no_trace() -> None:
    model = build("small-cnn", input_shape=(1, 28, 28), n_classes=2).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        find_target_layer(model, torch.rand(2, 1, 28, 28))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(m.training and not m._forward_hooks for m in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
