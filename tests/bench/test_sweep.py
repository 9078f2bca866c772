"""Sweeps: what is planned, what is run, what is not run again, and what SIGKILL cannot lose."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from spurless.bench.executors import EXECUTORS, Resources, Task
from spurless.bench.executors.in_process import open_local
from spurless.bench.executors.task import DIVERGED, VALIDATION, Runner, WorkerDiedError, run_settings
from spurless.bench.experiment import Experiment, run_experiment
from spurless.bench.stopping import next_wave
from spurless.bench.sweep import Sweep, plan_sweep, run_sweep
from spurless.core.errors import InputError, UnknownNameError
from spurless.core.records import Record, append_record, read_records
from spurless.train.run import Compute

SMALL = {"n_train": 200, "n_val": 60, "n_test": 60}
CELL = Experiment("planted", "mlp", "erm", SMALL, {"width": 8}, train={"steps": 12})
CPU = Resources(Compute("cpu"))


def names(tasks: Sequence[Task]) -> list[str]:
    return list(dict.fromkeys(task.name for task in tasks))


def by_fit(task: Task) -> Record:
    with run_settings(CPU):
        return run_experiment(task.experiment, task.seed, Compute("cpu")).record


# what is planned


def test_numbers_are_walked_upwards_with_every_seed() -> None:
    tasks = plan_sweep(Sweep(CELL, {"lr": ["0.1", "0.001", "1e-2"]}, seeds=2, first=5), CPU)
    assert [(task.name, task.seed, task.rank) for task in tasks] == [
        ("lr=0.001", 5, 0), ("lr=0.001", 6, 0), ("lr=0.01", 5, 1), ("lr=0.01", 6, 1), ("lr=0.1", 5, 2), ("lr=0.1", 6, 2)
    ]  # fmt: skip
    assert [task.experiment.train["lr"] for task in tasks[::2]] == [0.001, 0.01, 0.1]
    assert {task.experiment.train["steps"] for task in tasks} == {12}
    assert {task.line for task in tasks} == {0}


def test_a_key_is_that_of_the_run() -> None:
    for task in plan_sweep(Sweep(CELL, {"data.agreement": [0.5, 0.9], "model.width": [4]}, seeds=1), CPU):
        assert task.key == by_fit(task).key


def test_every_combination_is_run_and_the_first_number_is_walked() -> None:
    tasks = plan_sweep(
        Sweep(CELL, {"optimiser": ["sgd", "adam"], "lr": [0.1, 0.01], "momentum": [0.9, 0]}, seeds=1), CPU
    )
    assert [(task.line, task.rank, task.name) for task in tasks] == [
        (0, 0, "optimiser=sgd, lr=0.01, momentum=0"),
        (0, 1, "optimiser=sgd, lr=0.1, momentum=0"),
        (1, 0, "optimiser=sgd, lr=0.01, momentum=0.9"),
        (1, 1, "optimiser=sgd, lr=0.1, momentum=0.9"),
        (2, 0, "optimiser=adam, lr=0.01, momentum=0"),
        (2, 1, "optimiser=adam, lr=0.1, momentum=0"),
        (3, 0, "optimiser=adam, lr=0.01, momentum=0.9"),
        (3, 1, "optimiser=adam, lr=0.1, momentum=0.9"),
    ]
    assert len({task.key for task in tasks}) == 8


def test_words_and_no_rule_are_one_wave_in_their_order() -> None:
    words = plan_sweep(Sweep(CELL, {"optimiser": ["sgd", "adam"]}, seeds=2), CPU)
    assert names(next_wave(words, {}, 0.25)) == ["optimiser=sgd", "optimiser=adam"]
    free = plan_sweep(Sweep(CELL, {"lr": [0.1, 0.01]}, seeds=2, drop=None), CPU)
    assert len(next_wave(free, {}, None)) == 4
    ruled = plan_sweep(Sweep(CELL, {"lr": [0.1, 0.01]}, seeds=2), CPU)
    assert names(next_wave(ruled, {}, 0.25)) == ["lr=0.01"]


def test_data_are_opened_once_for_all_that_share_them() -> None:
    opened = []

    def load(dataset: str, options: Any, seed: int) -> Any:
        from spurless.data import load

        opened.append((options["agreement"], seed))
        return load(dataset, seed=seed, **options)

    plan_sweep(Sweep(CELL, {"lr": [0.1, 0.01, 0.001], "data.agreement": [0.5, 0.9]}, seeds=2, load=load), CPU)
    assert Counter(opened) == {(0.5, 0): 1, (0.9, 0): 1, (0.5, 1): 1, (0.9, 1): 1}


@pytest.mark.parametrize(
    ("over", "more", "match"),
    [
        ({}, {}, r"a sweep needs a parameter to vary\. Write for example --over lr=0\.01,0\.1\."),
        ({"lr": []}, {}, r"there is no value of 'lr'"),
        ({"lr": [0.1, 0.2, "0.10"]}, {}, r"a value of 'lr' is given twice \(got 0\.1\)"),
        ({"lr": [0.1, "fast"]}, {}, r"option 'lr' of the training loop has the wrong type"),
        ({"l2": [0.1], "weight_decay": [0.2]}, {}, r"a parameter is varied twice \(got l2, weight_decay\)"),
        ({"lr": [0.1]}, {"seeds": 0}, r"a sweep needs at least one seed"),
        ({"lr": [0.1]}, {"first": -1}, r"seeds are not negative"),
        (
            {"lr": [0.1]},
            {"drop": 25},
            r"drop must be a fraction \(expected between 0 and 1, such as 0\.25, or none, got 25\)",
        ),
        ({"learning": [0.1]}, {}, r"No parameter is called 'learning'"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(
    over: dict[str, Any], more: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises((InputError, UnknownNameError), match=match):
        run_sweep(Sweep(CELL, over, **more), out=tmp_path / "r.jsonl", resources=CPU)
    assert list(tmp_path.iterdir()) == []


# what is run


def test_a_sweep_stops_where_it_diverges_and_says_so(tmp_path: Path) -> None:
    out, cell = tmp_path / "r.jsonl", replace(CELL, train={"steps": 60})
    sweep = Sweep(cell, {"lr": [1e30, 0.01, 1e33, 1e32]}, seeds=2)
    swept = run_sweep(sweep, out=out, resources=CPU)
    (stop,) = swept.stops
    assert (stop.at, stop.why, stop.not_run) == ("lr=1e+30", "seed 0 diverged", ("lr=1e+32", "lr=1e+33"))
    records = read_records(out)
    assert [(r.cell, r.seed) for r in records] == [
        (f"{sweep.name} {name}", seed) for name in ("lr=0.01", "lr=1e+30") for seed in (0, 1)
    ]
    assert all(record.supervision["val_labels"] for record in records)  # they decided what was run
    good, bad = swept.rows()
    assert (good.runs, good.diverged, good.stop, bad.runs, bad.diverged, bad.stop) == (2, 0, None, 0, 2, stop)
    assert bad.spreads == {}
    again = run_sweep(sweep, out=out, resources=CPU)
    assert len(read_records(out)) == 4  # what diverged is not tried again
    assert (again.rows(), again.stops) == (swept.rows(), swept.stops)
    everything = run_sweep(replace(sweep, drop=None), out=out, resources=CPU)
    assert (len(read_records(out)), everything.stops) == (8, ())
    assert not read_records(out)[-1].supervision["val_labels"]


def test_a_run_that_its_last_step_breaks_has_diverged_too() -> None:
    cell = replace(CELL, train={"steps": 1})  # the loss of the only step is that of the initial weights
    swept = run_sweep(Sweep(cell, {"lr": [0.01, 1e38]}, seeds=1), resources=CPU)
    assert [row.diverged for row in swept.rows()] == [0, 1]
    (said,) = (w for record in swept.records.values() for w in record.warnings if "diverged" in w)
    assert "Training 'train' diverged: the model's output was not finite by step 1" in said


def test_the_mean_is_that_of_the_records_that_count(tmp_path: Path) -> None:
    cell = replace(CELL, train={"epochs": 3, "batch_size": 50, "stop_accuracy": 0.9})
    sweep = Sweep(cell, {"lr": [1e-6, 0.3]}, seeds=3)
    swept = run_sweep(sweep, out=tmp_path / "r.jsonl", resources=CPU)
    slow, fast = swept.rows()
    assert (slow.runs, slow.cut_off, slow.spreads) == (0, 3, {})
    there = [record.history[-1]["train_accuracy"] >= 0.9 for record in read_records(tmp_path / "r.jsonl")]
    counted = [record for record, came in zip(read_records(tmp_path / "r.jsonl"), there, strict=True) if came]
    assert {record.train["lr"] for record in counted} == {0.3}
    assert (fast.runs, fast.cut_off) == (len(counted), 3 - len(counted))
    for name in ("unbiased", "worst_group", "average", VALIDATION):
        assert fast.spreads[name].mean == fmean(record.metrics[name] or 0.0 for record in counted)
    marked = [
        "before it reached its stopping rule" in str(record.warnings) for record in read_records(tmp_path / "r.jsonl")
    ]
    assert marked == [not came for came in there]


def test_more_values_and_more_seeds_do_only_what_is_new(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    first = Sweep(CELL, {"lr": [0.01, 0.1]}, seeds=2)
    run_sweep(first, out=out, resources=CPU)
    more = replace(first, over={"lr": [0.01, 0.05, 0.1]}, seeds=3)
    assert more.name == first.name
    run_sweep(more, out=out, resources=CPU)
    made = [(record.train["lr"], record.seed) for record in read_records(out)]
    assert made[:4] == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    assert sorted(made[4:]) == [(0.01, 2), (0.05, 0), (0.05, 1), (0.05, 2), (0.1, 2)]


def test_a_sweep_that_is_done_starts_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(CELL, {"lr": [0.1]}, seeds=1)
    done = run_sweep(sweep, out=tmp_path / "r.jsonl", resources=CPU)

    def never(_: Resources) -> Any:
        raise AssertionError("a cluster takes its time")

    monkeypatch.setitem(EXECUTORS, "ray", never)
    assert run_sweep(sweep, out=tmp_path / "r.jsonl", executor="ray", resources=CPU).rows() == done.rows()


def test_a_study_takes_more_numbers_of_every_run_and_runs_what_has_none_of_them(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    plain = Sweep(CELL, {"lr": [0.01, 0.1]}, seeds=1)
    run_sweep(plain, out=out, executor="local", resources=CPU)
    swept = run_sweep(replace(plain, large_lr_metrics=True), out=out, executor="local", resources=CPU)
    assert len(read_records(out)) == 4
    assert all({"prunability", "csi", "class_separation"} <= r.metrics.keys() for r in swept.records.values())
    run_sweep(replace(plain, large_lr_metrics=True), out=out, executor="local", resources=CPU)
    assert len(read_records(out)) == 4


def test_records_of_other_runs_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    task = plan_sweep(Sweep(CELL, {"lr": [0.1]}, seeds=1), CPU)[0]
    append_record(out, by_fit(task))  # the same run, by fit: no validation accuracy
    run_sweep(Sweep(CELL, {"batch_size": [50, 100]}, seeds=1), out=out, resources=CPU)
    swept = run_sweep(Sweep(CELL, {"lr": [0.1]}, seeds=1), out=out, resources=CPU)
    records = read_records(out)
    assert len(records) == 4
    assert VALIDATION not in records[0].metrics
    assert swept.records[task.key].metrics == {**records[0].metrics, VALIDATION: records[3].metrics[VALIDATION]}


def test_the_progress_is_told_with_the_best_so_far() -> None:
    told: list[tuple[str, int, int, str]] = []
    run_sweep(
        Sweep(replace(CELL, train={"steps": 60}), {"lr": [0.01, 1e30, 1e32]}, seeds=1),
        resources=CPU,
        progress=lambda *words: told.append(words),
    )
    assert told[0] == ("plan", 1, 1, "planted, seed 0")
    steps = [(stage, step, total) for stage, step, total, _ in told[1:]]
    assert list(dict.fromkeys(steps)) == [("runs", 0, 3), ("runs", 1, 3), ("runs", 2, 2)]  # two are left by the rule
    assert told[1][3] == "lr=0.01, seed 0"
    assert told[2][3].startswith("lr=1e+30, seed 0 (best so far lr=0.01: ")
    assert told[-1][3].startswith("done (best so far lr=0.01: ")


def test_an_error_ends_the_sweep_and_a_lost_run_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, sweep = tmp_path / "r.jsonl", Sweep(CELL, {"lr": [0.01, 0.1]}, seeds=3)

    @contextmanager
    def lossy(resources: Resources) -> Iterator[Runner]:
        with open_local(resources) as run:
            yield lambda tasks: (
                (task, WorkerDiedError([task], "it died") if task.seed < 2 else record) for task, record in run(tasks)
            )

    monkeypatch.setitem(EXECUTORS, "local", lossy)
    with pytest.raises(WorkerDiedError, match=r"^No result of lr=0\.01, seed 0; lr=0\.01, seed 1: it died\."):
        run_sweep(sweep, out=out, executor="local", resources=CPU)
    assert [record.seed for record in read_records(out)] == [2]
    monkeypatch.undo()
    unknown = replace(sweep, experiment=replace(CELL, select="val-worst-class-of-all"))
    with pytest.raises(UnknownNameError, match=r"^No selection criterion is called 'val-worst-class-of"):
        run_sweep(unknown, out=out, executor="local", resources=CPU)
    assert len(read_records(out)) == 1


def test_a_killed_value_is_finished_although_its_line_stopped() -> None:
    tasks = plan_sweep(Sweep(CELL, {"lr": [0.01, 0.1, 1.0]}, seeds=2), CPU)
    fine = Record("erm", 0, {}, {}, {}, {}, {}, "last", (), {VALIDATION: 0.9}, {})
    gone = replace(fine, metrics={VALIDATION: None}, warnings=(f"{DIVERGED} It diverged.",))
    records = {tasks[0].key: fine, tasks[1].key: fine, tasks[2].key: gone}
    assert next_wave(tasks, records, 0.25) == [tasks[3]]  # the other seed of 0.1; 1.0 never
    assert next_wave(tasks, {**records, tasks[3].key: fine}, 0.25) == []
    assert next_wave(tasks, {**records, tasks[3].key: fine}, None) == [tasks[4], tasks[5]]


# what SIGKILL cannot lose

PROGRAM = """
import os, random, signal, sys, time
from pathlib import Path
from spurless.bench.experiment import Experiment
from spurless.bench.executors import Resources
from spurless.bench.sweep import Sweep, run_sweep
from spurless.train.run import Compute

