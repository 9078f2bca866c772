"""Tracked: what a logger is told is what the record holds; it changes no weight, and its failure costs no run."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import spurless as sp
from spurless.bench.executors import Resources
from spurless.bench.experiment import Experiment
from spurless.bench.sweep import Sweep, run_sweep
from spurless.core.errors import DivergedError, MissingExtraError, SpurlessWarning
from spurless.train import tracking
from spurless.train.run import Compute, Run

DATA = sp.load("planted", n_train=400, n_val=60, n_test=60, seed=0)
TRAIN = {"epochs": 3, "batch_size": 50}


def fitted(method: str, track: str | None, **options: Any) -> Any:
    settings = {"train": TRAIN, **options}
    return sp.fit(method, sp.build("linear", DATA), DATA, compute=Compute("cpu", track=track), **settings)


def rows_of(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as lines:
        return [{key: float(cell) for key, cell in row.items() if cell} for row in csv.DictReader(lines)]


def as_told(row: Mapping[str, Any]) -> dict[str, float]:
    """Return a row of a record as a logger has it."""
    numbers = {key: value for key, value in row.items() if key not in ("stage", "step")}
    return {"step": row["step"], **{f"{row['stage']}/{key}": value for key, value in numbers.items()}}


class Spy:
    """A logger that notes what it is told."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.told, self.calls = fails, dict[str, float](), list[str]()

    def log_hyperparams(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(f"settings {settings.get('seed')}")

    def log_metrics(self, numbers: Mapping[str, float], step: int) -> None:
        self.calls.append(f"numbers at {step}")
        self.told |= numbers
        if self.fails:
            raise OSError("the disk is full.\nmore")

    def save(self) -> None:
        self.calls.append("save")

    def finalize(self, status: str) -> None:
        self.calls.append(status)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spy]:
    def put(fails: bool = False) -> Spy:
        made = Spy(fails)
        monkeypatch.setitem(tracking._OPENERS, "csv", lambda _place, _name: made)
        return made

    return put


@pytest.mark.parametrize(
    ("method", "options", "stages"),
    [
        ("erm", {"select": "val-average", "train": {**TRAIN, "stop_accuracy": 1.0}}, ["train"]),
        ("jtt", {"first_epochs": 1, "upweight": 5.0}, ["scout", "train"]),
        ("afr", {"steps": 4}, ["erm", "tune"]),
        ("gc-dro", {}, ["train"]),
    ],
)
def test_the_rows_are_those_of_the_record(
    tmp_path: Path, method: str, options: dict[str, Any], stages: list[str]
) -> None:
    record = fitted(method, f"csv:{tmp_path}", **options).record
    assert list(dict.fromkeys(row["stage"] for row in record.history)) == stages
    place = tmp_path / f"{method}-planted-seed0-{record.key[:8]}"
    *rows, last = rows_of(place)
    assert rows == [as_told(row) for row in record.history]
    numbers = {f"record/{name}": value for name, value in record.metrics.items() if value is not None}
    assert last == pytest.approx({"step": max(row["step"] for row in record.history), **numbers})
    settings = dict(line.split(": ", 1) for line in (place / "hparams.yaml").read_text().splitlines())
    assert (settings["method"], settings["data"], settings["model"]) == (method, "planted", "linear")
    assert (settings["seed"], settings["key"], settings["train/batch_size"]) == ("0", record.key, "50")


def test_tracking_changes_neither_weights_nor_key_nor_record(tmp_path: Path) -> None:
    tracked, plain = fitted("erm", f"csv:{tmp_path}"), fitted("erm", None)
    assert tracked.record.key == plain.record.key
    assert tracked.record.history == plain.record.history
    assert all(map(torch.equal, tracked.model.state_dict().values(), plain.model.state_dict().values()))


def stop(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    """Raise an error after a step of the stage "train"."""

    def tell(_run: Run, stage: str, now: int, *_: Any) -> None:
        if (stage, now) == ("train", step):
            raise error

    monkeypatch.setattr(Run, "report_progress", tell)


def test_a_killed_run_that_goes_on_is_told_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"first_epochs": 2, "upweight": 5.0, "folder": tmp_path / "checkpoints"}
    with monkeypatch.context() as patch:
        stop(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            fitted("jtt", f"csv:{tmp_path / 'log'}", **options)
    (place,) = (tmp_path / "log").iterdir()
    assert [sorted(row) for row in rows_of(place)] == [["scout/epoch", "scout/loss", "step"]] * 2
    record = fitted("jtt", f"csv:{tmp_path / 'log'}", **options).record
    assert rows_of(place)[:-1] == [as_told(row) for row in record.history]


@pytest.mark.parametrize("executor", ["local", "concurrent"])
def test_every_run_of_a_sweep_has_its_own_with_the_numbers_of_the_sweep(tmp_path: Path, executor: str) -> None:
    options = {"n_train": 200, "n_val": 60, "n_test": 60}
    cell = Experiment("planted", "linear", "erm", data_options=options, train=TRAIN)
    resources = Resources(Compute("cpu", track=f"csv:{tmp_path}"))
    swept = run_sweep(Sweep(cell, {"lr": [0.01, 0.1]}, seeds=2), executor=executor, resources=resources)
    assert len(swept.records) == 4
    for key, record in swept.records.items():
        (place,) = tmp_path.glob(f"*-{key[:8]}")
        *rows, last = rows_of(place)
        assert rows == [as_told(row) for row in record.history]
        assert last["record/val_average"] == pytest.approx(record.metrics["val_average"])


def test_a_tracker_that_fails_is_warned_of_once_and_costs_no_run(spy: Callable[..., Spy]) -> None:
    logger = spy(fails=True)
    with pytest.warns(SpurlessWarning, match=r"Tracking with csv failed and stops: the disk is full\. The run"):
        record = fitted("erm", "csv").record
    assert logger.calls == ["settings 0", "numbers at 8"]
    assert sum("Tracking" in words for words in record.warnings) == 1
    assert record.history == fitted("erm", None).record.history


def test_a_run_that_diverges_is_closed_as_failed(spy: Callable[..., Spy], monkeypatch: pytest.MonkeyPatch) -> None:
    logger = spy()
    stop(monkeypatch, 9, DivergedError("train", 9, 0.1))
    with pytest.raises(DivergedError):
        fitted("erm", "csv")
    assert logger.calls == ["settings 0", "numbers at 8", "save", "failed"]


def test_tensorboard_is_told_the_same(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' is not installed")
    reading = import_module("tensorboard.backend.event_processing.event_accumulator")
    record = fitted("jtt", f"tensorboard:{tmp_path}", first_epochs=1, upweight=5.0).record
    events = reading.EventAccumulator(str(next(tmp_path.iterdir())))
    events.Reload()
    losses = {row["step"]: row["loss"] for row in record.history if row["stage"] == "train"}
    assert {event.step: event.value for event in events.Scalars("train/loss")} == pytest.approx(losses)
    assert events.Scalars("record/average")[0].value == pytest.approx(record.metrics["average"])


def test_a_tracker_that_is_not_installed_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    monkeypatch.setattr(Run, "report_progress", lambda *_: pytest.fail("it trains"))
    with pytest.raises(MissingExtraError, match=r"Tracking with mlflow needs the package 'mlflow'"):
        fitted("erm", "mlflow")
