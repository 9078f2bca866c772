"""Tracking: a run is told, while it goes on, to a logger that the user has chosen; the record stays the truth."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

from spurless.core.errors import BadInput, MissingExtra, SpurlessWarning, UnknownName, first_line

FOLDER = Path("runs/track")
"""Where logs lie unless the user says otherwise."""
PROJECT = "spurless"
URI = "MLFLOW_TRACKING_URI"

Log: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Takes a row of the history when its epoch has ended."""

_PACKAGES = {"csv": None, "tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
_NAME = re.compile(r"[^a-zA-Z0-9_/. -]+")  # MLflow takes no other characters in the name of a number


def settled(track: str, folder: Path = FOLDER) -> str:
    """Return ``KIND:PLACE`` of a tracker, with the place of a folder in full: runs may be done in other folders.

    Args:
        track: ``csv``, ``tensorboard``, ``mlflow`` or ``wandb``, with or without a folder, as ``csv:FOLDER``; of
            mlflow also the address of a server, as ``mlflow:http://HOST:PORT``; without either it is the one in
            ``$MLFLOW_TRACKING_URI``.
        folder: where to write if no place is named.

    Raises:
        UnknownName: no tracker is called so.
        MissingExtra: its package is not installed.
        BadInput: the place cannot be one.
    """
    kind, named, place = track.partition(":")
    if kind not in _PACKAGES:
        raise UnknownName("tracker", kind, _PACKAGES)
    if named and not place:
        raise BadInput(f"the tracker {track!r} names no folder", do=f"Write {kind}, or {kind}:FOLDER.")
    package = _PACKAGES[kind]
    if package is not None and find_spec(package) is None:
        raise MissingExtra(package, "track", f"Tracking with {kind}")
    if kind == "mlflow" and not place and URI in os.environ:
        return kind
    if "://" not in place:
        return f"{kind}:{Path(place or folder).absolute()}"
    if kind != "mlflow":
        raise BadInput(f"{kind} writes to a folder", got=place, do=f"Write {kind}:FOLDER.")
    return f"{kind}:{place}"


class Tracker:
    """Tells one run to a logger. A logger that fails costs no run: it is warned of once, and told nothing more."""

    def __init__(self, track: str, name: str, settings: Mapping[str, Any]) -> None:
        self.kind, _, self.place = settled(track).partition(":")
        self.name = _NAME.sub("-", name).replace("/", "-")
        self.settings = dict(_flat(settings))
        self._logger: Any = None
        self._over = False
        self._step = 0

    def row(self, row: Mapping[str, Any]) -> None:
        """Tell a row of the history: its numbers, under the name of its stage."""
        step = int(row.get("step", row.get("epoch", self._step)))
        self._step = max(self._step, step)
        numbers = _numbers(str(row["stage"]), {key: value for key, value in row.items() if key != "step"})

        def tell(logger: Any) -> None:
            logger.log_metrics(numbers, step)
            logger.save()  # what a killed run leaves behind is all of it

        if numbers:
            self._try(tell)

    def end(self, metrics: Mapping[str, Any]) -> None:
        """Tell the numbers of the record, and close the logger."""
        numbers = _numbers("record", metrics)

        def tell(logger: Any) -> None:
            if self.kind == "tensorboard":  # which shows settings only beside the numbers that they led to
                logger.log_hyperparams(self.settings, numbers, self._step)
            else:
                logger.log_metrics(numbers, self._step)
            self._close(logger, "success")

        self._try(tell)
        self._over, self._logger = True, None

    def fail(self) -> None:
        """Close the logger of a run that came to nothing; one that was never opened stays so."""
        if self._logger is not None:
            self._try(lambda logger: self._close(logger, "failed"))
        self._over, self._logger = True, None

    def _close(self, logger: Any, status: str) -> None:
        logger.finalize(status)
        if self.kind == "wandb":
            logger.experiment.finish(exit_code=0 if status == "success" else 1)

    def _try(self, tell: Callable[[Any], None]) -> None:
        if self._over:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # hints of the loggers to those who call them
                if self._logger is None:
                    self._logger = _OPENERS[self.kind](self.place, self.name)
                    if self.kind != "tensorboard":
                        self._logger.log_hyperparams(self.settings)
                tell(self._logger)
        except Exception as error:
            self._over = True
            warnings.warn(
                f"Tracking with {self.kind} failed, and ends here: {first_line(error)}. The run goes on, and its "
                "record is whole.",
                SpurlessWarning,
                stacklevel=3,
            )


def apart(log: Log | None, *, stage: str | None = None, without: str | None = None) -> Log | None:
    """Return what takes the rows of a part of a run as the record has them: as another stage, or without a number."""
    if log is None:
        return None
    named = {} if stage is None else {"stage": stage}
    return lambda row: log({key: value for key, value in {**row, **named}.items() if key != without})


@contextmanager
def closing(tracker: Tracker | None) -> Iterator[None]:
    """Close the tracker of a run that does not come to its end."""
    try:
        yield
    except BaseException:
        if tracker is not None:
            tracker.fail()
        raise


def _csv(place: str, name: str) -> Any:
    return _loggers("pytorch").CSVLogger(place, name="", version=name)


def _tensorboard(place: str, name: str) -> Any:
    return _loggers("fabric").TensorBoardLogger(place, name="", version=name)


def _mlflow(place: str, name: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would tell its makers that it is used
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)  # that it made a new experiment
    if not place or "://" in place:
        return _loggers("pytorch").MLFlowLogger(PROJECT, name, tracking_uri=place or os.environ[URI])
    folder = Path(place)
    folder.mkdir(parents=True, exist_ok=True)
    uri, files = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
    return _loggers("pytorch").MLFlowLogger(PROJECT, name, tracking_uri=uri, artifact_location=files)


def _wandb(place: str, name: str) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine unless the user says so
    Path(place).mkdir(parents=True, exist_ok=True)  # else it writes somewhere else
    wandb: Any = import_module("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=name,
        dir=place,
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",  # the runs of a fleet go on at once
        settings=wandb.Settings(silent=True),
    )
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step")
    return _loggers("pytorch").WandbLogger(experiment=run)


_OPENERS: dict[str, Callable[[str, str], Any]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def _loggers(room: str) -> Any:
    return import_module(f"lightning.{room}.loggers")  # only now: it takes seconds


def _numbers(stage: str, found: Mapping[str, Any]) -> dict[str, float]:
    """Return what is a number, under its stage; a record has the rest."""
    return {_NAME.sub("-", f"{stage}/{key}"): float(value) for key, value in found.items() if isinstance(value, Real)}


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting under one name; what is no word or number is written as it is spelt."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}/")
        else:
            yield f"{before}{key}", value if isinstance(value, str | int | float) else str(value)
