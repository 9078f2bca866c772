"""Plans: every method on every dataset with every seed, under one protocol; from a TOML file or from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from spurless.bench.executors import Resources, Task, choose_executor
from spurless.bench.experiment import DatasetLoader, Experiment, load_dataset
from spurless.bench.runner import Failures, Row, assign_keys, run_tasks, summarize_tasks
from spurless.bench.stopping import is_complete
from spurless.core.config import configure, read_toml
from spurless.core.errors import InputError
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.core.user_code import resolve_user_code_name
from spurless.methods import method_named
from spurless.metrics.intervals import PairedDifference, compare_paired

RECORD_NAME = "bench"  # first word of the field ``cell`` of records of plans: a run is the same in every plan
DEFAULT = Resources()

DatasetLoaderFactory: TypeAlias = Callable[[str, Mapping[str, Any], str], DatasetLoader]
"""Makes a loader from a dataset's name in the plan, its column settings there, and its model."""
T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """Every combination of methods, datasets and seeds."""

    experiments: Mapping[str, Mapping[str, Experiment]]
    """By the plan's names of datasets, then of methods; the first method is the baseline of the others."""
    seeds: int = 3
    first: int = 0
    loads: Mapping[str, DatasetLoader] = field(default_factory=dict)
    """Loaders of datasets that are not in the table of datasets, by the plan's names."""

    def __post_init__(self) -> None:
        if not any(self.experiments.values()):
            raise InputError(
                "a plan needs a method and a dataset",
                hint='Write for example methods = ["erm", "dfr"] and datasets = ["patched-digits"].',
            )
        if self.seeds < 1 or self.first < 0:
            raise InputError(
                "a plan needs at least one seed, and seeds are not negative", got=f"{self.seeds} from {self.first}"
            )


@dataclass(frozen=True)
class PlanResult:
    """Tasks, records and failures of a plan."""

    tasks: Mapping[tuple[str, str], Sequence[Task]] = field(repr=False)  # by dataset and method, one for each seed
    records: Mapping[str, Record] = field(repr=False)  # records by key
    failures: Failures  # runs that failed, such as those of a method that needs labels that a dataset does not have

    def rows(self) -> dict[str, list[Row]]:
        """Summarize every method, by dataset."""
        rows: dict[str, list[Row]] = {}
        for (dataset, method), tasks in self.tasks.items():
            rows.setdefault(dataset, []).append(replace(summarize_tasks(tasks, self.records), name=method))
        return rows

    def gain(self, dataset: str, method: str, metric: str = "worst_group") -> PairedDifference | None:
        """Compare a method with the first of the plan, seed by seed; None if they share no completed seed."""
        baseline = next(name for other, name in self.tasks if other == dataset)
        values, reference = (self._values(dataset, name, metric) for name in (method, baseline))
        shared = [seed for seed in values if seed in reference]
        if method == baseline or not shared:
            return None
        return compare_paired([values[seed] for seed in shared], [reference[seed] for seed in shared])

    def _values(self, dataset: str, method: str, metric: str) -> dict[int, float]:
        """Return a metric of every completed run, by seed."""
        records = {task.seed: self.records.get(task.key) for task in self.tasks[dataset, method]}
        values = {seed: r.metrics.get(metric) for seed, r in records.items() if r and is_complete(r)}
        return {seed: value for seed, value in values.items() if value is not None}


def run_plan(
    plan: Plan,
    *,
    out: Path | None = None,
    executor: str = "auto",
    resources: Resources = DEFAULT,
    progress: Progress | None = None,
) -> PlanResult:
    """Run what is not recorded yet, and return the result of the whole plan; arguments as of ``run_sweep``.

    Of the methods that repair a trained model, one runs first: it trains the model by ERM, and the others load that
    from the cache. A run that fails does not stop the others.

    Raises:
        UnknownNameError, InputError: the plan has a name or a setting that does not exist; nothing has been run.
    """
    chosen = choose_executor(executor, resources)
    tasks, failures = plan_tasks(plan, resources, progress), Failures()
    settings: dict[str, Any] = {"resources": resources, "out": out, "failures": failures, "progress": progress}
    records = run_tasks([task for part in tasks.values() for task in part], RECORD_NAME, executor=chosen, **settings)
    return PlanResult(tasks, records, failures)


