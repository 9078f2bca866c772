"""Pictures and charts of a page, with text alternatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Picture:
    """An image: PNG bytes or a path to a PNG file, and its text alternative."""

    title: str
    caption: str
    png: bytes | Path | str = field(repr=False)
    alt: str


@dataclass(frozen=True)
class Figure:
    """A chart: a Plotly specification (data and layout); colors written ``@name`` follow the page's theme."""

    title: str
    caption: str
    spec: dict[str, Any] = field(repr=False)
    alt: str
    height: int = 320


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a short text, and pictures or charts."""

    title: str
    text: str
    items: Sequence[Picture | Figure] = ()
