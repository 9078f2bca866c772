"""The torchvision zoo: every name builds, the head fits, and nothing is downloaded unasked."""

import os
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision.models as tv
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models.resnet import Bottleneck

from spurless.core.errors import InputError, UnknownNameError
from spurless.models import build, load_weights, save_weights
from spurless.models.weights import read_weights_info
from spurless.models.zoo.torchvision import TorchvisionConfig, list_torchvision_models, torchvision_model

FRESH = TorchvisionConfig()


@pytest.mark.parametrize("name", [n for n in tv.list_models(module=tv) if not n.startswith("regnet")])
def test_every_model_gets_a_linear_head(name: str) -> None:
    side = 299 if name == "inception_v3" else 224
    with torch.device("meta"):  # shapes only: neither memory nor time for the weights
        model = torchvision_model(name, (3, side, side), 7, FRESH)
    assert model.n_classes == 7
    assert not model.trained
    assert isinstance(model.head, nn.Linear)


@pytest.mark.parametrize("name", ["regnet_x_400mf", "regnet_y_400mf"])
def test_regnets_too(name: str) -> None:  # they compute their widths with tensors, so not on meta
    assert build(f"torchvision:{name}", input_shape=(3, 32, 32), n_classes=7).n_classes == 7


def test_resnet18_has_the_published_number_of_parameters() -> None:
    assert torchvision_model("resnet18", (3, 32, 32), 1000, FRESH).parameters_count == 11_689_512


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (3, 28, 28)),
        ("resnet18", (1, 28, 28)),
        ("squeezenet1_1", (3, 32, 32)),
        ("googlenet", (1, 32, 32)),
        ("mobilenet_v3_small", (3, 32, 32)),
    ],
)
def test_it_runs_and_unwraps(name: str, shape: tuple[int, int, int]) -> None:
    model, x = build(f"torchvision:{name}", input_shape=shape, n_classes=4), torch.randn(2, *shape)
    assert model.train()(x).shape == (2, 4)
    model.eval()
    assert torch.equal(model.unwrap()(x), model(x))


def test_a_grey_image_is_repeated() -> None:
    grey = build("torchvision:resnet18", input_shape=(1, 28, 28), n_classes=4).eval()
    colour = build("torchvision:resnet18", input_shape=(3, 28, 28), n_classes=4).eval()
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(grey(x), colour(x.repeat(1, 3, 1, 1)))  # the same seed, so the same weights


def test_squeezenet_features_are_its_pooled_last_map() -> None:
    model, x = (
        build("torchvision:squeezenet1_1", input_shape=(3, 32, 32), n_classes=4).eval(),
        torch.randn(2, 3, 32, 32),
    )
    maps = model.backbone.get_submodule("features")(x)
    torch.testing.assert_close(model.features(x), maps.mean(dim=(2, 3)))


def test_pretrained_weights_come_from_the_cache_with_a_fresh_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tv.shufflenet_v2_x0_5()
    url = tv.get_model_weights("shufflenet_v2_x0_5").DEFAULT.url
    file = tmp_path / "hub" / "checkpoints" / Path(url).name
    file.parent.mkdir(parents=True)
    torch.save(published.state_dict(), file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    model = build("torchvision:shufflenet_v2_x0_5", input_shape=(3, 32, 32), n_classes=3, pretrained=True)
    assert torch.equal(model.backbone.get_submodule("1.conv1.0").get_parameter("weight"), published.conv1[0].weight)
    assert (model.n_classes, model.trained) == (3, False)
    given: dict[str, Any] = {"input_shape": (3, 32, 32), "n_classes": 3, "pretrained": True, "normalise": False}
    plain, x = build("torchvision:shufflenet_v2_x0_5", **given), torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's
    normal = (x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
    torch.testing.assert_close(model.eval().features(x), plain.eval().features(normal))

    torch.save(published, file)  # a whole pickled module, which could run anything
    with pytest.raises(InputError, match="the weights of torchvision:shufflenet_v2_x0_5 could not be read"):
        build("torchvision:shufflenet_v2_x0_5", input_shape=(3, 32, 32), n_classes=3, pretrained=True)


def test_without_a_network_pretrained_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path))

    def offline(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"could not be read: .*no network.*Put https://.* of TORCH_HOME"):
        build("torchvision:resnet18", input_shape=(3, 32, 32), n_classes=3, pretrained=True)


