"""Load CSV files of numbers, of texts, or of image file names."""

from __future__ import annotations

import csv
import gzip
import io
import os
import warnings
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from pathlib import Path
from sys import intern

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError, SpurlessWarning, did_you_mean
from spurless.core.limits import open_gzip
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.loaders.broken_images import SKIP_HINT, drop_unreadable
from spurless.data.loaders.images import ImageFiles, read_images
from spurless.data.loaders.text import choose_tokenizer, tokenise
from spurless.data.split import ExampleIds, Source, Split, Splits, Transform
from spurless.data.splitting import encode_values, make_splits, name_groups, parse_split, prefix_numbers, stack_codes

FILE_COLUMNS = ("img_filename", "filename", "file", "path", "image", "image_path")
"""Columns of file names that are recognized by default."""


def from_csv(  # noqa: PLR0913 - one parameter per option
    path: str | Path,
    *,
    label: str,
    root: str | Path | None = None,
    file: str | None = None,
    features: Sequence[str] | None = None,
    text: str | Sequence[str] | None = None,
    attribute: str | Sequence[str] | None = None,
    split: str | None = None,
    size: int | None = None,
    tokenizer: str = "auto",
    max_length: int = 128,
    seed: int = 0,
    delimiter: str = ",",
    stream: bool | None = None,
    cache: bool | None = None,
    skip_bad: bool = False,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    held_out: bool = False,
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a CSV file.

    The inputs are texts if ``text`` is given; images if ``file`` is given or a column is in ``FILE_COLUMNS``, unless
    ``features`` is given; numbers otherwise. Classes and attributes are named by the values of their columns, in
    natural order; numbers get the name of their column ("place 0"). A missing val or test split is taken from train at
    random, stratified, 15 % for each.

    Args:
        path: the file, UTF-8, with a header.
        label: column of the class.
        root: folder of the image files; by default the folder of the CSV file. Paths must not leave it.
        file: column of image file names.
        features: columns of numbers; by default all named columns without another use.
        text: column of the text; for pairs of texts, both columns.
        attribute: column of the attribute, or several to cross; an empty cell is an unknown attribute.
        split: column of the split: 0, 1, 2 or train, val, test.
        size: resize the short side of images to this and crop the center; needed if images differ in size.
        tokenizer: see :func:`spurless.data.loaders.text.choose_tokenizer`.
        max_length: maximum number of tokens of a text, or of a pair.
        seed: seed of the split.
        delimiter: separator of cells.
        stream: read images on demand (True), now (False), or now if they fit in 1 GiB (None).
        cache: cache decoded images in ``$SPURLESS_CACHE``; by default, 2,000 images or more are cached.
        skip_bad: skip missing and unreadable images with a warning; every image is read once to find them.
        channels: 3, or 1 to read images as gray.
        classes: the classes, in the order of the model's outputs; by default in natural order.
        held_out: the examples were not trained on: without a train split, none is made, and without any splits all
            examples are test.
        transform: function from a batch to model input.
        augment: transform that is applied first, in training only.

    Raises:
        InputError: the file, a column or a cell is invalid; rows are numbered as in a spreadsheet, the header is row 1.
    """
    check_arguments(from_csv, locals())
    path = Path(path)
    attributes = [attribute] if isinstance(attribute, str) else list(() if attribute is None else attribute)
    with open_csv(path, delimiter) as lines:
        table = CsvTable(path, lines)
        inputs: _Files | _Numbers | _Texts
        _check_kind(text, file, features, root)
        file = None if text is not None else _file_column(table, file, features, required=root is not None)
        if text is not None:
            inputs = _Texts(table, [text] if isinstance(text, str) else text)
        elif file is not None:
            inputs = _Files(table, Path(root or path.parent), file, skip_bad)
        else:
            inputs = _Numbers(table, features, {label, *attributes, *([split] if split else [])}, label)
        cells = _Cells(table, label, attributes, split)
        for number, row in table.rows():
            cells.add(number, row)
            inputs.add(number, row)
    notes = _drop_unreadable_rows(path, cells, inputs) if skip_bad else ()

    labels, y = encode_values(cells.labels)
    attribute_codes = {column: encode_values(values) for column, values in cells.attributes.items()}
    if not cells.labels:
        raise InputError("the file has no rows below the header", where=path)
    x: Input | Source
    names = ExampleIds(torch.arange(len(y)), prefix=f"{path.name}, row", rows=torch.tensor(cells.numbers))
    if isinstance(inputs, _Files):
        check_duplicates(path, inputs.paths, cells.labels, cells.splits, cells.numbers)
        names = ExampleIds.of_files(inputs.names)
        x = read_images(ImageFiles(inputs.paths, size, channels, hint=SKIP_HINT), stream, cache=cache)
    elif isinstance(inputs, _Texts):
        names = replace(names, texts=[" / ".join(texts) for texts in zip(*inputs.columns, strict=True)])
        tokenizer = choose_tokenizer(tokenizer)
        x = tokenise(*inputs.columns, tokenizer=tokenizer, max_length=max_length)
    else:
        x = inputs.x
    a = stack_codes((codes for _, codes in attribute_codes.values()), y)
    attribute_names = {column: prefix_numbers(column, values) for column, (values, _) in attribute_codes.items()}
    groups = name_groups(prefix_numbers(label, labels), attribute_names)
    return make_splits(
        Split(x, y, a, groups, transform, augment, names=names),
        torch.tensor(cells.splits) if split else None,
        seeds=Seeds(seed),
        name=f"table {path.name}",
        options={
            "path": str(path),
            "label": label,
            "root": None if root is None else str(root),
            "file": file,
            "features": inputs.names if isinstance(inputs, _Numbers) else None,
            "text": None if text is None else [text] if isinstance(text, str) else list(text),
            **({} if text is None else {"tokenizer": tokenizer, "max_length": max_length}),
            "attribute": attributes,
            "split": split,
            "size": size,
            "seed": seed,
            "delimiter": delimiter,
            "stream": stream,
            **({"skip_bad": True} if skip_bad else {}),
            **({} if channels == 3 else {"channels": channels}),
        },
        notes=notes,
        held_out=held_out,
        classes=None if classes is None else _name_classes(label, labels, classes),
    )


def _name_classes(label: str, labels: Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of classes that are given as in the file: numbers get the name of their column."""
    return prefix_numbers(label, tuple(classes)) if set(classes) <= set(labels) else tuple(classes)


class _Cells:
    """Label, attributes and split of every row."""

    def __init__(self, table: CsvTable, label: str, attributes: Sequence[str], split: str | None) -> None:
        self._table, self._label = table, table.column(label)
        if label in attributes:
            what = f"the column {label!r} is both label and attribute"
            raise InputError(what, where=table.path, hint="Choose another.")
        self._attributes = {name: table.column(name) for name in attributes}
        self._split = None if split is None else table.column(split)
        self._known: dict[str, int] = {}  # each spelling of a split is parsed once
        self.labels: list[str] = []
        self.attributes: dict[str, list[str | None]] = {name: [] for name in attributes}
        self.splits: list[int] = []
        self.numbers = array("q")

    def add(self, number: int, row: list[str]) -> None:
        text = parse_cell(row[self._label])
        if not text:
            raise InputError("the label is empty", where=self._table.row(number), hint="Fill it in, or drop the row.")
        self.labels.append(text)
        self.numbers.append(number)
        for name, column in self._attributes.items():
            self.attributes[name].append(parse_cell(row[column]) or None)
        if self._split is not None:
            part = row[self._split]
            if part not in self._known:
                self._known[part] = parse_split(part, self._table.row(number))
            self.splits.append(self._known[part])

    def select(self, rows: Sequence[int]) -> None:
        """Drop all other rows."""
        self.labels, self.numbers = [self.labels[i] for i in rows], array("q", [self.numbers[i] for i in rows])
        self.attributes = {name: [values[i] for i in rows] for name, values in self.attributes.items()}
        self.splits = [self.splits[i] for i in rows] if self.splits else []


class _Numbers:
    """Features of every row, as float32."""

    def __init__(self, table: CsvTable, features: Sequence[str] | None, used: set[str], label: str) -> None:
        self._table = table
        # a column without a name is the index that pandas writes, which would identify the row
        self.names = [n for n in table.header if n and n not in used] if features is None else list(features)
        self._columns = [table.column(name) for name in self.names]
        if label in self.names:
            raise InputError(f"the label {label!r} is among the features", where=table.path)
        if not self.names:
            raise InputError("the file has no column of features", where=table.path)
        self._values = array("f")

    def add(self, number: int, row: list[str]) -> None:
        try:
            values = array("f", [float(row[column]) for column in self._columns])
        except (ValueError, OverflowError):
            raise self._cell_error(number, row) from None
        if not all(map(isfinite, values)):
            raise self._cell_error(number, row)
        self._values.extend(values)

    @property
    def x(self) -> Tensor:
        """The features, one row per example."""
        return torch.frombuffer(self._values, dtype=torch.float32).view(-1, len(self.names))

    def _cell_error(self, number: int, row: list[str]) -> InputError:
        columns = zip(self.names, self._columns, strict=True)
        name, text = next((name, row[i].strip()) for name, i in columns if not _is_number(row[i]))
        what = f"{text!r} is not a finite number" if text else "the feature is empty"
        hint = "Correct it, or choose other columns: features= (--features A,B), or text= (--text COLUMN) for texts."
        return InputError(what, where=f"{self._table.row(number)}, column {name!r}", hint=hint)


class _Files:
    """Image file of every row."""

    def __init__(self, table: CsvTable, root: Path, column: str, allow_missing: bool) -> None:
        self._table, self._root, self._allow_missing = table, ImageRoot(root), allow_missing
        self._column = table.column(column)
        self.paths: list[Path] = []
        self.names: list[str] = []

    def add(self, number: int, row: list[str]) -> None:
        self.names.append(row[self._column].strip())
        self.paths.append(self._root.file(self.names[-1], self._table.row(number), self._allow_missing))


class _Texts:
    """Text, or pair of texts, of every row."""

    def __init__(self, table: CsvTable, names: Sequence[str]) -> None:
        if not 1 <= len(names) <= 2:
            raise InputError("text must be one column or two", where=table.path, got=", ".join(names) or "no column")
        self._columns = [table.column(name) for name in names]
        self.columns: list[list[str]] = [[] for _ in names]

    def add(self, _: int, row: list[str]) -> None:
        for texts, column in zip(self.columns, self._columns, strict=True):
            texts.append(row[column].strip())


def _drop_unreadable_rows(path: Path, cells: _Cells, inputs: _Files | _Numbers | _Texts) -> tuple[str, ...]:
    """Drop rows whose image cannot be read; return notes on them."""
    if not isinstance(inputs, _Files):
        what = "skip_bad is for images, but the file has no column of file names"
        raise InputError(what, where=path, hint="Leave it out.")
    rows, notes = drop_unreadable(inputs.paths, cells.labels, path)
    cells.select(rows)
    inputs.names, inputs.paths = [inputs.names[i] for i in rows], [inputs.paths[i] for i in rows]
    return notes


def _check_kind(
    text: str | Sequence[str] | None, file: str | None, features: Sequence[str] | None, root: str | Path | None
) -> None:
    others = {"file": file, "features": features, "root": root}
    if text is not None and (given := [name for name, value in others.items() if value is not None]):
        raise InputError(f"text and {given[0]} are both given", expected="one of them")


def _file_column(table: CsvTable, file: str | None, features: Sequence[str] | None, required: bool) -> str | None:
    """Return the column of file names, or None if the inputs are numbers."""
    if features is not None:
        if file is not None:
            raise InputError("file and features are both given", expected="one of them")
        return None
    usual = [name for name in FILE_COLUMNS if name in table.header]
    if file is None and not usual and required:
        what = "the file has no column of file names"
        raise InputError(what, where=table.path, hint="Set it with file= (--file COLUMN), or leave root out.")
    return file or (usual[0] if usual else None)


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_LISTED]) + (f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else "")


