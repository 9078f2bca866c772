"""Attributions: what they add up to, what a linear model makes of them, and where a cheating model has them."""

import sys
import warnings

import pytest
import torch
from torch import Tensor, nn

import spurless.explain.attribution as room
from spurless.core.errors import InputError, SpurlessWarning, UnknownNameError
from spurless.explain.attribution import ATTRIBUTIONS, attribute, compute_attribution_map, sum_magnitudes
from spurless.models import build
from spurless.models.classifier import Classifier


def cnn(smooth: bool = False) -> Classifier:
    """A net whose logits are far from those of black, with corners or with curves alone."""
    first: tuple[nn.Module, ...] = (nn.GELU(), nn.AvgPool2d(2)) if smooth else (nn.ReLU(inplace=True), nn.MaxPool2d(2))
    net = nn.Sequential(nn.Conv2d(2, 4, 3), *first, nn.Conv2d(4, 6, 2), nn.Tanh(), nn.Flatten())
    model = Classifier(net, nn.Linear(24, 3), name="net")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def differences(model: Classifier, x: Tensor, target: Tensor) -> Tensor:
    with torch.no_grad():
        both: Tensor = model(x) - model(torch.zeros_like(x))
    return both.gather(1, target[:, None])[:, 0]


@pytest.mark.parametrize(("how", "smooth"), [("integrated-gradients", True), ("deeplift", False)])
def test_attributions_add_up_to_the_difference_from_black(how: str, smooth: bool) -> None:
    model, x, target = cnn(smooth), torch.randn(5, 2, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    expected = differences(model, x, target)
    found = attribute(model, x, target, how=how)
    assert found.shape == x.shape
    error = (found.flatten(1).sum(dim=1) - expected).abs()
    assert (error < 0.01 * expected.abs()).all()  # 1 %


@pytest.mark.parametrize("how", list(ATTRIBUTIONS))
def test_on_a_linear_model(how: str) -> None:
    head = nn.Linear(3, 2)
    model, x = Classifier(nn.Identity(), head), torch.randn(4, 3)
    target = model(x).argmax(dim=1)
    weights = head.weight.detach()[target]
    expected = weights if how == "input-gradient" else weights * x
    torch.testing.assert_close(attribute(model, x, how=how), expected)
    assert compute_attribution_map(model, x, how=how).shape == (4, 3)  # rows have no channels to sum over


def test_more_steps_add_up_better_where_there_are_corners() -> None:
    model, x, target = cnn(), torch.randn(5, 2, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    few, many = (attribute(model, x, target, steps=steps).flatten(1).sum(dim=1) for steps in (5, 500))
    expected = differences(model, x, target)
    assert (many - expected).abs().sum() < 0.1 * (few - expected).abs().sum()


def test_the_result_does_not_depend_on_how_many_rows_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, target = cnn(), torch.randn(7, 2, 8, 8), torch.arange(7) % 3
    whole = {how: attribute(model, x, target, how=how, steps=10) for how in ATTRIBUTIONS}
    monkeypatch.setattr(room, "ROWS", 3)
    largest = []
    model.register_forward_pre_hook(lambda _module, inputs: largest.append(len(inputs[0])))
    for how, expected in whole.items():
        torch.testing.assert_close(attribute(model, x, target, how=how, steps=10), expected)
    assert max(largest) <= 6  # DeepLift runs images and black ones together


def test_maps_are_sizes_summed_over_channels_from_0_to_1() -> None:
    model, x = cnn(), torch.randn(3, 2, 8, 8)
    found, signed = (
        compute_attribution_map(model, x, how="gradient-x-input"),
        attribute(model, x, how="gradient-x-input"),
    )
    size = sum_magnitudes(signed)
    torch.testing.assert_close(size, signed[:, 0].abs() + signed[:, 1].abs())
    assert found.amin(dim=(1, 2)).tolist() == [0.0, 0.0, 0.0]
    torch.testing.assert_close(found.amax(dim=(1, 2)), torch.ones(3))
    assert found.flatten(1).argmax(dim=1).tolist() == size.flatten(1).argmax(dim=1).tolist()
    shrunk = Classifier(model.backbone, nn.Linear(24, 3))  # a logit so flat that all attributions are near 1e-9
    with torch.no_grad():
        for flat, steep in zip(shrunk.head.parameters(), model.head.parameters(), strict=True):
            flat.copy_(steep * 1e-9)
    torch.testing.assert_close(compute_attribution_map(shrunk, x, how="gradient-x-input"), found, rtol=1e-3, atol=1e-4)


def test_a_model_without_gradients_is_cold_and_not_nan() -> None:
    model = cnn()
    with torch.no_grad():
        model.head.get_parameter("weight").zero_()
    for how in ATTRIBUTIONS:
        assert compute_attribution_map(model, torch.randn(2, 2, 8, 8), how=how).eq(0).all()
    half = compute_attribution_map(model.half(), torch.randn(2, 2, 8, 8).half(), how="input-gradient")
    assert half.eq(0).all()


def test_maps_of_halves_have_room_for_the_sum_over_channels() -> None:
    steep = Classifier(nn.Flatten(), nn.Linear(12, 2)).half()
    with torch.no_grad():
        steep.head.get_parameter("weight").copy_(torch.arange(24).view(2, 12) * 2048)  # three channels: over 65,504
    found = compute_attribution_map(steep, torch.rand(1, 3, 2, 2).half(), torch.tensor([1]), how="input-gradient")
    assert found[0].flatten().tolist() == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0])


