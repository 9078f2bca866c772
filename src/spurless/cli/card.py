"""``spurless card``: write an audit as a model card, or as a summary of one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spurless.cli import params as cli
from spurless.cli.console import print_text
from spurless.cli.outputs import check_outputs


@cli.expand_params
def card(
    *,
    audit: Annotated[Path, typer.Argument(help="JSON file of spurless audit or fix.", metavar="JSON")],
    brief: bool = cli.flag(None, "Write a summary of one page instead of a model card.", "--brief"),
    license: str = cli.param(
        "", None, "License of the model for the front matter, such as mit.", metavar="ID", show_default="a comment"
    ),
    out: Path | None = cli.param(
        None, cli.OUTPUT, "Markdown file to write.", metavar="MD", show_default="model-card.md; with --brief summary.md"
    ),
) -> None:
    """Write an audit or a repair as Markdown, from the JSON file next to its page.

    The model card has front matter for the Hugging Face Hub, the accuracy of every
    group with intervals, the findings, what was used, and the limits. --brief
    writes one page for readers who decide. The license and the intended use are not
    invented: add them.

    Examples:
      spurless card audit.json --out README.md --license apache-2.0
      spurless card fixed.json --brief
    """
    from spurless.reporting import read_audits, write_card

    out = out or Path("summary.md" if brief else "model-card.md")
    check_outputs([out], "--out", inputs=[audit])
    audits = read_audits(audit)
    print_text(write_card(out, audits[-1], before=audits[0] if len(audits) > 1 else None, brief=brief, license=license))
