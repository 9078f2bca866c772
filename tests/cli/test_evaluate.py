"""``spurless eval``: the saved weights give the numbers of the run that saved them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
DATA = ("--data", "planted", "-D", "n_train=200", "-D", "n_val=60", "-D", "n_test=60")


@pytest.fixture
def fitted(tiny_fit: Cli, here: Path) -> tuple[Path, dict[str, Any]]:
    """Weights, and the record of the run that saved them."""
    said = tiny_fit("erm", "-O", "width=12", "--steps", 40, "--seed", 2)
    (record,) = said.records(here / "runs" / "records.jsonl")
    (weights,) = (here / "runs").glob("*.safetensors")
    return weights, record


def test_weights_give_the_metrics_of_their_record(cli: Cli, fitted: tuple[Path, dict[str, Any]]) -> None:
    weights, record = fitted
    said = cli("eval", weights, *DATA, "--seed", 2, "--json")
    told = json.loads(said.out)
    assert (said.status, said.err, said.out.count("\n")) == (0, "", 1)
    assert told["metrics"] == record["metrics"]
    assert told["groups"] == record["groups"]
    assert told["model"] == record["model"]
    assert (told["method"], told["selection"]) == ("given", "given")


def test_model_and_its_options_may_be_said(cli: Cli, fitted: tuple[Path, dict[str, Any]]) -> None:
    weights, record = fitted
    said = cli("eval", weights, *DATA, "--seed", 2, "--model", "mlp", "-O", "width=12", "--json")
    assert json.loads(said.out)["metrics"] == record["metrics"]


def test_record_is_appended_under_the_name_given(cli: Cli, fitted: tuple[Path, dict[str, Any]], here: Path) -> None:
    weights, _ = fitted
    for name in ("mine", "yours"):
        said = cli("eval", weights, *DATA, "--name", name, "--out", "all/records.jsonl")
    assert [row["method"] for row in said.records(here / "all" / "records.jsonl")] == ["mine", "yours"]
    assert "yours on planted, seed 0" in said.out
