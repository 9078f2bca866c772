"""The command line: parse, call one function, print. An error of ours is one line and exit status 2."""

from __future__ import annotations

import sys

import typer

from spurless import __version__
from spurless.cli.data import data
from spurless.cli.demo import demo
from spurless.cli.evaluate import evaluate
from spurless.cli.fit import fit
from spurless.cli.ls import ls
from spurless.cli.report import report
from spurless.cli.reproduce import reproduce
from spurless.core.errors import SpurlessError

app = typer.Typer(
    help="Find the shortcuts a classifier relies on, remove them, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo)
app.command("fit")(fit)
app.command("eval")(evaluate)
app.command("report")(report)
app.command("reproduce")(reproduce)
app.command("ls")(ls)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and leave.")) -> None:
    if version:
        print(__version__)
        raise typer.Exit


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SpurlessError as error:
        print(f"spurless: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("spurless: stopped; the same command goes on where this one was.", file=sys.stderr)
        sys.exit(130)


__all__ = ["app", "main"]
