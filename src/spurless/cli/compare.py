"""``spurless compare``: write a page about what changes from one audit to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spurless.cli import params as cli
from spurless.cli.console import open_page, print_json, print_table, print_text
from spurless.cli.outputs import check_outputs
from spurless.core.errors import InputError

if TYPE_CHECKING:
    from spurless.reporting.comparison import AuditComparison


@cli.expand_params
def compare(
    *,
    audits: Annotated[
        list[Path],
        typer.Argument(
            help="Two JSON files of spurless audit or fix, or one of fix: before and after.", metavar="JSON..."
        ),
    ],
    out: Path = cli.param(Path("comparison.html"), cli.OUTPUT, "Page to write.", metavar="HTML"),
    title: str | None = cli.param(None, cli.OUTPUT, "Title of the page."),
    open_: cli.OpenPage = False,
    json: cli.Json = False,
) -> None:
    """Compare two audits: before and after, two models, or two versions of one.

    Findings are compared by the name of the audit, accuracies by the name of the
    group, with the 95 % interval of their difference. The examples of the two count
    as independent samples. Of a file of spurless fix, the audit of the resulting
    model counts; a single such file stands for its audits before and after.

    Examples:
      spurless compare old.json new.json
      spurless compare fixed.json --out repair.html --open
    """
    from spurless.reporting import compare as compare_audits
    from spurless.reporting import comparison_json, read_audits, write_comparison, write_comparison_json

    check_outputs([], "--out", page=out, inputs=audits)
    if len(audits) > 2:
        raise InputError("too many files", expected="two audits, or one repair", got=len(audits))
    files = [read_audits(path) for path in audits]
    pair = files[0] if len(files) == 1 else [part[-1] for part in files]
    if len(pair) < 2:
        hint = "Pass a second file; if it is of spurless fix, the old model was kept."
        raise InputError("one file with one audit cannot be compared", where=audits[0], hint=hint)
    comparison = compare_audits(*pair)
    page = write_comparison(out, comparison, title=title)
    json_file = write_comparison_json(out.with_suffix(".json"), comparison)
    if json:
        print_json(comparison_json(comparison))
    else:
        _show(comparison)
        print_text(f"page in {page.resolve()}, JSON in {json_file}")
    if open_:
        open_page(page)


def _show(comparison: AuditComparison) -> None:
    """Print the summary and a table of the accuracies."""
    from spurless.reporting.comparison import OUTCOMES, accuracy_cells

    for number, line in enumerate(comparison.summary):
        print_text(line if number == 0 else f"  {line}")
    rows = [
        (
            row.name,
            *(f"{value} ({note})" if note else value for value, note in accuracy_cells(row)),
            OUTCOMES[row.outcome],
        )
        for row in (comparison.average, *comparison.groups)
    ]
    print_text()
    print_table("accuracy with 95 % intervals", ("group", "before", "after", "difference", "outcome"), rows, (1, 2, 3))
    print_text()
    for note in comparison.notes:
        print_text(note)
