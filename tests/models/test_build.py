"""The table of models: every row builds, from the seed alone."""

import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import spurless.models
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.modules import Input
from spurless.models import MODELS, build, get_architecture

ROWS = [name for name, row in MODELS.items() if row.family is None]
every_model = pytest.mark.parametrize("name", ROWS)


@dataclass(frozen=True)
class Split:
    x: Input

    def example(self, n: int = 2) -> Input:
        return self.x[:n] if isinstance(self.x, torch.Tensor) else self.x


@dataclass(frozen=True)
class Names:
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Digits:
    train: Split
    groups: Names


def shape_for(name: str, channels: int = 3) -> tuple[int, ...]:
    return (12,) if MODELS[name].takes_text else (channels, 28, 28)


@every_model
def test_same_seed_same_weights_and_the_global_generator_stays(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, input_shape=shape_for(name), n_classes=3, seed=5)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    second = build(name, input_shape=shape_for(name), n_classes=3, seed=5)
    third = build(name, input_shape=shape_for(name), n_classes=3, seed=6)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
    assert not torch.equal(first.head.get_parameter("weight"), third.head.get_parameter("weight"))


@every_model
def test_what_was_built_says_how_to_build_it(name: str) -> None:
    shape = shape_for(name, channels=1)
    model = build(name, input_shape=shape, n_classes=3)
    again = build(model.name, **model.options)
    assert (again.name, again.options, again.trained) == (name, model.options, False)
    assert all(map(torch.equal, model.state_dict().values(), again.state_dict().values()))
    ids = torch.ones(2, *shape, dtype=torch.long)
    model.verify({"input_ids": ids, "attention_mask": ids} if MODELS[name].takes_text else torch.randn(2, *shape))


def test_data_gives_the_shape_and_the_classes() -> None:
    data: Any = Digits(Split(torch.zeros(5, 3, 20, 16)), Names(("a", "b", "c")))
    model = build("mlp", data, depth=2, width=4)
    assert model.options["input_shape"] == (3, 20, 16)
    assert model.parameters_count == 3 * 20 * 16 * 4 + 4 * 3


def test_text_is_pointed_to_transformers() -> None:
    data: Any = Digits(Split({"input_ids": torch.zeros(2, 3)}), Names(("a", "b")))
    with pytest.raises(
        InputError, match=r"mlp takes tensors.*Use token-mean or transformers:NAME, or wrap a transformers"
    ):
        build("mlp", data)


def test_a_text_model_is_built_for_the_length_of_the_text() -> None:
    ids = torch.ones(2, 7, dtype=torch.int32)
    data: Any = Digits(Split({"input_ids": ids, "attention_mask": ids, "token_type_ids": ids}), Names(("a", "b")))
    assert build("token-mean", data, vocabulary=8).options["input_shape"] == (7,)


@pytest.mark.parametrize(
    ("x", "got"),
    [
        (torch.zeros(2, 3, 8, 8), r"a tensor of shape \(1, 3, 8, 8\)"),
        ({"pixels": torch.zeros(2, 3)}, "pixels"),
        ({"input_ids": torch.zeros(2, 3)}, "input_ids"),
    ],
)
def test_a_text_model_refuses_what_is_no_text(x: Input, got: str) -> None:
    with pytest.raises(InputError, match=rf"token-mean takes text .expected a dict with .*, got {got}.*from_texts"):
        build("token-mean", cast(Any, Digits(Split(x), Names(("a", "b")))))
    with pytest.raises(InputError, match=r"token-mean takes text .expected an input shape such as .128,."):
        build("token-mean", input_shape=(3, 8, 8), n_classes=2)


def test_options_may_be_words() -> None:
    model = build("mlp", input_shape=(4,), n_classes=2, depth="2", width="3", activation="tanh", bias="true")
    assert model.parameters_count == 4 * 3 + 3 + 3 * 2 + 2


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(InputError, match=r"mlp has no option 'dept'. Did you mean 'depth'"):
        build("mlp", input_shape=(4,), n_classes=2, dept=2)


@pytest.mark.parametrize("name", ["smallcnn", "torchvision:", "tochvision:resnet18"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(UnknownNameError, match=f"No model is called '{name}'.*Known: linear, mlp"):
        build(name, input_shape=(3, 28, 28), n_classes=2)


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'small-cnn'"):
        get_architecture("smallcnn")


@pytest.mark.parametrize(
    ("shape", "classes", "sentence"),
    [
        (None, 3, "mlp are not known. Pass data, or both"),
        ((3, 4), None, "mlp are not known"),
        ((), 3, "the input shape is empty"),
        ((3, 4), 1, "mlp needs at least 2 classes"),
    ],
)
def test_sizes_that_make_no_model(shape: tuple[int, ...] | None, classes: int | None, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build("mlp", input_shape=shape, n_classes=classes)


def test_every_row_has_a_config_and_a_description() -> None:
    for row in MODELS.values():
        assert is_dataclass(row.config)
        assert row.description


def test_every_net_is_in_the_table() -> None:
    zoo = Path(spurless.models.__path__[0]) / "zoo"
    files = {path.stem for path in zoo.glob("*.py")} - {"__init__", "normalize", "shapes"}
    assert {row.builder.__module__.rpartition(".")[2] for row in MODELS.values()} == files


def test_importing_the_table_imports_no_zoo() -> None:
    code = "import sys, spurless.models; print(sorted({'torchvision', 'timm', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_whole_numbers_are_refused_before_a_net_meets_them() -> None:
    from spurless.data import from_tensors

    data = from_tensors(torch.zeros(40, 3, 16, 16, dtype=torch.int64), [0, 1] * 20)
    with pytest.raises(
        InputError, match=r"small-cnn takes floating-point inputs, .* \(got int64\)\. Store .* images as uint8"
    ):
        build("small-cnn", data)