@pytest.mark.parametrize("how", list(ATTRIBUTIONS))
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_the_model_and_the_images_are_left_as_they_were(how: str, around: type) -> None:
    model = cnn().train()
    model.backbone.get_submodule("1").eval()
    with around():
        x = torch.randn(2, 2, 8, 8)
        values, modes = x.clone(), [m.training for m in model.modules()]
        attributes = [set(vars(m)) for m in model.modules()]
        attribute(model, x, how=how)
        assert torch.equal(x, values)
    assert not x.requires_grad
    assert x.grad is None
    assert [m.training for m in model.modules()] == modes
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())


class Reused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu, self.one, self.two = nn.ReLU(), nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.two(self.relu(self.one(x))))
        return out


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(3 * self.one(x))


def test_deeplift_says_what_it_cannot_go_through_and_cleans_up() -> None:
    model = Classifier(Reused(), nn.Linear(4, 2), name="net")
    names = [set(vars(m)) for m in model.modules()]
    with pytest.raises(InputError, match=r"DeepLift does not support net: .*used more than once.* separate module"):
        attribute(model, torch.randn(2, 3), how="deeplift")
    assert not any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in model.modules())
    assert [set(vars(m)) for m in model.modules()] == names
    attribute(model, torch.randn(2, 3), how="integrated-gradients")


def test_deeplift_warns_where_it_does_not_add_up() -> None:
    model = Classifier(Functional(), nn.Linear(8, 2), name="net")
    with pytest.warns(SpurlessWarning, match="do not add up for net"):
        attribute(model, torch.randn(4, 3) * 3, how="deeplift")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attribute(cnn(), torch.randn(2, 2, 8, 8), how="deeplift")


def test_what_cannot_be_attributed_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = cnn(), torch.randn(2, 2, 8, 8)
    with pytest.raises(
        UnknownNameError, match=r"No attribution is called 'integrated-gradient'. Did you mean 'integrated-gradients'"
    ):
        attribute(model, x, how="integrated-gradient")
    with pytest.raises(InputError, match=r"need a float tensor .* For text, use attribute_tokens"):
        attribute(model, {"input_ids": torch.ones(1, 3)})
    with pytest.raises(InputError, match=r"got torch.uint8"):
        attribute(model, torch.zeros(1, 2, 8, 8, dtype=torch.uint8))
    with pytest.raises(InputError, match="net has no class 3"):
        attribute(model, x, torch.tensor([3, 0]))
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(
        InputError, match=r"Integrated gradients need the package 'captum'. Install it with: pip install captum"
    ):
        attribute(model, x)
    with pytest.raises(InputError, match="DeepLift needs the package 'captum'"):
        attribute(model, x, how="deeplift")
    attribute(model, x, how="input-gradient")  # ours alone


def test_texts_have_a_map_too_without_the_marks() -> None:
    model = build("token-mean", input_shape=(6,), n_classes=2, vocabulary=32)
    x = {
        "input_ids": torch.tensor([[1, 9, 8, 2, 0, 0], [1, 7, 9, 8, 6, 2]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]),
    }
    found = compute_attribution_map(model, x, how="gradient-x-input")
    assert found.shape == (2, 6)
    assert found[0, [0, 3, 4, 5]].tolist() == found[1, [0, 5]].tolist() * 2 == [0.0] * 4
    torch.testing.assert_close(found.amax(dim=1), torch.ones(2))
    with pytest.raises(UnknownNameError, match="No attribution of tokens is called 'deeplift'"):
        compute_attribution_map(model, x, how="deeplift")
