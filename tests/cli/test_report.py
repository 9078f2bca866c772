"""``spurless report``: one page from files or folders of records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from spurless.core.findings import Audit, Finding
from spurless.reporting.audit_text import write_json

Cli = Callable[..., Any]


def test_page_is_made_from_files_and_folders(cli: Cli, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm", "--out", "one").status == 0
    assert tiny_fit("group-dro", "--out", "two").status == 0
    result = cli("report", "one/records.jsonl", "two", "--out", "deep/page.html", "--title", "Two <runs>")
    assert (result.status, result.out, result.err) == (0, "deep/page.html\n", "")
    page = (here / "deep" / "page.html").read_text()
    assert "Two &lt;runs&gt;" in page
    assert "Two <runs>" not in page
    assert "group-dro" in page


def test_torn_last_record_is_left_out(cli: Cli, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm").status == 0
    path = here / "runs" / "records.jsonl"
    path.write_text(path.read_text() + path.read_text()[:100])
    result = cli("report", path, "--out", "page.html")
    assert result.status == 0
    assert result.err.startswith(f"spurless: warning: {path}, line 2 ")


def test_an_audit_goes_on_the_same_page(cli: Cli, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm").status == 0
    audit = Audit((Finding("slices", "Mistakes share grass", 0.4, True, 0.002, "40 %", "Repair."),))
    write_json(here / "audit.json", audit)
    assert cli("report", "runs", "--out", "page.html", "--audit", "audit.json").status == 0
    assert "Mistakes share grass" in (here / "page.html").read_text()
    result = cli("report", "runs", "--audit", "runs/records.jsonl")
    assert (result.status, result.out) == (2, "")
    assert "not an audit" in result.err


def test_records_are_not_replaced_by_their_page(cli: Cli, tiny_fit: Cli, here: Path) -> None:
    assert tiny_fit("erm").status == 0
    path = here / "runs" / "records.jsonl"
    before = path.read_bytes()
    for records in (path, "runs"):
        result = cli("report", records, "--out", "runs/records.jsonl")
        assert result.status == 2
        assert "would be overwritten" in result.err
    assert path.read_bytes() == before
