"""Tasks: one run of a sweep in words, and how it is done wherever that is; every engine comes through here."""

from __future__ import annotations

import pickle
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from spurless.bench.assess import circumstances, describe_data, describe_model, validation_average
from spurless.bench.cell import Cell, settings
from spurless.bench.fitting import Fitted, Protocol, carry_out, prepare
from spurless.bench.rules import used
from spurless.bench.study import study
from spurless.core.errors import BadInput, Diverged, SpurlessError, SpurlessWarning
from spurless.core.records import GroupRow, Record
from spurless.data import load
from spurless.data.grouped import Splits
from spurless.methods import Method
from spurless.methods.base import declared
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.models.weights import save_weights
from spurless.train.run import Engine, start
from spurless.train.select import criterion_named

VALIDATION = "val_average"
"""The metric by which a sweep stops: the accuracy on the validation split as it is."""
DIVERGED = "This run has no numbers."
"""How the last warning of a run that diverged begins."""

Loader: TypeAlias = Callable[[str, Mapping[str, Any], int], Splits]
"""Opens data by name, options and seed. It travels to other processes, so it must be importable there."""


def load_named(dataset: str, options: Mapping[str, Any], seed: int) -> Splits:
    """Make the splits of a dataset that has a row in the table."""
    return load(dataset, **{"seed": seed, **options})


@dataclass(frozen=True)
class Task:
    """One run of a sweep: a value, a seed and a key."""

    name: str
    """The value in words, such as ``lr=0.1``."""
    cell: Cell
    seed: int
    key: str
    load: Loader = load_named
    line: int = 0
    """Tasks of one line differ in the parameter that is walked alone."""
    rank: int = 0
    """How far along its line the value lies; a value waits for all of lower rank."""
    study: bool = False
    """Whether the numbers of the study of large learning rates are taken too; see ``bench.study``."""
    keep: Path | None = None
    """The folder where weights are kept, if they are."""

    @property
    def weights(self) -> Path | None:
        """The file where the weights of this run are kept."""
        words = re.sub(r"[^\w.=+-]+", "_", self.name)
        return None if self.keep is None else self.keep / f"{words}-seed{self.seed}-{self.key[:8]}.safetensors"

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"


@dataclass(frozen=True)
class Machines:
    """What a sweep may use, and how much of it at once."""

    engine: Engine = field(default_factory=Engine)
    """Device and precision of every run."""
    threads: int = 1
    """Threads of a run on the CPU: their number changes the last bits of a sum, so each engine sets the same."""
    jobs: int | None = None
    """Processes at once, of the engine ``processes``; CPUs of a cluster that ``ray`` starts here."""
    together: int = 16
    """Trainings that share one device, of the engine ``fleet``."""
    address: str | None = None
    """A running Ray cluster; without one, ``ray`` starts its own on this machine."""
    gpus_per_run: float | None = None
    """Of the engine ``ray``; by default a quarter where the cluster has GPUs."""
    cpus_per_run: float = 1.0

    def __post_init__(self) -> None:
        for name in ("threads", "jobs", "together"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise BadInput(f"{name} must be at least 1", got=number)
        if min(self.cpus_per_run, self.gpus_per_run or 0.0) < 0:
            raise BadInput("a run cannot take less than no CPU or GPU", got=(self.cpus_per_run, self.gpus_per_run))


Outcome: TypeAlias = Record | Exception
Runner: TypeAlias = Callable[[Sequence[Task]], Iterator[tuple[Task, Outcome]]]
"""Does tasks and gives back each with its outcome, as they come."""
Opener: TypeAlias = Callable[[Machines], AbstractContextManager[Runner]]
"""An engine: set up once for a sweep, and cleared away whatever happens."""


class Lost(SpurlessError, RuntimeError):
    """Runs whose process died, more often than they are tried again."""

    def __init__(self, tasks: Sequence[Task], how: str) -> None:
        self.how = how
        names = "; ".join(map(str, tasks))
        super().__init__(
            f"Lost: {names}: {how}. Memory may have run out: let fewer run at once. The other runs are recorded; "
            "run again to go on."
        )


class Asked(NamedTuple):
    """A run, ready to be fitted; what ``fit_under`` takes."""

    protocol: Protocol
    method: Method
    model: Classifier
    data: Splits
    seed: int


def ask(task: Task, machines: Machines, data: Splits | None = None) -> Asked:
    """Make data, model, method and protocol of a task; data that are open already are taken as they are."""
    cell = task.cell
    data = task.load(cell.dataset, cell.data_options, task.seed) if data is None else data
    model = build(cell.model, data, seed=task.seed, **cell.model_options)
    return Asked(*settings(cell, machines.engine), model, data, task.seed)


def attempt(task: Task, machines: Machines) -> Outcome:
    """Do one run; an error is given back, with where it came from, since it may have to travel."""
    try:
        with limited(machines.threads):
            asked = ask(task, machines)
            try:
                fitted: Fitted | Exception = carry_out(prepare(*asked))
            except Diverged as error:
                fitted = error
            return conclude(task, asked, fitted)
    except Exception as error:
        if not isinstance(error, SpurlessError):
            error.add_note(f"in the run {task}\n{traceback.format_exc()}")
        return _portable(error)


def conclude(task: Task, asked: Asked, fitted: Fitted | Exception) -> Outcome:
    """Return the record of a run, with its validation accuracy; of one that diverged, a record without numbers."""
    if isinstance(fitted, Diverged):
        return _without_numbers(task, asked, fitted)
    if isinstance(fitted, Exception):
        return fitted
    run = start(asked.protocol.engine, task.seed, asked.protocol.train)
    metrics = {**fitted.record.metrics, VALIDATION: validation_average(fitted.model, asked.data, run)}
    if task.study:
        metrics |= study(fitted, asked.data)
    if task.weights is not None:  # before the record, which says that the run is done
        save_weights(task.weights, fitted.model, seed=task.seed, data=fitted.record.data)
    record = replace(fitted.record, metrics=metrics)
    fitted.told(record)
    return record


@contextmanager
def limited(threads: int, quiet: bool = True) -> Iterator[None]:
    """Compute with so many threads; leave warnings to the records, since every run of a sweep would repeat them."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", SpurlessWarning)
            yield
    finally:
        torch.set_num_threads(before)


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent to another process: one of strange make goes as its words."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        return plain
    return error


def _without_numbers(task: Task, asked: Asked, error: Diverged) -> Record:
    """Return the honest row of a run that diverged, so that it is not tried again."""
    protocol, method, model, data, seed = asked
    info, criterion = declared(method), criterion_named(protocol.select)
    names = (data.groups.name(g) for g in range(len(data.groups)))
    counts = zip(names, data.test.counts.tolist(), data.train.counts.tolist(), strict=True)
    return Record(
        method=info.name,
        seed=seed,
        data=describe_data(data, data.fingerprint()),
        model=describe_model(model),
        config=asdict(method.config),
        train=asdict(protocol.train),
        supervision=used(info, criterion),
        selection=criterion.name,
        groups=tuple(GroupRow(name, count, None, None, None, trained) for name, count, trained in counts),
        metrics={VALIDATION: None},
        seconds={},
        warnings=(*data.notes, f"{DIVERGED} {error}"),
        key=task.key,
        **circumstances(start(protocol.engine, seed, protocol.train).device),
    )
