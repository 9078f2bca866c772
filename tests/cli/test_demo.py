"""``spurless demo``: every record, one page, and the story in a few lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spurless.cli.demo import METHODS, TRAIN

Cli = Callable[..., Any]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train for a moment only."""
    monkeypatch.setitem(TRAIN, "steps", 3)


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_demo_writes_the_page_and_a_record_of_every_method(cli: Cli, here: Path) -> None:
    (here / "story").mkdir()
    (here / "story" / "records.jsonl").write_text("of an earlier demo\n")
    result = cli("demo", "--out", "story", "--seeds", 1)
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


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_demo_opens_the_page_where_asked(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert cli("demo", "--seeds", 1, "--open").status == 0
    assert opened == [(here.resolve() / "demo" / "report.html").as_uri()]