def test_a_transformer_is_built_for_the_size_of_the_input() -> None:
    with torch.device("meta"):
        model = torchvision_model("vit_b_16", (3, 32, 32), 3, FRESH)
        assert model(torch.empty(1, 3, 32, 32)).shape == (1, 3)


def test_too_small_an_input_is_a_sentence() -> None:
    with pytest.raises(InputError, match=r"torchvision:alexnet does not accept inputs of shape \(3, 16, 16\)"):
        build("torchvision:alexnet", input_shape=(3, 16, 16), n_classes=3)


def test_two_channels_are_refused() -> None:
    with pytest.raises(InputError, match=r"takes images of 1 or 3 channels .got 2."):
        build("torchvision:resnet18", input_shape=(2, 32, 32), n_classes=3)


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"No torchvision model is called 'resnet19'. Did you mean 'resnet18'"):
        build("torchvision:resnet19", input_shape=(3, 32, 32), n_classes=3)
    assert "resnet18" in list_torchvision_models()


def resnet50_with_v1_strides() -> tv.ResNet:
    """torchvision's ResNet-50 with the strides of version 1, set by hand."""
    net = tv.resnet50()
    for layer in (net.layer2, net.layer3, net.layer4):
        block = layer[0]
        assert isinstance(block, Bottleneck)
        assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    return net