def _is_number(text: str) -> bool:
    try:
        return isfinite(array("f", [float(text)])[0])
    except (ValueError, OverflowError):
        return False


MAX_LISTED = 40  # columns in a message
MAX_INTERNED = 64  # length up to which equal cells share memory


class CsvTable:
    """Header and rows of a CSV file, numbered as in a spreadsheet."""

    def __init__(self, path: Path, lines: Iterator[list[str]]) -> None:
        self.path, self._lines = path, lines
        self.header = [name.strip() for name in next(lines, [])]
        if not any(self.header):
            raise InputError("the file has no header", where=path, expected="column names in row 1")
        self._index = {name: i for i, name in enumerate(self.header)}
        double = next((name for name, n in Counter(self.header).items() if name and n > 1), None)
        if double is not None:
            raise InputError(f"two columns are called {double!r}", where=f"{path}, row 1", hint="Rename one.")

    def column(self, name: str) -> int:
        """Return the index of a column."""
        if not name or name not in self._index:
            known = [column for column in self.header if column]
            hint = f"{did_you_mean(name, known)} Columns: {_list_names(known)}.".strip()
            if len(known) == 1 and ";" in known[0]:
                hint += " The separator seems to be a semicolon: pass delimiter=';' (-D 'delimiter=;')."
            raise InputError(f"no column is called {name!r}", where=self.path, hint=hint)
        return self._index[name]

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the number and the cells of every row that is not empty."""
        for number, row in enumerate(self._lines, start=2):
            if len(row) == len(self.header):
                yield number, row
            elif row:
                what = "the row has the wrong number of cells"
                raise InputError(what, where=self.row(number), expected=len(self.header), got=len(row))

    def row(self, number: int) -> str:
        """Return the file and number of a row, for messages."""
        return f"{self.path}, row {number}"


def parse_cell(cell: str) -> str:
    """Return the class or attribute in a cell; empty for NaN.

    Example:
        >>> parse_cell(" cat "), parse_cell("NaN")
        ('cat', '')
    """
    text = cell.strip()
    return "" if text in ("nan", "NaN") else intern(text)


class ImageRoot:
    """Resolve file names inside a folder, and reject those that leave it."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise InputError("no such folder", where=root)
        self.root = root.resolve()
        self._known: set[Path] = set()  # every folder is resolved once

    def file(self, name: str, where: object, allow_missing: bool = False) -> Path:
        """Return the path of a file; errors name ``where``."""
        path = self.root / name
        if not name:
            raise InputError("the file name is empty", where=where)
        leaves = Path(os.path.normpath(name)).parts[:1] == ("..",)
        if leaves or not path.is_relative_to(self.root):  # an absolute name may be inside the root
            raise self._leaves_error(name, where)
        if not allow_missing and not path.is_file():
            raise InputError(f"no such image file: {path}", where=where)
        if path.parent not in self._known:
            if not path.parent.resolve().is_relative_to(self.root):
                raise self._leaves_error(name, where)
            self._known.add(path.parent)
        if path.is_symlink() and not path.resolve().is_relative_to(self.root):
            raise self._leaves_error(name, where)
        return path

    def _leaves_error(self, name: str, where: object) -> InputError:
        hint = "Set the folder that contains all images: root= (--root FOLDER)."
        return InputError(f"the path {name!r} leaves the root folder", where=where, expected=self.root, hint=hint)


