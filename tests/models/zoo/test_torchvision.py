"""The torchvision zoo: every name builds, the head fits, and nothing is downloaded unasked."""

from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision.models as tv
from torch import nn

from spurless.core.errors import InputError, UnknownNameError
from spurless.models import build
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


def test_without_a_network_pretrained_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
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