def plan_tasks(
    plan: Plan, resources: Resources = DEFAULT, progress: Progress | None = None
) -> dict[tuple[str, str], list[Task]]:
    """Return every run of a plan, by dataset and method; nothing is trained."""
    names, tasks = list[tuple[str, str]](), list[Task]()
    for line, (dataset, methods) in enumerate(plan.experiments.items()):
        load, ranks = plan.loads.get(dataset, load_dataset), _rank_methods(methods)
        for method, experiment in methods.items():
            for seed in range(plan.first, plan.first + plan.seeds):
                names.append((dataset, method))
                tasks.append(Task(f"{method} on {dataset}", experiment, seed, load=load, line=line, rank=ranks[method]))
    by_name: dict[tuple[str, str], list[Task]] = {}
    for name, task in zip(names, assign_keys(tasks, resources, progress), strict=True):
        by_name.setdefault(name, []).append(task)
    _check_distinct(task for part in by_name.values() for task in part)
    return by_name


def _check_distinct(tasks: Iterable[Task]) -> None:
    """Raise if a plan has the same run under two names: a record has one name."""
    names: dict[str, str] = {}
    for task in tasks:
        if (other := names.setdefault(task.key, task.name)) != task.name:
            raise InputError(
                f"{task.name} is the same run as {other}", hint="Change the settings of one of them, or remove it."
            )


def _rank_methods(methods: Mapping[str, Experiment]) -> dict[str, int]:
    """Return 1 for methods that wait until another has trained the model that they repair, and 0 for all others."""
    ranks, started = dict.fromkeys(methods, 0), list[Any]()
    for name, experiment in methods.items():
        if method_named(experiment.method).info.start == "trained":
            ranks[name] = int((experiment.train, experiment.select) in started)
            started.append((experiment.train, experiment.select))
    return ranks


# a plan in a file


@dataclass(frozen=True)
class _PlanTable:
    """The tables and values of a plan file."""

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
class _MethodTable:
    """A table ``[method.NAME]`` of a plan file."""

    method: str | None = None
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    select: str | None = None


@dataclass(frozen=True)
class _DatasetTable:
    """A table ``[dataset.NAME]`` of a plan file, without its column settings."""

    data: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)


def read_plan(path: Path, make_loader: DatasetLoaderFactory | None = None) -> Plan:
    """Read a plan from a TOML file; ``docs/how-to/bench.md`` describes the format.

    ``make_loader`` makes the loaders of datasets that are not in the table of datasets.
    """
    file = _read_table(_PlanTable, read_toml(path), f"the plan {path}")
    methods = {
        name: _read_table(_MethodTable, table, f"[method.{name}]")
        for name, table in _select_tables(file.methods, file.method, "method")
    }
    experiments: dict[str, dict[str, Experiment]] = {}
    loads: dict[str, DatasetLoader] = {}
    for name, table in _select_tables(file.datasets, file.dataset, "dataset"):
        known = {f.name for f in fields(_DatasetTable)}
        settings = {key: value for key, value in table.items() if key.replace("-", "_") in known}
        columns = {key: value for key, value in table.items() if key not in settings}
        dataset = _read_table(_DatasetTable, settings, f"[dataset.{name}]")
        model = resolve_user_code_name(dataset.model or file.model)
        if make_loader is not None:
            loads[name] = make_loader(name, columns, model)
        elif columns:
            what = f"[dataset.{name}] has column settings, but there is no loader for it"
            raise InputError(what, where=path, got=", ".join(columns))
        shared = {} if dataset.model is not None else file.model_options
        experiments[name] = {
            title: Experiment(
                dataset=dataset.data or name,
                model=model,
                method=resolve_user_code_name(method.method or title),
                data_options=dataset.options,
                model_options={**shared, **dataset.model_options},
                preset=method.preset,
                method_options=method.options,
                train={**file.train, **dataset.train, **method.train},
                select=method.select or file.select,
            )
            for title, method in methods.items()
        }
    return Plan(experiments, file.seeds, file.seed, loads)


def _select_tables(names: Sequence[str], tables: Mapping[str, Any], kind: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the tables in the order of the list of names, if there is one; a name needs no table."""
    if duplicates := [name for number, name in enumerate(names) if name in names[:number]]:
        raise InputError(f"a {kind} is listed twice", got=duplicates[0])
    if names and (unlisted := [name for name in tables if name not in names]):
        raise InputError(
            f"[{kind}.{unlisted[0]}] is not in the list {kind}s", hint=f"Add it to {kind}s, or remove {kind}s."
        )
    return [(name, tables.get(name, {})) for name in names or tables]


def _read_table(kind: type[T], table: Any, what: str) -> T:
    """Read one table of the file, and check which of its values are tables."""
    if not isinstance(table, Mapping):
        raise InputError(f"{what} is not a table", got=table)
    result = configure(kind, table, what)
    for part in fields(kind):  # type: ignore[arg-type]  # each is one of the dataclasses above
        if str(part.type).startswith("Mapping") and not isinstance(getattr(result, part.name), Mapping):
            raise InputError(f"{part.name} of {what} is not a table", got=getattr(result, part.name))
    return result
