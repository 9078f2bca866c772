"""Tables: a CSV file of numbers, of texts, or one that lists image files."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped, Input, Source, Splits, Transform
from spurless.data.images import ImageFiles, read
from spurless.data.names import Names
from spurless.data.rows import Inside, Table, check_repeats, reading, value
from spurless.data.splitting import assemble, name_groups, name_values, number_split
from spurless.data.text import choose_tokenizer, tokenise
from spurless.data.unreadable import HINT, readable

FILE_COLUMNS = ("img_filename", "filename", "file", "path", "image", "image_path")
"""Columns that are taken for file names unless the user says otherwise."""


def from_csv(  # noqa: PLR0913 - a loader's options are its arguments
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
    transform: Transform | None = None,
    augment: Transform | None = None,
) -> Splits:
    """Load a CSV file.

    It is a table of texts if ``text`` is given; a table of images if ``file`` is given or a column has one of the
    usual names (``FILE_COLUMNS``), unless ``features`` is given; a table of numbers otherwise. Names of classes and
    attributes are the values of their columns, numbered in natural order; bare numbers are given the name of their
    column ("place 0"). Where no ``split`` column is named, or it names no val or no test row, the missing splits are
    cut from train at random, stratified, 15 % of it for each.

    Args:
        path: the file, UTF-8, with a header.
        label: the column of the class.
        root: the folder that file names start from; by default the folder of the CSV file. None may leave it.
        file: the column of image file names.
        features: the columns of numbers; by default all that have a name and no other use.
        text: the column of the text; of pairs of texts, both columns.
        attribute: the column of the attribute, or several to cross; an empty cell is an unknown attribute.
        split: the column of the split: 0, 1, 2 or train, val, test.
        size: resize the short side of images to this and cut the centre out; needed where they differ in size.
        tokenizer: of texts; see :func:`spurless.data.text.choose_tokenizer`.
        max_length: tokens that are kept of a text, or of a pair.
        seed: of the split.
        delimiter: between cells.
        stream: read images on demand (True), now (False), or now if they fit in 1 GiB (None).
        cache: decode images once and keep them for later runs, in ``$SPURLESS_CACHE`` (True), or decode them each
            time (False); by default they are kept if there are at least 2,000.
        skip_bad: leave out images that are missing or cannot be read, with a warning that names them. Every image is
            read once for that, and what was found is remembered.
        transform: from a batch to what the model takes.
        augment: before ``transform``, in training only.

    Raises:
        BadInput: the file, a column or a cell cannot be used; rows count as in a spreadsheet, the header is row 1.
    """
    path = Path(path)
    attributes = [attribute] if isinstance(attribute, str) else list(attribute or ())
    with reading(path, delimiter) as lines:
        table = Table(path, lines)
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
    notes = _without_bad(path, cells, inputs) if skip_bad else ()

    labels, y = name_values(cells.labels)
    named = {column: name_values(values) for column, values in cells.attributes.items()}
    codes = [a for _, a in named.values()] or [torch.full_like(y, -1)]
    if not cells.labels:
        raise BadInput("there are no rows under the header", where=path)
    x: Input | Source
    names = Names(torch.arange(len(y)), place=f"{path.name}, row", rows=torch.tensor(cells.numbers))
    if isinstance(inputs, _Files):
        check_repeats(path, inputs.paths, cells.labels, cells.splits, cells.numbers)
        x, names = read(ImageFiles(inputs.paths, size, hint=HINT), stream, cache=cache), Names.of_files(inputs.names)
    elif isinstance(inputs, _Texts):
        names = replace(names, texts=[" / ".join(texts) for texts in zip(*inputs.columns, strict=True)])
        tokenizer = choose_tokenizer(tokenizer)
        x = tokenise(*inputs.columns, tokenizer=tokenizer, max_length=max_length)
    else:
        x = inputs.x
    return assemble(
        Grouped(
            x,
            y,
            codes[0] if len(codes) == 1 else torch.stack(codes, dim=1),
            name_groups(_say(label, labels), {column: _say(column, names) for column, (names, _) in named.items()}),
            transform,
            augment,
            names=names,
        ),
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
        },
        notes=notes,
    )


class _Cells:
    """What the rows say of label, attributes and split."""

    def __init__(self, table: Table, label: str, attributes: Sequence[str], split: str | None) -> None:
        self._table, self._label = table, table.column(label)
        if label in attributes:
            raise BadInput(f"the column {label!r} is both label and attribute", where=table.path, do="Name another.")
        self._attributes = {name: table.column(name) for name in attributes}
        self._split = None if split is None else table.column(split)
        self._known: dict[str, int] = {}  # a split is understood once, not once per row
        self.labels: list[str] = []
        self.attributes: dict[str, list[str | None]] = {name: [] for name in attributes}
        self.splits: list[int] = []
        self.numbers = array("q")

    def add(self, number: int, row: list[str]) -> None:
        text = value(row[self._label])
        if not text:
            raise BadInput("the label is empty", where=self._table.row(number), do="Fill it in, or drop the row.")
        self.labels.append(text)
        self.numbers.append(number)
        for name, place in self._attributes.items():
            self.attributes[name].append(value(row[place]) or None)
        if self._split is not None:
            part = row[self._split]
            if part not in self._known:
                self._known[part] = number_split(part, self._table.row(number))
            self.splits.append(self._known[part])

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all but some."""
        self.labels, self.numbers = [self.labels[i] for i in rows], array("q", [self.numbers[i] for i in rows])
        self.attributes = {name: [values[i] for i in rows] for name, values in self.attributes.items()}
        self.splits = [self.splits[i] for i in rows] if self.splits else []


