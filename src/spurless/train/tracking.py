"""Log runs while they train, and audits and repairs, to CSV, TensorBoard, MLflow or Weights & Biases."""

from __future__ import annotations

import logging
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from spurless.core.errors import InputError, MissingExtraError, SpurlessWarning, UnknownNameError, first_line
from spurless.core.findings import Audit
from spurless.core.repairs import Repair

FOLDER = Path("runs/track")  # default folder of the logs
PROJECT = "spurless"
URI = "MLFLOW_TRACKING_URI"

Log: TypeAlias = Callable[[Mapping[str, Any]], None]  # receives a history row at the end of its epoch

_PACKAGES = {"csv": None, "tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
_NAME = re.compile(r"[^a-zA-Z0-9_/. -]+")  # MLflow allows no other characters in metric names


def resolve_tracker(track: str, folder: Path = FOLDER) -> str:
    """Return a tracker as ``KIND:FOLDER`` with an absolute path, since runs may have other working folders.

    Args:
        track: ``csv``, ``tensorboard``, ``mlflow`` or ``wandb``, optionally with a folder, as ``csv:FOLDER``. For
            mlflow also the address of a server, as ``mlflow:http://HOST:PORT``; its default is
            ``$MLFLOW_TRACKING_URI``.
        folder: the default folder.

    Raises:
        UnknownNameError: there is no such tracker.
        MissingExtraError: its package is not installed.
        InputError: the folder is missing after the colon, or this tracker cannot use an address.
    """
    kind, colon, location = track.partition(":")
    if kind not in _PACKAGES:
        raise UnknownNameError("tracker", kind, _PACKAGES)
    if colon and not location:
        raise InputError(
            f"the tracker {track!r} has no folder after the colon", hint=f"Write {kind}, or {kind}:FOLDER."
        )
    package = _PACKAGES[kind]
    if package is not None and find_spec(package) is None:
        raise MissingExtraError(package, "track", f"Tracking with {kind}")
    if kind == "mlflow" and not location and URI in os.environ:
        return kind
    if "://" not in location:
        return f"{kind}:{Path(location or folder).absolute()}"
    if kind != "mlflow":
        raise InputError(f"{kind} writes to a folder", got=location, hint=f"Write {kind}:FOLDER.")
    return f"{kind}:{location}"


class Tracker:
    """Logs one run. If the logger fails, it is closed with a warning, and the run continues."""

    def __init__(self, track: str, name: str, settings: Mapping[str, Any]) -> None:
        self.kind, _, self.location = resolve_tracker(track).partition(":")
        self.name = _NAME.sub("-", name).replace("/", "-")
        self.settings = dict(_flatten(settings))
        self._logger: Any = None
        self._is_closed = False
        self._step = 0

    def log_row(self, row: Mapping[str, Any]) -> None:
        """Log the numbers of a history row, under the name of its stage."""
        step = int(row.get("step", row.get("epoch", self._step)))
        self._step = max(self._step, step)
        numbers = _numbers(str(row["stage"]), {key: value for key, value in row.items() if key != "step"})

        def log(logger: Any) -> None:
            logger.log_metrics(numbers, step)
            logger.save()  # so that the log of a killed run is complete

        if numbers:
            self._try(log)

    def end(self, metrics: Mapping[str, Any], stage: str = "record", files: Sequence[Path] = ()) -> None:
        """Log the metrics of the record and files such as a page, and close the logger."""
        numbers = _numbers(stage, metrics)

        def log(logger: Any) -> None:
            if self.kind == "tensorboard":  # it shows settings only together with metrics
                logger.log_hyperparams(self.settings, numbers, self._step)
            else:
                logger.log_metrics(numbers, self._step)
            self._log_files(logger, files)
            self._close(logger, "success")

        self._try(log)
        self._is_closed, self._logger = True, None

    def fail(self) -> None:
        """Close the logger of a failed run, if it was opened."""
        if self._logger is not None:
            self._try(lambda logger: self._close(logger, "failed"))
        self._is_closed, self._logger = True, None

    def _log_files(self, logger: Any, files: Sequence[Path]) -> None:
        """Add files to the run: as artifacts, or in the folder of a tracker that has none."""
        if not files:
            return
        if self.kind == "mlflow":
            for file in files:
                logger.experiment.log_artifact(logger.run_id, str(file))
        elif self.kind == "wandb":
            artifact = import_module("wandb").Artifact(re.sub(r"[^\w.-]", "-", self.name)[:100], type="report")
            for file in files:
                artifact.add_file(str(file))
            logger.experiment.log_artifact(artifact)
        else:
            logger.save()  # creates the folder
            for file in files:
                shutil.copy(file, logger.log_dir)

    def _close(self, logger: Any, status: str) -> None:
        logger.finalize(status)
        if self.kind == "wandb":
            logger.experiment.finish(exit_code=0 if status == "success" else 1)

    def _try(self, log: Callable[[Any], None]) -> None:
        if self._is_closed:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # hints for direct users of the loggers
                if self._logger is None:
                    self._logger = _OPENERS[self.kind](self.location, self.name)
                    if self.kind != "tensorboard":
                        self._logger.log_hyperparams(self.settings)
                log(self._logger)
        except Exception as error:
            self._is_closed = True
            warnings.warn(
                f"Tracking with {self.kind} failed and stops: {first_line(error)}. The run continues, and its record "
                "will be complete.",
                SpurlessWarning,
                stacklevel=3,
            )


def track_audit(track: str, audit: Audit, files: Sequence[Path] = ()) -> None:
    """Log an audit as one run: verdict, accuracies, severities, and files such as its page."""
    settings = _audit_settings(audit)
    Tracker(track, _name_run("audit", settings), settings).end(_audit_numbers(audit), "audit", files)


def track_repair(track: str, repair: Repair, files: Sequence[Path] = ()) -> None:
    """Log a repair as one run: the outcome, both audits, the metrics on the test split, and files such as its page."""
    settings = _audit_settings(repair.audit_before) | {"method": repair.choice.method if repair.choice else "none"}
    numbers: dict[str, Any] = {"fixed": float(repair.fixed)}
    parts = {"before": (repair.audit_before, repair.before)}
    if repair.audit_after is not None:
        parts["after"] = (repair.audit_after, repair.after)
        settings["verdict_after"] = repair.audit_after.verdict
    for part, (audit, record) in parts.items():
        numbers |= {f"{part}/audit/{key}": value for key, value in _audit_numbers(audit).items()}
        numbers |= {f"{part}/test/{key}": value for key, value in record.metrics.items()}
    Tracker(track, _name_run("fix", settings), settings).end(numbers, "fix", files)


def _audit_settings(audit: Audit) -> dict[str, Any]:
    worst, facts = audit.worst_group, audit.facts
    settings = {key: facts[key] for key in ("model", "data", "part", "examples", "seed", "versions") if key in facts}
    return {"verdict": audit.verdict, "worst_group": worst.name if worst else "", "level": audit.level} | settings


def _audit_numbers(audit: Audit) -> dict[str, Any]:
    """Return accuracies with the ends of the worst group's interval, counts of findings, and all severities."""
    numbers: dict[str, Any] = {"flagged": len(audit.flagged), "confirmed": len(audit.confirmed)}
    numbers["accuracy"] = audit.facts.get("accuracy")
    if (worst := audit.worst_group) is not None:
        numbers |= {"worst_group": worst.accuracy, "worst_group_low": worst.low, "worst_group_high": worst.high}
    return numbers | {f"severity/{finding.audit}": finding.severity for finding in audit.findings}


def _name_run(kind: str, settings: Mapping[str, Any]) -> str:
    """Return a name that no other run has: logs of one name would replace each other."""
    names = "-".join(str(settings.get(key, ""))[-60:] for key in ("model", "data"))
    return f"{kind}-{names}-{uuid4().hex[:8]}"


@contextmanager
def close_on_error(tracker: Tracker | None) -> Iterator[None]:
    """Close the tracker if the block raises."""
    try:
        yield
    except BaseException:
        if tracker is not None:
            tracker.fail()
        raise


def _mlflow(location: str, name: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # do not send usage data
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    # hides the message about a new experiment
    logging.getLogger("lightning.pytorch.loggers.mlflow").setLevel(logging.ERROR)
    if not location or "://" in location:
        return _loggers("pytorch").MLFlowLogger(PROJECT, name, tracking_uri=location or os.environ[URI])
    folder = Path(location)
    folder.mkdir(parents=True, exist_ok=True)
    uri, files = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
    return _loggers("pytorch").MLFlowLogger(PROJECT, name, tracking_uri=uri, artifact_location=files)


def _wandb(location: str, name: str) -> Any:
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # send nothing unless the user sets it
    Path(location).mkdir(parents=True, exist_ok=True)  # otherwise wandb writes to another folder
    wandb: Any = import_module("wandb")
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=name,
        dir=location,
        mode=os.environ.get("WANDB_MODE", "offline"),
        reinit="create_new",  # concurrent runs are tracked at once
        settings=wandb.Settings(silent=True),
    )
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step")
    return _loggers("pytorch").WandbLogger(experiment=run)


_OPENERS: dict[str, Callable[[str, str], Any]] = {
    "csv": lambda location, name: _loggers("pytorch").CSVLogger(location, name="", version=name),
    "tensorboard": lambda location, name: _loggers("fabric").TensorBoardLogger(location, name="", version=name),
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def _loggers(package: str) -> Any:
    return import_module(f"lightning.{package}.loggers")  # imported late, since it takes seconds


def _numbers(stage: str, row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, named by its stage."""
    return {_NAME.sub("-", f"{stage}/{key}"): float(value) for key, value in row.items() if isinstance(value, Real)}


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings under one name each; values other than text and numbers as text."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str | int | float) else str(value)
