"""Backgrounds by DeepLabV3: masks by hand, sizes there and back, torchvision's nets from files, and the page."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.figures import Figure
from spurless.data import load
from spurless.data.split import Splits
from spurless.explain import build_attribution_section
from spurless.models import build, save_weights

pytestmark = pytest.mark.slow

SPEC = spec_from_file_location("benchmark_backgrounds", Path(__file__).parents[2] / "benchmarks" / "backgrounds.py")
assert SPEC is not None
assert SPEC.loader is not None
script: Any = module_from_spec(SPEC)
SPEC.loader.exec_module(script)
find_backgrounds, load_deeplab = script.find_backgrounds, script.load_deeplab


class Bright(nn.Module):
    """Finds one of two kinds of objects where an image is bright; notes what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.seen.append(x)
        assert not self.training
        light = self.weight * x.mean(dim=1, keepdim=True)
        return {"out": torch.cat([torch.zeros_like(light), light - 0.5, light - 0.9], dim=1)}


def square(n: int = 3) -> Tensor:
    images = torch.zeros(n, 3, 16, 24, dtype=torch.uint8)
    images[:, :, 4:12, 8:20] = 255
    return images


def test_what_is_no_object_is_background() -> None:
    net = Bright().train()
    found = find_backgrounds(square(), net, side=32)
    assert found.shape == (3, 16, 24)
    expected = torch.ones(16, 24, dtype=torch.bool)
    expected[4:12, 8:20] = False
    assert torch.equal(found, expected.expand(3, -1, -1))
    assert net.training
    (x,) = net.seen
    assert x.shape == (3, 3, 32, 48)  # the shorter side
    assert [float(x.min()), float(x.max())] == pytest.approx([0, 1], abs=1e-6)


def test_grey_images_numbers_and_many_at_once_are_alike() -> None:
    whole = find_backgrounds(square(20), net := Bright(), side=16)
    assert [len(x) for x in net.seen] == [8, 8, 4]
    assert torch.equal(whole, find_backgrounds(square(20)[:, :1], Bright(), side=16))
    assert torch.equal(whole, find_backgrounds(square(20).float() / 255, Bright(), side=16))


def test_images_larger_than_the_side_are_made_smaller() -> None:
    found = find_backgrounds(square(1), net := Bright(), side=8)
    assert net.seen[0].shape == (1, 3, 8, 12)
    assert not found[0, 6:10, 10:18].any()
    assert found[0, :3].all()


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("images", "net", "match"),
    [
        (torch.zeros(2, 5), Bright(), r"not a batch of images .*got \(2, 5\)"),
        (torch.zeros(2, 2, 4, 4), Bright(), r"not a batch of images"),
        (square(1), Flat(), r"does not return scores of background and objects .*got \(1, 3\)"),
        (square(1), nn.Identity(), None),
    ],
)
def test_what_is_no_image_or_no_segmenter_is_refused(images: Tensor, net: nn.Module, match: str | None) -> None:
    if match is None:  # three channels are three classes, for all anybody knows
        assert find_backgrounds(images, net, side=4).shape == (1, 16, 24)
        return
    with pytest.raises(InputError, match=match):
        find_backgrounds(images, net, side=4)


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_net_is_told_by_its_weights(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make: Any = torchvision.models.get_model
    net = make("deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None, aux_loss=kind == "pt")
    path = tmp_path / f"net.{kind}"
    if kind == "pt":
        torch.save(net.state_dict(), path)
    else:
        save_file(net.state_dict(), path)
    read = load_deeplab(path)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = net.eval()((x - mean[:, None, None]) / std[:, None, None])["out"]
        torch.testing.assert_close(read.eval()(x)["out"], expected)
    assert torch.equal(find_backgrounds(x, read, side=64), expected.argmax(dim=1) == 0)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.pth: no such file"):
        load_deeplab(tmp_path / "gone.pth")
    (torn := tmp_path / "torn.pth").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"torn\.pth: the weights cannot be read"):
        load_deeplab(torn)
    torch.save({"backbone.layer1.0.conv1.weight": torch.zeros(1)}, other := tmp_path / "other.pth")
    with pytest.raises(InputError, match=r"other\.pth: the file does not have the weights of a DeepLabV3"):
        load_deeplab(other)


def test_without_a_network_it_is_said_where_the_weights_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"deeplabv3_resnet50 could not be read: no network\. Put .*hub/checkpoints"):
        load_deeplab()


def test_fractions_of_object_and_background() -> None:
    data = load("double-digits")
    x = torch.full((30, 1, 8, 16), 100, dtype=torch.uint8)
    x[:20, :, :, 10:] = 200  # an object in twenty of thirty
    split = replace(data.test.select(torch.arange(30)), x=x)
    left, right = (torch.zeros(8, 16, dtype=torch.bool) for _ in range(2))
    left[:, :10], right[:, 10:] = True, True
    nets = {"low": linear_on(left), "high": linear_on(right)}
    own = Splits(split, split, split, "own data")
    find = script.region_finder(Bright(), side=16)
    picture, figure = build_attribution_section(nets, own, count=30, find_regions=find).items
    assert isinstance(figure, Figure)
    bars = {trace["name"]: trace["y"] for trace in figure.spec["data"]}
    assert bars["background"] == pytest.approx([100, 0])
    assert bars["object"] == pytest.approx([0, 100])
    assert "Mean over 20 of 30 examples, those with object and background. low: 0.0 % object, 100.0 % b" in figure.alt
    assert "Entropy of a map, in nats: 4" in figure.alt  # of 80 and of 48 pixels: under 4.38 and 3.87
    lines = picture.caption.splitlines()[:-1]
    assert sum("100 % object" in line for line in lines) == 20
    assert sum("%" not in line for line in lines) == 10
    dark = replace(own, test=replace(split, x=torch.full_like(x, 90)))
    nothing = build_attribution_section(nets, dark, count=2, find_regions=find)
    assert len(nothing.items) == 1
    assert "None of 30 examples" in nothing.text


def linear_on(mask: Tensor) -> nn.Module:
    """Return a linear net that reads nothing outside a mask."""
    head = nn.Linear(mask.numel(), 10)
    head.weight.data = torch.randn(10, mask.numel(), generator=torch.Generator().manual_seed(0)) * mask.flatten()
    return nn.Sequential(nn.Flatten(), head)


def test_the_script_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.explain.figures.compare_models.MAX_AVERAGED", 3)
    torch.manual_seed(0)
    make: Any = torchvision.models.get_model
    torch.save(
        make("deeplabv3_mobilenet_v3_large", weights=None, weights_backbone=None).state_dict(), tmp_path / "n.pth"
    )
    data = load("colored-digits")
    for seed, name in enumerate(("low", "high")):
        save_weights(tmp_path / f"{name}.safetensors", build("mlp", data, seed=seed, width=8))
    words = [tmp_path / "low.safetensors", tmp_path / "high.safetensors", "--data", "colored-digits", "--count", 1]
    words += ["--segmenter", tmp_path / "n.pth", "--side", 32, "--device", "cpu", "--out", tmp_path / "page.html"]
    script.main([str(word) for word in words])
    assert "integrated-gradients" in (tmp_path / "page.html").read_text()
