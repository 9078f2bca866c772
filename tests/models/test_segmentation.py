"""Segmentation: masks by hand, sizes there and back, and torchvision's nets from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from spurless.core.errors import BadInput
from spurless.models.segmentation import backgrounds, deeplab


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
    found = backgrounds(square(), net, side=32)
    assert found.shape == (3, 16, 24)
    expected = torch.ones(16, 24, dtype=torch.bool)
    expected[4:12, 8:20] = False
    assert torch.equal(found, expected.expand(3, -1, -1))
    assert net.training
    (x,) = net.seen
    assert x.shape == (3, 3, 32, 48)  # the shorter side
    assert [float(x.min()), float(x.max())] == pytest.approx([0, 1], abs=1e-6)


def test_grey_images_numbers_and_many_at_once_are_alike() -> None:
    whole = backgrounds(square(20), net := Bright(), side=16)
    assert [len(x) for x in net.seen] == [8, 8, 4]
    assert torch.equal(whole, backgrounds(square(20)[:, :1], Bright(), side=16))
    assert torch.equal(whole, backgrounds(square(20).float() / 255, Bright(), side=16))


def test_images_larger_than_the_side_are_made_smaller() -> None:
    found = backgrounds(square(1), net := Bright(), side=8)
    assert net.seen[0].shape == (1, 3, 8, 12)
    assert not found[0, 6:10, 10:18].any()
    assert found[0, :3].all()


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.mean(dim=(2, 3))


@pytest.mark.parametrize(
    ("images", "net", "match"),
    [
        (torch.zeros(2, 5), Bright(), r"backgrounds are of images .*got \(2, 5\)"),
        (torch.zeros(2, 2, 4, 4), Bright(), r"backgrounds are of images"),
        (square(1), Flat(), r"no scores of background and objects .*got \(1, 3\)"),
        (square(1), nn.Identity(), None),
    ],
)
def test_what_is_no_image_or_no_segmenter_is_refused(images: Tensor, net: nn.Module, match: str | None) -> None:
    if match is None:  # three channels are three classes, for all anybody knows
        assert backgrounds(images, net, side=4).shape == (1, 16, 24)
        return
    with pytest.raises(BadInput, match=match):
        backgrounds(images, net, side=4)


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
    read = deeplab(path)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = net.eval()((x - mean[:, None, None]) / std[:, None, None])["out"]
        torch.testing.assert_close(read.eval()(x)["out"], expected)
    assert torch.equal(backgrounds(x, read, side=64), expected.argmax(dim=1) == 0)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"gone\.pth: no such file"):
        deeplab(tmp_path / "gone.pth")
    (torn := tmp_path / "torn.pth").write_bytes(b"nothing")
    with pytest.raises(BadInput, match=r"torn\.pth: these weights cannot be read"):
        deeplab(torn)
    torch.save({"backbone.layer1.0.conv1.weight": torch.zeros(1)}, other := tmp_path / "other.pth")
    with pytest.raises(BadInput, match=r"other\.pth: these are no weights of a DeepLabV3"):
        deeplab(other)


def test_without_a_network_it_is_said_where_the_weights_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"deeplabv3_resnet50 could not be read: no network\. Put .*hub/checkpoints"):
        deeplab()
