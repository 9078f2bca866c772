"""Tests of ``spurless compare``: two audits, a repair, and files of other kinds."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spurless.core.findings import Audit, Finding
from spurless.core.records import GroupRow, Record
from spurless.reporting import audit_json, write_json

Cli = Callable[..., Any]
Refused = Callable[..., None]
USE = Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair.")
BEFORE = Audit((USE,), groups=(GroupRow("a\x1b[2J", 100, 0.2, 0.13, 0.29),))
AFTER = Audit((replace(USE, flagged=False, p=0.5),), groups=(GroupRow("a\x1b[2J", 100, 0.8, 0.71, 0.87),))


def write_repair(path: Path, after: Audit | None) -> Path:
    """Write the parts of a file of ``spurless fix`` that are read."""
    facts: dict[str, Any] = {"seed": 0, "model": {}, "config": {}, "train": {}, "supervision": {}, "selection": "last"}
    facts |= {"data": {"name": "d", "sizes": {"test": 50}}, "seconds": {}}
    records = [
        Record(method="erm", groups=(GroupRow("test group", 50, value, 0.0, 1.0),), metrics={"average": value}, **facts)
        for value in (0.1, 0.9)
    ]
    content = {"audit_before": json.loads(audit_json(BEFORE)), "before": json.loads(records[0].to_json())}
    content |= {"audit_after": after and json.loads(audit_json(after)), "after": json.loads(records[1].to_json())}
    path.write_text(json.dumps(content))
    return path


def test_two_audits_give_a_page_a_table_and_json(cli: Cli, here: Path) -> None:
    write_json(here / "a.json", BEFORE), write_json(here / "b.json", AFTER)
    result = cli("compare", "a.json", "b.json", "--title", "Old and new")
    assert result.status == 0
    assert "from “shortcut” to “none-found”" in result.out
    assert "\x1b" not in result.out
    assert "Old and new" in (here / "comparison.html").read_text()
    assert json.loads((here / "comparison.json").read_text()) == json.loads(
        cli("compare", "a.json", "b.json", "--json").out
    )


def test_one_repair_is_before_and_after_on_the_test_split(cli: Cli, here: Path) -> None:
    write_repair(here / "fixed.json", AFTER)
    content = json.loads(cli("compare", "fixed.json", "--json").out)
    assert content["verdicts"] == ["shortcut", "none-found"]
    assert [(row["name"], row["before"]["accuracy"], row["after"]["accuracy"]) for row in content["groups"]] == [
        ("test group", 0.1, 0.9)
    ]
    assert content["average"]["after"]["count"] == 50
    assert "Accuracies are of the test split" in content["notes"][0]


def test_of_a_repair_the_resulting_model_is_compared(cli: Cli, here: Path) -> None:
    write_json(here / "a.json", BEFORE)
    for after, verdict in ((AFTER, "none-found"), (None, "shortcut")):
        write_repair(here / "fixed.json", after)
        assert json.loads(cli("compare", "a.json", "fixed.json", "--json").out)["verdicts"] == ["shortcut", verdict]


def test_open_shows_the_page(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_json(here / "a.json", BEFORE)
    assert cli("compare", "a.json", "a.json", "--open").status == 0
    assert opened == [(here / "comparison.html").resolve().as_uri()]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("a.json",), "one file with one audit cannot be compared"),
        (("kept.json",), "one file with one audit cannot be compared"),
        (("a.json", "a.json", "a.json"), "too many files"),
        (("a.json", "gone.json"), r"gone\.json: no such file"),
        (("a.json", "record.jsonl"), r"record\.jsonl: this is not an audit of this version"),
        (("a.json", "group.json"), r"group\.json: the audit is incomplete"),
        (("a.json", "broken.json"), r"broken\.json, 'before'"),
        (("a.json", "a.json", "--out", "a.html"), "would be overwritten"),
    ],
)
def test_other_files_are_refused(refused: Refused, here: Path, words: tuple[str, ...], sentence: str) -> None:
    write_json(here / "a.json", BEFORE)
    write_repair(here / "kept.json", None)
    (here / "record.jsonl").write_text('{"schema": 1, "method": "erm"}\n')
    for value in (2.0, "x", None):
        content = json.loads(audit_json(BEFORE))
        content["groups"][0]["accuracy"] = value
        (here / "group.json").write_text(json.dumps(content))
    broken = json.loads((here / "kept.json").read_text())
    (here / "broken.json").write_text(json.dumps(broken | {"before": [1]}))
    refused(sentence, "compare", *words)
    assert not (here / "comparison.html").exists()
