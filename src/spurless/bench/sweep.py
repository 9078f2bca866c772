"""Sweeps: one experiment over the values of hyper-parameters and over seeds, resumable, on any executor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from spurless.bench.executors import Resources, Task, choose_executor
from spurless.bench.executors.task import VALIDATION
from spurless.bench.experiment import DatasetLoader, Experiment, load_dataset
from spurless.bench.large_lr_metrics import COMPRESSIBILITY, measure_run
from spurless.bench.runner import Row, assign_keys, run_tasks, summarize_tasks
from spurless.bench.stopping import Stop, find_stops, tasks_within_limit
from spurless.core.config import configure
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.hashing import content_hash
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.data import DATASETS
from spurless.methods import METHODS, make_method
from spurless.models import get_architecture
from spurless.train.config import TrainConfig
from spurless.train.recipes import make_train_config

DEFAULT = Resources()


@dataclass(frozen=True)
class Sweep:
    """An experiment, the parameters that vary, and the rule by which it stops.

    Numbers increase, all seeds of a value at once. Of several parameters every combination is run; the first numeric
    one increases, once for each combination of the others.
    """

    experiment: Experiment
    over: Mapping[str, Sequence[Any]]
    """Parameters by name (``lr``, ``method.gamma``, ``data.conflicting``) and their values."""
    seeds: int = 3
    first: int = 0
    drop: float | None = 0.25
    """Stop once a seed diverged or lost more than this fraction of its best validation accuracy; None: never."""
    load: DatasetLoader = load_dataset
    large_lr_metrics: bool = False
    """Whether compressibility, separation, selectivity and prunability of every run are measured too."""
    keep: Path | None = None  # folder for the weights of every run; a recorded run without weights there is repeated

    def __post_init__(self) -> None:
        if not self.over:
            raise InputError("a sweep needs a parameter to vary", hint="Write for example --over lr=0.01,0.1.")
        if self.seeds < 1 or self.first < 0:
            raise InputError(
                "a sweep needs at least one seed, and seeds are not negative", got=f"{self.seeds} from {self.first}"
            )
        if self.drop is not None and not 0 < self.drop < 1:
            raise InputError(
                "drop must be a fraction", expected="between 0 and 1, such as 0.25, or none", got=self.drop
            )

    @property
    def name(self) -> str:
        """Name of the sweep, the same for more values and more seeds of the same experiment."""
        return f"sweep-{content_hash(asdict(self.experiment), [canonical_name(name) for name in self.over])[:8]}"


@dataclass(frozen=True)
class SweepResult:
    """Tasks and records of a sweep, and where it stopped."""

    tasks: tuple[Task, ...]
    records: Mapping[str, Record] = field(repr=False)  # records by key
    stops: tuple[Stop, ...]

    def rows(self) -> list[Row]:
        """Summarize every value that was run."""
        stops = {(stop.line, stop.rank): stop for stop in self.stops}
        by_value = groupby(self.tasks_within_limit(), key=lambda task: (task.line, task.rank))
        return [summarize_tasks(list(tasks), self.records, stops.get(value)) for value, tasks in by_value]

    def tasks_within_limit(self) -> list[Task]:
        """Return the tasks that the stopping rule does not leave out."""
        return tasks_within_limit(self.tasks, self.stops)


def plan_sweep(sweep: Sweep, resources: Resources = DEFAULT, progress: Progress | None = None) -> list[Task]:
    """Return every run of a sweep in the order of its values; nothing is trained.

    Raises:
        UnknownNameError: no parameter has that name.
        InputError: a list of values is empty, or has a duplicate or an invalid value.
    """
    seeds = range(sweep.first, sweep.first + sweep.seeds)
    tasks = [replace(task, seed=seed) for task in _make_tasks(sweep) for seed in seeds]
    return assign_keys(tasks, resources, progress)


def run_sweep(
    sweep: Sweep,
    *,
    out: Path | None = None,
    executor: str = "auto",
    resources: Resources = DEFAULT,
    progress: Progress | None = None,
) -> SweepResult:
    """Run what is not recorded yet, and return the result of the whole sweep.

    Args:
        sweep: the experiment and its values.
        out: the file of records; see :func:`~spurless.bench.runner.run_tasks`.
        executor: a name for :func:`~spurless.bench.executors.choose_executor`.
        resources: devices and processes.
        progress: called with stage, number of completed runs, number of runs, and a message.
    """
    chosen = choose_executor(executor, resources)  # before any data are loaded
    tasks = plan_sweep(sweep, resources, progress)
    records = run_tasks(
        tasks, sweep.name, executor=chosen, resources=resources, out=out, drop=sweep.drop, progress=progress
    )
    return SweepResult(tuple(tasks), records, tuple(find_stops(tasks, records, sweep.drop)))


def _make_tasks(sweep: Sweep) -> Iterator[Task]:
    """Yield a task without seed and key for every combination of values."""
    parameters = {name: get_parameter(name, sweep.experiment) for name in sweep.over}
    if len(set(parameters.values())) < len(parameters):
        raise InputError("a parameter is varied twice", got=", ".join(parameters))
    values = {name: _convert_values(sweep, name) for name in parameters}
    increasing = next((name for name in parameters if sweep.drop is not None and _is_numeric(values[name])), None)
    others = [name for name in parameters if name != increasing]
    required = (VALIDATION, COMPRESSIBILITY) if sweep.large_lr_metrics else (VALIDATION,)
    for line, combination in enumerate(product(*(values[name] for name in others))):
        for rank, value in enumerate(values[increasing] if increasing is not None else [None]):
            chosen: dict[Any, Any] = {**dict(zip(others, combination, strict=True)), increasing: value}
            yield Task(
                ", ".join(f"{canonical_name(name)}={_format_value(chosen[name])}" for name in parameters),
                assign_values(sweep.experiment, {parameter: chosen[name] for name, parameter in parameters.items()}),
                sweep.first,
                load=sweep.load,
                line=line,
                rank=rank,
                required_metrics=required,
                extra=measure_run if sweep.large_lr_metrics else None,
                keep=sweep.keep,
            )


def _convert_values(sweep: Sweep, name: str) -> list[Any]:
    """Return the values of a parameter with the type of the setting; numbers are sorted."""
    parameter = get_parameter(name, sweep.experiment)
    values = [convert_value(sweep.experiment, parameter, value) for value in sweep.over[name]]
    if not values:
        raise InputError(f"there is no value of {name!r}", hint=f"Write for example --over {name}=1,2.")
    duplicates = [value for number, value in enumerate(values) if value in values[:number]]
    if duplicates:
        raise InputError(f"a value of {name!r} is given twice", got=duplicates[0], hint="Give each value once.")
    return sorted(values) if _is_numeric(values) else values


def _format_value(value: Any) -> str:
    """Format a value without a comma, which separates parameters, and numbers as short as possible."""
    if value is None or isinstance(value, tuple):
        return " and ".join(map(_format_value, value or ())) or "none"
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


# parameters: from a name such as lr, method.gamma or data.conflicting to a setting of an experiment

SECTIONS = {"train": "train", "method": "method_options", "data": "data_options", "model": "model_options"}
"""Prefixes of parameters, and the field of an experiment for each."""
ALIASES = {"l2": "weight_decay", "rho": "asam"}  # names of training settings in papers


@dataclass(frozen=True)
class Parameter:
    """A setting of an experiment: its section and its name there."""

    section: str
    field: str


def get_parameter(name: str, experiment: Experiment) -> Parameter:
    """Return the parameter of that name: of training or method without a prefix, of data or model with one.

    Example:
        >>> experiment = Experiment("planted", "mlp", "group-dro")
        >>> get_parameter("lr", experiment), get_parameter("l2", experiment).field
        (Parameter(section='train', field='lr'), 'weight_decay')
        >>> get_parameter("step_size", experiment).section
        'method'

    Raises:
        UnknownNameError: no setting has that name; the nearest one is suggested.
        InputError: two settings have that name, or only one of another method.
    """
    known = _known_fields(experiment)
    section, dot, field = canonical_name(name).rpartition(".")
    sections = [section] if dot else ["train", "method"]
    matches = [Parameter(s, ALIASES.get(field, field) if s == "train" else field) for s in sections if s in SECTIONS]
    matches = [match for match in matches if (names := known[match.section]) is None or match.field in names]
    if len(matches) > 1:
        raise InputError(
            f"{name!r} is a setting both of training and of the method {experiment.method!r}",
            hint=f"Write train.{field} or method.{field}.",
        )
    if not matches:
        raise _unknown_parameter(name, section, field, known)
    return matches[0]


def canonical_name(name: str) -> str:
    """Return the name of a setting with underscores: the flag ``batch-size`` becomes ``batch_size``."""
    return name.replace("-", "_")


def convert_value(experiment: Experiment, parameter: Parameter, value: Any) -> Any:
    """Return a value with the type of the setting; raise if the setting cannot have that value."""
    options = {**getattr(experiment, SECTIONS[parameter.section]), parameter.field: value}
    if parameter.section == "train":
        config: Any = make_train_config(options)
    elif parameter.section == "method":
        config = make_method(experiment.method, experiment.preset, **options).config
    elif parameter.section == "model":
        config = configure(get_architecture(experiment.model).config, options, experiment.model)
    elif experiment.dataset in DATASETS:
        config = configure(DATASETS[experiment.dataset].config, options, f"dataset {experiment.dataset!r}")
    else:  # the user's data have no table of options
        return value
    return getattr(config, parameter.field)


def assign_values(experiment: Experiment, values: Mapping[Parameter, Any]) -> Experiment:
    """Return the experiment with these settings."""
    for parameter, value in values.items():
        section = SECTIONS[parameter.section]
        options: dict[str, Any] = {section: {**getattr(experiment, section), parameter.field: value}}
        experiment = replace(experiment, **options)
    return experiment


def _unknown_parameter(name: str, section: str, field: str, known: Mapping[str, Iterable[str] | None]) -> Exception:
    """Return the error for an unknown name, which may be a setting of another method."""
    owners = [method for method in METHODS if field in _field_names(type(make_method(method).config))]
    lacks_prefix = any(field in (known[other] or ()) for other in ("data", "model"))
    if section not in ("", "method") or lacks_prefix or not owners:
        return UnknownNameError("parameter", name, _shortest_names(known))
    return InputError(f"{name!r} is a setting of other methods: {', '.join(owners)}", hint=f"Add --method {owners[0]}.")


def _known_fields(experiment: Experiment) -> dict[str, tuple[str, ...] | None]:
    """Return the settings of every section; None for the user's data, whose options are checked when they load."""
    data = DATASETS.get(experiment.dataset)
    return {
        "train": _field_names(TrainConfig),
        "method": _field_names(type(make_method(experiment.method, experiment.preset).config)),
        "data": None if data is None else _field_names(data.config),
        "model": _field_names(get_architecture(experiment.model).config),
    }


def _field_names(config: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(config) if field.init)


def _shortest_names(known: Mapping[str, Iterable[str] | None]) -> list[str]:
    """Return the shortest name of every setting."""
    train, method = set(known["train"] or ()), set(known["method"] or ())
    ambiguous = {f"{section}.{field}" for section in ("train", "method") for field in train & method}
    prefixed = [f"{section}.{field}" for section in ("data", "model") for field in known[section] or ()]
    return [*(train ^ method), *ALIASES, *ambiguous, *prefixed]
