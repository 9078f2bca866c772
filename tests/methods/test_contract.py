"""What every method promises, checked for every row of the table."""

import gc
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor, nn

import spurless.methods
from spurless.core.errors import (
    DataChangedError,
    InputError,
    MissingAttributesError,
    SpurlessWarning,
    UndeclaredAccessError,
    UnknownNameError,
)
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import ExampleIds, Split, Splits
from spurless.fitting.protocol import Fitted, Protocol, fit_with_protocol
from spurless.methods import METHODS, Info, Method, make_method, method_named
from spurless.methods.base import method_info
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run

DATA = planted(PlantedConfig(n_train=96, n_val=64, n_test=64, agreement=0.8))
PROTOCOL = Protocol(TrainConfig(epochs=2, batch_size=16, lr=0.1), compute=Compute("cpu"))

HEAD = {"epochs": 2, "batches": 4}
PRUNE = {"epochs": 3}
MASK = {"prune_steps": 4, "prune_lr": 0.5, "steps": 4, "batch_size": 16}
OPTIONS: dict[str, dict[str, Any]] = {
    "jtt": {"first_epochs": 1},
    "dfr": {"refits": 2, "strengths": (1.0,)},
    "class-balanced-head": HEAD,
    "jtt-head": HEAD,
    "self": {"n": 16, **HEAD},
    "neurontune": HEAD,
    "afr": {"steps": 5},
    "mrm": MASK,
    "avp": PRUNE,
    "random-prune": PRUNE,
    "magnitude-prune": PRUNE,
    "transplant": {"properties": ("feature 1",), "epochs": 2},
    "dcwp": {"mining": {"steps": 4, "batch_size": 16}, "lr": 0.1, **MASK},
}
"""Options that make a run short. A method without an entry runs with its first preset and the settings of ``PROTOCOL``:
add one if that takes more than a second."""

every_method = pytest.mark.parametrize("name", list(METHODS))


@contextmanager
def quietly() -> Iterator[None]:
    """A tiny run may well find no mistake, or predict one class: that is warned of elsewhere."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        yield


def run(name: str, data: Splits = DATA, seed: int = 0) -> Fitted:
    with quietly():
        return fit_with_protocol(PROTOCOL, small(name), build("linear", data, seed=seed), data, seed)


@cache
def first_run(name: str) -> Fitted:
    """Return the run with seed 0 on ``DATA``, which several tests read and none may change."""
    return run(name)


def small(name: str) -> Method:
    return make_method(name, **OPTIONS.get(name, {}))


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@every_method
def test_same_seed_same_weights_and_another_seed_others(name: str) -> None:
    # weights, not accuracies: 64 examples can score alike after different training
    first, again, other = first_run(name), run(name), run(name, seed=1)
    assert torch.equal(weights(first.model), weights(again.model))
    assert first.record.key == again.record.key != other.record.key
    assert not torch.equal(weights(first.model), weights(other.model))


@every_method
def test_the_seed_of_the_run_reaches_the_training_of_a_given_model(name: str) -> None:
    with quietly():
        other = fit_with_protocol(PROTOCOL, small(name), build("linear", DATA, seed=0), DATA, 1)
    assert not torch.equal(weights(first_run(name).model), weights(other.model))


@every_method
def test_does_not_disturb_the_data_the_model_or_the_global_generator(name: str) -> None:
    before = DATA.fingerprint()
    model = build("linear", DATA, seed=3)
    given = weights(model).clone()
    torch.manual_seed(7)
    state = torch.get_rng_state()
    with quietly():
        fit_with_protocol(PROTOCOL, small(name), model, DATA, 3)
    assert DATA.fingerprint() == before
    assert torch.equal(weights(model), given)
    assert torch.equal(torch.get_rng_state(), state)


@every_method
def test_works_without_the_attributes_it_did_not_ask_for(name: str) -> None:
    info = METHODS[name].info
    hidden = replace(
        DATA,
        train=DATA.train if info.train_attributes else DATA.train.hide_attributes(),
        val=DATA.val if info.val_attributes else DATA.val.hide_attributes(),
    )
    # the same weights: whatever is not declared makes no difference
    assert torch.equal(weights(first_run(name).model), weights(run(name, hidden).model))


@every_method
def test_refuses_data_without_the_attributes_it_asks_for(name: str) -> None:
    info = METHODS[name].info
    if info.train_attributes:
        with pytest.raises(
            MissingAttributesError, match=rf"{name} needs the attribute a of every example of the train split"
        ):
            run(name, replace(DATA, train=DATA.train.hide_attributes()))
    if info.val_attributes:
        with pytest.raises(
            MissingAttributesError, match=rf"{name} needs the attribute a of every example of the val split"
        ):
            run(name, replace(DATA, val=DATA.val.hide_attributes()))


@every_method
def test_the_record_says_which_labels_were_used(name: str) -> None:
    info, used = method_info(small(name)), first_run(name).record.supervision
    assert used == {
        "train_attributes": info.train_attributes,
        "val_labels": info.val_labels,
        "val_attributes": info.val_attributes,
    }


@every_method
def test_a_configuration_never_uses_more_than_the_method_declares(name: str) -> None:
    most = METHODS[name].info
    for preset in METHODS[name].presets:
        info = method_info(make_method(name, preset))
        for use in ("train_attributes", "val_labels", "val_attributes"):
            assert getattr(info, use) <= getattr(most, use)


@every_method
def test_every_preset_makes_a_method(name: str) -> None:
    for preset, config in METHODS[name].presets.items():
        assert make_method(name, preset).config == config


@dataclass(frozen=True)
class SpyConfig:
    """Nothing to set."""


class Spy:
    """Declares nothing and keeps what it is shown."""

    info: ClassVar[Info] = Info("spy", "nobody", "looks where it should not")
    presets: ClassVar[Mapping[str, SpyConfig]] = {"plain": SpyConfig()}

    def __init__(self, config: SpyConfig = SpyConfig()) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        self.shown, self.run = data, run
        return model


class AttributeThief(Spy):
    """Asks for groups it did not declare."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        _ = data.train.g
        return super().fit(model, data, run)


