"""Cards: what a dataset is, where it comes from, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spurless.data.grouped import Splits
from spurless.data.layout import Layout


@dataclass(frozen=True)
class Card:
    """What a person should know before using a dataset."""

    name: str
    summary: str
    input: str
    label: str
    attribute: str
    splits: str
    source: str
    licence: str
    citation: str


@dataclass(frozen=True)
class Dataset:
    """A row of the table of datasets: the card, its options, and the function that makes the splits."""

    card: Card
    config: type[Any]
    make: Callable[[Any], Splits]
    layout: Layout | None = None
    """None for a dataset that needs no files."""
    words: tuple[str, ...] = ()
    """What the token numbers of a text with a vocabulary of its own stand for."""
