"""Command line of Spurless; an expected error is one line and exit status 2."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from spurless import __version__
from spurless.cli.audit import audit
from spurless.cli.bench import bench
from spurless.cli.card import card
from spurless.cli.compare import compare
from spurless.cli.console import escape_controls, handle_warnings
from spurless.cli.data import data
from spurless.cli.demo import demo
from spurless.cli.doctor import doctor
from spurless.cli.evaluate import evaluate
from spurless.cli.explain import explain
from spurless.cli.fit import fit
from spurless.cli.fix import fix
from spurless.cli.ls import ls
from spurless.cli.report import report
from spurless.cli.reproduce import reproduce
from spurless.cli.sweep import sweep
from spurless.core.errors import SpurlessError, SpurlessWarning
from spurless.core.interrupts import interrupting_signal, raise_on_termination

_RESUME_HINTS = {
    "fit": "stopped; run the same command to resume.",
    "reproduce": "stopped; if --out was given, run the same command to resume.",
    **dict.fromkeys(("sweep", "bench"), "stopped; run the same command to resume after the recorded runs."),
}
"""Message on Ctrl-C, SIGTERM or SIGHUP of commands that can resume."""


_TYPER_INTERRUPTED = 130  # what Typer returns if a signal comes before or after the command


class _InterruptError(Exception):
    """Ctrl-C, SIGTERM or SIGHUP, with the message to print and the exit status."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.status = 128 + signal_number


class _Commands(TyperGroup):
    """Group of commands that converts Ctrl-C: Typer would exit without a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            hint = _RESUME_HINTS.get(ctx.invoked_subcommand or "", "stopped.")
            raise _InterruptError(hint, interrupting_signal()) from None


app = typer.Typer(
    cls=_Commands,
    help="Find shortcuts that a classifier relies on, repair it, and check the repair.",
    epilog="Start with: spurless demo. Help on a command: spurless fit --help.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (demo, fit, sweep, bench, evaluate, audit, fix, compare, card, explain, report, reproduce, ls, doctor):
    app.command("eval" if command is evaluate else command.__name__)(command)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", metavar=""),
) -> None:
    if version:
        print(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> None:
    """Run the command line."""
    try:
        with (
            raise_on_termination(),
            handle_warnings(SpurlessWarning, _print_warning),
        ):  # on one line, without the code that raised it
            status = app(prog_name="spurless", standalone_mode=False)
        if status == _TYPER_INTERRUPTED:
            _leave("stopped.", 128 + interrupting_signal())
        sys.stdout.flush()
    except _InterruptError as error:
        _leave(str(error), error.status)
    except KeyboardInterrupt:  # before or after the command
        _leave("stopped.", 128 + interrupting_signal())
    except (SpurlessError, typer.TyperException) as error:
        _leave(_format_error(error), 2)
    except (MemoryError, RuntimeError) as error:
        _leave(_format_memory_error(error), 2)
    except BrokenPipeError:
        _close_output()
        sys.exit(1)
    except OSError as error:  # a full disk, a file without read permission
        _close_output()
        _leave(f"{error.filename or 'standard output'}: {error.strerror or error}.", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _leave(message: str, status: int) -> NoReturn:
    """Print a message on one line, with the rank if several processes train together, and exit."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK"))
    prefix = "spurless:" if rank is None else f"spurless: [rank {rank}]"
    line = escape_controls(" ".join(part.strip() for part in message.splitlines()))
    sys.stderr.write(f"{prefix} {line}\n")  # one write, or the lines of two ranks would mix
    sys.stderr.flush()
    sys.exit(status)


def _format_error(error: SpurlessError | typer.TyperException) -> str:
    if isinstance(error, SpurlessError):
        return str(error)
    context = getattr(error, "ctx", None)
    text = error.format_message()
    text += "" if text.endswith((".", "?")) else "."
    return f"{text} See: {context.command_path} --help" if context is not None else text


def _format_memory_error(error: MemoryError | RuntimeError) -> str:
    """Return the message if memory is exhausted, for which torch has a class of its own with CUDA only; else raise."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    if not isinstance(error, MemoryError) and not any(word in str(error) for word in words):
        raise error
    return "there is not enough memory. Use smaller batches, fewer examples or a smaller model."


def _print_warning(message: str) -> None:
    print(f"spurless: warning: {escape_controls(message)}", file=sys.stderr)


def _close_output() -> None:
    """Discard buffered output: Python would try to write it again at exit and report the failure."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["app", "main"]
