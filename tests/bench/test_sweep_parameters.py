"""Parameters: every setting of a cell has a name, a type and one place."""

from __future__ import annotations

from typing import Any

import pytest

from spurless.bench.experiment import Experiment
from spurless.bench.sweep import Parameter, assign_values, convert_value, get_parameter
from spurless.core.errors import InputError, UnknownNameError

DRO = Experiment("planted", "mlp", "group-dro")
TUNED = Experiment("planted", "mlp", "neurontune")


@pytest.mark.parametrize(
    ("name", "room", "field"),
    [
        ("lr", "train", "lr"),
        ("batch-size", "train", "batch_size"),
        ("l2", "train", "weight_decay"),
        ("train.l2", "train", "weight_decay"),
        ("rho", "train", "asam"),
        ("train.momentum", "train", "momentum"),
        ("optimiser", "train", "optimiser"),
        ("step_size", "method", "step_size"),
        ("method.step-size", "method", "step_size"),
        ("data.agreement", "data", "agreement"),
        ("data.seed", "data", "seed"),
        ("model.width", "model", "width"),
    ],
)
def test_a_name_means_one_setting(name: str, room: str, field: str) -> None:
    assert get_parameter(name, DRO) == Parameter(room, field)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("lrr", r"No parameter is called 'lrr'\. Did you mean 'lr'\? Known: .*data\.agreement.* lr, "),
        ("stepsize", r"Did you mean '(method\.)?step_size'\?"),
        ("width", r"Did you mean 'model\.width'\?"),
        ("data.agrement", r"Did you mean 'data\.agreement'\?"),
        ("model.lr", r"No parameter is called 'model\.lr'"),
        ("nowhere.lr", r"No parameter is called 'nowhere\.lr'"),
        ("l1.l2", r"No parameter is called 'l1\.l2'"),
        ("", r"No parameter is called ''"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, match: str) -> None:
    with pytest.raises(UnknownNameError, match=match):
        get_parameter(name, DRO)


@pytest.mark.parametrize("name", ["gamma", "method.gamma"])
def test_a_setting_of_another_method_names_it(name: str) -> None:
    with pytest.raises(InputError, match=rf"'{name}' is a setting of other methods: .*focal.*\. Add --method \w+"):
        get_parameter(name, DRO)
    for elsewhere in ("train.gamma", "data.gamma"):
        with pytest.raises(UnknownNameError):
            get_parameter(elsewhere, DRO)


def test_a_name_with_two_meanings_is_refused() -> None:
    shared = "epochs"
    with pytest.raises(InputError, match=r"'epochs' is a setting both of training and of the method 'neurontune'"):
        get_parameter(shared, TUNED)
    assert get_parameter("method.epochs", TUNED) == Parameter("method", "epochs")
    assert get_parameter("train.epochs", TUNED) == Parameter("train", "epochs")


def test_data_of_ones_own_take_any_option() -> None:
    own = Experiment("meta.csv", "mlp", "erm")
    assert convert_value(own, get_parameter("data.size", own), "64") == "64"


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("lr", "1e-3", 0.001),
        ("batch_size", "32", 32),
        ("optimiser", "adam", "adam"),
        ("clip", "none", None),
        ("step_size", "0.5", 0.5),
        ("data.agreement", "0.75", 0.75),
        ("model.bias", "true", True),
        ("model.width", 16, 16),
    ],
)
def test_words_become_values_and_reach_their_place(name: str, word: Any, value: Any) -> None:
    parameter = get_parameter(name, DRO)
    found = convert_value(DRO, parameter, word)
    assert found == value
    assert type(found) is type(value)
    cell = assign_values(DRO, {parameter: found})
    places = {
        "train": cell.train,
        "method": cell.method_options,
        "data": cell.data_options,
        "model": cell.model_options,
    }
    assert places.pop(parameter.section) == {parameter.field: value}
    assert not any(places.values())
    assert DRO.train == {}  # the cell it came from is as it was


def test_other_settings_stay() -> None:
    cell = assign_values(Experiment("planted", "mlp", "erm", train={"steps": 3}), {Parameter("train", "lr"): 0.5})
    assert cell.train == {"steps": 3, "lr": 0.5}


@pytest.mark.parametrize(
    ("name", "word", "match"),
    [
        ("lr", "fast", r"option 'lr' of the training loop has the wrong type \(expected a number, got 'fast'\)"),
        ("lr", "-1", r"lr.* must be above 0 \(got -1\.0\)"),
        ("batch_size", "2.5", r"option 'batch_size' of the training loop has the wrong type \(expected an integer"),
        ("step_size", "wide", r"option 'step_size' of method 'group-dro' has the wrong type"),
        ("data.agreement", "much", r"option 'agreement' of dataset 'planted' has the wrong type"),
        ("model.width", "", r"option 'width' of mlp has the wrong type \(expected an integer, got ''\)"),
        ("optimiser", "sdg", r"option 'optimiser' of the training loop cannot be 'sdg'"),
    ],
)
def test_a_value_that_the_cell_would_refuse_is_refused_now(name: str, word: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        convert_value(DRO, get_parameter(name, DRO), word)
