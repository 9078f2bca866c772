"""Rows: CSV files read row by row, with the file, the row and the column in every error."""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sys import intern

import torch
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning, did_you_mean

SHORT = 64
"""Cells shorter than this are names that come again and again, and are kept once."""


class Table:
    """The rows under a header, counted as a spreadsheet does."""

    def __init__(self, path: Path, lines: Iterator[list[str]]) -> None:
        self.path, self._lines = path, lines
        self.header = [name.strip() for name in next(lines, [])]
        if not any(self.header):
            raise BadInput("the file has no header", where=path, expected="the names of the columns in row 1")
        self._place = {name: i for i, name in enumerate(self.header)}
        for name in self._place:
            if name and self.header.count(name) > 1:
                raise BadInput(f"two columns are called {name!r}", where=f"{path}, row 1", do="Rename one.")

    def column(self, name: str) -> int:
        """Return the place of a column."""
        if not name or name not in self._place:
            known = [column for column in self.header if column]
            do = f"{did_you_mean(name, known)} Columns: {', '.join(known)}.".strip()
            if len(known) == 1 and ";" in known[0]:
                do += " Cells seem to lie between semicolons: pass delimiter=';', on the command line -D 'delimiter=;'."
            raise BadInput(f"no column is called {name!r}", where=self.path, do=do)
        return self._place[name]

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number and the cells of every row that is not blank."""
        for number, row in enumerate(self._lines, start=2):
            if len(row) == len(self.header):
                yield number, row
            elif row:
                raise BadInput(
                    "the row has the wrong number of cells",
                    where=self.row(number),
                    expected=len(self.header),
                    got=len(row),
                )

    def row(self, number: int) -> str:
        """Say where a row is."""
        return f"{self.path}, row {number}"


def value(cell: str) -> str:
    """Return what a cell says of a class or an attribute: nothing where a table of numbers has none.

    Example:
        >>> value(" cat "), value("NaN")
        ('cat', '')
    """
    text = cell.strip()
    return "" if text in ("nan", "NaN") else intern(text)


class Inside:
    """The files under a root, none of which may lie outside it."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise BadInput("no such folder", where=root)
        self.root = root.resolve()
        self._known: set[Path] = set()  # a folder is resolved once, not once per file

    def file(self, name: str, where: object, missing: bool = False) -> Path:
        """Return the path of a file that is named in a table at ``where``; ``missing`` ones only if that may be."""
        path = self.root / name
        if not name:
            raise BadInput("the file name is empty", where=where)
        up = Path(os.path.normpath(name)).parts[:1] == ("..",)
        if up or not path.is_relative_to(self.root):  # an absolute name may lie under the root
            raise self._leaves(name, where)
        if not missing and not path.is_file():
            raise BadInput(f"no such image file: {path}", where=where)
        if path.parent not in self._known:
            if not path.parent.resolve().is_relative_to(self.root):
                raise self._leaves(name, where)
            self._known.add(path.parent)
        if path.is_symlink() and not path.resolve().is_relative_to(self.root):
            raise self._leaves(name, where)
        return path

    def _leaves(self, name: str, where: object) -> BadInput:
        return BadInput(
            f"the path {name!r} leaves its root",
            where=where,
            expected=self.root,
            do="Name the folder that holds all images: root= (--root FOLDER).",
        )


def check_repeats(
    path: Path, files: Sequence[Path], labels: Sequence[str], splits: Sequence[int], rows: Sequence[int] | None = None
) -> None:
    """Refuse a table that lists a file twice with two labels or in two splits; warn of one that merely repeats itself.

    Without ``splits`` they are still to be cut at random, and a repeated file would be met in train and in test.
    ``rows`` says in which row each stands, where blank ones lie between them or some were left out.
    """
    rows = range(2, len(files) + 2) if rows is None else rows
    seen: dict[Path, int] = {}
    repeats = 0
    for i, file in enumerate(files):
        first = seen.setdefault(file, i)
        if first == i:
            continue
        repeats += 1
        where = f"{path}, rows {rows[first]} and {rows[i]}"
        if labels[first] != labels[i]:
            got = f"{labels[first]!r} and {labels[i]!r}"
            raise BadInput(f"the file {file.name!r} is listed with two labels", where=where, got=got)
        if not splits or splits[first] != splits[i]:
            what = "would be in train and in test" if not splits else "is in two splits"
            raise BadInput(f"the file {file.name!r} is listed twice and {what}", where=where, do="Drop one row.")
    if repeats:
        warnings.warn(
            f"{path} lists {repeats} files more than once; they count as often as they are listed.",
            SpurlessWarning,
            stacklevel=3,
        )


def columns(path: Path, names: Sequence[str], delimiter: str = ",") -> dict[str, list[str]]:
    """Read some columns of a table whole, as stripped text; cell ``i`` is in row ``i + 2``, where no row is blank."""
    with reading(path, delimiter) as lines:
        table = Table(path, lines)
        places = [table.column(name) for name in names]
        found: list[list[str]] = [[] for _ in names]
        for _, row in table.rows():
            for place, values in zip(places, found, strict=True):
                text = row[place].strip()
                values.append(intern(text) if len(text) < SHORT else text)
    if not found or not found[0]:
        raise BadInput("there are no rows under the header", where=path)
    return dict(zip(names, found, strict=True))


def codes(values: Sequence[str], known: Mapping[str, int], path: Path, column: str) -> Tensor:
    """Number the cells of a column by a table of what they may hold.

    Example:
        >>> codes(["dog", "cat"], {"cat": 0, "dog": 1}, Path("pets.csv"), "kind")
        tensor([1, 0])
    """
    try:
        return torch.tensor([known[value] for value in values], dtype=torch.long)
    except KeyError:
        row = next(i for i, value in enumerate(values) if value not in known)
        raise BadInput(
            f"{values[row]!r} is not a value of column {column!r}",
            where=f"{path}, row {row + 2}",
            expected=", ".join(known),
        ) from None


@contextmanager
def reading(path: Path, delimiter: str) -> Iterator[Iterator[list[str]]]:
    """Open a CSV file, with its name in every error."""
    if len(delimiter) != 1:
        raise BadInput("the delimiter must be one character", got=repr(delimiter))
    if not path.is_file():
        raise BadInput("no such file", where=path, expected="a CSV file")
    try:
        with path.open("rb") as file:
            packed = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            text = io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
            yield csv.reader(text, delimiter=delimiter)
    except UnicodeDecodeError as error:
        raise BadInput(f"the file is not UTF-8: {error}", where=path, do="Save it as UTF-8.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BadInput(f"the file cannot be unpacked: {error}", where=path) from None
    except csv.Error as error:
        raise BadInput(f"the file is not CSV: {error}", where=path) from None
