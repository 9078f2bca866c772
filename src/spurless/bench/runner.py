"""The runner: tasks in, records out, on any engine; what a file holds is not repeated, and nothing is done twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from spurless.bench.cell import settings
from spurless.bench.engines import ENGINES, Lost, Machines, Task, choose
from spurless.bench.engines.base import VALIDATION, Runner, ask
from spurless.bench.keys import content_of, key_under
from spurless.bench.signing import adopted, signed
from spurless.bench.stopping import Stop, diverged, next_wave, reached, stops_of, validation_of, walked
from spurless.core.errors import SpurlessError
from spurless.core.progress import Progress
from spurless.core.records import Record, append, read
from spurless.core.reserve import reserved
from spurless.metrics.intervals import Spread, over_seeds

STUDIED = "activation_compressibility"
"""A number that every run has that was studied."""
SUMMARISED = ("unbiased", "worst_group", "average", VALIDATION)
DEFAULT = Machines()

Failures: TypeAlias = list[tuple[Task, Exception]]
"""Runs that came to nothing, and why."""


@dataclass(frozen=True)
class Row:
    """How one name fared over seeds; runs that diverged or were cut off are counted, and left out of the numbers."""

    name: str
    seeds: int
    runs: int
    diverged: int
    unreached: int
    spreads: Mapping[str, Spread]
    stop: Stop | None = None
    """Set where the sweep stopped here."""


def row_of(tasks: Sequence[Task], records: Mapping[str, Record], stop: Stop | None = None) -> Row:
    """Summarise the runs of one name."""
    found = [records[task.key] for task in tasks if task.key in records]
    counted = [record for record in found if reached(record)]
    numbers = {name: [value for r in counted if (value := r.metrics.get(name)) is not None] for name in SUMMARISED}
    spreads = {name: over_seeds(values) for name, values in numbers.items() if values}
    lost = sum(map(diverged, found))
    return Row(tasks[0].name, len(tasks), len(counted), lost, len(found) - len(counted) - lost, spreads, stop)


def run_tasks(  # noqa: PLR0913  all that sweeps and plans may say of their runs
    tasks: Sequence[Task],
    name: str,
    *,
    out: Path | None = None,
    engine: str = "auto",
    machines: Machines = DEFAULT,
    drop: float | None = None,
    failures: Failures | None = None,
    progress: Progress | None = None,
) -> dict[str, Record]:
    """Do what is not done yet, wave by wave, and return the records by their keys.

    Args:
        tasks: what is to be done, with keys.
        name: what signs the records, such as ``sweep-1a2b3c4d``.
        out: the file of records; a run that it holds is not repeated, and each that ends is appended.
        engine: ``here``, ``processes``, ``ray``, ``fleet`` or ``auto``; see ``spurless.bench.engines``.
        machines: what may be used.
        drop: the rule by which a line goes no further; see ``bench.stopping``. Without one all is done.
        failures: where a run that fails is put, and the others go on; without it, the first error is raised.
        progress: called with stage, runs done, runs in all, and a word.

    Raises:
        BadInput: another process is at one of these runs, and records it in the same file.
        Lost: the process of a run died again and again; all others are recorded.
    """
    opener = ENGINES[choose(engine, machines)]
    records = recorded(out, tasks, name)
    judged = drop is not None and any(task.rank for task in tasks)
    if next_wave(tasks, records, drop):
        with reserved(out, [task.key for task in tasks if task.key not in records]), opener(machines) as run:
            records |= recorded(out, tasks, name)  # another process may have ended just before
            while wave := next_wave(_left(tasks, failures), records, drop):
                _tell(progress, tasks, records, drop)
                for task, record in _done(run, wave, failures):
                    records[task.key] = signed(record, f"{name} {task.name}", judged)
                    if out is not None:
                        append(out, records[task.key])
                    _tell(progress, tasks, records, drop)
    if out is not None:
        for record in adopted(walked(tasks, stops_of(tasks, records, drop)), records, name, judged):
            append(out, record)
    return records


def keyed(alike: Sequence[Task], machines: Machines) -> list[Task]:
    """Give tasks of the same data and untrained model their keys; both are made and hashed once."""
    asked = ask(alike[0], machines)
    content = content_of(asked.model, asked.data)
    return [replace(task, key=key_under(*settings(task.cell, machines.engine), content, task.seed)) for task in alike]


def recorded(out: Path | None, tasks: Sequence[Task], name: str) -> dict[str, Record]:
    """Return the records of these tasks that a file holds; one without a validation accuracy is of another command.

    Of several the first counts, and one that ``name`` signed before those of others.
    """
    if out is None or not out.exists():
        return {}
    wanted = {task.key: {VALIDATION, STUDIED} if task.study else {VALIDATION} for task in tasks}
    lost = {task.key for task in tasks if task.weights is not None and not task.weights.exists()}
    own = {(f"{name} {task.name}", task.key) for task in tasks}
    known = [r for r in reversed(read(out, to_continue=True)) if r.key in wanted and (r.key not in lost or diverged(r))]
    known.sort(key=lambda r: (r.cell, r.key) in own)
    return {r.key: r for r in known if diverged(r) or wanted[r.key] <= r.metrics.keys()}


def _done(run: Runner, wave: Sequence[Task], failures: Failures | None) -> Iterator[tuple[Task, Record]]:
    """Yield the records of a wave; an error ends it at once, a lost run once all others are done, or both are kept."""
    lost: list[tuple[Task, Lost]] = []
    for task, outcome in run(wave):
        if isinstance(outcome, Record):
            yield task, outcome
        elif failures is not None:
            failures.append((task, outcome))
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
    open_tasks = walked(tasks, stops_of(tasks, records, drop))
    waiting = sorted((task for task in open_tasks if task.key not in records), key=lambda task: task.rank)
    found = {
        name: [value for task in part if (r := records.get(task.key)) and (value := validation_of(r)) is not None]
        for name, part in groupby(open_tasks, key=lambda task: task.name)
    }
    means = {name: sum(values) / len(values) for name, values in found.items() if values}
    rivals = len({task.cell.method for task in tasks}) > 1  # of methods, validation accuracy does not say which is best
    best = None if rivals else max(means, key=means.__getitem__, default=None)
    word = str(waiting[0]) if waiting else "done"
    word += f" (best so far {best}: {means[best]:.1%})" if best is not None else ""
    progress("runs", len(open_tasks) - len(waiting), len(open_tasks), word)


def _left(tasks: Sequence[Task], failures: Failures | None) -> list[Task]:
    failed = {task.key for task, _ in failures or ()}
    return [task for task in tasks if task.key not in failed]
