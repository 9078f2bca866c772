"""Tasks: one run of a sweep, plan or claim, and the functions by which every executor runs it."""

from __future__ import annotations

import json
import pickle
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from spurless.bench.experiment import DatasetLoader, Experiment, build_run, load_dataset, make_protocol_and_method
from spurless.core.errors import DataChangedError, DivergedError, InputError, SpurlessError, SpurlessWarning
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.data.split import Splits
from spurless.fitting.assess import make_record, validation_average
from spurless.fitting.protocol import FitRequest, Fitted, RunHashes, describe_protocol, execute, prepare
from spurless.methods.base import method_info
from spurless.models.weights import save_weights
from spurless.train.run import Compute, limit_threads, make_run

VALIDATION = "val_average"  # the metric by which a sweep stops: the accuracy on the whole validation split
DIVERGED = "This run has no numbers."  # start of the last warning of a run that diverged

Extra: TypeAlias = Callable[[Fitted, Splits], Mapping[str, float]]
"""Measures further metrics of a fitted model on the data of its run."""


@dataclass(frozen=True)
class Task:
    """One run: an experiment, a seed and a key."""

    name: str  # the varied values, such as ``lr=0.1``, or the name of the experiment
    experiment: Experiment
    seed: int
    key: str = ""
    load: DatasetLoader = load_dataset
    line: int = 0  # tasks of one line differ only in the parameter that increases
    rank: int = 0  # position of the value in its line; a value waits for all of lower rank
    required_metrics: tuple[str, ...] = (VALIDATION,)  # metrics without which a recorded run is repeated
    extra: Extra | None = None  # measures further metrics for the record
    keep: Path | None = None  # folder for the weights, if they are saved
    checkpoints: Path | None = None  # folder for checkpoints, from which an interrupted run continues
    record_divergence: bool = True  # whether a run that diverges gets a record without numbers instead of an error
    progress: Progress | None = None  # called during training, by executors that run in this process
    hashes: RunHashes | None = None  # hashes of data, model and settings, if they are known

    @property
    def weights(self) -> Path | None:
        """Path of the saved weights of this run."""
        name = re.sub(r"[^\w.=+-]+", "_", self.name)
        return None if self.keep is None else self.keep / f"{name}-seed{self.seed}-{self.key[:8]}.safetensors"

    @property
    def data_id(self) -> str:
        """Identifies the data of the run within this process."""
        options = json.dumps(dict(self.experiment.data_options), sort_keys=True, default=str)
        return f"{self.experiment.dataset} {options} {self.seed} {id(self.load)}"

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Resources:
    """Devices and processes that a sweep may use."""

    compute: Compute = field(default_factory=Compute)  # device, precision and threads of every run
    jobs: int | None = None
    """Number of processes of the executor ``processes``; number of CPUs of a cluster that ``ray`` starts."""
    together: int = 16  # number of trainings that share one device, of the executor ``concurrent``
    address: str | None = None  # address of a running Ray cluster; without it, ``ray`` starts a cluster on this machine
    gpus_per_run: float | None = None  # of the executor ``ray``; by default 0.25 if the cluster has GPUs
    cpus_per_run: float = 1.0
    quiet: bool = True  # whether warnings of runs go only to their records: every run of a sweep would repeat them

    def __post_init__(self) -> None:
        for name in ("jobs", "together"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InputError(f"{name} must be at least 1", got=number)
        if min(self.cpus_per_run, self.gpus_per_run or 0.0) < 0:
            got = (self.cpus_per_run, self.gpus_per_run)
            raise InputError("cpus_per_run and gpus_per_run must not be negative", got=got)


TaskOutcome: TypeAlias = Record | Exception
Runner: TypeAlias = Callable[[Sequence[Task]], Iterator[tuple[Task, TaskOutcome]]]
"""Runs tasks and yields each with its outcome as soon as it has ended."""
Executor: TypeAlias = Callable[[Resources], AbstractContextManager[Runner]]
"""Opens a runner for the length of a sweep, and closes it whatever happens."""


class WorkerDiedError(SpurlessError, RuntimeError):
    """Raised if the processes of runs died and the runs were not completed by further attempts."""

    def __init__(self, tasks: Sequence[Task], how: str) -> None:
        self.how = how
        names = "; ".join(map(str, tasks))
        super().__init__(
            f"No result of {names}: {how}. The machine may be out of memory: run fewer jobs at once. "
            "All other runs are recorded. Run the same command again to continue."
        )


def build_task(task: Task, resources: Resources, loaded: dict[str, Splits] | None = None) -> FitRequest:
    """Load the data of a task, and build its model, method and protocol.

    Data that ``loaded`` contains, by ``data_id``, are not loaded again; others are added to it.
    """
    loaded = {} if loaded is None else loaded
    experiment = task.experiment
    if task.data_id not in loaded:
        loaded[task.data_id] = task.load(experiment.dataset, experiment.data_options, task.seed)
    run: dict[str, Any] = {"data": loaded[task.data_id], "folder": task.checkpoints, "progress": task.progress}
    return build_run(experiment, task.seed, resources.compute, **run)._replace(hashes=task.hashes)


def run_task(task: Task, resources: Resources, loaded: dict[str, Splits] | None = None) -> TaskOutcome:
    """Run one task; return an error, with its traceback as a note, since it may be sent to another process."""
    try:
        with run_settings(resources):
            request = build_task(task, resources, loaded)
            try:
                fitted: Fitted | Exception = execute(prepare(*request))
            except DivergedError as error:
                fitted = error
            return finish_task(task, request, fitted)
    except Exception as error:
        if loaded is not None and isinstance(error, DataChangedError):
            loaded.clear()
        if not isinstance(error, SpurlessError):
            error.add_note(f"in the run {task}\n{traceback.format_exc()}")
        return _make_picklable(error)


def finish_task(task: Task, request: FitRequest, fitted: Fitted | Exception) -> TaskOutcome:
    """Return the record of a run with the metrics of its task; if it diverged, a record without numbers."""
    if isinstance(fitted, DivergedError) and task.record_divergence:
        return _make_diverged_record(task, request, fitted)
    if isinstance(fitted, Exception):
        return fitted
    metrics = dict(fitted.record.metrics)
    if VALIDATION in task.required_metrics:
        run = make_run(request.protocol.compute, task.seed, request.protocol.train)
        metrics[VALIDATION] = validation_average(fitted.model, request.data, run)
    if task.extra is not None:
        metrics |= task.extra(fitted, request.data)
    if task.weights is not None:  # before the record, which marks the run as done
        save_weights(task.weights, fitted.model, seed=task.seed, data=fitted.record.data)
    record = replace(fitted.record, metrics=metrics)
    fitted.log_result(record)
    return record


@contextmanager
def run_settings(resources: Resources) -> Iterator[None]:
    """Limit the CPU threads of a run; if quiet, silence warnings, which records contain anyway."""
    with limit_threads(resources.compute.threads), warnings.catch_warnings():
        if resources.quiet:
            warnings.simplefilter("ignore", SpurlessWarning)
        yield


def _make_picklable(error: Exception) -> Exception:
    """Return an error that can be sent to another process: its text, if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


def _make_diverged_record(task: Task, request: FitRequest, error: DivergedError) -> Record:
    """Return the record of a run that diverged, so that it is not tried again."""
    protocol, _, model, data, seed, hashes = request
    _, method = make_protocol_and_method(task.experiment, protocol.compute)  # the one that ran may be changed
    run = make_run(protocol.compute, seed, protocol.train)
    return make_record(
        method_info(method).name,
        model,
        data,
        run,
        fingerprint=None if hashes is None else hashes.fingerprint,
        **describe_protocol(protocol, method),
        metrics={VALIDATION: None},
        seconds={},
        warnings=(f"{DIVERGED} {error}",),
        key=task.key,
    )
