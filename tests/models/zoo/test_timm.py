"""The timm zoo."""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spurless.core.errors import InputError, MissingExtraError, UnknownNameError
from spurless.models import build
from spurless.models.weights import find_pretrained


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("shape", [(1, 64, 64), (3, 96, 64)])
def test_it_adapts_to_channels_size_and_classes(name: str, shape: tuple[int, int, int]) -> None:
    pytest.importorskip("timm")
    model, x = build(f"timm:{name}", input_shape=shape, n_classes=5).eval(), torch.randn(2, *shape)
    assert (model(x).shape, model.n_classes, model.trained) == ((2, 5), 5, False)
    assert torch.equal(model.unwrap()(x), model(x))


def test_two_heads_are_refused() -> None:
    pytest.importorskip("timm")
    with pytest.raises(InputError, match="timm:deit_tiny_distilled_patch16_224 has no single linear head"):
        build("timm:deit_tiny_distilled_patch16_224", input_shape=(3, 32, 32), n_classes=5)


def test_a_typo_is_answered_with_the_nearest_names() -> None:
    pytest.importorskip("timm")
    with pytest.raises(UnknownNameError, match=r"is called 'test_resnets'. Did you mean 'test_resnet'") as caught:
        build("timm:test_resnets", input_shape=(3, 32, 32), n_classes=5)
    assert len(str(caught.value)) < 400  # not all of the thousand


def test_without_timm_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"The model timm:test_vit needs .* pip install 'spurless\[timm\]'"):
        build("timm:test_vit", input_shape=(3, 32, 32), n_classes=5)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The weights of another seed with ten classes, in half precision, as somebody might publish them."""
    timm = pytest.importorskip("timm")
    with torch.random.fork_rng():
        torch.manual_seed(7)
        published = timm.create_model("test_resnet", num_classes=10)
    path = tmp_path / "weights" / "test_resnet_fp16.safetensors"
    path.parent.mkdir()
    save_file({key: value.half().contiguous() for key, value in published.state_dict().items()}, path)
    return path


def stem(model: torch.nn.Module) -> torch.Tensor:
    return next(p for name, p in model.named_parameters() if name.endswith("conv1.0.weight") or "conv" in name)


def test_weights_come_from_a_local_file_with_a_fresh_head(weights: Path) -> None:
    model = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, weights=str(weights))
    fresh = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3)
    assert model.n_classes == 3
    assert not torch.equal(stem(model), stem(fresh))
    assert torch.equal(stem(model), stem(model).half().float())  # what was in the file, not a fresh draw


def test_pretrained_looks_into_the_data_folder_first(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_DATA", str(weights.parents[1]))
    found = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, pretrained=True)
    named = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, weights=str(weights))
    assert torch.equal(stem(found), stem(named))


def test_the_weights_of_a_longer_name_are_another_models(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.rename(weights.with_name("test_resnet2.safetensors"))
    monkeypatch.setenv("SPURLESS_DATA", str(weights.parents[1]))
    assert find_pretrained("test_resnet", None, pretrained=True) is None
    assert find_pretrained("test_resnet2", None, pretrained=True) is not None


def test_pretrained_weights_are_given_what_they_were_trained_on(weights: Path) -> None:
    x = torch.rand(2, 3, 64, 64)
    plain = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, weights=str(weights), normalise=False)
    model = build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, weights=str(weights))
    torch.testing.assert_close(model.eval()(x), plain.eval()((x - 0.5) / 0.5))
    grey = build("timm:test_resnet", input_shape=(1, 64, 64), n_classes=3, weights=str(weights))
    assert grey.eval()(x[:, :1]).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pth", b"", "weights must be a safetensors file"),
        ("none.safetensors", None, "none.safetensors: no such file"),
        ("bad.safetensors", b"not one", "bad.safetensors: the file does not have the weights of timm:test_resnet"),
    ],
)
def test_a_file_that_holds_no_weights_is_refused(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    pytest.importorskip("timm")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        build("timm:test_resnet", input_shape=(3, 64, 64), n_classes=3, weights=str(tmp_path / name))


def test_the_weights_of_another_model_are_refused(weights: Path) -> None:
    with pytest.raises(
        InputError, match=r"test_resnet_fp16.safetensors: the file does not have the weights of timm:test_vit"
    ):
        build("timm:test_vit", input_shape=(3, 64, 64), n_classes=3, weights=str(weights))
