"""Sweeps: one cell over the values of a hyper-parameter and over seeds, resumable, on any engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from spurless.bench.cell import Cell
from spurless.bench.engines import Machines, Task, choose
from spurless.bench.engines.base import Loader, limited, load_named
from spurless.bench.parameters import assign, convert, parameter_named, spelt
from spurless.bench.runner import Row, keyed, row_of, run_tasks
from spurless.bench.stopping import Stop, stops_of, walked
from spurless.core.errors import BadInput
from spurless.core.progress import Progress
from spurless.core.provenance import digest
from spurless.core.records import Record

DEFAULT = Machines()


@dataclass(frozen=True)
class Sweep:
    """A cell, the parameters that vary, and when to stop.

    Numbers are walked upwards, all seeds of a value at once. Of several parameters every combination is run; the
    first that is numeric is walked, once for each combination of the others.
    """

    cell: Cell
    over: Mapping[str, Sequence[Any]]
    """Parameters by name (``lr``, ``method.gamma``, ``data.conflicting``) and their values."""
    seeds: int = 3
    first: int = 0
    drop: float | None = 0.25
    """Go no higher once a seed diverged, or lost more than this share of its best validation accuracy; None: go on."""
    load: Loader = load_named
    study: bool = False
    """Take compressibility, separation, selectivity and prunability of every run too; see ``bench.study``."""
    keep: Path | None = None
    """Keep the weights of every run in this folder; a run that is recorded and has none there is done again."""

    def __post_init__(self) -> None:
        if not self.over:
            raise BadInput("a sweep needs a parameter to vary", do="Write for example --over lr=0.01,0.1.")
        if self.seeds < 1 or self.first < 0:
            raise BadInput("a sweep needs a seed, and none is negative", got=f"{self.seeds} from {self.first}")
        if self.drop is not None and not 0 < self.drop < 1:
            raise BadInput("drop is a share", expected="between 0 and 1, such as 0.25, or none", got=self.drop)

    @property
    def name(self) -> str:
        """Which sweep: the same for more values and more seeds of the same cell."""
        return f"sweep-{digest(asdict(self.cell), [spelt(name) for name in self.over])[:8]}"


@dataclass(frozen=True)
class Swept:
    """What a sweep came to."""

    tasks: tuple[Task, ...]
    records: Mapping[str, Record] = field(repr=False)
    """By key."""
    stops: tuple[Stop, ...]

    def rows(self) -> list[Row]:
        """Summarise every value that was run."""
        closed = {(stop.line, stop.rank): stop for stop in self.stops}
        parts = groupby(walked(self.tasks, self.stops), key=lambda task: (task.line, task.rank))
        return [row_of(list(tasks), self.records, closed.get(place)) for place, tasks in parts]

    def walked(self) -> list[Task]:
        """Return the tasks that were not left by the rule."""
        return walked(self.tasks, self.stops)


def plan(sweep: Sweep, machines: Machines = DEFAULT, progress: Progress | None = None) -> list[Task]:
    """Return every run of a sweep, value by value in the order in which they are walked; nothing is trained.

    Raises:
        UnknownName: no parameter has that name.
        BadInput: a list of values is empty, has one twice, or has one that the cell refuses.
    """
    points = sorted(_points(sweep), key=_content)
    tasks: list[Task] = []
    for seed in range(sweep.first, sweep.first + sweep.seeds):
        for _, alike in groupby(points, key=_content):
            with limited(machines.threads, quiet=bool(tasks)):
                tasks += keyed([replace(point, seed=seed) for point in alike], machines)
        if progress is not None:
            progress("plan", seed - sweep.first + 1, sweep.seeds, f"seed {seed}")
    return sorted(tasks, key=lambda task: (task.line, task.rank, task.seed))


def run_sweep(
    sweep: Sweep,
    *,
    out: Path | None = None,
    engine: str = "auto",
    machines: Machines = DEFAULT,
    progress: Progress | None = None,
) -> Swept:
    """Do what is not done yet, and return what all of it came to.

    Args:
        sweep: what varies.
        out: the file of records; a run that it holds is not repeated, and each that ends is appended.
        engine: ``here``, ``processes``, ``ray``, ``fleet`` or ``auto``; see ``spurless.bench.engines``.
        machines: what may be used.
        progress: called with stage, runs done, runs in all, and a word.

    Raises:
        BadInput: another process is at one of these runs, and records it in the same file.
        Lost: the process of a run died again and again; all others are recorded.
    """
    choose(engine, machines)  # what cannot be is refused before data are opened
    tasks = plan(sweep, machines, progress)
    records = run_tasks(
        tasks, sweep.name, out=out, engine=engine, machines=machines, drop=sweep.drop, progress=progress
    )
    return Swept(tuple(tasks), records, tuple(stops_of(tasks, records, sweep.drop)))


def _points(sweep: Sweep) -> Iterator[Task]:
    """Yield a task without seed and key for every combination of values."""
    named = {name: parameter_named(name, sweep.cell) for name in sweep.over}
    if len(set(named.values())) < len(named):
        raise BadInput("a parameter is varied twice", got=", ".join(named))
    values = {name: _values(sweep, name) for name in named}
    walked = next((name for name in named if sweep.drop is not None and _numeric(values[name])), None)
    others = [name for name in named if name != walked]
    for line, rest in enumerate(product(*(values[name] for name in others))):
        for rank, value in enumerate(values[walked] if walked is not None else [None]):
            chosen: dict[Any, Any] = {**dict(zip(others, rest, strict=True)), walked: value}
            words = ", ".join(f"{spelt(name)}={_word(chosen[name])}" for name in named)
            cell = assign(sweep.cell, {parameter: chosen[name] for name, parameter in named.items()})
            yield Task(words, cell, sweep.first, "", sweep.load, line, rank, sweep.study, sweep.keep)


def _values(sweep: Sweep, name: str) -> list[Any]:
    """Return the values of a parameter, each of its type and once; numbers upwards."""
    parameter = parameter_named(name, sweep.cell)
    values = [convert(sweep.cell, parameter, value) for value in sweep.over[name]]
    if not values:
        raise BadInput(f"there is no value of {name!r}", do=f"Write for example --over {name}=1,2.")
    twice = [value for number, value in enumerate(values) if value in values[:number]]
    if twice:
        raise BadInput(f"a value of {name!r} comes twice", got=twice[0], do="Name each once.")
    return sorted(values) if _numeric(values) else values


def _word(value: Any) -> str:
    """Write a number as short as it goes, and anything else as it is; a page reads it, so without a comma."""
    if value is None or isinstance(value, tuple):
        return " and ".join(map(_word, value or ())) or "none"
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _content(point: Task) -> str:
    """Return what decides data and untrained model, apart from the seed."""
    return json.dumps([dict(point.cell.data_options), dict(point.cell.model_options)], sort_keys=True, default=str)
