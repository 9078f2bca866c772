"""CAMs on paper, against pytorch-grad-cam, and on a model that is known to look at a square."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.data import load
from spurless.explain.cam import (
    activations_and_gradients,
    compute_coarse_map,
    gradcam,
    gradcam_weights,
    resize_maps,
    scale_to_unit_range,
    xgradcam,
    xgradcam_weights,
)
from spurless.explain.target_layer import NoFeatureMapError, TargetLayer, find_target_layer
from spurless.fitting import fit
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.wrapping import wrap
from spurless.train.run import Compute

NetMaker = Callable[[], tuple[nn.Module, nn.Module, Any]]


def on_paper() -> Classifier:
    """Two channels, x and 5 - x; class 0 reads [1, 0, 0, 2] of the first and [0, 0, 0, -5] of the second."""
    conv, head = nn.Conv2d(1, 2, 1), nn.Linear(8, 2)
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([1.0, -1.0]).view(2, 1, 1, 1))
        conv.get_parameter("bias").copy_(torch.tensor([0.0, 5.0]))
        head.weight.copy_(torch.tensor([[1.0, 0, 0, 2, 0, 0, 0, -5], [0.0, 0, 0, 0, 1, 0, 0, 0]]))
        head.bias.copy_(torch.tensor([9.0, 0.0]))
    return Classifier(nn.Sequential(conv, nn.ReLU(), nn.Flatten()), head)


X = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])


def test_xgradcam_on_paper() -> None:
    # w_1 = (1*1 + 2*4) / 10 = 0.9, w_2 = -5*1 / 10 = -0.5
    # 0.9 * [1, 2, 3, 4] - 0.5 * [4, 3, 2, 1] = [-1.1, 0.3, 1.7, 3.1]
    expected = torch.tensor([[[0.0, 0.3], [1.7, 3.1]]])
    activations, gradients = activations_and_gradients(on_paper(), X, None, TargetLayer("backbone.1"))
    assert activations.tolist() == [[[[1.0, 2.0], [3.0, 4.0]], [[4.0, 3.0], [2.0, 1.0]]]]
    assert gradients.tolist() == [[[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, -5.0]]]]
    torch.testing.assert_close(compute_coarse_map(activations, gradients, xgradcam_weights), expected)
    torch.testing.assert_close(xgradcam(on_paper(), X), expected / 3.1)


def test_gradcam_on_paper() -> None:
    # w_1 = 3/4, w_2 = -5/4: 0.75 * [1, 2, 3, 4] - 1.25 * [4, 3, 2, 1] = [-4.25, -2.25, -0.25, 1.75]
    activations, gradients = activations_and_gradients(on_paper(), X, None, TargetLayer("backbone.1"))
    assert gradcam_weights(activations, gradients).tolist() == [[0.75, -1.25]]
    torch.testing.assert_close(gradcam(on_paper(), X), torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]))


def test_another_class_has_another_map() -> None:
    # class 1: w = 0 and 4*1/10: 0.4 * [4, 3, 2, 1], from 0 to 1
    expected = torch.tensor([[[1.0, 2 / 3], [1 / 3, 0.0]]])
    torch.testing.assert_close(xgradcam(on_paper(), X, torch.tensor([1])), expected)


def resnet() -> tuple[nn.Module, nn.Module, Any]:
    import torchvision

    net = torchvision.models.resnet18(num_classes=7).eval()
    return net, net.layer4[-1], None


def vgg() -> tuple[nn.Module, nn.Module, Any]:
    import torchvision

    net = torchvision.models.vgg11(num_classes=7).eval()
    return net, net.features[19], None


def vit() -> tuple[nn.Module, nn.Module, Any]:
    from torchvision.models.vision_transformer import VisionTransformer

    net = VisionTransformer(64, 16, 3, 2, 32, 64, num_classes=7).eval()
    nn.init.normal_(net.heads.head.weight)  # zero from the start
    return net.double(), net.encoder.layers[-1].ln_1, _tokens((4, 4))


def timm_vit() -> tuple[nn.Module, nn.Module, Any]:
    timm = pytest.importorskip("timm", reason="the extra timm is not installed")
    net = timm.create_model("test_vit", num_classes=7, img_size=(64, 96)).eval()
    return net.double(), net.blocks[-1].norm1, _tokens((4, 6))


def _tokens(grid: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    return lambda tokens: tokens[:, 1:].reshape(len(tokens), *grid, -1).permute(0, 3, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "size", "given"),
    [
        (resnet, (96, 96), False),
        (resnet, (96, 96), True),
        (resnet, (96, 160), True),
        (vgg, (64, 96), False),
        (vit, (64, 64), False),
        (vit, (64, 64), True),
        (timm_vit, (64, 96), True),
    ],
)
def test_the_maps_of_pytorch_grad_cam(make: NetMaker, size: tuple[int, int], given: bool) -> None:
    package = pytest.importorskip("pytorch_grad_cam", reason="the package grad-cam is not installed")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    net, layer, tokens = make()
    model = wrap(net)  # a copy: the hooks of the other package are not on it
    x = torch.randn(3, 3, *size, dtype=next(net.parameters()).dtype)
    target = torch.tensor([6, 0, 3]) if given else None
    classes = None if target is None else [ClassifierOutputTarget(int(t)) for t in target]
    at = activations_and_gradients(model, x, target, find_target_layer(model, x))
    for draw, weigh, theirs in ((xgradcam, xgradcam_weights, "XGradCAM"), (gradcam, gradcam_weights, "GradCAM")):
        with getattr(package, theirs)(net, [layer], tokens) as cam:
            expected = torch.from_numpy(cam(x, classes))
            kept = cam.activations_and_grads
            raw = cam.get_cam_image(x, layer, classes, kept.activations[0].numpy(), kept.gradients[0].numpy())
        assert (expected.amax(dim=(1, 2)) > 0.9).sum() >= 2  # most of the maps show something
        torch.testing.assert_close(draw(model, x, target).float(), expected, rtol=0, atol=1e-5)
        coarse = compute_coarse_map(*at, weigh)
        scale = float(coarse.max())
        torch.testing.assert_close(coarse / scale, torch.from_numpy(raw).clamp(min=0) / scale, rtol=0, atol=1e-5)


def test_enlarging_is_that_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2", reason="opencv comes with the package grad-cam")
    coarse = torch.rand(1, 5, 3)
    for size in ((28, 28), (40, 18), (3, 2)):
        expected = torch.from_numpy(cv2.resize(coarse[0].numpy(), size[::-1]))
        torch.testing.assert_close(resize_maps(coarse, size)[0], expected, rtol=0, atol=1e-5)


def test_a_map_does_not_depend_on_the_batch_it_is_drawn_in(warm: Classifier) -> None:
    x = torch.rand(6, 1, 28, 28)
    together = xgradcam(warm, x)
    assert (together.amax(dim=(1, 2)) > 0.99).all()
    alone = torch.cat([xgradcam(warm, one[None]) for one in x])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(xgradcam(warm, x.flip(0)).flip(0), together, rtol=0, atol=1e-5)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_maps_are_drawn_where_gradients_are_off(warm: Classifier, around: type) -> None:
    x = torch.rand(2, 1, 28, 28)
    expected = xgradcam(warm, x)
    assert expected.max() > 0.99
    with around():
        found = xgradcam(warm, x)
    assert not found.requires_grad
    torch.testing.assert_close(found, expected)
    with around():
        inside = xgradcam(warm, x.clone())  # the images, too, come from there
    torch.testing.assert_close(inside.clone(), expected)


def test_the_model_is_left_as_it_was(warm: Classifier) -> None:
    model = warm
    model.backbone.get_submodule("norm1").eval()
    x = torch.rand(4, 1, 28, 28, requires_grad=True)
    torch.autograd.backward(model(x).sum())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    grads = [torch.clone(p.grad) for p in model.parameters() if p.grad is not None]
    of_x = torch.clone(x.grad) if x.grad is not None else None
    xgradcam(model, x)
    with pytest.raises(InputError):
        xgradcam(model, x, torch.tensor([9, 9, 9, 9]))  # no such class: found out after the forward pass
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert all(p.requires_grad for p in model.parameters())
    assert all(p.grad is not None and torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert of_x is not None
    assert x.grad is not None
    assert torch.equal(x.grad, of_x)
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


class Watched(torch.autograd.Function):
    """Multiplies by a weight, and remembers whose gradients were asked for."""

    asked: list[tuple[bool, ...]]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Watched.asked.append(ctx.needs_input_grad)
        return gradient * ctx.saved_tensors[0], None


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = Watched.apply(x, self.weight)
        return scaled


def test_the_way_back_ends_at_the_layer_and_no_weight_has_a_gradient() -> None:
    Watched.asked = []
    net = nn.Sequential(Scale(), nn.Conv2d(1, 3, 3), nn.ReLU(), Scale(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Scale())
    xgradcam(Classifier(net, nn.Linear(3, 2)), torch.rand(2, 1, 6, 6), layer="backbone.2")
    assert Watched.asked == [(True, False)] * 2  # the two behind the layer, for their input alone


def test_dead_and_constant_activations_are_cold_and_not_nan() -> None:
    model = build("small-cnn", input_shape=(1, 28, 28), n_classes=2)
    with torch.no_grad():
        model.backbone.get_submodule("norm4").get_parameter("bias").fill_(-1e3)  # every ReLU is off
    x = torch.rand(2, 1, 28, 28)
    for draw in (xgradcam, gradcam):
        assert draw(model, x).eq(0).all()
        assert (
            draw(build("pooled-cnn", input_shape=(1, 28, 28), n_classes=2), torch.zeros(2, 1, 28, 28)).isfinite().all()
        )
    one = on_paper()
    assert xgradcam(one, torch.full((1, 1, 2, 2), 2.5), torch.tensor([0])).eq(0).all()  # the same heat everywhere
    assert scale_to_unit_range(torch.zeros(2, 3, 3)).eq(0).all()


def test_a_layer_that_is_written_into_or_runs_twice() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True), nn.Flatten())
    model = Classifier(net, on_paper().head)
    net.load_state_dict(on_paper().backbone.state_dict())
    x = torch.tensor([[[[-1.0, 2.0], [3.0, 6.0]]]])
    activations, gradients = activations_and_gradients(model, x, torch.tensor([0]), TargetLayer("backbone.0"))
    assert activations[0, 0].tolist() == [[-1.0, 2.0], [3.0, 6.0]]  # before the ReLU
    assert gradients[0, 0].tolist() == [[0.0, 0.0], [0.0, 2.0]]
    shared = nn.ReLU()
    twice = Classifier(nn.Sequential(shared, nn.Conv2d(1, 2, 1), shared, nn.Flatten()), on_paper().head)
    twice.backbone.get_submodule("1").load_state_dict(net[0].state_dict())
    activations, _ = activations_and_gradients(twice, X, torch.tensor([0]), TargetLayer("backbone.0"))
    assert activations.shape == (1, 2, 2, 2)  # where it ran last


def test_a_layer_that_returns_a_tuple() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x, "kept"

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pair = nn.Sequential(on_paper().backbone[0], nn.ReLU()), Pair()  # type: ignore[index]

        def forward(self, x: Tensor) -> Tensor:
            out, word = self.pair(self.first(x))
            assert word == "kept"
            flat: Tensor = out.flatten(1)
            return flat

    model = Classifier(Net(), on_paper().head)
    torch.testing.assert_close(xgradcam(model, X, layer="pair"), xgradcam(on_paper(), X))


def test_half_precision_gives_float32_maps(warm: Classifier) -> None:
    x = torch.rand(2, 1, 28, 28)
    full, half = xgradcam(warm, x), xgradcam(warm.bfloat16(), x.bfloat16())
    assert half.dtype == torch.float32
    assert (full - half).abs().mean() < 0.05


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("backbone.relu9", r"has no layer 'backbone.relu9'. Did you mean 'backbone.relu\d'"),
        ("backbone.hidden", "the output of layer 'backbone.hidden' is not a map of the image"),
    ],
)
def test_a_layer_that_will_not_do_is_a_sentence(layer: str, said: str) -> None:
    model = build("small-cnn", input_shape=(1, 28, 28), n_classes=2)
    with pytest.raises(InputError, match=said):
        xgradcam(model, torch.rand(1, 1, 28, 28), layer=layer)


def test_a_layer_that_is_not_read_is_a_sentence() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unread, self.unused, self.again = nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 1), nn.Conv2d(1, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.unread(x)
            read: Tensor = self.again(x).flatten(1)
            self.again(x)  # its last run is for nobody
            return read

    model = Classifier(Net(), nn.Linear(8, 2), name="net")
    for layer in ("unread", "unused", "again"):
        with pytest.raises(InputError, match=f"the logits of net do not depend on layer 'backbone.{layer}'"):
            xgradcam(model, X, layer=layer)
        with pytest.raises(InputError, match=f"the logits of net do not depend on layer 'backbone.{layer}'"):
            xgradcam(model, X, layer=TargetLayer(f"backbone.{layer}"))


def test_a_net_without_maps_and_rows_are_refused() -> None:
    with pytest.raises(NoFeatureMapError, match="integrated-gradients"):
        xgradcam(build("mlp", input_shape=(1, 8, 8), n_classes=2), torch.rand(1, 1, 8, 8))
    with pytest.raises(InputError, match="needs images"):
        xgradcam(build("mlp", input_shape=(5,), n_classes=2), torch.rand(3, 5))


def test_a_model_that_cheats_is_hot_where_the_square_is() -> None:
    data = load("patched-digits", conflicting=0.0)
    model = fit(
        "erm",
        build("small-cnn", data),
        data,
        train={"steps": 60, "batch_size": 64, "lr": 0.01, "momentum": 0.9},
        compute=Compute(device="cpu"),
    ).model
    marked = data.test.select(data.test.a == 0)
    x = marked.example(len(marked))
    assert isinstance(x, Tensor)
    for draw, share in ((xgradcam, 0.6), (gradcam, 0.4)):
        heat = draw(model, x, torch.zeros(len(x), dtype=torch.long))
        corner = heat[:, :10, :10].sum(dim=(1, 2)) / heat.sum(dim=(1, 2)).clamp(min=1e-6)
        assert corner.mean() > share  # in 100 of 784 pixels: chance is 0.13; three seeds give 0.74 and 0.51 at least
        hottest = heat.flatten(1).argmax(dim=1)
        assert ((hottest // 28 < 10) & (hottest % 28 < 10)).float().mean() > 0.9
