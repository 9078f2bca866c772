"""Tracking: who is told what and where; nothing leaves the machine unless the user says so."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spurless.core.errors import InputError, MissingExtraError, SpurlessWarning, UnknownNameError
from spurless.train import tracking
from spurless.train.run import Run
from spurless.train.tracking import Tracker, close_on_error, resolve_tracker


class Spy:
    """A logger that notes what it is told."""

    def __init__(self) -> None:
        self.told, self.calls = dict[str, float](), list[str]()

    def log_hyperparams(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(f"settings {settings.get('seed')}")

    def log_metrics(self, numbers: Mapping[str, float], step: int) -> None:
        self.calls.append(f"numbers at {step}")
        self.told |= numbers

    def save(self) -> None:
        self.calls.append("save")

    def finalize(self, status: str) -> None:
        self.calls.append(status)


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Spy:
    made = Spy()
    monkeypatch.setitem(tracking._OPENERS, "csv", lambda _place, _name: made)
    return made


def test_a_tracker_that_fails_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_place: str, _name: str) -> Any:
        raise OSError("the disk is full.\nmore")

    monkeypatch.setitem(tracking._OPENERS, "csv", refuse)
    tracker = Tracker("csv", "run", {})
    with pytest.warns(SpurlessWarning, match=r"Tracking with csv failed and stops: the disk is full\. The run"):
        tracker.log_row({"stage": "train", "step": 1, "loss": 1.0})
    tracker.log_row({"stage": "train", "step": 2, "loss": 1.0})  # a second warning would be an error here
    tracker.end({"average": 1.0})
    with pytest.raises(KeyError), close_on_error(tracker):
        raise KeyError


def test_only_the_main_process_tells() -> None:
    class Fabric:
        is_global_zero = False

    told: list[Mapping[str, Any]] = []
    run = Run(fabric=Fabric(), log=told.append)
    run.add_history({"stage": "train", "loss": 1.0})
    assert (told, run.history) == ([], [{"stage": "train", "loss": 1.0}])
    run.fabric.is_global_zero = True
    run.add_history({"stage": "train", "loss": 2.0})
    assert told == [{"stage": "train", "loss": 2.0}]


def test_numbers_are_told_under_their_stage_and_the_rest_is_left_to_the_record(logger: Spy) -> None:
    tracker = Tracker("csv", "a name: odd/one", {"seed": 3, "train": {"lr": 0.1, "decay_at": (1, 2)}})
    tracker.log_row({"stage": "tune ü", "epoch": 2, "loss": 0.5, "found": {"a": 1}, "words": "none"})
    assert logger.told == {"tune -/epoch": 2.0, "tune -/loss": 0.5}
    assert logger.calls == ["settings 3", "numbers at 2", "save"]
    assert tracker.name == "a name- odd-one"
    assert tracker.settings == {"seed": 3, "train/lr": 0.1, "train/decay_at": "(1, 2)"}
    tracker.log_row({"stage": "erm", "step": 9, "loss": 0.25})
    assert logger.told == {"tune -/epoch": 2.0, "tune -/loss": 0.5, "erm/loss": 0.25}
    tracker.end({"average": 0.5, "ece": None})
    assert logger.calls[-2:] == ["numbers at 9", "success"]
    tracker.end({"average": 0.7})  # told already
    assert logger.told["record/average"] == 0.5


def test_names_and_places_are_checked_before_anything_is_trained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(tracking.URI, raising=False)
    assert resolve_tracker("csv") == f"csv:{tmp_path / 'runs' / 'track'}"
    assert resolve_tracker("csv:logs") == f"csv:{tmp_path / 'logs'}"
    assert resolve_tracker(resolve_tracker("csv:logs")) == resolve_tracker("csv:logs")
    with pytest.raises(UnknownNameError, match=r"No tracker is called 'tensorbord'. Did you mean 'tensorboard'\?"):
        resolve_tracker("tensorbord")
    with pytest.raises(InputError, match=r"has no folder after the colon. Write csv, or csv:FOLDER"):
        resolve_tracker("csv:")
    with pytest.raises(InputError, match=r"csv writes to a folder \(got http://here\)"):
        resolve_tracker("csv:http://here")
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"'mlflow'. Install it with: pip install 'spurless\[track\]'"):
        resolve_tracker("mlflow")
    monkeypatch.setattr(tracking, "find_spec", lambda _: object())
    assert resolve_tracker("mlflow:http://here:5000") == "mlflow:http://here:5000"
    assert resolve_tracker("mlflow") == f"mlflow:{tmp_path / 'runs' / 'track'}"
    monkeypatch.setenv(tracking.URI, "http://there:5000")
    assert resolve_tracker("mlflow") == "mlflow"


def test_wandb_is_offline_unless_the_environment_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []

    class Wandb(ModuleType):
        def init(self, **words: Any) -> Any:
            modes.append(words["mode"])
            assert words["reinit"] == "create_new"
            return self

        def define_metric(self, *_: Any, **__: Any) -> None: ...

        Settings = dict

    class Loggers:
        WandbLogger = staticmethod(lambda experiment: experiment)

    monkeypatch.setitem(sys.modules, "wandb", Wandb("wandb"))
    monkeypatch.setattr(tracking, "_loggers", lambda _: Loggers)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    tracking._wandb(str(tmp_path / "new"), "one")
    monkeypatch.setenv("WANDB_MODE", "online")
    tracking._wandb(str(tmp_path / "new"), "two")
    assert modes == ["offline", "online"]
