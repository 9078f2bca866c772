"""Print tables, records and progress: results to standard output, progress bars to standard error."""

from __future__ import annotations

import re
import sys
import warnings
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from spurless.core.records import Record
from spurless.reporting.format import format_percent, format_points, format_size, is_sparse

MIN_COLUMN_WIDTH = 8  # of a text column, in characters, if the table does not fit the terminal
MAX_NAME_LENGTH = 32  # characters of a name in a table of groups
MAX_GROUPS = 20  # groups of a record that are printed; of more, the worst
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, clear the screen, reverse the text or cannot be printed."""


def escape_controls(text: str) -> str:
    r"""Return a text with control characters escaped, since names of files and classes may contain any.

    Example:
        >>> escape_controls("cat\x1b[2J\n")
        'cat\\x1b[2J\\n'
    """
    return _CONTROLS.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def print_text(text: object = "") -> None:
    """Print a line, with control characters escaped."""
    print(escape_controls(str(text)))


def open_page(page: Path) -> None:
    """Open a page in the browser, and print a line if there is none."""
    if webbrowser.open(page.resolve().as_uri()) is False:
        print_error("no browser was found; open the page by hand.")


def print_error(text: str) -> None:
    """Print a line on standard error, with control characters escaped."""
    print(f"spurless: {escape_controls(text)}", file=sys.stderr)


def print_json(text: str) -> None:
    """Print JSON, in which control characters that JSON allows are escaped too."""
    escaped = _CONTROLS.sub(lambda m: m.group() if m.group() == "\n" else f"\\u{ord(m.group()):04x}", text)
    print(escaped.removesuffix("\n"))


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Any]:
    """Show a progress bar per stage on standard error; yield the progress callback of the library.

    Yield None if quiet, or if standard error is not a terminal.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<16}", markup=False),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),  # also moves during a long step
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.fields[message]}", markup=False),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: list[Any] = []

        def update(stage: str, step: int, total: int, message: str) -> None:
            stage, message = escape_controls(stage), escape_controls(message)
            if not task or bar.tasks[-1].description != stage or step < bar.tasks[-1].completed:
                for old in task:
                    bar.remove_task(old)
                task[:] = [bar.add_task(stage, total=total, message=message)]
            bar.update(task[0], completed=step, total=total, message=message)

        yield update


@contextmanager
def handle_warnings(handled: type[Warning], handle: Callable[[str], object]) -> Iterator[None]:
    """Call ``handle`` with the message of each warning of a category; others are shown as usual."""
    default = warnings.showwarning

    def show(message: Any, category: type[Warning], *location: Any, **more: Any) -> None:
        if issubclass(category, handled):
            handle(str(message))
        else:
            default(message, category, *location, **more)

    with warnings.catch_warnings():
        warnings.simplefilter("always", handled)
        warnings.showwarning = show
        yield


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table; the columns with an index in ``right`` are right-aligned.

    Numbers are never wrapped, and names in the first column only if the table does not fit otherwise. A table that is
    still too wide exceeds the terminal: truncated, 127.1 would read 12.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns, rows = [escape_controls(column) for column in columns], [[*map(escape_controls, row)] for row in rows]
    widths = [max(cell_len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    minimum = [width if index in right else min(width, MIN_COLUMN_WIDTH) for index, width in enumerate(widths)]
    needed = sum(minimum) + 2 * len(columns)
    console = Console(width=max(Console().width, needed))
    fits = widths[0] - minimum[0] <= console.width - needed
    grid = Table(title=Text(escape_controls(title), "bold"), title_justify="left", box=None, pad_edge=False)
    for index, column in enumerate(map(Text, columns)):
        no_wrap = index in right or (index == 0 and fits)
        grid.add_column(column, justify="right" if index in right else "left", overflow="fold", no_wrap=no_wrap)
    for row in rows:
        grid.add_row(*map(Text, row))
    console.print(grid)


def print_fact(word: str, text: str) -> None:
    """Print a word and its description, wrapped to the terminal."""
    print_paragraph(f"{word:<10} {text}", indent=11)


def print_paragraph(text: str, indent: int = 0) -> None:
    """Print a text, wrapped to the terminal."""
    width = max(40, get_terminal_size().columns)
    print(fill(escape_controls(text.replace("\n", " ")), width, subsequent_indent=" " * indent, break_on_hyphens=False))


def show_record(record: Record) -> None:
    """Print the accuracy of each group and the metrics; of many groups, the worst."""
    title = f"{record.method} on {record.data['name']}, seed {record.seed}"
    rows = [row for row in record.groups if row.count]
    if len(rows) > MAX_GROUPS:
        title += f" (the worst {MAX_GROUPS} of {len(rows)} groups)"
        rows = sorted(rows, key=lambda row: row.accuracy if row.accuracy is not None else 2.0)[:MAX_GROUPS]
    cells = []
    for row in rows:
        accuracy, low, high = map(format_percent, (row.accuracy, row.low, row.high))
        cells.append((row.name, accuracy, f"{low} to {high}", str(row.count), str(row.train_count)))
    print_table(title, ("group", "accuracy", "95 % interval", "test", "train"), cells, right=(1, 2, 3, 4))
    _show_metrics(record)
    if record.selective:
        show_selective(record.selective)


def _show_metrics(record: Record) -> None:
    """Print the averages, the worst group with the weight of one example, and the size of a sparse model."""
    names = {"average": "average", "adjusted_average": "adjusted average", "balanced_average": "balanced over groups"}
    metrics = {key: value for key, value in record.metrics.items() if value is not None}
    present = [key for key in names if key in metrics or key != "adjusted_average"]  # which not every split has
    print_text("  ".join(f"{names[key]} {format_percent(metrics.get(key))}" for key in present))
    resolution = f" (one example: {format_points(100 * metrics['resolution'])})" if "resolution" in metrics else ""
    worst, gap = (format_percent(metrics.get(key)) for key in ("worst_group", "gap"))
    print_text(f"worst group {worst}{resolution}  gap {gap}")
    if is_sparse(record.model):
        print_fact("size", format_size(record.model))


def show_selective(selective: Mapping[str, Any]) -> None:
    """Print coverage and error of selective prediction."""
    print_text()
    keys = ("target", "coverage", "error", "worst_group_error")
    rows = [(*(format_percent(row[key]) for key in keys), row["worst_group"] or "n/a") for row in selective["rows"]]
    columns = ("target coverage", "coverage", "error", "worst-group error", "worst group")
    print_table(f"selective prediction by the score {selective['score']!r}", columns, rows, right=(0, 1, 2, 3))
