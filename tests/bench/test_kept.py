"""Kept: the weights of a sweep are those that its records are of, and its ends are compared by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spurless.bench.cell import Cell, run_cell
from spurless.bench.engines import Machines
from spurless.bench.engines.base import ask
from spurless.bench.kept import ends, ends_section
from spurless.bench.sweep import Sweep, Swept, run_sweep
from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture
from spurless.core.records import read
from spurless.models.weights import load_weights, weights_info
from spurless.train.evaluate import evaluate
from spurless.train.run import Engine

CPU = Machines(Engine("cpu"), together=4)
CELL = Cell("double-digits", "mlp", "erm", {"size": 14}, {"width": 16}, train={"steps": 60})


def swept(folder: Path, engine: str = "here", out: Path | None = None, **more: object) -> Swept:
    sweep = Sweep(CELL, {"lr": [0.1, 0.01]}, seeds=2, drop=None, keep=folder)
    return run_sweep(replace(sweep, **more), out=out, engine=engine, machines=CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["here", "fleet"])
def test_every_run_leaves_the_weights_that_its_record_is_of(tmp_path: Path, engine: str) -> None:
    found = swept(tmp_path / "kept", engine)
    assert len(list((tmp_path / "kept").iterdir())) == 4
    for task in found.tasks:
        assert task.weights is not None
        assert task.weights.name == f"{task.name}-seed{task.seed}-{task.key[:8]}.safetensors"
        asked = ask(task, CPU)
        load_weights(task.weights, asked.model)
        table = evaluate(asked.model, asked.data.test)
        assert table.average == pytest.approx(found.records[task.key].metrics["average"])
        assert weights_info(task.weights)["trained"]


def test_a_run_whose_weights_are_gone_is_done_again_and_no_other(tmp_path: Path) -> None:
    out, folder = tmp_path / "records.jsonl", tmp_path / "kept"
    swept(folder, out=out, keep=None)
    assert not folder.exists()
    first = swept(folder, out=out)
    assert len(read(out)) == 8  # those without weights were made again
    gone = first.tasks[1].weights
    assert gone is not None
    gone.unlink()
    swept(folder, out=out)
    assert gone.exists()
    assert [record.key for record in read(out)[8:]] == [first.tasks[1].key]
    swept(folder, out=out)
    assert len(read(out)) == 9


def test_a_name_is_one_of_a_file(tmp_path: Path) -> None:
    task = swept(tmp_path).tasks[0]
    odd = replace(task, name="method.path=../a b, lr=1e-05", key="0123456789")
    assert odd.weights == tmp_path / "method.path=.._a_b_lr=1e-05-seed0-01234567.safetensors"
    assert replace(task, keep=None).weights is None


def test_the_ends_are_the_lowest_and_the_highest_value_of_the_first_seed(tmp_path: Path) -> None:
    found = swept(tmp_path)
    assert [str(task) for task in ends(found)] == ["lr=0.01, seed 0", "lr=0.1, seed 0"]
    section = ends_section(found, CPU, count=2)
    picture, bars = section.items
    assert isinstance(picture, Picture)
    assert isinstance(bars, Figure)
    assert section.text.startswith("lr=0.01 and lr=0.1, seed 0. Test examples of double-digits")
    assert [trace["x"] for trace in bars.spec["data"]] == [["lr=0.01", "lr=0.1"]] * 2
    # the models are those of the runs: fitted again, they look at the same
    from spurless.explain.compared import attribution_section

    fitted = {task.name: run_cell(task.cell, 0, Engine("cpu")).model for task in ends(found)}
    again = attribution_section(fitted, ask(found.tasks[0], CPU).data, count=2)
    assert again.items[1] == bars


def test_runs_that_do_not_count_are_no_ends(tmp_path: Path) -> None:
    cell = replace(CELL, train={"steps": 60, "stop_accuracy": 1.0})  # nobody gets there
    with pytest.raises(BadInput, match=r"of seed 0, 0 runs count and 0 have weights"):
        ends(swept(tmp_path, cell=cell))
    with pytest.raises(BadInput, match=r"of seed 0, 2 runs count and 0 have weights that were kept. .*keep=FOLDER"):
        ends(swept(tmp_path, keep=None))


def test_ends_of_other_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"trained on other data"):
        ends_section(swept(tmp_path, over={"data.conflicting": [0.01, 0.1]}), CPU)
