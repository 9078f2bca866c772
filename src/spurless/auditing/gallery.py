"""Gallery: the suspected minority as a person looks through it: labels, files, pictures and where the model looked."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from spurless.auditing.excess import label_name
from spurless.auditing.subject import Subject
from spurless.auditing.suspects import Suspicion
from spurless.auditing.tokens import Spell, read_back
from spurless.core.errors import BadInput
from spurless.core.figures import Picture
from spurless.core.findings import Suspect
from spurless.data.grouped import Grouped
from spurless.explain.pictures import check_images, thumbnails

PICTURED = 48
"""Suspects that are drawn, at most: a page is to be sent by mail."""
LONG = 600
"""letters of a text"""


def suspects_of(
    subject: Subject, found: Suspicion, pictured: int = PICTURED, spell: Spell | None = None
) -> tuple[Suspect, ...]:
    """Return those who are suspected, the most suspected first, with pictures of the first of them.

    Args:
        subject: what is audited.
        found: who is suspected.
        pictured: how many are drawn, where they are images.
        spell: what a token stands for, for texts that the data do not have as they were written; see
            :func:`spurless.auditing.tokens.spelling`.
    """
    rows = found.suspected.nonzero().flatten()
    rows = rows[found.score[rows].argsort(descending=True, stable=True)]
    drawn = _drawn(subject, rows[:pictured])
    return tuple(
        Suspect(
            row=row,
            label=label_name(subject, int(subject.y[row])),
            predicted=label_name(subject, int(subject.predicted[row])),
            score=float(found.score[row]),
            suspected=True,
            attribute=_attribute(subject.split, row),
            file=file_of(subject.split, row),
            text=_text(subject.split, row, spell),
            picture=drawn[place][0] if place < len(drawn) else None,
            heat=drawn[place][1] if place < len(drawn) else None,
        )
        for place, row in enumerate(rows.tolist())
    )


def file_of(split: Grouped, row: int) -> str | None:
    """Return the file that an example was read from, or its place in one; None where it was made."""
    if split.names is not None:
        return split.names[row]
    source: Any = split.x
    while source is not None:
        paths = getattr(source, "paths", None)
        if paths is not None:
            return str(paths[row])
        index = getattr(source, "index", None)
        source = getattr(source, "source", None)
        row = int(index[row]) if index is not None and source is not None else row
    return None


def _drawn(subject: Subject, rows: Tensor) -> list[tuple[Picture, Picture | None]]:
    """Draw examples and where the model looked, which is missing where no gradient of the model tells."""
    if not len(rows):
        return []
    try:
        check_images(subject.split)
    except BadInput:
        return []
    made = thumbnails(subject.model, subject.split, rows)
    return [
        (
            Picture(f"Example {row}", "", image, f"Example {row} of the audited split."),
            None
            if heat is None
            else Picture(
                f"Example {row}", "", heat, f"Where the model looked in example {row}: the lighter, the hotter."
            ),
        )
        for row, (image, heat) in zip(rows.tolist(), made, strict=True)
    ]


def _attribute(split: Grouped, row: int) -> str | None:
    if not split.has_attributes or split.groups.overlap:
        return None
    value = int(split.groups.encode(split.y[row : row + 1], split.a[row : row + 1])) % len(split.groups.attributes)
    return split.groups.attributes[value]


def _text(split: Grouped, row: int, spell: Spell | None) -> str | None:
    """Return a text as it was written, else as its tokens spell it."""
    said = split.names.text(row) if split.names is not None else None
    if said is None and isinstance(split.x, dict) and spell is not None and "input_ids" in split.x:
        said = read_back(split, row, spell)
    return said if said is None or len(said) <= LONG else said[: LONG - 1] + "…"
