"""Sheet: a few examples of every group on one self-contained page, so that a person sees what the data are like."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spurless.core.errors import BadInput
from spurless.core.files import replace_file
from spurless.reporting.page import TEMPLATES, house
from spurless.reporting.sections import PNG
from spurless.reporting.words import name, percent, plural

MANY = 16
"""with more groups, a table of labels by attributes reads better than a row for each"""
LONG = 400
"""letters of a text that are shown"""


@dataclass(frozen=True)
class Example:
    """One example: a picture, words or numbers; whichever there is is shown."""

    caption: str
    png: bytes | None = None
    text: str | None = None
    values: tuple[str, ...] = ()
    """In the order of the columns of the sheet."""


@dataclass(frozen=True)
class Cell:
    """One group of a split, and some of its examples."""

    label: str
    attribute: str
    """Empty where there is none."""
    count: int
    examples: tuple[Example, ...] = ()
    aligned: bool | None = None
    """Whether the shortcut is right here; None where nobody can say."""

    @property
    def name(self) -> str:
        """Return what the group is called."""
        return f"{self.label}, {self.attribute}" if self.attribute else self.label


@dataclass(frozen=True)
class Part:
    """One split: its groups, and how many examples it has (groups may overlap, so that their counts do not add up)."""

    name: str
    count: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Sheet:
    """Everything that is on the page."""

    title: str
    about: str
    parts: tuple[Part, ...]
    columns: tuple[str, ...] = ()
    """What the values of examples are called."""
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def write_sheet(path: Path | str, sheet: Sheet) -> Path:
    """Write the page and return its path; the file appears whole or not at all.

    Raises:
        BadInput: a picture is no PNG, or the place cannot be written.
    """
    path = Path(path)
    text = render(sheet).encode("utf-8", "replace")
    replace_file(path, lambda scratch: scratch.write_bytes(text))
    return path


def render(sheet: Sheet) -> str:
    """Return the page as text; the same sheet gives the same text."""
    from markupsafe import Markup

    text: str = (
        house()
        .get_template("sheet.html")
        .render(
            title=name(sheet.title, 120),
            about=sheet.about,
            facts=[(word, name(value, 2 * LONG)) for word, value in sheet.facts],
            notes=[name(note, 2 * LONG) for note in sheet.notes],
            columns=[name(column, 24) for column in sheet.columns],
            parts=[_part(part) for part in sheet.parts],
            style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        )
    )
    return text


def _part(part: Part) -> dict[str, Any]:
    cells = [_cell(cell, part.count) for cell in part.cells]
    many = len(cells) > MANY
    matrix = _matrix(part, cells) if many and all(cell.attribute for cell in part.cells) else None
    return {
        "name": name(part.name),
        "count": plural(part.count, "example"),
        "groups": plural(len(cells), "group"),
        "cells": cells,
        "compact": many,
        "matrix": matrix,
        "overlap": sum(cell.count for cell in part.cells) > part.count,
        "marked": any(cell.aligned is not None for cell in part.cells),
    }


def _matrix(part: Part, cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the groups in a table: a row for each label, a column for each attribute."""
    found = {(cell.label, cell.attribute): shown for cell, shown in zip(part.cells, cells, strict=True)}
    labels = list(dict.fromkeys(cell.label for cell in part.cells))
    attributes = list(dict.fromkeys(cell.attribute for cell in part.cells))
    return {
        "columns": [name(attribute, 32) for attribute in attributes],
        "rows": [(name(y, 32), [found.get((y, a)) for a in attributes]) for y in labels],
    }


def _cell(cell: Cell, total: int) -> dict[str, Any]:
    title = name(cell.name, 80)
    return {
        "name": title,
        "label": name(cell.label, 32),
        "attribute": name(cell.attribute, 32),
        "count": f"{cell.count:,}",
        "examples": plural(cell.count, "example"),
        "share": _share(cell.count, total),
        "width": round(100 * cell.count / total, 1) if total else 0,
        "side": {True: "aligned", False: "conflicting", None: ""}[cell.aligned],
        "shown": [_example(example, title) for example in cell.examples],
        "kind": _kind(cell.examples),
    }


def _share(count: int, total: int) -> str:
    """Write a share; a few of very many are not none.

    Example:
        >>> _share(5, 100), _share(5, 44_969), _share(0, 100)
        ('5.0 %', 'under 0.1 %', '0.0 %')
    """
    share = percent(count / total if total else None)
    return "under 0.1 %" if count and share == "0.0 %" else share


def _kind(examples: tuple[Example, ...]) -> str:
    if not examples:
        return "empty"
    return "picture" if examples[0].png is not None else "text" if examples[0].text is not None else "values"


def _example(example: Example, group: str) -> dict[str, Any]:
    caption = name(example.caption, 80)
    if example.png is not None and not example.png.startswith(PNG):
        raise BadInput("the picture is not a PNG", where=f"{group}, {caption}")
    return {
        "caption": caption,
        "alt": f"{caption} of group {group}",
        "src": "data:image/png;base64," + b64encode(example.png).decode() if example.png is not None else "",
        "text": name(example.text or "", LONG),
        "values": [name(value, 24) for value in example.values],
    }
