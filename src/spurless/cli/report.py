"""``spurless report``: one page from records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spurless.core.files import check_apart


def report(
    records: Annotated[
        list[Path], typer.Argument(help="records.jsonl files, or folders that hold some.", metavar="RECORDS...")
    ],
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    audit: Annotated[
        list[Path],
        typer.Option(
            help="Show this audit too: the JSON that spurless audit writes beside its page; repeat for more.",
            metavar="JSON",
        ),
    ] = [],
) -> None:
    """Turn RECORDS into one self-contained HTML page that works without a network.

    Records of several runs are compared; those that differ by seed alone are put together.
    Verdict and findings of an audit go on the same page, without its pictures.

    Examples:
      spurless report runs/records.jsonl --out report.html
      spurless report runs --audit audit.json
    """
    from spurless.core.records import files_in, read_all
    from spurless.reporting import read_audit, write_report

    check_apart([out], [*audit, *(file for place in records for file in files_in(place))])
    print(write_report(out, read_all(records), audits=[read_audit(path) for path in audit], title=title))