class TestThief(Spy):
    """Looks at the test split."""

    __test__ = False

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        _ = data.test.y
        return super().fit(model, data, run)


def spied(spy: Spy, protocol: Protocol = PROTOCOL) -> Spy:
    fit_with_protocol(protocol, spy, build("linear", DATA), DATA, 0)
    return spy


def test_a_spy_sees_no_attribute_and_no_test_split() -> None:
    shown = spied(Spy()).shown
    for split in (shown.train, shown.val):
        assert bool((split.a == -1).all())
    assert shown.train.counts.tolist() == [0, 0, 0, 0]
    assert bool((shown.val.y == -1).all())  # the labels of validation were not declared either
    for look in (lambda: shown.test.y, lambda: shown.test.x, lambda: len(shown.test), lambda: shown.test.groups):
        with pytest.raises(UndeclaredAccessError, match="Methods cannot access the test split"):
            look()


def test_a_thief_of_attributes_is_caught() -> None:
    with pytest.raises(MissingAttributesError, match="is hidden or unknown"):
        spied(AttributeThief())


def test_a_thief_of_the_test_split_is_caught() -> None:
    with pytest.raises(UndeclaredAccessError, match="Methods cannot access the test split"):
        spied(TestThief())


def test_selection_by_groups_shows_the_method_a_score_and_no_attribute() -> None:
    spy = spied(Spy(), replace(PROTOCOL, select="val-worst-group"))
    assert bool((spy.shown.val.a == -1).all())
    assert spy.run.score is not None
    assert 0.0 <= spy.run.score(build("linear", DATA)) <= 1.0


class Changer(Spy):
    """Changes the data of its caller by one of several ways."""

    def __init__(self, change: Callable[[Splits], object]) -> None:
        super().__init__()
        self.change = change

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        self.change(data)
        return super().fit(model, data, run)


