"""No requests: what a weights file or a folder contains never decides that a connection is opened."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from spurless.cli import main
from spurless.core.errors import InputError
from spurless.data import from_folder
from spurless.models import build, load_weights, save_weights

SIDE = 32
COMMANDS = ("eval", "audit", "fix", "explain")
SIZES = {"vocab_size": 60, "max_position_embeddings": 16, "hidden_size": 8, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 1, "intermediate_size": 8}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Close all sockets, and return what was tried to connect to."""
    tried: list[object] = []

    def fail(*args: object, **_: object) -> None:
        tried.append(args[-1] if isinstance(args[0], socket.socket) else args[0])
        raise OSError("the network is closed")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, fail)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, fail)
    return tried


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str]]:
    """Call ``spurless`` in a private folder; return status and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("SPURLESS_DATA", str(tmp_path / "data"))

    def run(*words: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["spurless", *map(str, words)])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, capfd.readouterr().err

    return run


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for shade, label in ((40, "dark"), (200, "light")):
        for i in range(15):
            path = tmp_path / "pictures" / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIDE, SIDE), (shade + i, shade, i)).save(path)
    return tmp_path / "pictures"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    rows = [f"{('good', 'bad')[i % 2]} film {i % 7},{('yes', 'no')[i % 2]}" for i in range(60)]
    (tmp_path / "texts.csv").write_text("\n".join(["text,y", *rows]) + "\n")
    return tmp_path / "texts.csv"


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A tiny encoder with its tokenizer."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", *map(str, range(7))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "encoder")
    transformers.BertModel(transformers.BertConfig(**SIZES)).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def rewrite(path: Path, **changes: Any) -> Path:
    """Change what a weights file states about its model."""
    with safe_open(path, framework="pt") as file:
        info = json.loads(file.metadata()["spurless"])
    info["options"] |= changes.pop("options", {})
    save_file(load_file(path), path, metadata={"spurless": json.dumps({**info, **changes})})
    return path


def image_weights(path: Path, name: str, pictures: Path) -> Path:
    """Save a model as one with pretrained weights is saved, except that its metadata have no ``pretrained``."""
    model = build(name, from_folder(pictures), pretrained=True, load_pretrained=False)
    model.trained = True
    save_weights(path, model)
    return rewrite(path, options={"pretrained": False})


@pytest.mark.parametrize("name", ["torchvision:squeezenet1_1", "timm:test_resnet"])
@pytest.mark.parametrize(
    "command", [COMMANDS[0], *(pytest.param(word, marks=pytest.mark.slow) for word in COMMANDS[1:])]
)
def test_pretrained_in_the_metadata_makes_no_request(
    command: str, name: str, call: Callable[..., Any], pictures: Path, tmp_path: Path, requests: list[object]
) -> None:
    weights = rewrite(image_weights(tmp_path / "w.safetensors", name, pictures), options={"pretrained": True})
    more = ["--method", "class-balanced-head"] if command == "fix" else []
    more += ["--permutations", "9", "--only", "worst-class"] if command == "audit" else []
    status, errors = call(command, weights, "--data", pictures, *more)
    assert (status, requests) == (0, []), errors


@pytest.mark.parametrize("name", ["torchvision:squeezenet1_1", "timm:test_resnet"])
def test_pretrained_with_given_weights_makes_no_request(
    name: str, call: Callable[..., Any], pictures: Path, tmp_path: Path, requests: list[object]
) -> None:
    weights = image_weights(tmp_path / "w.safetensors", name, pictures)
    status, errors = call("eval", weights, "--data", pictures, "-O", "pretrained=true")
    assert (status, requests) == (0, []), errors


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchvision:squeezenet1_1", "timm:test_resnet"])
def test_fitting_pretrained_models_with_given_weights_makes_no_request(
    name: str, call: Callable[..., Any], pictures: Path, tmp_path: Path, requests: list[object]
) -> None:
    weights = image_weights(tmp_path / "w.safetensors", name, pictures)
    model = ["--model", name, "-O", "pretrained=true", "--data", pictures]
    status, errors = call("fit", "class-balanced-head", *model, "--weights", weights, "--steps", 2, "--device", "cpu")
    assert (status, requests) == (0, []), errors
    assert call("fit", "erm", *model, "--steps", 2)[0] == 2
    assert requests != []  # without weights, they are downloaded as the user wants


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "timm:hf-hub:owner/name"},
        pytest.param({"name": "timm:hf_hub:owner/name"}, marks=pytest.mark.slow),
        pytest.param({"name": "timm:local-dir:/etc"}, marks=pytest.mark.slow),
        {"name": "hf:owner/name"},
        pytest.param({"name": "transformers:owner/name"}, marks=pytest.mark.slow),
        pytest.param({"name": "transformers:bert-base-uncased"}, marks=pytest.mark.slow),
        pytest.param({"name": "transformers:owner/name, two encoders"}, marks=pytest.mark.slow),
        pytest.param({"name": "torchvision:https://example.com/w.pth"}, marks=pytest.mark.slow),
        pytest.param({"name": "https://example.com/w"}, marks=pytest.mark.slow),
        pytest.param({"options": {"load_pretrained": True, "pretrained": True}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_hostile_metadata_are_one_line_and_make_no_request(
    changes: dict[str, Any],
    call: Callable[..., Any],
    pictures: Path,
    texts: Path,
    tmp_path: Path,
    requests: list[object],
) -> None:
    weights = rewrite(image_weights(tmp_path / "w.safetensors", "torchvision:mnasnet0_5", pictures), **changes)
    for command in COMMANDS[::3]:
        for data in ([pictures], [texts, "--text", "text", "--label", "y"]):
            status, errors = call(command, weights, "--data", *data)
            assert (status, requests) == (2, []), (command, errors)
            assert len([line for line in errors.splitlines() if "warning:" not in line]) == 1, errors


@pytest.mark.slow
@pytest.mark.parametrize("file", ["https://example.com/w.safetensors", "/no/such/w.safetensors"])
def test_the_file_that_training_started_from_is_not_read_again(
    file: str, call: Callable[..., Any], pictures: Path, tmp_path: Path, requests: list[object]
) -> None:
    weights = image_weights(tmp_path / "w.safetensors", "torchvision:mnasnet0_5", pictures)
    changed = rewrite(weights, options={"weights": file})
    status, errors = call("eval", changed, "--data", pictures)
    assert (status, requests) == (0, []), errors


def test_weights_of_an_encoder_in_a_folder_make_no_request(
    call: Callable[..., Any], texts: Path, encoder: Path, tmp_path: Path, requests: list[object]
) -> None:
    data = ["--data", texts, "--text", "text", "--label", "y", "-D", "max_length=8"]
    status, errors = call("fit", "erm", *data, "--model", f"hf:{encoder}", "--steps", 2, "--device", "cpu")
    assert (status, requests) == (0, []), errors
    (weights,) = (tmp_path / "runs").glob("*.safetensors")
    (encoder / "model.safetensors").unlink()  # not needed again
    status, errors = call("eval", weights, *data)
    assert (status, requests) == (0, []), errors


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "dpt", "backbone": "microsoft/resnet-50", "use_pretrained_backbone": True, "hidden_size": 8},
        {"model_type": "detr", "backbone": "resnet50", "use_timm_backbone": True, "use_pretrained_backbone": True},
        {"model_type": "bert", "_name_or_path": "owner/name", "auto_map": {"AutoConfig": "owner/name--own.Own"}},
        {"model_type": "own", "auto_map": {"AutoConfig": "owner/name--own.Own", "AutoModel": "owner/name--own.Own"}},
        {"model_type": "bert", "base_model_name_or_path": "owner/name"},
    ],
    ids=str,
)
def test_a_folder_that_names_other_models_makes_no_request(
    config: dict[str, Any], call: Callable[..., Any], texts: Path, encoder: Path, requests: list[object]
) -> None:
    (encoder / "config.json").write_text(json.dumps(config))
    (encoder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "owner/name", "peft_type": "LORA"})
    )
    data = ["--data", texts, "--text", "text", "--label", "y", "-D", "max_length=8"]
    for words in (["eval", encoder], ["fit", "erm", "--model", f"hf:{encoder}", "--steps", 1]):
        status, errors = call(*words, *data)
        assert (status, requests) == (2, []), errors


def test_loading_without_pretrained_weights_gives_the_same_model(
    monkeypatch: pytest.MonkeyPatch, pictures: Path, tmp_path: Path, requests: list[object]
) -> None:
    """With the same weights, a model built without its pretrained weights computes what the original one does."""
    torchvision = pytest.importorskip("torchvision")
    data = from_folder(pictures)

    def random_state(self: Any, *_: object, **__: object) -> Any:
        kind = type(self).__name__.removesuffix("_Weights").lower()
        options = {"init_weights": False} if kind in ("googlenet", "inception_v3") else {}
        return torchvision.models.get_model(kind, weights=None, **options).state_dict()

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", random_state)
    for name in ("googlenet", "squeezenet1_1"):
        original = build(f"torchvision:{name}", data, pretrained=True)
        save_weights(tmp_path / "w.safetensors", original)
        loaded = build(f"torchvision:{name}", data, pretrained=True, load_pretrained=False, seed=1)
        load_weights(tmp_path / "w.safetensors", loaded)
        assert loaded.options == original.options
        x = data.test.example(2)
        with torch.no_grad():
            assert torch.equal(loaded.eval()(x), original.eval()(x)), name
    assert requests == []


def test_a_file_is_no_reason_to_download_an_encoder(requests: list[object]) -> None:
    transformers = pytest.importorskip("transformers")
    from spurless.core.hf_files import open_pretrained

    with pytest.raises(InputError) as caught:
        open_pretrained(transformers.AutoConfig.from_pretrained, "owner/name", "configuration", download=False)
    assert ("hf:owner/name" in caught.value.hint, requests) == (True, [])
