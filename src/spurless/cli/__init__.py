"""The command line: parse, call one function, print. An error of ours is one line and exit status 2."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from spurless import __version__
from spurless.cli.audit import audit
from spurless.cli.bench import bench
from spurless.cli.data import data
from spurless.cli.demo import demo
from spurless.cli.evaluate import evaluate
from spurless.cli.explain import explain
from spurless.cli.fit import fit
from spurless.cli.fix import fix
from spurless.cli.ls import ls
from spurless.cli.report import report
from spurless.cli.reproduce import reproduce
from spurless.cli.sweep import sweep
from spurless.core.errors import SpurlessError, SpurlessWarning
from spurless.core.turn import take_turn

_GOES_ON = {
    "fit": "stopped; the same command goes on where this one was.",
    "reproduce": "stopped; with --out, the same command goes on where this one was.",
    **dict.fromkeys(("sweep", "bench"), "stopped; the same command goes on after the runs that are recorded."),
}
"""What a command says on Ctrl-C that keeps what it has done; others begin again."""


class _Stopped(Exception):
    """Ctrl-C, and what to say of it."""


class _Commands(TyperGroup):
    """The commands. Ctrl-C leaves under a name of ours: Typer would turn it into a status without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _Stopped(_GOES_ON.get(ctx.invoked_subcommand or "", "stopped.")) from None


app = typer.Typer(
    cls=_Commands,
    help="Find the shortcuts a classifier relies on, remove them, and prove it.",
    epilog="Start with: spurless demo. Every command explains itself: spurless fit --help.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("demo")(demo)
app.command("fit")(fit)
app.command("sweep")(sweep)
app.command("bench")(bench)
app.command("eval")(evaluate)
app.command("audit")(audit)
app.command("fix")(fix)
app.command("explain")(explain)
app.command("report")(report)
app.command("reproduce")(reproduce)
app.command("ls")(ls)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and leave.", metavar=""),
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line."""
    parent = os.getppid()
    try:
        with _warnings_in_one_line():
            status = app(prog_name="spurless", standalone_mode=False)
        sys.stdout.flush()
    except _Stopped as stopped:
        _leave(str(stopped), 130, parent)
    except (SpurlessError, typer.TyperException) as error:
        _leave(_sentence(error), 2, parent)
    except BrokenPipeError:
        _close_output()
        sys.exit(1)
    except OSError as error:  # a disk that is full, a file that may not be read
        _close_output()
        _leave(f"{error.filename or 'standard output'}: {error.strerror or error}.", 2, parent)
    sys.exit(status if isinstance(status, int) else 0)


def _leave(sentence: str, status: int, parent: int) -> NoReturn:
    """Say one line, whatever a message from below looks like, and leave; of processes that fail alike one says it."""
    if take_turn():
        print("spurless:", " ".join(line.strip() for line in sentence.splitlines()), file=sys.stderr, flush=True)
    _let_go_first(parent)
    sys.exit(status)


def _sentence(error: SpurlessError | typer.TyperException) -> str:
    if isinstance(error, SpurlessError):
        return str(error)
    context = getattr(error, "ctx", None)
    text = error.format_message()
    text += "" if text.endswith((".", "?")) else "."
    return f"{text} See: {context.command_path} --help" if context is not None else text


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Say a warning of ours as a person would, without the line of code that raised it."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, SpurlessWarning):
            print(f"spurless: warning: {message}", file=sys.stderr)
        else:
            usual(message, category, *place, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", SpurlessWarning)
        warnings.showwarning = show
        yield


def _let_go_first(parent: int, seconds: float = 60.0) -> None:
    """Wait for the process that started this one to train with it: it would be killed, and its status lost."""
    until = time.monotonic() + seconds
    while os.environ.get("LOCAL_RANK", "0") != "0" and os.getppid() == parent and time.monotonic() < until:
        time.sleep(0.05)


def _close_output() -> None:
    """Let what is still buffered go nowhere: Python would try to write it once more, and say so."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["app", "main"]
