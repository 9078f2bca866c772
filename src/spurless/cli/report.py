"""``spurless report``: write a page that compares records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spurless.cli import params as cli
from spurless.cli.console import open_page, print_text
from spurless.cli.outputs import check_outputs


@cli.expand_params
def report(
    *,
    records: Annotated[
        list[Path], typer.Argument(help="records.jsonl files, or folders that contain them.", metavar="RECORDS...")
    ],
    out: Path = cli.param(Path("report.html"), None, "Page to write."),
    title: str | None = cli.param(None, None, "Title of the page."),
    audit: list[Path] = cli.param(
        list, None, "Also show this audit: the JSON file that spurless audit writes; repeat for more.", metavar="JSON"
    ),
    open_: cli.OpenPage = False,
) -> None:
    """Write one self-contained HTML page that compares RECORDS.

    Runs that differ only in the seed are aggregated. With --audit, the verdict and
    findings of an audit are added, without its pictures.

    Examples:
      spurless report runs/records.jsonl --out report.html
      spurless report runs --audit audit.json
    """
    from spurless.core.records import read_record_files, record_files
    from spurless.reporting import read_audit, report

    check_outputs([out], "--out", inputs=[*audit, *(file for path in records for file in record_files(path))])
    page = report(out, read_record_files(records), audits=[read_audit(path) for path in audit], title=title)
    print_text(page)
    if open_:
        open_page(page)
