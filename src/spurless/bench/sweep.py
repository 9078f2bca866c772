"""Sweeps: one cell over the values of a hyper-parameter and over seeds, resumable, on any engine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from spurless.bench.cell import Cell, settings
from spurless.bench.engines import ENGINES, Lost, Machines, Task, choose
from spurless.bench.engines.base import VALIDATION, Loader, Runner, ask, limited, load_named
from spurless.bench.fitting import key_of
from spurless.bench.parameters import assign, convert, parameter_named, spelt
from spurless.bench.signing import adopted, signed
from spurless.bench.stopping import Stop, diverged, reached, stop_of, validation_of
from spurless.core.errors import BadInput, SpurlessError
from spurless.core.progress import Progress
from spurless.core.provenance import digest
from spurless.core.records import Record, append, read
from spurless.core.reserve import reserved
from spurless.data.grouped import Splits
from spurless.metrics.intervals import Spread, over_seeds

STUDIED = "activation_compressibility"
"""A number that every run has that was studied."""
SUMMARISED = ("unbiased", "worst_group", "average", VALIDATION)
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
class Row:
    """How one value fared over seeds; runs that diverged or were cut off are counted, and left out of the numbers."""

    name: str
    seeds: int
    runs: int
    diverged: int
    unreached: int
    spreads: Mapping[str, Spread]
    stop: Stop | None = None
    """Set where the sweep stopped here."""


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
        parts = groupby(self.walked(), key=lambda task: (task.line, task.rank))
        return [self._row(list(tasks), closed.get(place)) for place, tasks in parts]

    def walked(self) -> list[Task]:
        """Return the tasks that were not left by the rule."""
        ends = {stop.line: stop.rank for stop in self.stops}
        return [task for task in self.tasks if task.rank <= ends.get(task.line, task.rank)]

    def _row(self, tasks: list[Task], stop: Stop | None) -> Row:
        found = [self.records[task.key] for task in tasks if task.key in self.records]
        counted = [record for record in found if reached(record)]
        numbers = {name: [value for r in counted if (value := r.metrics.get(name)) is not None] for name in SUMMARISED}
        spreads = {name: over_seeds(values) for name, values in numbers.items() if values}
        lost = sum(map(diverged, found))
        return Row(tasks[0].name, len(tasks), len(counted), lost, len(found) - len(counted) - lost, spreads, stop)


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
                tasks += _keyed([replace(point, seed=seed) for point in alike], machines)
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
    opener = ENGINES[choose(engine, machines)]
    tasks = plan(sweep, machines, progress)
    records, judged = _recorded(out, tasks, sweep.name), any(task.rank for task in tasks)
    if next_wave(tasks, records, sweep.drop):
        with reserved(out, [task.key for task in tasks if task.key not in records]), opener(machines) as run:
            records |= _recorded(out, tasks, sweep.name)  # another process may have ended just before
            while wave := next_wave(tasks, records, sweep.drop):
                _tell(progress, tasks, records, sweep.drop)
                for task, record in _done(run, wave):
                    records[task.key] = signed(record, f"{sweep.name} {task.name}", judged)
                    if out is not None:
                        append(out, records[task.key])
                    _tell(progress, tasks, records, sweep.drop)
    swept = Swept(tuple(tasks), records, tuple(stops_of(tasks, records, sweep.drop)))
    if out is not None:
        for record in adopted(swept.walked(), records, sweep.name, judged):
            append(out, record)
    return swept


def next_wave(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> list[Task]:
    """Return what may run now: of every line the lowest value that is not done, with all its missing seeds.

    A line that stopped still ends the value it stopped at, so that a sweep that was killed there ends as any other.
    """
    ends = {stop.line: stop.rank for stop in stops_of(tasks, records, drop)}
    missing = [task for task in tasks if task.key not in records and task.rank <= ends.get(task.line, task.rank)]
    lowest = {task.line: task.rank for task in reversed(missing)}  # they are sorted, so the first stays
    wave = {task.key: task for task in missing if task.rank == lowest[task.line]}
    return list(wave.values())


def stops_of(tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> Iterator[Stop]:
    """Yield where each line of a sweep ends by the rule, as far as its records say."""
    if drop is None:
        return
    for _, line in groupby(tasks, key=lambda task: task.line):
        stop = stop_of(list(line), records, drop)
        if stop is not None:
            yield stop


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


def _keyed(alike: Sequence[Task], machines: Machines) -> list[Task]:
    """Give tasks of the same data and untrained model their keys; both are made and hashed once."""
    asked = ask(alike[0], machines)
    mark = asked.data.fingerprint()
    data = cast(Splits, SimpleNamespace(fingerprint=lambda: mark))  # all that a key needs of it
    return [
        replace(task, key=key_of(*settings(task.cell, machines.engine), asked.model, data, task.seed)) for task in alike
    ]


def _recorded(out: Path | None, tasks: Sequence[Task], name: str) -> dict[str, Record]:
    """Return the records of these tasks that a file holds; one without a validation accuracy is of another command.

    Of several the first counts, and one of this sweep, called ``name``, before those of others.
    """
    if out is None or not out.exists():
        return {}
    wanted = {task.key: {VALIDATION, STUDIED} if task.study else {VALIDATION} for task in tasks}
    lost = {task.key for task in tasks if task.weights is not None and not task.weights.exists()}
    own = {(f"{name} {task.name}", task.key) for task in tasks}
    known = [r for r in reversed(read(out)) if r.key in wanted and (r.key not in lost or diverged(r))]
    known.sort(key=lambda r: (r.cell, r.key) in own)
    return {r.key: r for r in known if diverged(r) or wanted[r.key] <= r.metrics.keys()}


def _done(run: Runner, wave: Sequence[Task]) -> Iterator[tuple[Task, Record]]:
    """Yield the records of a wave; an error ends it at once, a lost run once all others are done."""
    lost: list[tuple[Task, Lost]] = []
    for task, outcome in run(wave):
        if isinstance(outcome, Record):
            yield task, outcome
        elif isinstance(outcome, Lost):
            lost.append((task, outcome))
        else:
            if isinstance(outcome, SpurlessError):
                outcome.args = (f"{task}: {outcome}",)  # of many runs, which it was
            raise outcome
    if lost:
        raise Lost([task for task, _ in lost], lost[0][1].how)


def _tell(progress: Progress | None, tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None) -> None:
    """Say how many runs are done of how many that are left by the rule, which is next, and which value is best."""
    if progress is None:
        return
    ends = {stop.line: stop.rank for stop in stops_of(tasks, records, drop)}
    open_tasks = [task for task in tasks if task.rank <= ends.get(task.line, task.rank)]
    waiting = [task for task in open_tasks if task.key not in records]
    found = {
        name: [value for task in part if (r := records.get(task.key)) and (value := validation_of(r)) is not None]
        for name, part in groupby(open_tasks, key=lambda task: task.name)
    }
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    best = max(means, key=means.__getitem__, default=None)
    word = str(waiting[0]) if waiting else "done"
    word += f" (best so far {best}: {means[best]:.1%})" if best is not None else ""
    progress("sweep", len(open_tasks) - len(waiting), len(open_tasks), word)