def check_duplicates(
    path: Path, files: Sequence[Path], labels: Sequence[str], splits: Sequence[int], rows: Sequence[int] | None = None
) -> None:
    """Raise if a file is listed with two labels or in two splits; warn about other duplicates.

    Without ``splits``, examples are split at random later, so that every duplicate is an error. ``rows`` contains the
    row number of each file, if rows are empty or were dropped.
    """
    rows = range(2, len(files) + 2) if rows is None else rows
    first_index: dict[Path, int] = {}
    n_duplicates = 0
    for i, file in enumerate(files):
        first = first_index.setdefault(file, i)
        if first == i:
            continue
        n_duplicates += 1
        where = f"{path}, rows {rows[first]} and {rows[i]}"
        if labels[first] != labels[i]:
            got = f"{labels[first]!r} and {labels[i]!r}"
            raise InputError(f"the file {file.name!r} is listed with two labels", where=where, got=got)
        if not splits or splits[first] != splits[i]:
            what = "would be in train and in test" if not splits else "is in two splits"
            raise InputError(f"the file {file.name!r} is listed twice and {what}", where=where, hint="Drop one row.")
    if n_duplicates:
        note = f"{path} lists {n_duplicates} files more than once; each listing is an example."
        warnings.warn(note, SpurlessWarning, stacklevel=3)


