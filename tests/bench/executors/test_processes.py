"""Processes: the records of one after another, although some die; and nobody outlives the sweep."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spurless.bench.executors import Resources, Task
from spurless.bench.executors.processes import count_cpu_cores, device_for_process, open_processes
from spurless.bench.executors.task import WorkerDiedError
from spurless.core.errors import InputError
from spurless.core.records import Record
from spurless.train.run import Compute

CPU = Resources(Compute("cpu"), jobs=2)


@pytest.mark.slow
def test_two_processes_give_the_records_of_one_although_some_die(
    tasks: list[Task], alone: dict[str, Record], facts: Callable[..., Any], deadly: ModuleType, tmp_path: Path
) -> None:
    unlucky = replace(tasks[2], load=partial(deadly.once, str(tmp_path / "mark")))
    doomed = replace(tasks[5], load=deadly.always)
    wrong = replace(tasks[7], experiment=replace(tasks[7].experiment, model_options={"widht": 8}))
    given = [unlucky, doomed, wrong, *tasks[:2], *tasks[3:5], tasks[6]]
    with open_processes(CPU) as run:
        found = [(task.key, outcome) for task, outcome in run(given)]
        assert 1 <= len(multiprocessing.active_children()) <= 2
    assert multiprocessing.active_children() == []
    assert sorted(key for key, _ in found) == sorted(task.key for task in tasks)  # each once
    outcomes = dict(found)
    lost, error = outcomes.pop(doomed.key), outcomes.pop(wrong.key)
    assert isinstance(lost, WorkerDiedError)
    assert str(lost).startswith("No result of lr=0.1, seed 1: its process died 2 times (exit status -9).")
    assert isinstance(error, InputError)
    assert str(error).startswith("mlp has no option 'widht'. Did you mean 'width'?")
    assert facts(outcomes) == facts({key: alone[key] for key in outcomes})
    assert (len(outcomes), (tmp_path / "mark").exists()) == (6, True)


PROGRAM = """
import sys
from functools import partial
import deadly_data
from spurless.bench.experiment import Experiment
from spurless.bench.executors import Resources, Task
from spurless.bench.executors.processes import open_processes
if __name__ == "__main__":
    task = Task("asleep", Experiment("planted", "mlp", "erm"), 0, "key", partial(deadly_data.asleep, sys.argv[1]))
    with open_processes(Resources(jobs=1)) as run:
        list(run([task]))
"""


@pytest.mark.slow
def test_a_process_leaves_when_the_sweep_is_killed(deadly: ModuleType, tmp_path: Path) -> None:
    mark, program = tmp_path / "pid", tmp_path / "program.py"
    program.write_text(PROGRAM)
    assert deadly.__name__ in program.read_text()  # which finds it by PYTHONPATH
    sweep = subprocess.Popen([sys.executable, str(program), str(mark)])
    assert waited(mark.exists)
    worker = int(mark.read_text())
    sweep.send_signal(signal.SIGKILL)
    assert sweep.wait() == -signal.SIGKILL
    assert waited(lambda: not runs(worker))


def waited(done: Callable[[], bool], seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie, which waits for nobody but its reaper."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_gpus_take_turns_unless_one_is_named() -> None:
    assert [device_for_process(Compute(), number, devices=2).device for number in range(3)] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
    ]
    assert device_for_process(Compute("cuda"), 3, devices=2).device == "cuda:1"
    assert device_for_process(Compute("cuda:0"), 1, devices=2).device == "cuda:0"
    assert device_for_process(Compute("cpu"), 1, devices=2).device == "cpu"
    assert device_for_process(Compute("auto"), 1, devices=1).device == "auto"


def test_there_is_a_core() -> None:
    assert 1 <= count_cpu_cores() <= (os.cpu_count() or 1)