def publish(net: nn.Module, path: Path, metadata: dict[str, str] | None = None, without: str = "none") -> Path:
    """Write weights in half precision, as they are published."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value for name, value in net.state_dict().items() if not name.startswith(f"{without}.")}
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    save_file(half, path, metadata)
    return path


def normalised(x: torch.Tensor) -> torch.Tensor:
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])  # ImageNet's
    return (x - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)


def reference_features(net: tv.ResNet, file: Path, x: torch.Tensor) -> torch.Tensor:
    """The features of a plain torchvision network with the weights of a file."""
    net.load_state_dict(load_file(file), strict=False)
    net.fc = nn.Identity()
    with torch.no_grad():
        features: torch.Tensor = net.eval()(normalised(x))
    return features


def test_a_trunk_in_the_data_folder_gets_a_new_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = publish(tv.resnet18(), tmp_path / "weights" / "resnet18_imagenet_fp16.safetensors", without="fc")
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path))
    x = torch.rand(2, 3, 40, 40)
    model = build("torchvision:resnet18", input_shape=(3, 40, 40), n_classes=3, pretrained=True).eval()
    with torch.no_grad():
        torch.testing.assert_close(model.features(x), reference_features(tv.resnet18(), file, x))
    assert (model.n_classes, model.trained, "strides" in model.options) == (3, False, False)
    other = build("torchvision:resnet18", input_shape=(3, 40, 40), n_classes=3, seed=1, pretrained=True)
    assert not torch.equal(model.head.get_parameter("weight"), other.head.get_parameter("weight"))
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "metadata", "strides"),
    [
        ("resnet50_imagenet.safetensors", {"stride": "v1: on conv1"}, "v1"),
        ("resnet50_v1_imagenet.safetensors", None, "v1"),
        ("resnet50_imagenet_v1.5.safetensors", {"stride": "v1.5"}, "v1.5"),
    ],
)
def test_a_file_sets_the_strides_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, metadata: dict[str, str] | None, strides: str
) -> None:
    file = publish(tv.resnet50(), tmp_path / "weights" / name, metadata)
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path))
    x = torch.rand(2, 3, 48, 40)
    model = build("torchvision:resnet50", input_shape=(3, 48, 40), n_classes=3, pretrained=True).eval()
    reference = resnet50_with_v1_strides() if strides == "v1" else tv.resnet50()
    with torch.no_grad():
        torch.testing.assert_close(model.features(x), reference_features(reference, file, x))
    assert model.options["strides"] == strides


def test_the_strides_are_stored_with_saved_weights(tmp_path: Path) -> None:
    file = publish(tv.resnet50(), tmp_path / "resnet50.safetensors", {"stride": "v1"})
    given: dict[str, Any] = {"input_shape": (3, 32, 32), "n_classes": 3}
    model = build("torchvision:resnet50", **given, weights=str(file)).eval()
    save_weights(tmp_path / "saved.safetensors", model)
    stored = read_weights_info(tmp_path / "saved.safetensors")["options"]
    assert stored["strides"] == "v1"
    publish(tv.resnet50(), file)  # a file that says nothing does not change what was saved
    again = build("torchvision:resnet50", **{**stored, "input_shape": (3, 32, 32)}).eval()
    load_weights(tmp_path / "saved.safetensors", again)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(x), again(x))


def test_strides_can_be_chosen_and_are_refused_without_bottlenecks() -> None:
    with torch.device("meta"):
        model = torchvision_model("resnext50_32x4d", (3, 32, 32), 3, TorchvisionConfig(strides="v1"))
        assert model.get_submodule("backbone.layer2.0.conv1").stride == (2, 2)
        assert model.get_submodule("backbone.layer2.0.conv2").stride == (1, 1)
        assert model.get_submodule("backbone.layer1.0.conv1").stride == (1, 1)
        with pytest.raises(InputError, match="has no bottlenecks") as caught:
            torchvision_model("resnet18", (3, 32, 32), 3, TorchvisionConfig(strides="v1"))
    assert caught.value.got == "v1"


def test_the_weights_of_another_torchvision_model_are_refused(tmp_path: Path) -> None:
    file = publish(tv.resnet18(), tmp_path / "some.safetensors")
    given: dict[str, Any] = {"input_shape": (3, 32, 32), "n_classes": 3, "weights": str(file)}
    for name in ("resnet34", "squeezenet1_1"):
        with pytest.raises(InputError, match=f"does not have the weights of torchvision:{name}") as caught:
            build(f"torchvision:{name}", **given)
        assert caught.value.where == file
    wide = tv.resnet18()
    wide.conv1 = nn.Conv2d(4, 64, 7, 2, 3, bias=False)
    publish(wide, file)
    with pytest.raises(InputError, match=r"conv1.weight has another shape .*\(64, 3, 7, 7\), got \(64, 4, 7, 7\)"):
        build("torchvision:resnet18", **given)
    file.write_bytes(b"not one")
    with pytest.raises(InputError, match="not a complete safetensors file"):
        build("torchvision:resnet18", **given)


def test_timm_refuses_weights_for_other_strides(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    file = publish(tv.resnet50(), tmp_path / "resnet50.safetensors", {"stride": "v1"})
    with pytest.raises(InputError, match="strides of version 1") as caught:
        build("timm:resnet50", input_shape=(3, 32, 32), n_classes=3, weights=str(file))
    assert caught.value.hint == "Use torchvision:resnet50."


@pytest.mark.data
@pytest.mark.parametrize(("name", "strides"), [("resnet18", None), ("resnet50", "v1")])
@pytest.mark.parametrize("side", [32, 160])
def test_the_real_weights_give_the_outputs_of_torchvision(name: str, strides: str | None, side: int) -> None:
    file = Path(os.environ.get("SPURLESS_DATA", "nowhere")) / "weights" / f"{name}_imagenet_fp16.safetensors"
    if not file.is_file():
        pytest.skip(f"{file} does not exist")
    x = torch.rand(2, 3, side, side)
    model = build(f"torchvision:{name}", input_shape=(3, side, side), n_classes=5, pretrained=True).eval()
    reference = resnet50_with_v1_strides() if name == "resnet50" else tv.resnet18()
    with torch.no_grad():
        torch.testing.assert_close(model.features(x), reference_features(reference, file, x))
    assert model.options.get("strides") == strides
