"""``spurless ls``: every table is readable on 80 columns and whole as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from spurless.cli.ls import TABLES, list_options

Cli = Callable[..., Any]


@pytest.mark.parametrize("what", TABLES)
def test_table_fits_80_columns_and_breaks_no_name(cli: Cli, what: str) -> None:
    result = cli("ls", what)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    starts = {line.split(" ")[0] for line in lines}
    for row in TABLES[what].rows():
        assert next(iter(row.values())) in starts


@pytest.mark.parametrize("what", TABLES)
def test_json_holds_all_that_the_table_shows(cli: Cli, what: str) -> None:
    rows = json.loads(cli("ls", what, "--json").out)
    assert rows == TABLES[what].rows()
    assert all(set(TABLES[what].columns) <= set(row) for row in rows)


def test_methods_are_listed_unless_said_otherwise(cli: Cli) -> None:
    assert cli("ls").out == cli("ls", "methods").out


def test_methods_say_what_they_use(cli: Cli) -> None:
    rows = {row["method"]: row for row in json.loads(cli("ls", "methods", "--json").out)}
    assert [rows[name]["uses"] for name in ("erm", "group-dro", "dfr")] == [
        "labels only",
        "train attributes",
        "val attributes",
    ]
    assert rows["dfr"]["starts from"] == "a trained model"
    assert "upweight=" in rows["jtt"]["options"]
    assert rows["jtt"]["presets"].startswith("digits, ")


def test_datasets_say_what_they_need_and_json_where_to_get_it(cli: Cli) -> None:
    rows = {row["dataset"]: row for row in json.loads(cli("ls", "datasets", "--json").out)}
    assert (rows["planted"]["needs"], rows["planted"]["files"], rows["planted"]["obtain"]) == ("nothing", [], "")
    birds = rows["waterbirds"]
    assert birds["needs"] == "files"
    assert birds["files"] == ["metadata.csv", "*/*.jpg"]
    assert "waterbird_complete95_forest2water2" in birds["folders"]
    assert "group_DRO" in birds["obtain"]
    assert birds["download"] is False
    assert birds["licence"].startswith("research use only")
    line = next(line for line in cli("ls", "datasets").out.splitlines() if line.startswith("waterbirds "))
    assert line.split()[1] == "files"


def test_options_come_with_their_values() -> None:
    from spurless.data.datasets.synthetic import PlantedConfig

    assert list_options(PlantedConfig(core=3.0)).startswith("core=3.0, spurious=2.0, ")


def test_every_question_is_listed_also_the_one_that_needs_masks(cli: Cli) -> None:
    from spurless.auditing import AUDITS

    rows = json.loads(cli("ls", "audits", "--json").out)
    assert [row["audit"] for row in rows] == list(AUDITS)
    assert (rows[-1]["audit"], rows[-1]["needs"]) == ("swapped-backgrounds", "masks")
