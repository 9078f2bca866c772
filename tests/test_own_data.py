"""Own data and own models: every way to give them is audited as a whole, and as the plain module classifies them.

The images are read, and the accuracy is computed, without the package.
"""

import csv
import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import spurless as sp
from spurless.cli import main
from spurless.core.errors import InputError

CLASSES = ("zebra", "ant", "bee")  # not in the order of the alphabet
N, SIDE = 36, 32
FAST = ("--only", "worst-class", "--permutations", 19, "--device", "cpu", "--quiet")
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

NETS = """
import torch
from torch import nn


def body(channels):
    return nn.Sequential(nn.Conv2d(channels, 6, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


def gray():
    return nn.Sequential(*body(1), nn.Linear(24, 3))


def color():
    return nn.Sequential(*body(3), nn.Linear(24, 3))


def conv_head():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2), nn.ReLU(), nn.Conv2d(6, 3, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


class OneLogit(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = body(1)
        self.head = nn.Linear(24, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)
"""


@dataclass(frozen=True)
class Images:
    """Gray images with class numbers in the order of ``CLASSES``."""

    pixels: np.ndarray
    y: np.ndarray

    def x(self, channels: int) -> Tensor:
        return torch.from_numpy(self.pixels)[:, None].float().div(255).repeat(1, channels, 1, 1)

    def accuracy(self, net: nn.Module, channels: int, mean: Any = (0.0,), std: Any = (1.0,)) -> float:
        shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
        with torch.no_grad():
            output = net.eval()((self.x(channels) - shift) / scale)
        logits = getattr(output, "logits", output)
        predicted = (logits > 0).long() if logits.dim() == 1 else logits.argmax(dim=1)
        return float((predicted == torch.from_numpy(self.y)).double().mean())


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Images:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_COLOR", "1")
    random = np.random.default_rng(0)
    y = np.arange(N) % len(CLASSES)
    noise = random.integers(0, 90, (N, SIDE, SIDE), dtype=np.uint8)
    return Images(noise + (60 * y[:, None, None]).astype(np.uint8), y)


def calibrate(net: nn.Module, images: Images, channels: int, **normalization: Any) -> nn.Module:
    """Shift the last bias so that the predictions differ between examples and accuracies are not those of chance."""
    shift, scale = (
        torch.tensor(normalization.get(key, (start,))).view(-1, 1, 1) for key, start in (("mean", 0.0), ("std", 1.0))
    )
    last = [part for part in net.modules() if isinstance(part, nn.Linear | nn.Conv2d)][-1]
    with torch.no_grad():
        output = net.eval()((images.x(channels) - shift) / scale)
        logits = getattr(output, "logits", output)
        assert last.bias is not None
        last.bias -= logits.mean(dim=0)
    return net


def write_folder(images: Images, root: Path, inner: str = "") -> Path:
    for number, (pixels, label) in enumerate(zip(images.pixels, images.y, strict=True)):
        folder = root / CLASSES[label] / (inner.format(number % 2) if inner else "")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def write_csv(images: Images, path: Path) -> Path:
    write_folder(images, path.parent / "pictures")
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["file", "kind"])
        rows.writerows((f"pictures/{CLASSES[y]}/{i}.png", CLASSES[y]) for i, y in enumerate(images.y))
    return path


DOORS: dict[str, Callable[[Images, Path], tuple[object, ...]]] = {
    "folder": lambda images, root: (write_folder(images, root / "held"), "--classes", ",".join(CLASSES)),
    "nested": lambda images, root: (write_folder(images, root / "held", "s{}/deep"), "--classes", ",".join(CLASSES)),
    "val": lambda images, root: (write_folder(images, root / "held/val").parent, "--classes", ",".join(CLASSES)),
    "csv": lambda images, root: (write_csv(images, root / "a.csv"), "--label", "kind", "--classes", ",".join(CLASSES)),
}


