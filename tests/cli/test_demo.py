"""``spurless demo``: every record, one page, and the story in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spurless.cli.demo import METHODS, TRAIN, _check_earlier_records

Cli = Callable[..., Any]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for a moment only."""
    monkeypatch.setitem(TRAIN, "steps", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_demo_writes_the_page_and_a_record_of_every_method(cli: Cli, here: Path) -> None:
    result = cli("demo", "--out", "story", "--seeds", 1)
    _check_earlier_records(here / "story" / "records.jsonl")  # another demo may replace them
    rows = result.records(here / "story" / "records.jsonl")
    assert [row["method"] for row in rows] == list(METHODS)
    assert {path.name for path in (here / "story").iterdir()} == {"records.jsonl", "report.html"}
    lines = result.out.splitlines()
    assert lines[0].startswith("On data like its training data ERM has an accuracy of ")
    assert "Audit: " in lines[1]
    assert [line.split()[0] for line in lines[3 : 2 + len(METHODS)]] == list(METHODS)[1:]
    assert lines[-1] == f"The page: {here.resolve() / 'story' / 'report.html'}"
    page = (here / "story" / "report.html").read_text()
    assert "A classifier with a shortcut, and its repair" in page
    assert "data:image/png" in page
    assert "Audit of small-cnn on patched-digits" in page


@pytest.mark.parametrize("text", [None, "notes\n"])
def test_records_of_other_commands_are_not_replaced(text: str | None, cli: Cli, here: Path) -> None:
    records = here / "runs" / "records.jsonl"
    words = ("--data", "planted", "-D", "n_train=60", "-D", "n_val=20", "-D", "n_test=20", "--model", "linear")
    assert cli("fit", "erm", *words, "--steps", 2).status == 0
    if text is not None:
        records.write_text(text)
    before = records.read_bytes()
    result = cli("demo", "--out", "runs", "--seeds", 1)
    assert (result.status, len(result.err.splitlines()), records.read_bytes()) == (2, 1, before)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_demo_opens_the_page_where_asked(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert cli("demo", "--seeds", 1, "--open").status == 0
    assert opened == [(here.resolve() / "demo" / "report.html").as_uri()]
