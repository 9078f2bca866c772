"""``spurless bench``: a plan becomes records and tables; what fails is reported and stops nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Refused = Callable[..., None]
PLAN = """
methods = ["erm", "group-dro", "dfr"]
datasets = ["planted", "mild"]
model = "mlp"
model-options = { width = 8 }
train = { steps = 12 }
seeds = 3

[dataset.planted]
options = { n_train = 200, n_val = 60, n_test = 60 }
[dataset.mild]
data = "planted"
options = { n_train = 200, n_val = 60, n_test = 60, agreement = 0.7 }
"""


@pytest.fixture
def plan(here: Path) -> Callable[[str], str]:
    """Write a plan, and return its name."""

    def write(text: str) -> str:
        (here / "plan.toml").write_text(text)
        return "plan.toml"

    return write


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_plan_becomes_records_and_a_table_for_every_dataset(cli: Cli, here: Path, plan: Callable[[str], str]) -> None:
    result = cli("bench", plan(PLAN), "--device", "cpu")
    assert (result.status, result.err) == (0, "")
    records = rows(here / "runs" / "bench" / "records.jsonl")
    assert len(records) == 18
    assert all(record["command"].startswith("spurless bench plan.toml") for record in records)
    lines = result.out.splitlines()
    assert [line.split(":")[0] for line in lines if "accuracy in %" in line] == ["planted", "mild"]
    worst = {(record["cell"], record["seed"]): record["metrics"]["worst_group"] for record in records}
    gains = [worst["bench dfr on mild", seed] - worst["bench erm on mild", seed] for seed in range(3)]
    mild = lines[[line.split(":")[0] for line in lines].index("mild") :]
    facts = next(line for line in mild if line.startswith("dfr"))
    assert f"{100 * sum(gains) / 3:+.1f} ±" in facts
    assert "val" in facts
    assert lines[-1] == "records in runs/bench/records.jsonl"
    again = cli("bench", plan(PLAN), "--device", "cpu")
    assert again.out == result.out
    assert len(rows(here / "runs" / "bench" / "records.jsonl")) == 18
    page = cli("report", "runs/bench", "--out", "bench.html")
    assert page.status == 0
    assert "DFR" in (here / "bench.html").read_text()


def test_json_is_one_line_and_flags_win_over_the_plan(cli: Cli, plan: Callable[[str], str]) -> None:
    result = cli("bench", plan(PLAN), "--device", "cpu", "--json", "--seeds", 1, "--seed", 7, "--out", "all")
    assert (result.status, result.err, result.out.count("\n")) == (0, "", 1)
    facts = json.loads(result.out)
    assert facts["records"] == "all/records.jsonl"
    assert facts["failures"] == {}
    assert [(row["method"], row["runs"], row["labels"]) for row in facts["datasets"]["mild"]] == [
        ("erm", 1, "none"), ("group-dro", 1, "train groups"), ("dfr", 1, "val groups")
    ]  # fmt: skip
    assert [row["gain"] is None for row in facts["datasets"]["planted"]] == [True, False, False]
    assert facts["datasets"]["planted"][1]["gain"]["low"] is None  # one seed has no interval
    assert {row["seed"] for row in rows(Path("all/records.jsonl"))} == {7}


def test_own_data_need_their_columns_and_a_method_that_cannot_be_is_told(
    cli: Cli, here: Path, plan: Callable[[str], str], csv: Callable[..., Path]
) -> None:
    text = f"""
    methods = ["erm", "group-dro"]
    model = "mlp"
    train = {{ steps = 5, batch_size = 16 }}
    seeds = 2
    [dataset.mine]
    data = "{csv().name}"
    label = "y"
    features = "x1,x2"
    split = "split"
    """
    result = cli("bench", plan(text), "--device", "cpu")
    assert result.status == 1
    assert "Failed: group-dro on mine, 2 runs: group-dro needs the attribute a of every" in " ".join(result.out.split())
    records = rows(here / "runs" / "bench" / "records.jsonl")
    assert [(record["method"], record["seed"]) for record in records] == [("erm", 0), ("erm", 1)]


@pytest.mark.slow
def test_processes_give_the_same_records(cli: Cli, here: Path, plan: Callable[[str], str]) -> None:
    for out, more in (("one", ()), ("two", ("--jobs", 2))):
        assert cli("bench", plan(PLAN), "--device", "cpu", "--seeds", 1, "--out", out, *more).status == 0
    one, two = ({row["cell"]: row["groups"] for row in rows(here / out / "records.jsonl")} for out in ("one", "two"))
    assert one == two
    assert len(one) == 6


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ('methods = ["erm"]', r"a plan needs a method and a dataset"),
        ('methods = ["ermm"]\ndatasets = ["planted"]', r"No method is called 'ermm'\. Did you mean 'erm'\?"),
        (
            'methods = ["erm"]\ndatasets = ["plantd"]',
            r"'plantd' is neither the name of a dataset.* Did you mean 'planted'\?",
        ),
        ('methods = ["erm"]\ndatasets = ["planted"]\nmodel = "mpl"', r"No model is called 'mpl'"),
        (
            'methods = ["erm"]\n[dataset.planted]\nlable = "y"',
            r"\[dataset\.planted\] has no option 'lable'\. Did you mean 'label'\?",
        ),
        ('methods = ["erm"]\n[dataset.planted]\nlabel = "y"', r"--label, .* are for CSV files"),
    ],
)
def test_bad_plans_are_one_sentence(refused: Refused, plan: Callable[[str], str], text: str, match: str) -> None:
    refused(match, "bench", plan(text), "--device", "cpu")


def test_a_file_that_is_not_there_is_one_sentence(refused: Refused) -> None:
    refused(r"none\.toml: no such file", "bench", "none.toml")