def audit_cli(cli: Callable[..., str], data: tuple[object, ...], model: str) -> dict[str, Any]:
    cli("audit", "net.safetensors", "--data", *data, "--model", model, *FAST)
    facts: dict[str, Any] = json.loads(Path("audit.json").read_text())["facts"]
    assert facts["examples"] == N
    return facts


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call ``spurless``, check that it succeeds, and return what it prints."""

    def call(*words: object, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["spurless", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capfd.readouterr()
        assert end.value.code == status, err
        return out + err

    return call


@pytest.fixture
def nets(images: Images) -> Any:  # noqa: ARG001 - in the folder of the images
    """A file of own networks, as a module."""
    Path("nets.py").write_text(NETS)
    spec = importlib.util.spec_from_file_location("own_nets", "nets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("door", DOORS)
def test_files_are_audited_as_a_whole_with_the_channels_of_the_net(
    door: str, images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    net = calibrate(nets.gray(), images, 1)
    save_file(net.state_dict(), "net.safetensors")
    facts = audit_cli(cli, DOORS[door](images, tmp_path), "nets.py:gray")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, 1))
    assert facts["labels"] == list(CLASSES)
    assert facts["input"].startswith("1 channel, 32 x 32 pixels")
    assert str(N) in facts["audited"]


@pytest.mark.parametrize(("factory", "channels"), [("color", 3), ("conv_head", 1)])
def test_own_nets_of_other_kinds(
    factory: str, channels: int, images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    net = calibrate(getattr(nets, factory)(), images, channels)
    save_file(net.state_dict(), "net.safetensors")
    facts = audit_cli(cli, DOORS["folder"](images, tmp_path), f"nets.py:{factory}")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, channels))
    assert facts["input"].startswith(f"{channels} channel")


def test_a_net_with_one_logit_is_audited_evaluated_and_repaired(
    images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    two = Images(images.pixels[images.y < 2], images.y[images.y < 2])
    torch.manual_seed(0)
    net = calibrate(nets.OneLogit(), two, 1)
    if two.accuracy(net, 1) < 0.5:
        net.load_state_dict(
            {name: -value if name.startswith("head") else value for name, value in net.state_dict().items()}
        )
    save_file(net.state_dict(), "net.safetensors")
    data = ("--data", write_folder(two, tmp_path / "two"), "--classes", "zebra,ant", "--model", "nets.py:OneLogit")
    cli("audit", "net.safetensors", *data, *FAST)
    facts = json.loads(Path("audit.json").read_text())["facts"]
    assert (facts["examples"], facts["accuracy"]) == (len(two.y), pytest.approx(two.accuracy(net, 1)))
    write_folder(two, tmp_path / "only" / "test")
    record = json.loads(cli("eval", "net.safetensors", "--json", *data[:1], tmp_path / "only", *data[2:]))
    assert record["metrics"]["average"] == pytest.approx(two.accuracy(net, 1))
    fixed = sp.fix(net, sp.from_folder(tmp_path / "two", channels=1, classes=("zebra", "ant")), method="afr")
    assert fixed.model.n_classes == 2


def test_weights_with_plain_names_of_torchvision_get_its_normalization(
    images: Images, cli: Callable[..., str], tmp_path: Path
) -> None:
    import torchvision

    torch.manual_seed(0)
    net = calibrate(torchvision.models.resnet18(num_classes=3), images, 3, **IMAGENET)
    save_file(net.state_dict(), "net.safetensors")
    facts = audit_cli(cli, DOORS["folder"](images, tmp_path), "torchvision:resnet18")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, 3, **IMAGENET))
    assert "normalized with mean 0.485" in facts["input"]
    plain = audit_cli(
        cli, ("held", "--classes", ",".join(CLASSES), "--mean", "0", "--std", "1"), "torchvision:resnet18"
    )
    assert plain["accuracy"] == pytest.approx(images.accuracy(net, 3))
    assert plain["accuracy"] != facts["accuracy"]


def test_a_preprocessor_config_next_to_the_weights_is_used(
    images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    half = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
    net = calibrate(nets.color(), images, 3, **half)
    save_file(net.state_dict(), "net.safetensors")
    config = {"image_mean": half["mean"], "image_std": half["std"], "size": {"height": SIDE, "width": SIDE}}
    Path("preprocessor_config.json").write_text(json.dumps(config))
    facts = audit_cli(cli, DOORS["folder"](images, tmp_path), "nets.py:color")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, 3, **half))


@pytest.mark.slow
def test_weights_with_plain_names_of_timm_get_its_normalization(
    images: Images, cli: Callable[..., str], tmp_path: Path
) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = calibrate(timm.create_model("resnet10t", num_classes=3), images, 3, **IMAGENET)
    save_file(net.state_dict(), "net.safetensors")
    facts = audit_cli(cli, DOORS["folder"](images, tmp_path), "timm:resnet10t")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, 3, **IMAGENET))


@pytest.mark.slow
def test_the_conv_head_of_squeezenet_is_kept(images: Images, cli: Callable[..., str], tmp_path: Path) -> None:
    import torchvision

    torch.manual_seed(0)
    net = torchvision.models.squeezenet1_1(num_classes=3)
    save_file(net.state_dict(), "net.safetensors")
    facts = audit_cli(cli, DOORS["folder"](images, tmp_path), "torchvision:squeezenet1_1")
    assert facts["accuracy"] == pytest.approx(images.accuracy(net, 3, **IMAGENET))


class Pairs(torch.utils.data.Dataset[Any]):
    """A dataset of images and labels, with the names of its classes."""

    def __init__(self, images: Images) -> None:
        self.x, self.y, self.classes = images.x(1), images.y, list(CLASSES)

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.x[i], int(self.y[i])


def as_huggingface(images: Images) -> Any:
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=list(CLASSES)))
    return datasets.Dataset.from_dict({"image": [*images.pixels], "label": images.y.tolist()}, features=kinds)


OBJECTS: dict[str, Callable[[Images], Any]] = {
    "dataset": Pairs,
    "loader": lambda images: torch.utils.data.DataLoader(Pairs(images), batch_size=7),
    "loader-of-dicts": lambda images: torch.utils.data.DataLoader(
        [{"pixel_values": x, "labels": int(y)} for x, y in zip(images.x(1), images.y, strict=True)],  # type: ignore[arg-type]  # a list is a dataset
        batch_size=7,
    ),
    "huggingface": as_huggingface,
    "arrays": lambda images: (images.pixels, images.y),
    "tensors": lambda images: (images.x(1), torch.from_numpy(images.y)),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_audited_as_a_whole(kind: str, images: Images, nets: Any) -> None:
    torch.manual_seed(1)
    net = calibrate(nets.gray(), images, 1)
    audit = sp.audit(net, OBJECTS[kind](images), only=["worst-class"], permutations=19)
    assert audit.facts["examples"] == N
    assert audit.facts["accuracy"] == pytest.approx(images.accuracy(net, 1))


@pytest.mark.slow
def test_a_transformer_for_images_is_audited(images: Images) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=SIDE,
        patch_size=8, num_channels=1, num_labels=3,
    )  # fmt: skip
    net = calibrate(transformers.ViTForImageClassification(config), images, 1)
    audit = sp.audit(net, OBJECTS["loader-of-dicts"](images), only=["worst-class"], permutations=19)
    assert audit.facts["accuracy"] == pytest.approx(images.accuracy(net, 1))


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (torch.rand(6, 1, 8, 8), "no labels"),
        (torch.utils.data.DataLoader(torch.rand(6, 1, 8, 8)), "no labels"),  # type: ignore[arg-type]  # a tensor is a dataset
        ("held", "unknown kind"),
        (7, "unknown kind"),
    ],
    ids=["array", "loader", "path", "number"],
)
def test_what_is_no_labeled_data_is_refused(data: Any, field: str, nets: Any) -> None:
    with pytest.raises(InputError, match=field):
        sp.audit(nets.gray(), data)


@pytest.mark.parametrize(
    ("classes", "message"),
    [("zebra,ant", "'bee' is not in the list"), ("zebra,ant,bee,cow", "no example has the class 'cow'")],
)
def test_an_incomplete_or_unknown_list_of_classes_is_refused(
    classes: str, message: str, images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    save_file(nets.gray().state_dict(), "net.safetensors")
    folder = write_folder(images, tmp_path / "held")
    words = ("audit", "net.safetensors", "--data", folder, "--model", "nets.py:gray", "--classes", classes, *FAST)
    assert message in " ".join(cli(*words, status=2).split())
    assert not Path("audit.html").exists()


def test_the_classes_of_training_are_used_and_its_own_folder_is_not_audited_as_a_whole(
    images: Images, cli: Callable[..., str], tmp_path: Path
) -> None:
    folder = write_folder(images, tmp_path / "birds")
    words = ("--model", "small-cnn", "--steps", 2, "--device", "cpu", "--quiet")
    cli("fit", "erm", "--data", folder, "--classes", ",".join(CLASSES), "--channels", 1, *words)
    (weights,) = (tmp_path / "runs").glob("*.safetensors")
    cli("audit", weights, "--data", folder, *FAST)
    facts = json.loads(Path("audit.json").read_text())["facts"]
    assert facts["labels"] == list(CLASSES)
    assert facts["examples"] < N
    held = write_folder(images, tmp_path / "held")
    cli("audit", weights, "--data", held, *FAST)
    facts = json.loads(Path("audit.json").read_text())["facts"]
    assert (facts["labels"], facts["examples"]) == (list(CLASSES), N)
    cli("audit", weights, "--data", folder, "--part", "all", *FAST)
    assert json.loads(Path("audit.json").read_text())["facts"]["examples"] == N


def test_images_of_different_sizes_get_the_size_of_the_model(
    images: Images, cli: Callable[..., str], nets: Any, tmp_path: Path
) -> None:
    net = calibrate(nets.gray(), images, 1)
    save_file(net.state_dict(), "net.safetensors")
    folder = write_folder(images, tmp_path / "held")
    large = next(folder.rglob("*.png"))
    with Image.open(large) as image:
        image.resize((2 * SIDE, 2 * SIDE)).save(large)
    words = ("audit", "net.safetensors", "--data", folder, "--model", "nets.py:gray", *FAST)
    assert "differ in size" in cli(*words, status=2)
    config = {"image_mean": [0], "image_std": [1], "crop_size": {"height": SIDE, "width": SIDE}}
    Path("preprocessor_config.json").write_text(json.dumps(config))
    facts = audit_cli(cli, (folder,), "nets.py:gray")
    assert facts["input"].startswith(f"1 channel, {SIDE} x {SIDE} pixels")


def test_the_normalization_is_saved_with_the_weights_and_used_if_the_model_is_named(
    images: Images, cli: Callable[..., str], tmp_path: Path
) -> None:
    folder = write_folder(images, tmp_path / "held")
    data = sp.from_folder(folder, channels=1, classes=CLASSES)
    model = sp.build("small-cnn", data, seed=1, mean=0.4, std=0.1)
    plain = sp.build("small-cnn", data, seed=1)
    calibrate(plain, images, 1, mean=(0.4,), std=(0.1,))
    model.head.load_state_dict(plain.head.state_dict())
    sp.save_weights("net.safetensors", model)
    expected = images.accuracy(plain, 1, (0.4,), (0.1,))
    words = (folder, "--classes", ",".join(CLASSES), "--channels", 1)
    facts = audit_cli(cli, words, "small-cnn")
    assert facts["accuracy"] == pytest.approx(expected)
    assert facts["input"].endswith("normalized with mean 0.4 and standard deviation 0.1")


def test_a_bare_net_of_torchvision_that_gets_images_in_0_1_is_noted(images: Images) -> None:
    import torchvision

    from spurless.models import Normalize

    net = calibrate(torchvision.models.resnet18(num_classes=3), images, 3)
    data = (images.x(3), images.y)
    with pytest.warns(sp.SpurlessWarning, match=r"mean 0.485, 0.456, 0.406"):
        audit = sp.audit(net, data, only=["worst-class"], permutations=19)
    assert any("normalizes images" in note for note in audit.facts["notes"])
    normalized = nn.Sequential(Normalize(**IMAGENET), calibrate(net, images, 3, **IMAGENET))
    audit = sp.audit(normalized, data, only=["worst-class"], permutations=19)
    assert audit.facts["accuracy"] == pytest.approx(images.accuracy(net, 3, **IMAGENET))
    assert "notes" not in audit.facts