class _Numbers:
    """The features of the rows, as float32."""

    def __init__(self, table: Table, features: Sequence[str] | None, used: set[str], label: str) -> None:
        self._table = table
        # a column without a name is the index that pandas writes: as a feature it would give the row away
        self.names = [n for n in table.header if n and n not in used] if features is None else list(features)
        self._places = [table.column(name) for name in self.names]
        if label in self.names:
            raise BadInput(f"the label {label!r} is among the features", where=table.path)
        if not self.names:
            raise BadInput("no column is left for the features", where=table.path)
        self._values = array("f")

    def add(self, number: int, row: list[str]) -> None:
        try:
            values = array("f", [float(row[place]) for place in self._places])
        except (ValueError, OverflowError):
            raise self._bad(number, row) from None
        if not all(map(isfinite, values)):
            raise self._bad(number, row)
        self._values.extend(values)

    @property
    def x(self) -> Tensor:
        """The table, one row per example."""
        return torch.frombuffer(self._values, dtype=torch.float32).view(-1, len(self.names))

    def _bad(self, number: int, row: list[str]) -> BadInput:
        name, text = next(
            (n, row[p].strip()) for n, p in zip(self.names, self._places, strict=True) if not _fine(row[p])
        )
        what = f"{text!r} is not a finite number" if text else "the feature is empty"
        return BadInput(
            what,
            where=f"{self._table.row(number)}, column {name!r}",
            do="Mend it, or choose other columns with features= (--features A,B); of texts, text= (--text COLUMN).",
        )


class _Files:
    """The image files of the rows, none of which may lie outside the root."""

    def __init__(self, table: Table, root: Path, column: str, missing: bool) -> None:
        self._table, self._inside, self._place, self._missing = table, Inside(root), table.column(column), missing
        self.paths: list[Path] = []
        self.names: list[str] = []

    def add(self, number: int, row: list[str]) -> None:
        self.names.append(row[self._place].strip())
        self.paths.append(self._inside.file(self.names[-1], self._table.row(number), self._missing))


class _Texts:
    """The text of the rows, or both texts."""

    def __init__(self, table: Table, names: Sequence[str]) -> None:
        if not 1 <= len(names) <= 2:
            raise BadInput(
                "a row has one text or a pair of them", where=table.path, got=", ".join(names) or "no column"
            )
        self._places = [table.column(name) for name in names]
        self.columns: list[list[str]] = [[] for _ in names]

    def add(self, _: int, row: list[str]) -> None:
        for column, place in zip(self.columns, self._places, strict=True):
            column.append(row[place].strip())


def _without_bad(path: Path, cells: _Cells, inputs: _Files | _Numbers | _Texts) -> tuple[str, ...]:
    """Forget the rows whose image cannot be read; return what is to be said of that."""
    if not isinstance(inputs, _Files):
        raise BadInput("skip_bad is for images, and this table has no column of them", where=path, do="Leave it out.")
    kept, notes = readable(inputs.paths, cells.labels, path)
    cells.keep(kept)
    inputs.names, inputs.paths = [inputs.names[i] for i in kept], [inputs.paths[i] for i in kept]
    return notes


def _check_kind(
    text: str | Sequence[str] | None, file: str | None, features: Sequence[str] | None, root: str | Path | None
) -> None:
    others = {"file": file, "features": features, "root": root}
    if text is not None and (given := [name for name, value in others.items() if value is not None]):
        raise BadInput(f"text and {given[0]} are both given", expected="one of them")


def _file_column(table: Table, file: str | None, features: Sequence[str] | None, required: bool) -> str | None:
    """Return the column of file names, or None for a table of numbers."""
    if features is not None:
        if file is not None:
            raise BadInput("file and features are both given", expected="one of them")
        return None
    usual = [name for name in FILE_COLUMNS if name in table.header]
    if file is None and not usual and required:
        raise BadInput(
            "no column holds file names", where=table.path, do="Name it with file= (--file COLUMN), or leave root out."
        )
    return file or (usual[0] if usual else None)


def _say(column: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Put the column before values that are bare numbers: a group called "0, 0" tells nobody anything."""
    return tuple(f"{column} {name}" for name in names) if all(map(_fine, names)) else names


def _fine(text: str) -> bool:
    try:
        return isfinite(array("f", [float(text)])[0])
    except (ValueError, OverflowError):
        return False
