"""Run tasks on any executor and append their records to a file; recorded runs are not repeated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from spurless.bench.executors import Executor, Resources, WorkerDiedError
from spurless.bench.executors.task import VALIDATION, Runner, Task, run_settings
from spurless.bench.experiment import make_protocol_and_method
from spurless.bench.stopping import (
    Stop,
    find_stops,
    has_diverged,
    is_complete,
    next_wave,
    tasks_within_limit,
    validation_accuracy,
)
from spurless.core.errors import SpurlessError
from spurless.core.locks import lock_runs
from spurless.core.progress import Progress
from spurless.core.records import Record, append_record, read_records
from spurless.data.split import Splits
from spurless.fitting.assess import command_line
from spurless.fitting.protocol import RunHashes, hash_model_and_data, key_for_content
from spurless.metrics.intervals import Spread, over_seeds
from spurless.models import build
from spurless.train.checkpoint import delete_checkpoints

SUMMARY_METRICS = ("unbiased", "worst_group", "average", VALIDATION)
DEFAULT = Resources()
CUT_OFF = "Training ended before it reached its stopping rule; summaries leave this run out. Allow it more epochs."

Failures: TypeAlias = list[tuple[Task, Exception]]  # runs that failed, with their errors


@dataclass(frozen=True)
class Row:
    """Summary of one value or method over seeds, without runs that diverged or were cut off."""

    name: str
    seeds: int
    runs: int
    diverged: int
    cut_off: int
    spreads: Mapping[str, Spread]
    stop: Stop | None = None  # set if the sweep stopped here


def summarize_tasks(tasks: Sequence[Task], records: Mapping[str, Record], stop: Stop | None = None) -> Row:
    """Summarize the runs of one name."""
    done = [records[task.key] for task in tasks if task.key in records]
    complete = [record for record in done if is_complete(record)]
    numbers = {
        name: [value for r in complete if (value := r.metrics.get(name)) is not None] for name in SUMMARY_METRICS
    }
    spreads = {name: over_seeds(values) for name, values in numbers.items() if values}
    n_diverged = sum(map(has_diverged, done))
    n_cut_off = len(done) - len(complete) - n_diverged
    return Row(tasks[0].name, len(tasks), len(complete), n_diverged, n_cut_off, spreads, stop)


def run_tasks(  # noqa: PLR0913  # each is a separate choice of the caller
    tasks: Sequence[Task],
    name: str,
    *,
    executor: Executor,
    resources: Resources = DEFAULT,
    out: Path | None = None,
    reuse: bool = True,
    drop: float | None = None,
    failures: Failures | None = None,
    progress: Progress | None = None,
) -> dict[str, Record]:
    """Run the tasks that are not recorded yet, and return the records by their keys.

    Args:
        tasks: the runs, with keys.
        name: first word of the field ``cell`` of the records, such as ``sweep-1a2b3c4d``.
        executor: see :func:`~spurless.bench.executors.choose_executor`.
        resources: devices and processes.
        out: the file of records; a run that it contains is not repeated, and each that ends is appended.
        reuse: whether a record that another sweep, plan or claim wrote for the same run counts.
        drop: the rule by which a line of a sweep stops; see ``bench.stopping``. Without it all tasks run.
        failures: a list to which runs that fail are added while the others continue; without it, errors are raised.
        progress: called with stage, number of completed runs, number of runs, and a message.

    Raises:
        InputError: another process does one of these runs for the same file.
        WorkerDied: the process of a run died repeatedly; all other runs are recorded.
    """
    records = find_records(out, tasks, name, reuse)
    has_rule = drop is not None and any(task.rank for task in tasks)
    if next_wave(tasks, records, drop):
        missing = [task for task in tasks if task.key not in records]
        locks = [task.key if reuse else f"{name} {task.name} {task.key}" for task in missing]
        with lock_runs(out, locks), executor(resources) as run:
            records |= find_records(out, tasks, name, reuse)  # another process may have ended just before
            while wave := next_wave(_without_failures(tasks, failures), records, drop):
                _report_progress(progress, tasks, records, drop)
                for task, record in _completed(run, wave, failures):
                    records[task.key] = mark_record(record, f"{name} {task.name}", has_rule)
                    if out is not None:
                        append_record(out, records[task.key])
                    if task.checkpoints is not None:
                        delete_checkpoints(task.checkpoints, task.key)
                    _report_progress(progress, tasks, records, drop)
    if out is not None:
        allowed = tasks_within_limit(tasks, find_stops(tasks, records, drop))
        for record in copy_records(allowed, records, name, has_rule):
            append_record(out, record)
    return records


def assign_keys(tasks: Sequence[Task], resources: Resources, progress: Progress | None = None) -> list[Task]:
    """Return the tasks with their run keys; data and models that tasks share are built and hashed once.

    Raises:
        UnknownNameError, InputError: a name or a setting does not exist; no data have been loaded.
    """
    settings = [make_protocol_and_method(task.experiment, resources.compute) for task in tasks]
    by_data: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        by_data.setdefault(task.data_id, []).append(number)
    hashes: dict[int, RunHashes] = {}
    loaded_before: set[tuple[str, int]] = set()
    for n_loaded, numbers in enumerate(by_data.values(), 1):
        first = tasks[numbers[0]]
        source = first.experiment.dataset, id(first.load)
        with run_settings(replace(resources, quiet=source in loaded_before)):
            data = first.load(first.experiment.dataset, first.experiment.data_options, first.seed)
            fingerprint = data.fingerprint()
            contents = _hash_models([tasks[number] for number in numbers], data, fingerprint)
        for number, content in zip(numbers, contents, strict=True):
            key = key_for_content(*settings[number], content, first.seed)
            hashes[number] = RunHashes(fingerprint, content, key)
        loaded_before.add(source)
        if progress is not None:
            progress("plan", n_loaded, len(by_data), f"{first.experiment.dataset}, seed {first.seed}")
    return [replace(task, key=hashes[number].key, hashes=hashes[number]) for number, task in enumerate(tasks)]


def _hash_models(tasks: Sequence[Task], data: Splits, fingerprint: str) -> list[str]:
    """Return the hash of data and untrained model of tasks that share their data."""
    hashes: dict[str, str] = {}
    models = [
        json.dumps([task.experiment.model, dict(task.experiment.model_options)], sort_keys=True, default=str)
        for task in tasks
    ]
    for task, model in zip(tasks, models, strict=True):
        if model not in hashes:
            untrained = build(task.experiment.model, data, seed=task.seed, **task.experiment.model_options)
            hashes[model] = hash_model_and_data(untrained, data, fingerprint)
    return [hashes[model] for model in models]


def find_records(out: Path | None, tasks: Sequence[Task], name: str, reuse: bool = True) -> dict[str, Record]:
    """Return the records of these tasks that a file contains, if they have the required metrics and saved weights.

    Of several records of a run the first counts, and one with this ``name`` before others.
    """
    if out is None or not out.exists():
        return {}
    required = {task.key: set(task.required_metrics) for task in tasks}
    weights_missing = {task.key for task in tasks if task.weights is not None and not task.weights.exists()}
    names = {(f"{name} {task.name}", task.key) for task in tasks}
    known = [r for r in reversed(read_records(out, to_continue=True)) if r.key in required]
    known = [r for r in known if r.key not in weights_missing or has_diverged(r)]
    known = sorted((r for r in known if reuse or (r.cell, r.key) in names), key=lambda r: (r.cell, r.key) in names)
    return {r.key: r for r in known if has_diverged(r) or required[r.key] <= r.metrics.keys()}


def _completed(run: Runner, wave: Sequence[Task], failures: Failures | None) -> Iterator[tuple[Task, Record]]:
    """Yield the records of a wave; raise an error at once, but ``WorkerDiedError`` after all other runs.

    With a list of failures, errors are added to it instead.
    """
    died: list[tuple[Task, WorkerDiedError]] = []
    for task, outcome in run(wave):
        if isinstance(outcome, Record):
            yield task, outcome
        elif failures is not None:
            failures.append((task, outcome))
        elif isinstance(outcome, WorkerDiedError):
            died.append((task, outcome))
        else:
            if isinstance(outcome, SpurlessError):
                outcome.args = (f"{task}: {outcome}",)
            raise outcome
    if died:
        raise WorkerDiedError([task for task, _ in died], died[0][1].how)


def _report_progress(
    progress: Progress | None, tasks: Sequence[Task], records: Mapping[str, Record], drop: float | None
) -> None:
    """Report how many runs are done of those within the limit, the next run, and the best value so far."""
    if progress is None:
        return
    allowed = tasks_within_limit(tasks, find_stops(tasks, records, drop))
    pending = sorted((task for task in allowed if task.key not in records), key=lambda task: task.rank)
    accuracies = {
        name: [value for task in part if (r := records.get(task.key)) and (value := validation_accuracy(r)) is not None]
        for name, part in groupby(allowed, key=lambda task: task.name)
    }
    means = {name: sum(values) / len(values) for name, values in accuracies.items() if values}
    several_methods = len({task.experiment.method for task in tasks}) > 1  # not to be ranked by validation accuracy
    best = None if several_methods else max(means, key=means.__getitem__, default=None)
    message = str(pending[0]) if pending else "done"
    message += f" (best so far {best}: {means[best]:.1%})" if best is not None else ""
    progress("runs", len(allowed) - len(pending), len(allowed), message)


def _without_failures(tasks: Sequence[Task], failures: Failures | None) -> list[Task]:
    failed = {task.key for task, _ in failures or ()}
    return [task for task in tasks if task.key not in failed]


def mark_record(record: Record, cell: str, has_rule: bool) -> Record:
    """Return the record of a run of this process with its ``cell``, its command and a warning if it was cut off.

    ``has_rule`` is whether validation labels decided which values were run.
    """
    if not is_complete(record) and not has_diverged(record):
        record = replace(record, warnings=(*record.warnings, CUT_OFF))
    return replace(_set_cell(record, cell, has_rule), command=command_line())


def copy_records(tasks: Iterable[Task], records: Mapping[str, Record], name: str, has_rule: bool) -> Iterator[Record]:
    """Yield copies, with this sweep's ``cell``, of records that another sweep wrote: reports need them."""
    for task in tasks:
        record, cell = records.get(task.key), f"{name} {task.name}"
        if record is not None and record.cell != cell:
            yield _set_cell(record, cell, has_rule)


def _set_cell(record: Record, cell: str, has_rule: bool) -> Record:
    labels = record.supervision.get("val_labels", False) or has_rule
    return replace(record, cell=cell, supervision={**record.supervision, "val_labels": labels})
