"""Public functions with models and data of another kind than they take: a sentence, never another exception."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spurless as sp
from spurless import explain
from spurless.core.errors import InputError
from spurless.models.weights import read_weights_info

DATA = sp.load("planted", n_train=60, n_val=60, n_test=60)
WIDE = sp.from_tensors(torch.randn(90, 7), [0, 1] * 45, [0, 0, 1] * 30)
IMAGES = torch.rand(4, 3, 28, 28)


def small_model() -> sp.Classifier:
    return sp.build("mlp", DATA, width=4, depth=2)


def plain_network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


USES: dict[str, Callable[[Any, Any], object]] = {
    "fit": lambda model, data: sp.fit("erm", model, data, compute=sp.Compute("cpu")),
    "audit": sp.audit,
    "fix": sp.fix,
    "embed": sp.embed,
    "evaluate": lambda model, data: sp.evaluate(model, getattr(data, "test", data)),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("data", [WIDE, replace(WIDE, train=DATA.train), "planted", None, DATA.test.y], ids=type)
def test_data_of_another_width_or_kind_are_refused(use: str, data: Any) -> None:
    with pytest.raises(InputError):
        USES[use](small_model(), data)


@pytest.mark.parametrize("use", USES)
def test_a_model_without_weights_is_refused(use: str) -> None:
    """An evaluation of such a model would return numbers without meaning."""
    with pytest.raises(InputError, match="meta"):
        USES[use](small_model().to("meta"), DATA)


@pytest.mark.parametrize("use", USES)
def test_something_else_than_a_model_is_refused(use: str) -> None:
    for model in ("mlp", None, torch.zeros(2)):
        with pytest.raises(InputError):
            USES[use](model, DATA)


def test_tensors_without_values_are_refused() -> None:
    x, y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
    for arguments in ((x.to("meta"), y), (x, y.to("meta")), (x, y, y.to("meta"))):
        with pytest.raises(InputError, match="meta"):
            sp.from_tensors(*arguments)


@pytest.mark.parametrize("data", [{"x": 1}, {}, {"labels": 3}, {"labels": ["a", "b"], "options": 3}, DATA, [1]])
def test_weights_are_not_saved_with_data_that_name_no_classes(data: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        sp.save_weights(tmp_path / "w.safetensors", small_model(), data=data)
    assert caught.value.got == type(data).__name__
    assert not list(tmp_path.iterdir())


def test_a_plain_module_is_saved_and_is_not_loaded_into(tmp_path: Path) -> None:
    path, network = tmp_path / "w.safetensors", plain_network()
    sp.save_weights(path, network)
    assert read_weights_info(path)["head_path"] == "4"
    sp.load_weights(path, sp.wrap(plain_network()))
    for target in (network, small_model().to("meta"), "x"):
        with pytest.raises(InputError):
            sp.load_weights(path, target)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="meta"):
        sp.save_weights(path, small_model().to("meta"))


@pytest.mark.parametrize("text", ["a \ud800 b", "\udfff"])
def test_half_a_surrogate_pair_is_named(text: str) -> None:
    with pytest.raises(InputError) as caught:
        sp.from_texts(["fine", text] * 10, [0, 1] * 10, tokenizer="words")
    assert "example 1" in caught.value.what
    assert caught.value.got == ascii(text)


def test_explanations_wrap_a_plain_module() -> None:
    network = plain_network()
    wrapped = sp.wrap(network)
    for function in (explain.xgradcam, explain.gradcam, explain.attribute, explain.compute_attribution_map):
        torch.testing.assert_close(function(network, IMAGES), function(wrapped, IMAGES))
    assert explain.find_target_layer(network, IMAGES) == explain.find_target_layer(wrapped, IMAGES)
    maps = explain.compute_neuron_map(network, IMAGES, 1)
    torch.testing.assert_close(maps, explain.compute_neuron_map(wrapped, IMAGES, 1))
    refusing: tuple[Callable[..., object], ...] = (explain.xgradcam, explain.attribute, explain.find_target_layer)
    for refuse in refusing:
        with pytest.raises(InputError, match="module"):
            refuse("network", IMAGES)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {"depth": 10**9}),
        ("mlp", {"width": 10**6, "depth": 5}),
        ("mlp", {"n_classes": 10**12}),
        ("mlp", {"input_shape": (10**6, 10**9)}),
        ("mlp", {"input_shape": ("a",)}),
        ("mlp", {"n_classes": "2"}),
        ("small-cnn", {"input_shape": (3, 4000, 4000), "hidden": 10**6}),
        ("pooled-cnn", {"channels": (10**6, 10**6)}),
        ("vgg11-small", {"input_shape": (3, 10**5, 10**5)}),
        ("token-mean", {"input_shape": (8,), "vocabulary": 10**9, "width": 10**6}),
    ],
)
def test_models_of_absurd_size_are_refused_before_they_are_built(name: str, options: dict[str, Any]) -> None:
    shape: dict[str, Any] = {"input_shape": (3, 28, 28), "n_classes": 2}
    with pytest.raises(InputError) as caught:
        sp.build(name, **(shape | options))
    assert caught.value.got is not None


def test_the_limit_on_the_size_of_a_model_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_MAX_BYTES", str(4 * 25_408))
    assert sp.build("mlp", input_shape=(784,), n_classes=10, depth=2, width=32).parameters_count == 25_408
    with pytest.raises(InputError, match="25,450"):
        sp.build("mlp", input_shape=(784,), n_classes=10, depth=2, width=32, bias=True, activation="tanh")


@pytest.mark.parametrize("y", [[0, 1, 10**9], [0, 1, 2**40]])
def test_numbers_that_imply_millions_of_classes_are_refused(y: list[int]) -> None:
    for arguments in ((torch.randn(3, 2), y), (torch.randn(3, 2), [0, 1, 0], y)):
        with pytest.raises(InputError) as caught:
            sp.from_tensors(*arguments)
        assert caught.value.got == y[-1] + 1
        assert "SPURLESS_MAX_GROUPS" in caught.value.hint


def test_combinations_of_many_columns_are_refused_before_they_are_made() -> None:
    for a in (torch.randint(2, (90, 60)), torch.randint(5000, (90, 4))):
        with pytest.raises(InputError, match="too many groups"):
            sp.from_tensors(torch.randn(90, 2), [0, 1] * 45, a)
