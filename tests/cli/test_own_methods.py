"""A method of one's own goes wherever a method is named: fit, sweep, bench, fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL = ("-D", "n_train=120", "-D", "n_val=60", "-D", "n_test=60", "--model", "mlp", "--device", "cpu")
Cli = Callable[..., Any]


def test_fit_takes_it_and_repeats_nothing(cli: Cli, mine: Path, here: Path) -> None:
    words = ("fit", f"{mine}:Repair", "--data", "planted", *SMALL, "--steps", 12, "--json")
    first, again = (json.loads(cli(*words).out) for _ in range(2))
    assert (first["method"], first["key"]) == ("my-repair", again["key"])
    assert len((here / "runs" / "records.jsonl").read_text().splitlines()) == 1
    assert any(path.name.startswith("my-repair-planted-seed0") for path in (here / "runs").glob("*.safetensors"))
    mine.write_text(mine.read_text() + "\n# another thought\n")
    assert json.loads(cli(*words).out)["key"] != first["key"]


def test_a_fit_that_returns_nothing_is_named(cli: Cli, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("        return model\n", ""))
    result = cli("fit", f"{mine}:Decoupling", "--data", "planted", *SMALL, "--steps", 2, "--quiet")
    (line,) = result.err.splitlines()
    assert (result.status, "'decoupling'" in line, "return model" in line) == (2, True, True)


@pytest.mark.parametrize(
    "loss",
    ["cross_entropy(logits, batch.a)", "logits.square().mean() * batch.a.bincount().sum()"],
)
def test_a_loss_that_reads_hidden_attributes_is_named(cli: Cli, mine: Path, loss: str) -> None:
    mine.write_text(mine.read_text().replace("cross_entropy(logits, batch.y)", loss))
    result = cli("fit", f"{mine}:Decoupling", "--data", "planted", *SMALL, "--steps", 2, "--quiet")
    (line,) = result.err.splitlines()
    assert (result.status, "hidden (-1)" in line, "train_attributes=True" in line) == (2, True, True)


@pytest.mark.slow
def test_sweep_takes_it_in_processes_of_their_own(
    cli: Cli, mine: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine.parent)
    result = cli(
        "sweep", "--over", "strength=0,1", "--method", "mine.py:Decoupling", "--data", "planted", *SMALL,
        "--steps", 12, "--seeds", 1, "--jobs", 2, "--out", here / "s",
    )  # fmt: skip
    rows = result.records(here / "s" / "records.jsonl")
    assert [(row["method"], row["config"]["strength"]) for row in rows] == [("decoupling", 0), ("decoupling", 1)]


def test_bench_compares_it_with_the_library(cli: Cli, mine: Path, here: Path) -> None:
    (here / "plan.toml").write_text(
        'methods = ["erm", "mine"]\ndatasets = ["planted"]\nmodel = "mlp"\nseeds = 2\ntrain = {steps = 12}\n'
        f'[method.mine]\nmethod = "{mine}:Decoupling"\npreset = "strong"\n'
        "[dataset.planted]\noptions = {n_train = 120, n_val = 60, n_test = 60}\n"
    )
    result = cli("bench", "plan.toml", "--device", "cpu", "--json")
    (table,) = json.loads(result.out)["datasets"].values()
    assert [row["method"] for row in table] == ["erm", "mine"]


def test_fix_repairs_with_it(cli: Cli, mine: Path, here: Path) -> None:
    cli("fit", "erm", "--data", "planted", *SMALL, "--steps", 30, "--quiet")
    (weights,) = (here / "runs").glob("erm-*.safetensors")
    result = cli("fix", weights, "--data", "planted", *SMALL[:-4], "--method", f"{mine}:Repair", "--device", "cpu")
    assert result.status in (0, 1), result.err
    assert "train a trained model once more" in result.out


def test_audit_runs_an_audit_of_the_user(cli: Cli, here: Path) -> None:
    (here / "audits.py").write_text(
        "from spurless.auditing import Auditor, Finding\n"
        "def run(context): return Finding('count', f'{len(context)} examples', 0, False, None, 'why', 'none')\n"
        "COUNT = Auditor('count', 'How many?', 'labels', run)\n"
    )
    cli("fit", "erm", "--data", "planted", *SMALL, "--steps", 30, "--quiet")
    (weights,) = (here / "runs").glob("erm-*.safetensors")
    words = ("audit", weights, "--data", "planted", *SMALL[:-4], "--device", "cpu", "--only", "worst-class")
    result = cli(*words, "--add", "audits.py:COUNT")
    assert "count: 60 examples" in result.out
    assert "60 examples" in (here / "audit.html").read_text()
    (here / "audit.html").unlink()
    bad = cli(*words, "--add", "audits.py:CUONT")
    assert (bad.status, bad.err.count("\n")) == (2, 1)
    assert not (here / "audit.html").exists()
