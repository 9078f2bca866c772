"""Tests of ``spurless card``: which file is written, and which files are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spurless.core.findings import Audit, Finding
from spurless.reporting import write_json

Cli = Callable[..., Any]
Refused = Callable[..., None]
AUDIT = Audit((Finding("transplants", "The corner is followed", 0.4, True, 0.002, "40 %.", "Repair."),))


def test_a_card_or_a_summary_is_written(cli: Cli, here: Path) -> None:
    write_json(here / "audit.json", AUDIT)
    result = cli("card", "audit.json", "--license", "mit")
    assert (result.status, result.out) == (0, "model-card.md\n")
    assert 'license: "mit"' in (here / "model-card.md").read_text()
    assert cli("card", "audit.json", "--brief").out == "summary.md\n"
    assert (here / "summary.md").read_text().startswith("# Model")


def test_other_files_are_refused(refused: Refused, here: Path) -> None:
    write_json(here / "audit.json", AUDIT)
    (here / "other.json").write_text("[]")
    refused("not an audit of this version", "card", "other.json")
    refused("no such file", "card", "gone.json")
    refused("would be overwritten", "card", "audit.json", "--out", "audit.json")
    assert not (here / "model-card.md").exists()
