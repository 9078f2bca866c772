"""Weights at the door: a file is opened as the model that it says, and with what that model learnt beside it."""

from pathlib import Path

import pytest
import torch

import spurless as sp
from spurless.cli.weights import open_model, refuse_selector
from spurless.core.errors import BadInput
from spurless.data.planted import PlantedConfig, planted
from spurless.methods.deep_gamblers import attach_reservation
from spurless.methods.disent import disentangled
from spurless.methods.selectivenet import attach_gate
from spurless.models.classifier import Classifier

DATA = planted(PlantedConfig(n_train=40, n_val=20, n_test=20))


def saved(path: Path, model: Classifier) -> Path:
    sp.save_weights(path, model)
    return path


def test_the_file_says_which_model_it_belongs_to(tmp_path: Path) -> None:
    model = sp.build("mlp", DATA, width=5, seed=3)
    opened = open_model(saved(tmp_path / "mine.safetensors", model), None, {}, DATA, seed=0)
    x = torch.randn(4, 2)
    assert opened.name == "mlp"
    assert torch.equal(opened.eval()(x), model.eval()(x))


def test_a_model_that_was_said_wins_over_the_one_in_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path / "mine.safetensors", sp.build("mlp", DATA, width=5))
    with pytest.raises(BadInput, match=r"do not fit"):
        open_model(path, "linear", {}, DATA, seed=0)


@pytest.mark.parametrize("kind", ["gate", "reservation"])
def test_a_selector_comes_with_its_weights_and_is_not_trained_on(tmp_path: Path, kind: str) -> None:
    model = sp.build("linear", DATA, seed=1)
    if kind == "gate":
        attach_gate(model, 7)
    else:
        attach_reservation(model)
    path = saved(tmp_path / "shy.safetensors", model)
    opened = open_model(path, None, {}, DATA, seed=0)
    x = torch.randn(6, 2)
    features = model.features(x)
    both = [m.eval().get_submodule("selector")(features, m.head(features)) for m in (model, opened)]
    assert torch.equal(*both)
    with pytest.raises(BadInput, match=r"have a selector, which would no longer fit"):
        refuse_selector(path)


def test_a_model_with_two_encoders_is_built_with_both(tmp_path: Path) -> None:
    twins = disentangled(sp.build("mlp", DATA, width=5, seed=3))
    opened = open_model(saved(tmp_path / "twins.safetensors", twins), None, {}, DATA, seed=0)
    x = torch.randn(4, 2)
    assert opened.name == "mlp, two encoders"
    assert torch.equal(opened.eval()(x), twins.eval()(x))