def read_columns(path: Path, names: Sequence[str], delimiter: str = ",") -> dict[str, list[str]]:
    """Read columns as stripped text; cell ``i`` is in row ``i + 2`` if no row is empty."""
    with open_csv(path, delimiter) as lines:
        table = CsvTable(path, lines)
        indices = [table.column(name) for name in names]
        columns: list[list[str]] = [[] for _ in names]
        for _, row in table.rows():
            for index, values in zip(indices, columns, strict=True):
                text = row[index].strip()
                values.append(intern(text) if len(text) < MAX_INTERNED else text)
    if not columns or not columns[0]:
        raise InputError("the file has no rows below the header", where=path)
    return dict(zip(names, columns, strict=True))


def encode_column(values: Sequence[str], known: Mapping[str, int], path: Path, column: str) -> Tensor:
    """Encode the cells of a column as integers, by a mapping of allowed values.

    Example:
        >>> encode_column(["dog", "cat"], {"cat": 0, "dog": 1}, Path("pets.csv"), "kind")
        tensor([1, 0])
    """
    try:
        return torch.tensor([known[value] for value in values], dtype=torch.long)
    except KeyError:
        row = next(i for i, value in enumerate(values) if value not in known)
        what = f"{values[row]!r} is not a valid value of column {column!r}"
        raise InputError(what, where=f"{path}, row {row + 2}", expected=", ".join(known)) from None


@contextmanager
def open_csv(path: Path, delimiter: str) -> Iterator[Iterator[list[str]]]:
    """Yield the rows of a CSV file, plain or gzipped; errors name the file."""
    if len(delimiter) != 1:
        raise InputError("the delimiter must be one character", got=repr(delimiter))
    if not path.is_file():
        raise InputError("no such file", where=path, expected="a CSV file")
    try:
        with path.open("rb") as file:
            plain = open_gzip(path, file) if path.suffix == ".gz" else file
            text = io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
            yield csv.reader(text, delimiter=delimiter)
    except UnicodeDecodeError as error:
        raise InputError(f"the file is not UTF-8: {error}", where=path, hint="Save it as UTF-8.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"the file cannot be unpacked: {error}", where=path) from None
    except csv.Error as error:
        raise InputError(f"the file is not CSV: {error}", where=path) from None
