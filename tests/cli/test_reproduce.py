"""``spurless reproduce``: the last line is the verdict, and so is the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.bench import claims
from spurless.bench.claims import Bar
from spurless.bench.experiment import Experiment
from spurless.bench.runner import CUT_OFF
from spurless.core.records import read_records

Cli = Callable[..., Any]
ID = "theory/planted-erm"


@pytest.fixture
def claim(monkeypatch: pytest.MonkeyPatch) -> Callable[[Bar], None]:
    """Put a small claim in the place of a real one, with this bar."""

    def put(bar: Bar) -> None:
        cell = Experiment("planted", "linear", "erm", {"n_train": 200, "n_val": 50, "n_test": 200}, train={"steps": 5})
        monkeypatch.setitem(
            claims.CLAIMS, ID, replace(claims.CLAIMS[ID], experiments={"erm": cell}, bar=bar, paper=39.35)
        )

    return put


def test_claim_that_holds_leaves_status_zero(cli: Cli, claim: Callable[[Bar], None], here: Path) -> None:
    claim(Bar(0.0, 100.0))
    result = cli("reproduce", ID, "--seeds", 2, "--device", "cpu", "--out", "all/r.jsonl")
    assert result.err == ""
    words = result.out.splitlines()[-1].split("  ")
    assert [words[0], *words[2:]] == [ID, "39.35", "0 to 100", "HOLDS"]
    assert 0 <= float(words[1]) <= 100
    rows = result.records(here / "all" / "r.jsonl")
    assert [(row["seed"], row["cell"]) for row in rows] == [(0, f"{ID} erm"), (1, f"{ID} erm")]


def test_claim_that_falls_short_leaves_status_one(cli: Cli, claim: Callable[[Bar], None]) -> None:
    claim(Bar(101.0))
    result = cli("reproduce", ID, "--seeds", 1, "--device", "cpu")
    assert (result.status, result.err) == (1, "")
    assert result.out.splitlines()[-1].endswith("  >= 101  FALLS SHORT")


@pytest.mark.parametrize(("bar", "holds"), [(Bar(0.0, 100.0), True), (Bar(101.0), False)])
def test_json_is_one_line_with_the_same_status(cli: Cli, claim: Callable[[Bar], None], bar: Bar, holds: bool) -> None:
    claim(bar)
    result = cli("reproduce", ID, "--seeds", 2, "--device", "cpu", "--json")
    facts = json.loads(result.out)
    assert (result.status, result.err, result.out.count("\n")) == (0 if holds else 1, "", 1)
    assert (facts["id"], facts["holds"], facts["paper"], len(facts["values"])) == (ID, holds, 39.35, 2)


def test_run_that_was_cut_off_is_told_and_marked_and_json_stays_json(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"n_train": 200, "n_val": 50, "n_test": 200}
    cell = Experiment("planted", "linear", "erm", small, train={"epochs": 1, "stop_loss": 1e-6})
    short = replace(claims.CLAIMS[ID], experiments={"erm": cell}, measure=lambda _: float("nan"))
    monkeypatch.setitem(claims.CLAIMS, ID, short)
    result = cli("reproduce", ID, "--seeds", 2, "--device", "cpu", "--out", "r.jsonl")
    assert result.out.splitlines()[-3:-1] == [
        "by seed: none, none",
        "cut off before the end of training: erm of seed 0, erm of seed 1",
    ]
    assert all(CUT_OFF in record.warnings for record in read_records(here / "r.jsonl"))
    facts = json.loads(cli("reproduce", ID, "--seeds", 1, "--device", "cpu", "--json").out)
    assert (facts["ours"], facts["values"], facts["cut_off"]) == (None, [None], ["erm of seed 0"])


def test_list_is_that_of_ls_claims(cli: Cli) -> None:
    assert cli("reproduce", "--list").out == cli("ls", "claims").out
    assert cli("reproduce", "--list", "--json").out == cli("ls", "claims", "--json").out


def test_folder_of_datasets_that_is_not_there_is_refused(refused: Callable[..., None]) -> None:
    refused(r"nowhere: no such folder \(expected a folder of datasets\)", "reproduce", ID, "--data-dir", "nowhere")


def test_together_is_handed_on(cli: Cli, claim: Callable[[Bar], None], here: Path) -> None:
    claim(Bar(0.0, 100.0))
    for k in (1, 2):
        result = cli("reproduce", ID, "--seeds", 3, "--device", "cpu", "--out", f"{k}.jsonl", "--together", k)
        assert (result.status, result.err) == (0, "")
    alone, together = (result.records(here / f"{k}.jsonl") for k in (1, 2))
    assert [(row["key"], row["metrics"]) for row in together] == [(row["key"], row["metrics"]) for row in alone]
    assert cli("reproduce", ID, "--together", 0).status == 2
