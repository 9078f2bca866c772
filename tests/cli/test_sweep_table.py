"""The table of a sweep: every value in a row, and the words below it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from spurless.bench.cell import Cell
from spurless.bench.engines.base import DIVERGED, Task
from spurless.bench.stopping import Stop
from spurless.bench.sweep import Swept
from spurless.cli.sweep_table import in_json, show
from spurless.core.records import Record

CELL = Cell("planted", "mlp", "erm")


def record(**changes: object) -> Record:
    metrics: dict[str, float | None] = {"average": 0.8, "worst_group": 0.4, "unbiased": None, "val_average": 0.9}
    usual = Record("erm", 0, {}, {}, {}, {}, {}, "last", (), metrics, {})
    return Record(**{**vars(usual), **changes})


def swept() -> Swept:
    """Two seeds of three values: fine, one of two cut off, stopped; and one that was not run."""
    cut = {"train": {"stop_loss": 0.1}, "history": ({"stage": "train", "loss": 0.5},), "warnings": ("cut",)}
    gone = {"metrics": {"val_average": None}, "warnings": (f"{DIVERGED} It diverged.",)}
    rows = {
        "lr=0.1": (record(), record(metrics={"average": 0.7, "worst_group": 0.4, "val_average": 0.8})),
        "lr=1": (record(), record(**cut)),
        "lr=10": (record(**gone), record(**gone)),
        "lr=100": (),
    }
    tasks = tuple(
        Task(name, CELL, seed, f"{name}/{seed}", rank=rank) for rank, name in enumerate(rows) for seed in (0, 1)
    )
    records = {f"{name}/{seed}": found for name, both in rows.items() for seed, found in enumerate(both)}
    return Swept(tasks, records, (Stop("lr=10", "seed 0 diverged", ("lr=100",), 0, 2),))


def test_the_table_by_hand(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    show(swept(), "erm on planted", Path("runs/records.jsonl"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert " ".join(lines[0]) == "erm on planted"
    assert " ".join(lines[1]) == "value runs unbiased worst group average validation"
    # 12.706 * 0.0707 / sqrt(2) = 0.635
    assert " ".join(lines[2]) == "lr=0.1 2 n/a 40.0 ± 0.0 75.0 ± 63.5 85.0 ± 63.5"
    assert " ".join(lines[3]) == "lr=1 1 n/a 40.0 80.0 90.0 1 cut off"
    assert " ".join(lines[4]) == "lr=10 0 n/a n/a n/a n/a 2 diverged, stopped"
    rest = " ".join(word for line in lines[5:] for word in line)
    assert rest == (
        "Stopped at lr=10: seed 0 diverged. Not run: lr=100; --drop none runs all. "
        "Cut off are runs that ended before their stopping rule, and are in no mean: allow them more epochs. "
        "3 of 6 runs came with a warning, which their records hold. records in runs/records.jsonl"
    )


def test_json_says_the_same_without_nan() -> None:
    told = json.loads(json.dumps(in_json(swept(), Path("r.jsonl")), allow_nan=False))
    assert [(row["value"], row["runs"], row["diverged"], row["unreached"], row["stopped"]) for row in told["rows"]] == [
        ("lr=0.1", 2, 0, 0, False),
        ("lr=1", 1, 0, 1, False),
        ("lr=10", 0, 2, 0, True),
    ]
    assert told["rows"][0]["metrics"]["average"]["mean"] == pytest.approx(0.75)
    assert told["rows"][0]["metrics"]["average"]["high"] == pytest.approx(
        0.75 + 12.7062 * 0.1 / math.sqrt(2) / math.sqrt(2)
    )
    assert told["rows"][1]["metrics"]["average"] == {"mean": 0.8, "sd": None, "low": None, "high": None, "n": 1}
    assert told["stops"] == [{"at": "lr=10", "why": "seed 0 diverged", "not_run": ["lr=100"]}]
    assert told["records"] == "r.jsonl"


def test_a_sweep_without_trouble_says_little(capsys: pytest.CaptureFixture[str]) -> None:
    calm = Swept((Task("lr=1", CELL, 0, "a"),), {"a": record()}, ())
    show(calm, "erm on planted", Path("r.jsonl"))
    assert len(capsys.readouterr().out.splitlines()) == 4
