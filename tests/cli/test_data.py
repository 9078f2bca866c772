"""``spurless data check``: counts of every group, the card, and whether every example can be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Cli = Callable[..., Any]


def test_check_prints_the_card_and_the_counts(cli: Cli) -> None:
    said = cli("data", "check", "planted", "-D", "n_train=100", "-D", "agreement=1.0")
    assert (said.status, said.err) == (0, "")
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("summary    Two Gaussian features")
    assert any(line.startswith("options    core=1.0, spurious=2.0") for line in lines)
    assert "planted: whole" in said.out
    right = next(line.split() for line in lines if line.startswith("minus, right"))
    assert right[2] == "0"  # they always agree
    assert "the attribute removes 100 % of the mistakes" in " ".join(said.out.split())


def test_check_as_json_is_one_line(cli: Cli, csv: Cli) -> None:
    said = cli("data", "check", csv(), "--label", "y", "--attribute", "place", "--split", "split", "--json")
    told = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert told["groups"] == ["cat, in", "cat, out", "dog, in", "dog, out"]
    assert {name: sum(counts) for name, counts in told["counts"].items()} == {"train": 36, "val": 12, "test": 12}
    assert told["goodman_kruskal"] is not None


def test_check_of_data_without_attributes_says_nothing_of_a_shortcut(cli: Cli, folder: Path) -> None:
    said = cli("data", "check", folder)
    assert said.status == 0
    assert "shortcut" not in said.out
    assert json.loads(cli("data", "check", folder, "--json").out)["goodman_kruskal"] is None


def test_data_alone_prints_its_help(cli: Cli) -> None:
    said = cli("data")
    assert said.status == 0
    assert "check" in said.out
