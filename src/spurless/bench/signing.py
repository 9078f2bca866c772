"""Signing: what a run cannot know of itself: which sweep it is of, and whether that is judged by validation labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from spurless.bench.assess import command
from spurless.bench.engines.base import Task
from spurless.bench.stopping import diverged, reached
from spurless.core.records import Record

CUT_OFF = "Training ended before it reached its stopping rule; summaries leave this run out. Allow it more epochs."


def signed(record: Record, cell: str, judged: bool) -> Record:
    """Return the record of a run that this process had made; ``cell`` names its sweep and its values."""
    return replace(_of(marked(record), cell, judged), command=command())


def marked(record: Record) -> Record:
    """Return the record with a word of warning where training was cut off before the end that it was given."""
    if reached(record) or diverged(record):
        return record
    return replace(record, warnings=(*record.warnings, CUT_OFF))


def adopted(tasks: Iterable[Task], records: Mapping[str, Record], name: str, judged: bool) -> Iterator[Record]:
    """Yield the records of tasks that another sweep made, once more, as this one's: a page knows sweeps by them."""
    for task in tasks:
        record, cell = records.get(task.key), f"{name} {task.name}"
        if record is not None and record.cell != cell:
            yield _of(record, cell, judged)


def _of(record: Record, cell: str, judged: bool) -> Record:
    labels = record.supervision.get("val_labels", False) or judged
    return replace(record, cell=cell, supervision={**record.supervision, "val_labels": labels})
