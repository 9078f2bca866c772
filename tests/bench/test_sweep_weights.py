"""Weights that a sweep saves are those of its records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spurless.bench.executors import Resources
from spurless.bench.executors.task import build_task
from spurless.bench.experiment import Experiment
from spurless.bench.sweep import Sweep, SweepResult, run_sweep
from spurless.core.records import read_records
from spurless.models.weights import load_weights, read_weights_info
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute

CPU = Resources(Compute("cpu"), together=4)
CELL = Experiment("double-digits", "mlp", "erm", {"size": 14}, {"width": 16}, train={"steps": 60})


def swept(folder: Path, executor: str = "local", out: Path | None = None, **more: object) -> SweepResult:
    sweep = Sweep(CELL, {"lr": [0.1, 0.01]}, seeds=2, drop=None, keep=folder)
    return run_sweep(replace(sweep, **more), out=out, executor=executor, resources=CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("executor", ["local", "concurrent"])
def test_every_run_leaves_the_weights_that_its_record_is_of(tmp_path: Path, executor: str) -> None:
    found = swept(tmp_path / "kept", executor)
    assert len(list((tmp_path / "kept").iterdir())) == 4
    for task in found.tasks:
        assert task.weights is not None
        assert task.weights.name == f"{task.name}-seed{task.seed}-{task.key[:8]}.safetensors"
        asked = build_task(task, CPU)
        load_weights(task.weights, asked.model)
        table = evaluate(asked.model, asked.data.test)
        assert table.average == pytest.approx(found.records[task.key].metrics["average"])
        assert read_weights_info(task.weights)["trained"]


def test_a_run_whose_weights_are_gone_is_done_again_and_no_other(tmp_path: Path) -> None:
    out, folder = tmp_path / "records.jsonl", tmp_path / "kept"
    swept(folder, out=out, keep=None)
    assert not folder.exists()
    first = swept(folder, out=out)
    assert len(read_records(out)) == 8  # those without weights were made again
    gone = first.tasks[1].weights
    assert gone is not None
    gone.unlink()
    swept(folder, out=out)
    assert gone.exists()
    assert [record.key for record in read_records(out)[8:]] == [first.tasks[1].key]
    swept(folder, out=out)
    assert len(read_records(out)) == 9


def test_a_name_is_one_of_a_file(tmp_path: Path) -> None:
    task = swept(tmp_path).tasks[0]
    odd = replace(task, name="method.path=../a b, lr=1e-05", key="0123456789")
    assert odd.weights == tmp_path / "method.path=.._a_b_lr=1e-05-seed0-01234567.safetensors"
    assert replace(task, keep=None).weights is None
