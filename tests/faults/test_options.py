"""Every option of every method, dataset, model and of the training loop, with values that it was not made for."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal, get_args, get_origin

import pytest

import spurless as sp
from spurless.core.config import CheckedConfig, Range, configure, field_types
from spurless.core.errors import InputError, SpurlessError, SpurlessWarning
from spurless.data import DATASETS
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.fitting.protocol import Protocol, fit_with_protocol
from spurless.methods import METHODS, make_method
from spurless.models import MODELS, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute

BAD_VALUES: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -1, -1.0, 0, 0.0, 0.5, 1, 2, 10**9, 10**12, 10**30, -(10**30), 1e300, 1e29, 1e-300,
    "", "x", "nan", "1e999", "9" * 5000, None, True, [], [0], [math.nan], ["x"], {}, {"x": 1}, object(),
)  # fmt: skip
DATA = planted(PlantedConfig(n_train=48, n_val=32, n_test=32, agreement=0.8))
SHORT: dict[str, Any] = {
    "epochs": 1, "steps": 2, "first_epochs": 1, "batches": 2, "batch_size": 16, "prune_steps": 2, "n": 8, "refits": 1,
    "strengths": (1.0,), "mining": {"steps": 2, "batch_size": 16}, "properties": ("feature 1",),
}  # fmt: skip


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPURLESS_MAX_BYTES", str(10**8))


def all_configs() -> list[type[Any]]:
    datasets = {dataset.config for dataset in DATASETS.values()}
    models = {row.config for row in MODELS.values()}
    methods = {type(preset) for method in METHODS.values() for preset in method.presets.values()}
    return sorted({TrainConfig, *datasets, *models, *methods}, key=lambda kind: f"{kind.__module__}.{kind.__name__}")


def make(config: type[Any], values: dict[str, Any], by_option: bool) -> Any:
    return configure(config, values, "it") if by_option else config(**values)


def is_unbounded_number(hint: Any) -> bool:
    """Return whether a type allows any number: an int or a float without a range."""
    if hint in (int, float):
        return True
    if any(isinstance(part, Range) for part in getattr(hint, "__metadata__", ())) or get_origin(hint) is Literal:
        return False
    return any(is_unbounded_number(part) for part in get_args(hint))


@pytest.mark.parametrize("config", all_configs(), ids=lambda kind: kind.__name__)
def test_every_number_has_a_range_which_defaults_are_in(config: type[Any]) -> None:
    assert issubclass(config, CheckedConfig)
    assert [name for name, hint in field_types(config).items() if is_unbounded_number(hint)] == []
    config()


@pytest.mark.parametrize("config", all_configs(), ids=lambda kind: kind.__name__)
def test_a_bad_value_is_refused_or_accepted_as_it_is(config: type[Any]) -> None:
    """Both by the constructor and as an option; no exception but an ``InputError``."""
    for part in fields(config):
        for value in BAD_VALUES:
            for by_option in (False, True):
                try:
                    accepted = getattr(make(config, {part.name: value}, by_option), part.name)
                except InputError:
                    continue
                assert not isinstance(accepted, float) or math.isfinite(accepted)


def accepted_options() -> Iterator[tuple[str, str, Any]]:
    """Yield method, option and every bad value that its type accepts, if the run stays short."""
    for name, method in METHODS.items():
        kind = type(next(iter(method.presets.values())))
        for part in fields(kind):
            for value in (*BAD_VALUES, (), "none"):
                try:
                    configure(kind, {part.name: value}, name)
                except SpurlessError:
                    continue
                is_long = part.name in SHORT and isinstance(value, int) and value > 2
                if not is_long and part.name not in ("mining", "epochs_between"):
                    yield name, part.name, value


def fit_with_option(name: str, option: str, value: Any) -> None:
    """Fit a method with one unusual option; only the errors of this package may be raised."""
    kind = type(next(iter(METHODS[name].presets.values())))
    short = {key: SHORT[key] for key in SHORT if key in field_types(kind)} | {option: value}
    if value == 10**9:
        short.pop("batches", None)  # 25 or more
    protocol = Protocol(TrainConfig(epochs=1, batch_size=16), compute=Compute("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        try:
            method = make_method(name, **short)
            fitted = fit_with_protocol(protocol, method, build("mlp", DATA, width=4, depth=2), DATA, 0)
        except SpurlessError:
            return
    assert len(fitted.record.groups) == 4


def test_group_dro_has_no_negative_step_size() -> None:
    with pytest.raises(InputError) as caught:
        sp.fit("group-dro", build("linear", DATA), DATA, step_size=-1)
    assert caught.value.got == -1


@pytest.mark.parametrize(
    ("option", "value"), [("refits", 0), ("refits", -3), ("strengths", "-1"), ("strengths", "nan")]
)
def test_dfr_needs_refits_and_positive_strengths(option: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        make_method("dfr", **{option: value})
    assert repr(option) in caught.value.what


@pytest.mark.parametrize("name", ["class-balanced-head", "neurontune", "self", "jtt-head", "afr", "mrm", "dcwp"])
def test_epochs_that_do_not_fit_in_memory_are_refused(name: str) -> None:
    """The index of an epoch with ``batches * batch_size`` drawn examples is made at once."""
    kind = field_types(type(next(iter(METHODS[name].presets.values()))))
    fit_with_option(name, "batch_size" if "batch_size" in kind else "every", 10**9)
    if "mining" in kind:
        fit_with_option(name, "mining", {"steps": 2, "decay_steps": 10**9, "batch_size": 16})
        fit_with_option(name, "mining", {"steps": 10**9, "decay_steps": 10**9, "batch_size": 16})


@pytest.mark.slow
@pytest.mark.parametrize("name", list(METHODS))
def test_an_accepted_value_works_or_is_refused_in_a_sentence(name: str) -> None:
    for _, option, value in (case for case in accepted_options() if case[0] == name):
        fit_with_option(name, option, value)


TRAINING: tuple[tuple[str, Any], ...] = (
    ("batch_size", 10**9), ("lr", 1e29), ("momentum", 0.0), ("weight_decay", 1e29), ("l1", 1e29), ("asam", 1e29),
    ("decay_factor", 1e29), ("warmup_steps", 10**9), ("clip", 1e-300), ("lr", 1e-300),
    ("stop_loss", -1e29), ("decay_epochs", 10**9),
)  # fmt: skip


@pytest.mark.parametrize(("option", "value"), TRAINING)
@pytest.mark.parametrize("schedule", ["step", "one-cycle", "warmup-stable-decay"])
def test_extreme_training_settings_work_or_are_refused(option: str, value: Any, schedule: str) -> None:
    train = {"epochs": 1, "batch_size": 16, "schedule": schedule, option: value}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        try:
            sp.fit("erm", build("linear", DATA), DATA, train=train, compute=Compute("cpu"))
        except SpurlessError:
            return
