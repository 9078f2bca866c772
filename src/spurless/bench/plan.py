"""Plans: every method on every dataset with every seed, under one protocol; from a TOML file or from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from spurless.bench.cell import Cell, settings
from spurless.bench.engines import Machines, Task, choose
from spurless.bench.engines.base import Loader, limited, load_named
from spurless.bench.runner import Failures, Row, keyed, row_of, run_tasks
from spurless.bench.stopping import reached
from spurless.core.errors import BadInput
from spurless.core.options import configure, read_toml
from spurless.core.own_code import settled
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.methods import method_named
from spurless.metrics.intervals import Paired, paired
from spurless.train.select import criterion_named

SIGNED = "bench"
"""How the cells of records begin that a plan made: a run is the same in every plan."""
DEFAULT = Machines()

Door: TypeAlias = Callable[[str, Mapping[str, Any], str], Loader]
"""From a dataset's name in the plan, what the plan says of its columns, and its model, to what opens it."""
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Methods, datasets and seeds, crossed."""

    cells: Mapping[str, Mapping[str, Cell]]
    """By what the plan calls datasets, then by what it calls methods; others are compared with the first method."""
    seeds: int = 3
    first: int = 0
    loads: Mapping[str, Loader] = field(default_factory=dict)
    """How to open datasets that are not in the table, by what the plan calls them."""

    def __post_init__(self) -> None:
        if not any(self.cells.values()):
            raise BadInput(
                "a plan needs a method and a dataset",
                do='Write for example methods = ["erm", "dfr"] and datasets = ["patched-digits"].',
            )
        if self.seeds < 1 or self.first < 0:
            raise BadInput("a plan needs a seed, and none is negative", got=f"{self.seeds} from {self.first}")


@dataclass(frozen=True)
class Benched:
    """What a plan came to."""

    tasks: Mapping[tuple[str, str], Sequence[Task]] = field(repr=False)
    """By dataset and method, one for each seed."""
    records: Mapping[str, Record] = field(repr=False)
    """By key."""
    failures: Failures
    """Runs that came to nothing: such as those of a method that asks for labels that a dataset has not."""

    def rows(self) -> dict[str, list[Row]]:
        """Summarise every method, by dataset."""
        found: dict[str, list[Row]] = {}
        for (dataset, method), tasks in self.tasks.items():
            found.setdefault(dataset, []).append(replace(row_of(tasks, self.records), name=method))
        return found

    def gain(self, dataset: str, method: str, metric: str = "worst_group") -> Paired | None:
        """Compare a method with the first of the plan, seed by seed; None where no two runs can be compared."""
        first = next(name for place, name in self.tasks if place == dataset)
        ours, theirs = (self._values(dataset, name, metric) for name in (method, first))
        shared = [seed for seed in ours if seed in theirs]
        if method == first or not shared:
            return None
        return paired([ours[seed] for seed in shared], [theirs[seed] for seed in shared])

    def _values(self, dataset: str, method: str, metric: str) -> dict[int, float]:
        found = {task.seed: self.records.get(task.key) for task in self.tasks[dataset, method]}
        counted = {seed: record.metrics.get(metric) for seed, record in found.items() if record and reached(record)}
        return {seed: value for seed, value in counted.items() if value is not None}


def run_plan(
    plan: Plan,
    *,
    out: Path | None = None,
    engine: str = "auto",
    machines: Machines = DEFAULT,
    progress: Progress | None = None,
) -> Benched:
    """Do what is not done yet, and return what all of it came to.

    Of the methods that repair a trained model, one comes first: it trains the model by ERM, and the others find that in
    the cache. A run that fails is told in the end, and stops no other.

    Args:
        plan: what is crossed.
        out: the file of records; a run that it holds is not repeated, and each that ends is appended.
        engine: ``here``, ``processes``, ``ray``, ``fleet`` or ``auto``; see ``spurless.bench.engines``.
        machines: what may be used.
        progress: called with stage, runs done, runs in all, and a word.

    Raises:
        UnknownName, BadInput: the plan has a name or a setting that does not exist; nothing has been run.
    """
    choose(engine, machines)
    tasks, failures = tasks_of(plan, machines, progress), Failures()
    every = [task for part in tasks.values() for task in part]
    records = run_tasks(every, SIGNED, out=out, engine=engine, machines=machines, failures=failures, progress=progress)
    return Benched(tasks, records, failures)


def tasks_of(
    plan: Plan, machines: Machines = DEFAULT, progress: Progress | None = None
) -> dict[tuple[str, str], list[Task]]:
    """Return every run of a plan, by dataset and method; data are opened once a seed, and nothing is trained."""
    for methods in plan.cells.values():
        for cell in methods.values():  # all names before any data
            settings(cell, machines.engine)
            criterion_named(cell.select)
    tasks: dict[tuple[str, str], list[Task]] = {(d, m): [] for d, methods in plan.cells.items() for m in methods}
    total = len(plan.cells) * plan.seeds
    for line, (dataset, methods) in enumerate(plan.cells.items()):
        load, ranks = plan.loads.get(dataset, load_named), _ranks(methods)
        for number in range(plan.seeds):
            seed = plan.first + number
            alike = [
                Task(f"{method} on {dataset}", cell, seed, "", load, line, ranks[method])
                for method, cell in methods.items()
            ]
            with limited(machines.threads, quiet=number > 0):
                made = keyed(alike, machines)
            for method, task in zip(methods, made, strict=True):
                tasks[dataset, method].append(task)
            if progress is not None:
                progress("plan", line * plan.seeds + number + 1, total, f"{dataset}, seed {seed}")
    _refuse_twins(task for part in tasks.values() for task in part)
    return tasks


def _refuse_twins(tasks: Iterable[Task]) -> None:
    """Refuse a plan that has the same run under two names: a record has one name."""
    names: dict[str, str] = {}
    for task in tasks:
        if (other := names.setdefault(task.key, task.name)) != task.name:
            raise BadInput(
                f"{task.name} is the same run as {other}", do="Give one of them other settings, or leave it out."
            )


def _ranks(methods: Mapping[str, Cell]) -> dict[str, int]:
    """Return 1 for methods that wait until another has trained the model that they repair, and 0 for all others."""
    ranks, begun = dict.fromkeys(methods, 0), list[Any]()
    for name, cell in methods.items():
        if method_named(cell.method).info.start == "trained":
            ranks[name] = int((cell.train, cell.select) in begun)
            begun.append((cell.train, cell.select))
    return ranks


# a plan in a file


@dataclass(frozen=True)
class _File:
    """What a plan's file may say."""

    methods: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    model: str = "small-cnn"
    model_options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    select: str = "last"
    seeds: int = 3
    seed: int = 0
    method: Mapping[str, Any] = field(default_factory=dict)
    dataset: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Method:
    """What it may say of a method."""

    method: str | None = None
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    select: str | None = None