cell = Experiment("planted", "mlp", "erm", {"n_train": 200, "n_val": 60, "n_test": 60}, {"width": 8},
                  train={"steps": 60})
sweep = Sweep(cell, {"lr": [0.001, 0.01, 0.1, 1e30, 1e32]}, seeds=2)  # the last is never run

def attempt(out, patience):
    child = os.fork()
    if child == 0:
        try:
            run_sweep(sweep, out=out, executor="local", resources=Resources(Compute("cpu")))
        finally:
            os._exit(0)
    if patience is not None:
        time.sleep(patience)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

base = Path(sys.argv[1])
run_sweep(sweep, out=base / "warm.jsonl", executor="local", resources=Resources(Compute("cpu")))  # imports
begin = time.monotonic()
attempt(base / "peace.jsonl", None)
whole = time.monotonic() - begin
draw, kills, status = random.Random(int(sys.argv[2])), 0, 1
while status != 0:
    # the first is killed late, the others anywhere on their way
    status = attempt(base / "killed.jsonl", draw.uniform(0, whole / 3) if kills < 10 else None)
    kills += status != 0
    if status == 0 and kills < 10:  # it was done too soon: from the beginning
        (base / "killed.jsonl").unlink()
        status = 1
print(kills)
"""


@pytest.mark.slow
def test_ten_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10
    killed, peace = (facts(tmp_path / f"{name}.jsonl") for name in ("killed", "peace"))
    assert len(peace) == 8
    assert killed == peace  # each once, with the same numbers


def facts(path: Path) -> list[str]:
    """Return the records of a file, as often as it is there, but for clock and commit."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(json.dumps({k: v for k, v in row.items() if k not in ("seconds", "time", "commit")}) for row in rows)
