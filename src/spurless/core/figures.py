"""Figures: pictures and charts with words for those who cannot see them, for the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Picture:
    """An image to show: PNG bytes or a path to them, with words for those who cannot see it."""

    title: str
    caption: str
    png: bytes | Path | str = field(repr=False)
    alt: str


@dataclass(frozen=True)
class Figure:
    """A chart: a plain Plotly specification (data and layout); a colour is written ``@name`` to follow the theme."""

    title: str
    caption: str
    spec: dict[str, Any] = field(repr=False)
    alt: str
    height: int = 320


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a sentence or two, and what there is to see."""

    title: str
    text: str
    items: Sequence[Picture | Figure] = ()
