"""Write a few examples of every group of a dataset as one self-contained HTML page."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spurless.core.errors import InputError
from spurless.core.files import replace_text
from spurless.reporting.format import clean_name, format_count, format_percent
from spurless.reporting.page import read_asset, render_template
from spurless.reporting.sections import PNG

MAX_GROUP_ROWS = 16  # groups; with more, they are shown as a table of labels by attributes
MAX_TEXT = 400  # characters of a text


@dataclass(frozen=True)
class Example:
    """One example: a picture, a text or numbers."""

    caption: str
    png: bytes | None = None
    text: str | None = None
    values: tuple[str, ...] = ()  # values in the order of the page's columns


@dataclass(frozen=True)
class GroupExamples:
    """One group of a split, and a few of its examples."""

    label: str
    attribute: str  # name of the attribute; empty if there is none
    count: int
    examples: tuple[Example, ...] = ()
    aligned: bool | None = None  # whether the shortcut is right in this group; None if that is unknown

    @property
    def name(self) -> str:
        """Return the name of the group."""
        return f"{self.label}, {self.attribute}" if self.attribute else self.label


@dataclass(frozen=True)
class SplitExamples:
    """One split: its groups and its number of examples, since groups may overlap."""

    name: str
    count: int
    groups: tuple[GroupExamples, ...]


@dataclass(frozen=True)
class DatasetPage:
    """The content of a page."""

    title: str
    about: str
    splits: tuple[SplitExamples, ...]
    columns: tuple[str, ...] = ()  # names of the values of examples
    facts: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def write_dataset_page(path: Path | str, page: DatasetPage) -> Path:
    """Write the page and return its path; the file is written completely or not at all.

    Raises:
        InputError: a picture is not a PNG, or the file cannot be written.
    """
    return replace_text(path, render_dataset_page(page))


def render_dataset_page(page: DatasetPage) -> str:
    """Return the page as HTML; the same content gives the same text."""
    return render_template(
        "dataset.html",
        title=clean_name(page.title, 120),
        about=page.about,
        facts=[(label, clean_name(value, 2 * MAX_TEXT)) for label, value in page.facts],
        notes=[clean_name(note, 2 * MAX_TEXT) for note in page.notes],
        columns=[clean_name(column, 24) for column in page.columns],
        splits=[_split_context(split) for split in page.splits],
        style=read_asset("style.css"),
    )


def _split_context(split: SplitExamples) -> dict[str, Any]:
    groups = [_group_context(group, split.count) for group in split.groups]
    has_many_groups = len(groups) > MAX_GROUP_ROWS
    has_table = has_many_groups and all(group.attribute for group in split.groups)
    return {
        "name": clean_name(split.name),
        "count": format_count(split.count, "example"),
        "group_count": format_count(len(groups), "group"),
        "groups": groups,
        "compact": has_many_groups,
        "table": _table_context(split, groups) if has_table else None,
        "overlap": sum(group.count for group in split.groups) > split.count,
        "has_alignment": any(group.aligned is not None for group in split.groups),
    }


def _table_context(split: SplitExamples, contexts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a table of groups: a row for each label, a column for each attribute."""
    by_name = {(g.label, g.attribute): context for g, context in zip(split.groups, contexts, strict=True)}
    labels, attributes = (dict.fromkeys(getattr(g, key) for g in split.groups) for key in ("label", "attribute"))
    rows = [(clean_name(y, 32), [by_name.get((y, a)) for a in attributes]) for y in labels]
    return {"columns": [clean_name(attribute, 32) for attribute in attributes], "rows": rows}


def _group_context(group: GroupExamples, total: int) -> dict[str, Any]:
    title = clean_name(group.name, 80)
    return {
        "name": title,
        "label": clean_name(group.label, 32),
        "attribute": clean_name(group.attribute, 32),
        "count": f"{group.count:,}",
        "examples": format_count(group.count, "example"),
        "fraction": _format_fraction(group.count, total),
        "width": round(100 * group.count / total, 1) if total else 0,
        "alignment": {True: "aligned", False: "conflicting", None: ""}[group.aligned],
        "shown_examples": [_example_context(example, title) for example in group.examples],
        "kind": _example_kind(group.examples),
    }


def _format_fraction(count: int, total: int) -> str:
    """Format a fraction; a small one is not 0.

    Example:
        >>> _format_fraction(5, 100), _format_fraction(5, 44_969), _format_fraction(0, 100)
        ('5.0 %', 'under 0.1 %', '0.0 %')
    """
    text = format_percent(count / total if total else None)
    return "under 0.1 %" if count and text == "0.0 %" else text


def _example_kind(examples: tuple[Example, ...]) -> str:
    if not examples:
        return "empty"
    return "picture" if examples[0].png is not None else "text" if examples[0].text is not None else "values"


def _example_context(example: Example, group: str) -> dict[str, Any]:
    caption = clean_name(example.caption, 80)
    if example.png is not None and not example.png.startswith(PNG):
        raise InputError("the picture is not a PNG", where=f"{group}, {caption}")
    return {
        "caption": caption,
        "alt": f"{caption} of group {group}",
        "src": "data:image/png;base64," + b64encode(example.png).decode() if example.png is not None else "",
        "text": clean_name(example.text or "", MAX_TEXT),
        "values": [clean_name(value, 24) for value in example.values],
    }
