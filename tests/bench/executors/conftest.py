"""Eight runs, what they come to one after another, and data that kill whoever opens them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spurless.bench.executors import Resources, Task
from spurless.bench.executors.in_process import open_local
from spurless.bench.experiment import Experiment
from spurless.bench.sweep import Sweep, plan_sweep
from spurless.core.records import Record
from spurless.train.run import Compute

CELL = Experiment(
    "planted", "mlp", "erm", {"n_train": 200, "n_val": 60, "n_test": 60}, {"width": 8}, train={"steps": 12}
)  # fmt: skip
DEADLY = """
import os, signal, time
from pathlib import Path
from spurless.bench.experiment import load_dataset

def once(mark, *words):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return load_dataset(*words)

def always(*words):
    os.kill(os.getpid(), signal.SIGKILL)

def asleep(mark, *words):
    Path(mark).with_suffix(".tmp").write_text(str(os.getpid()))
    Path(mark).with_suffix(".tmp").rename(mark)
    time.sleep(600)
"""


@cache
def _tasks() -> tuple[Task, ...]:
    return tuple(plan_sweep(Sweep(CELL, {"lr": [0.001, 0.01, 0.1, 0.5]}, seeds=2), Resources(Compute("cpu"))))


@cache
def _alone() -> dict[str, Record]:
    with open_local(Resources(Compute("cpu"))) as run:
        return {task.key: record for task, record in run(_tasks()) if isinstance(record, Record)}


@pytest.fixture
def tasks() -> list[Task]:
    """Four learning rates and two seeds on a small planted dataset."""
    return list(_tasks())


@pytest.fixture
def alone() -> dict[str, Record]:
    """Their records, by key, of one after another in this process."""
    return _alone()


@pytest.fixture
def facts() -> Callable[[Mapping[str, Record]], dict[str, Any]]:
    """What must be the same wherever a run is done: all of its record but the clock, the command and the commit."""

    def take(records: Mapping[str, Record]) -> dict[str, Any]:
        rows = {key: asdict(record) for key, record in records.items()}
        return {
            key: {name: value for name, value in row.items() if name not in ("seconds", "time", "command", "commit")}
            for key, row in rows.items()
        }

    return take


@pytest.fixture
def deadly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with openers of data that kill their process; other processes find it too."""
    (tmp_path / "deadly_data.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    sys.modules.pop("deadly_data", None)  # that of another test lies elsewhere
    return import_module("deadly_data")