def rows_of(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x


@pytest.mark.parametrize(
    ("split", "part", "change"),
    [
        ("train", "x", lambda data: rows_of(data.train).add_(1)),
        ("train", "y", lambda data: data.train.y.fill_(0)),
        ("val", "x", lambda data: rows_of(data.val)[3].zero_()),
        ("val", "x", lambda data: rows_of(data.val).numpy().fill(0)),  # which no version counts
        ("train", "x", lambda data: rows_of(data.train).data.zero_()),
    ],
)
def test_a_method_that_changes_the_data_is_an_error(split: str, part: str, change: Callable[[Splits], object]) -> None:
    data = planted(PlantedConfig(n_train=96, n_val=64, n_test=64))
    with pytest.raises(DataChangedError) as raised:
        fit_with_protocol(PROTOCOL, Changer(change), build("linear", data), data, 0)
    assert (raised.value.method, raised.value.split, raised.value.part) == ("spy", split, part)


def test_a_change_of_the_methods_own_part_is_none_of_the_callers() -> None:
    before = DATA.fingerprint()
    spied(Changer(lambda data: data.val.y.fill_(0)))  # of hidden labels
    assert DATA.fingerprint() == before


def reachable(start: object) -> list[object]:
    """Return what attributes, items and closures lead to, but not what modules and classes contain."""
    found, waiting = {id(start): start}, [start]
    while waiting:
        value = waiting.pop()
        parts: list[object] = []
        if isinstance(value, FunctionType):
            parts = [cell.cell_contents for cell in value.__closure__ or ()]
        elif not isinstance(value, type | ModuleType):
            parts = [part for part in gc.get_referents(value) if not isinstance(part, type | ModuleType)]
        for name in ("_base", "__self__", "args"):
            parts.append(getattr(value, name, None))
        for part in parts:
            if part is not None and id(part) not in found:
                found[id(part)] = part
                waiting.append(part)
    return list(found.values())


class Files:
    """A source of examples in named files, as those of a folder of images."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.files = x, [f"secret-{i}" for i in range(len(x))]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]

    def fingerprint(self) -> str:
        return "files"


class BatchedFiles(Files):
    """The same, with several examples at once."""

    def batch(self, index: Tensor) -> Tensor:
        return self.x[index]


@pytest.mark.parametrize("kind", [Tensor, Files, BatchedFiles])
def test_nothing_leads_from_a_method_to_other_splits_or_files(kind: type) -> None:
    x = torch.cat([rows_of(DATA.train), rows_of(DATA.val), rows_of(DATA.test)])
    y, a = (torch.cat([getattr(split, name) for split in (DATA.train, DATA.val, DATA.test)]) for name in "ya")
    source = x if kind is Tensor else kind(x)
    names = ExampleIds.of_files(f"secret-{i}" for i in range(len(x)))
    ends, parts = [0, 96, 160, 224], {}
    for name, start, stop in zip(("train", "val", "test"), ends, ends[1:], strict=False):
        rows = torch.arange(start, stop)
        split = replace(getattr(DATA, name), x=source, y=y, a=a, names=names)
        part = split.select(rows)
        if kind is Tensor:
            part = replace(part, x=x[start:stop], y=y[start:stop], a=a[start:stop])  # views
        parts[name] = part
    data = replace(DATA, **parts, options={"file": "secret.csv"}, notes=("secret-3 was skipped",))
    spy = Spy()
    fit_with_protocol(PROTOCOL, spy, build("linear", data), data, 0)
    assert (spy.shown.train.names, spy.shown.val.names) == (None, None)
    assert not hasattr(spy.shown.train.x, "source")
    objects = reachable(spy.shown)
    assert not [value for value in objects if isinstance(value, str) and "secret" in value]
    assert not [value for value in objects if isinstance(value, Files)]
    sizes = [len(value) for value in objects if isinstance(value, Tensor) and value.dim()]
    assert sizes
    assert max(sizes) == 96
    storages = [value.untyped_storage().nbytes() for value in objects if isinstance(value, Tensor)]
    assert max(storages) <= max(rows_of(DATA.train).untyped_storage().nbytes(), 96 * 8)
    if kind is not Tensor:
        for split, start in ((spy.shown.train, 0), (spy.shown.val, 96)):
            assert torch.equal(cast(Any, split.x)[5], x[start + 5])
            assert hasattr(split.x, "batch") == (kind is BatchedFiles)
            assert split.fingerprint() == replace(split, x=parts["train" if start == 0 else "val"].x).fingerprint()
            again = pickle.loads(pickle.dumps(split.x))  # for the processes that load
            assert torch.equal(again[5], x[start + 5])
        if kind is BatchedFiles:
            assert torch.equal(cast(Any, spy.shown.val.x).batch(torch.tensor([2, 0])), x[[98, 96]])


def test_texts_stay_visible_without_their_files() -> None:
    names = ExampleIds(torch.tensor([2, 0]), ["a", "b", "c"], texts=["one", "two", "three"])
    split = DATA.train.select(torch.tensor([0, 1]))
    shown = replace(split, names=names).detached
    assert shown.names is not None
    assert ([shown.names.text(i) for i in range(2)], shown.names.files) == (["three", "one"], None)


class Liar(Spy):
    """Declares something else while it runs."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        self.info = replace(self.info, name="erm", val_labels=True, title="Honest")  # type: ignore[misc]
        self.config = SpyConfig()
        type(self).presets = {}
        return super().fit(model, data, run)


def test_what_a_method_declares_while_it_runs_changes_nothing_that_is_recorded() -> None:
    first = fit_with_protocol(PROTOCOL, Spy(), build("linear", DATA), DATA, 0).record
    liar = fit_with_protocol(PROTOCOL, Liar(), build("linear", DATA), DATA, 0).record
    for name in ("method", "title", "config", "supervision", "selection", "metrics", "key", "data"):
        assert getattr(liar, name) == getattr(first, name)


def test_every_file_is_in_the_table() -> None:
    files = {path.stem for path in Path(spurless.methods.__path__[0]).glob("*.py") if not path.stem.startswith("_")}
    assert files - {"base"} == {method.__module__.rpartition(".")[2] for method in METHODS.values()} - {"_head"}


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match=r"No method is called 'groupdro'. Did you mean 'group-dro'"):
        method_named("groupdro")
    with pytest.raises(UnknownNameError, match=r"No preset of jtt is called 'waterbird'. Did you mean 'waterbirds'"):
        make_method("jtt", "waterbird")
    with pytest.raises(InputError, match=r"method 'jtt' has no option 'upweigth'. Did you mean 'upweight'"):
        make_method("jtt", upweigth=3)


def test_the_protocol_of_a_method_is_met_by_the_table() -> None:
    methods: list[type[Method]] = list(METHODS.values())  # what mypy checks
    assert all(method.info.paper and method.info.summary and method.presets for method in methods)
