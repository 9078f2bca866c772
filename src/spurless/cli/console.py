"""The console: how the commands speak; results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spurless.core.errors import BadInput, first_line
from spurless.core.files import check_apart, check_file, check_writable, unwritable
from spurless.core.records import Record, read

NARROW = 8
"""Letters that a column of text has at least, in a table that hardly fits."""


@contextmanager
def progress_bar(quiet: bool = False) -> Iterator[Any]:
    """Draw a bar per stage on standard error; yields the callback that the library reports to.

    It yields None when quiet, or when nobody looks: a log wants no bars.
    """
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),  # it ticks while a long step says nothing
        TimeRemainingColumn(),
        TextColumn("{task.fields[word]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task: list[Any] = []

        def tell(stage: str, step: int, total: int, word: str) -> None:
            if not task or bar.tasks[-1].description != stage or step < bar.tasks[-1].completed:
                for old in task:
                    bar.remove_task(old)
                task[:] = [bar.add_task(stage, total=total, word=word)]
            bar.update(task[0], completed=step, total=total, word=word)

        yield tell


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print a table; columns whose numbers are in ``right`` are aligned to the right.

    Numbers are never broken, and names, which come first, only where they leave no room. What is still wider than the
    terminal runs over its edge: cut off, 127.1 would read 12.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    wide = [max(cell_len(row[number]) for row in (columns, *rows)) for number in range(len(columns))]
    least = [width if number in right else min(width, NARROW) for number, width in enumerate(wide)]
    needed = sum(least) + 2 * len(columns)
    console = Console(width=max(Console().width, needed))
    whole = wide[0] - least[0] <= console.width - needed
    grid = Table(title=escape(title), title_justify="left", title_style="bold", box=None, pad_edge=False)
    for number, column in enumerate(columns):
        unbroken = number in right or (number == 0 and whole)
        grid.add_column(column, justify="right" if number in right else "left", overflow="fold", no_wrap=unbroken)
    for row in rows:
        grid.add_row(*(escape(cell) for cell in row))
    console.print(grid)


def fact(word: str, text: str) -> None:
    """Print a word and what it stands for, no wider than the terminal."""
    from shutil import get_terminal_size
    from textwrap import fill

    width = max(40, get_terminal_size().columns)
    print(fill(f"{word:<10} {text}", width, subsequent_indent=" " * 11, break_on_hyphens=False))


def show_record(record: Record, most: int = 20) -> None:
    """Print how each group fared and the numbers that papers report; of many groups, the worst."""
    rows = sorted(
        (row for row in record.groups if row.count), key=lambda row: row.accuracy if row.accuracy is not None else 2.0
    )
    shown = rows[:most] if len(rows) > most else [row for row in record.groups if row.count]
    title = f"{record.method} on {record.data['name']}, seed {record.seed}"
    if len(rows) > most:
        title += f" (the worst {most} of {len(rows)} groups)"
    table(
        title,
        ("group", "accuracy", "95 % interval", "test", "train"),
        [
            (
                row.name,
                share(row.accuracy),
                f"{share(row.low)} to {share(row.high)}",
                str(row.count),
                str(row.train_count),
            )
            for row in shown
        ],
        right=(1, 2, 3, 4),
    )
    _show_numbers(record)
    if record.selective:
        show_selective(record.selective)


def _show_numbers(record: Record) -> None:
    """Print the averages side by side, the worst group with what one of its examples is worth, and what is left."""
    from spurless.reporting.words import is_sparse, points, size

    words = {"average": "average", "adjusted_average": "adjusted average", "balanced_average": "balanced over groups"}
    found = {key: value for key, value in record.metrics.items() if value is not None}
    told = [key for key in words if key in found or key != "adjusted_average"]  # which not every split has
    print("  ".join(f"{words[key]} {share(found.get(key))}" for key in told))
    worth = f" (one example: {points(100 * found['resolution'])})" if "resolution" in found else ""
    print(f"worst group {share(found.get('worst_group'))}{worth}  gap {share(found.get('gap'))}")
    if is_sparse(record.model):
        fact("size", size(record.model))


def show_selective(selective: Mapping[str, Any]) -> None:
    """Print what a model that may abstain keeps of the test split, and how much of it is wrong."""
    print()
    table(
        f"if it may abstain, by its score {selective['score']!r}",
        ("asked", "predicted", "error", "worst-group error", "worst group"),
        [
            (
                share(row["target"]),
                share(row["coverage"]),
                share(row["error"]),
                share(row["worst_group_error"]),
                row["worst_group"] or "n/a",
            )
            for row in selective["rows"]
        ],
        right=(0, 1, 2, 3),
    )


def check_places(
    weights: Path,
    places: Sequence[Path],
    flags: str,
    records: Path | None = None,
    inputs: Sequence[Path | str | None] = (),
) -> None:
    """Refuse places that cannot be written, or that are one, before anything is done.

    Args:
        weights: the file that is read.
        places: the files that are written whole; the first is a page, which has its twin for machines beside it.
        flags: what a user says them with.
        records: a file that is appended to.
        inputs: what else is read.
    """
    for place in places:
        check_file(place)
    twin = places[0].with_suffix(".json")
    check_file(twin)
    every = [path.resolve() for path in (*places, twin, *([records] if records else []))]
    if len(set(every)) < len(every):
        raise BadInput("two outputs have the same place", do=f"Give each of {flags} its own.")
    if weights.resolve() in every:
        raise BadInput("the old weights would be overwritten", where=weights, do=f"Choose another place: {flags}.")
    check_apart([*places, twin, records], inputs)
    for place in places:
        check_writable(place.parent)
    if records is not None:
        check_appendable(records)


def check_appendable(path: Path) -> None:
    """Refuse a file that cannot be appended to before the first hour, not after; one that is there is not changed.

    A file of something else than records is refused too: it would be neither any more.
    """
    if not path.exists():
        check_writable(path.parent)
        return
    try:
        path.open("ab").close()
    except OSError as error:
        raise unwritable(path, error) from None
    if path.is_file():
        try:
            read(path, to_continue=True)
        except BadInput as error:
            raise BadInput(
                f"records cannot be appended here: {first_line(error)}", do="Choose another place with --out."
            ) from None


def share(value: float | None) -> str:
    """Return a share as a percentage.

    Example:
        >>> share(0.0714), share(None)
        ('7.1 %', 'n/a')
    """
    return "n/a" if value is None or value != value else f"{100 * value:.1f} %"