@dataclass(frozen=True)
class _Dataset:
    """What it may say of a dataset, beside its columns."""

    data: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


def read_plan(path: Path, door: Door | None = None) -> Plan:
    """Read a plan from a TOML file; see ``docs/how-to/bench.md`` for what it may say.

    Args:
        path: the file.
        door: makes what opens a dataset that is not in the table.

    Raises:
        BadInput: the file is no plan.
    """
    file = _table(_File, read_toml(path), f"the plan {path}")
    methods = {
        name: _table(_Method, said, f"[method.{name}]") for name, said in _named(file.methods, file.method, "method")
    }
    cells: dict[str, dict[str, Cell]] = {}
    loads: dict[str, Loader] = {}
    for name, said in _named(file.datasets, file.dataset, "dataset"):
        own = {f.name for f in fields(_Dataset)}
        kept = {key: value for key, value in said.items() if key.replace("-", "_") in own}
        part = _table(_Dataset, kept, f"[dataset.{name}]")
        model = settled(part.model or file.model)
        if door is not None:
            loads[name] = door(name, {key: value for key, value in said.items() if key not in kept}, model)
        elif len(kept) < len(said):
            raise BadInput(f"[dataset.{name}] names columns, and nobody is there to open it", where=path)
        shared = {} if part.model is not None else file.model_options
        cells[name] = {
            called: Cell(
                dataset=part.data or name,
                model=model,
                method=settled(method.method or called),
                data_options=part.options,
                model_options={**shared, **part.model_options},
                preset=method.preset,
                method_options=method.options,
                train={**file.train, **part.train, **method.train},
                select=method.select or file.select,
            )
            for called, method in methods.items()
        }
    return Plan(cells, file.seeds, file.seed, loads)


def _named(names: Sequence[str], tables: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables in the order of the list of names, where there is one; a name needs no table."""
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise BadInput(f"a {kind} is named twice", got=twice[0])
    if names and (unlisted := [name for name in tables if name not in names]):
        raise BadInput(f"[{kind}.{unlisted[0]}] is not in the list {kind}s", do=f"Add it there, or leave {kind}s out.")
    return [(name, tables.get(name, {})) for name in names or tables]


def _table(kind: type[T], said: Any, what: str) -> T:
    """Read one table of the file; what must be a table in it is one."""
    if not isinstance(said, Mapping):
        raise BadInput(f"{what} is no table", got=said)
    made = configure(kind, said, what)
    for part in fields(kind):  # type: ignore[arg-type]  # each is one of the dataclasses above
        if str(part.type).startswith("Mapping") and not isinstance(getattr(made, part.name), Mapping):
            raise BadInput(f"{part.name} of {what} is no table", got=getattr(made, part.name))
    return made
