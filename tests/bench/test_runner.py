"""The runner: what fails, what is taken from the file, and what another process is at."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.bench.executors import EXECUTORS, Resources, Task
from spurless.bench.executors.in_process import open_local
from spurless.bench.executors.task import VALIDATION, Runner, WorkerDiedError, run_settings
from spurless.bench.experiment import Experiment, load_dataset, run_experiment
from spurless.bench.runner import Failures, assign_keys, run_tasks, summarize_tasks
from spurless.bench.sweep import Sweep, plan_sweep, run_sweep
from spurless.core.errors import InputError, MissingAttributesError
from spurless.core.records import Record, append_record, read_records
from spurless.data import from_tensors
from spurless.data.split import Splits
from spurless.train.run import Compute

SMALL = {"n_train": 200, "n_val": 60, "n_test": 60}
CELL = Experiment("planted", "mlp", "erm", SMALL, {"width": 8}, train={"steps": 12})
CPU = Resources(Compute("cpu"))


def by_fit(task: Task) -> Record:
    with run_settings(CPU):
        return run_experiment(task.experiment, task.seed, Compute("cpu")).record


def blind(dataset: str, options: Any, seed: int) -> Splits:
    """Open data whose attributes nobody knows."""
    made = load_dataset(dataset, options, seed)
    return from_tensors(made.train.x, made.train.y, seed=seed)


def three(methods: tuple[str, ...] = ("erm", "group-dro", "class-reweight")) -> list[Task]:
    """Return a task of which the second cannot be done, since it asks for attributes."""
    return assign_keys([Task(name, replace(CELL, method=name), 0, "", blind) for name in methods], CPU)


def test_keys_are_those_of_the_runs_and_data_are_opened_once() -> None:
    opened = []

    def load(dataset: str, options: Any, seed: int) -> Splits:
        opened.append(seed)
        return load_dataset(dataset, options, seed)

    tasks = assign_keys([Task(name, replace(CELL, method=name), 3, "", load) for name in ("erm", "group-dro")], CPU)
    assert opened == [3]
    assert [task.key for task in tasks] == [by_fit(task).key for task in tasks]


def test_a_failure_is_raised_or_kept_and_then_the_others_go_on(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    with pytest.raises(MissingAttributesError, match=r"^group-dro, seed 0: group-dro needs the attribute"):
        run_tasks(three(), "mine", out=out, executor=EXECUTORS["local"], resources=CPU)
    assert [record.cell for record in read_records(out)] == ["mine erm"]
    failures = Failures()
    records = run_tasks(three(), "mine", out=out, executor=EXECUTORS["local"], resources=CPU, failures=failures)
    assert [(task.name, type(error)) for task, error in failures] == [("group-dro", MissingAttributesError)]
    assert [record.cell for record in read_records(out)] == ["mine erm", "mine class-reweight"]
    assert set(records) == {record.key for record in read_records(out)}


def test_a_lost_run_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lossy(resources: Resources) -> Iterator[Runner]:
        with open_local(resources) as run:
            yield lambda tasks: (
                (t, WorkerDiedError([t], "it died") if t.name == "erm" else done) for t, done in run(tasks)
            )

    monkeypatch.setitem(EXECUTORS, "local", lossy)
    failures = Failures()
    records = run_tasks(
        three(("erm", "class-reweight")), "mine", executor=EXECUTORS["local"], resources=CPU, failures=failures
    )
    assert [(task.name, str(error)) for task, error in failures] == [
        ("erm", str(WorkerDiedError([failures[0][0]], "it died")))
    ]
    assert [record.method for record in records.values()] == ["class-reweight"]


def test_a_lower_rank_is_done_first_and_no_rule_leaves_anything() -> None:
    done = []
    late, first, last = three(("erm", "focal", "class-reweight"))
    tasks = [replace(late, rank=1), first, replace(last, rank=1)]

    def tell(_stage: str, step: int, _total: int, word: str) -> None:
        done.append((step, word))

    records = run_tasks(tasks, "mine", executor=EXECUTORS["local"], resources=CPU, progress=tell)
    assert [word for step, word in done if step == 0] == ["focal, seed 0"]
    assert [record.method for record in records.values()] == ["focal", "erm", "class-reweight"]
    assert not any(record.supervision["val_labels"] for record in records.values())


def test_rows_of_one_seed_have_no_interval() -> None:
    task = Task("lr=1", CELL, 0, "a")
    record = Record("erm", 0, {}, {}, {}, {}, {}, "last", (), {"average": 0.5, "unbiased": None, VALIDATION: 0.25}, {})
    row = summarize_tasks([task], {"a": record})
    assert (row.name, row.seeds, row.runs, row.diverged, row.cut_off) == ("lr=1", 1, 1, 0, 0)
    assert set(row.spreads) == {"average", VALIDATION}
    assert row.spreads["average"].mean == 0.5
    assert math.isnan(row.spreads["average"].low)


def test_what_another_process_is_at_is_refused_and_what_it_did_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, out = Sweep(CELL, {"lr": [0.01, 0.1]}, seeds=1), tmp_path / "records.jsonl"
    tasks = plan_sweep(sweep, CPU)
    hold = "import sys; from pathlib import Path; from spurless.core.locks import lock_runs\n"
    hold += "with lock_runs(Path(sys.argv[1]), sys.argv[2:]): print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(out), tasks[1].key]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match="another process is working on 1 of these 2 runs"):
            run_sweep(sweep, out=out, executor="local", resources=CPU)
        assert not out.exists()
        run_sweep(replace(sweep, first=1), out=out, executor="local", resources=CPU)  # other runs may go beside it
        other.kill()

    @contextmanager
    def meanwhile(resources: Resources) -> Iterator[Runner]:
        append_record(
            out, replace(by_fit(tasks[0]), metrics={VALIDATION: 0.5})
        )  # it ended between our look and our turn
        with open_local(resources) as run:
            yield run

    monkeypatch.setitem(EXECUTORS, "local", meanwhile)
    run_sweep(sweep, out=out, executor="local", resources=CPU)
    assert Counter(record.key for record in read_records(out))[tasks[1].key] == 1
    assert all(record.metrics == {VALIDATION: 0.5} for record in read_records(out) if record.key == tasks[0].key)
