"""Sections: from the pictures and charts that a caller made to what a template shows; every string stays text."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from spurless.core.errors import BadInput
from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.charts import blank, safe
from spurless.reporting.words import name

PNG = b"\x89PNG\r\n\x1a\n"
LONG = 400
"""letters of a line of a caption, and of a string in a chart"""
TEXT = 2000
"""letters of a paragraph"""
TEMPLATES = ("hovertemplate", "texttemplate")
"""where Plotly's own marks are meant: a new line, and the box beside a hover label"""
COLOURS = [f"@arm{i}" for i in (1, 2, 3, 4, 5, 6, 0, 7)]


def shown_sections(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return what the template shows of each section.

    Raises:
        BadInput: a picture is no PNG, or a chart has no data.
    """
    return [
        {
            "id": f"section-{number}",
            "title": name(section.title, 120),
            "text": _lines(section.text, TEXT),
            "parts": [_part(item) for item in section.items],
        }
        for number, section in enumerate(sections)
    ]


def shown_picture(picture: Picture) -> dict[str, Any]:
    """Return what the template shows of a picture, its bytes within the page.

    Raises:
        BadInput: it cannot be read, or is no PNG.
    """
    return {
        "kind": "picture",
        "title": name(picture.title, 120),
        "caption": "\n".join(_lines(picture.caption, LONG)),
        "alt": picture.alt,
        "src": _data_uri(picture),
    }


def shown_figure(figure: Figure) -> dict[str, Any]:
    """Return what the template shows of a chart: its specification over the layout of the house, escaped.

    Raises:
        BadInput: the specification has no data, or holds something that is neither plain text nor number.
    """
    where = f"figure {figure.title!r}"
    data, layout = figure.spec.get("data"), figure.spec.get("layout")
    if not isinstance(data, list | tuple) or not data or not all(isinstance(t, Mapping) and t for t in data):
        raise BadInput(
            "the specification has no data",
            where=where,
            expected='{"data": [a trace, ...], "layout": {...}}',
            do="Leave the figure out where there is nothing to draw.",
        )
    traces = [_plain(dict(trace), "", where) for trace in data]
    own = _plain(dict(layout) if isinstance(layout, Mapping) else {}, "", where)
    return {
        "kind": "chart",
        "title": name(figure.title, 120),
        "caption": "\n".join(_lines(figure.caption, LONG)),
        "alt": figure.alt,
        "height": int(figure.height),
        "spec": {"data": traces, "layout": _over(_house(own, traces), own)},
    }


def _part(item: Picture | Figure) -> dict[str, Any]:
    return shown_picture(item) if isinstance(item, Picture) else shown_figure(item)


def _house(own: Mapping[str, Any], traces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the layout under a caller's own: axes that make room for their words, colours, and a legend above."""
    layout = blank()
    axis = layout["xaxis"] | {"automargin": True, "title": {"standoff": 8}}
    layout |= {key: dict(axis) for key in ("xaxis", "yaxis", *own) if re.fullmatch(r"[xy]axis\d*", key)}
    layout |= {"colorway": list(COLOURS), "margin": {"l": 8, "r": 22, "t": 8, "b": 44}}
    layout["showlegend"] = sum("name" in trace for trace in traces) > 1
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    return layout


def _over(under: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another, and so those that both hold."""
    both = {k: _over(under[k], v) for k, v in own.items() if isinstance(v, dict) and isinstance(under.get(k), dict)}
    return {**under, **own, **both}


def _plain(value: Any, key: str, where: str) -> Any:
    """Return a value as JSON and Plotly can take it: names escaped, no NaN, titles in the form of today."""
    if isinstance(value, str):
        text = _escaped(value, key)
        return {"text": text} if key == "title" else text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # NumPy's whole numbers are no int
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v, str(k), where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, key, where) for v in value]
    raise BadInput(
        f"the specification holds a {type(value).__name__} under {key!r}",
        where=where,
        expected="lists, numbers and strings",
        do="Call .tolist() on it.",
    )


def _escaped(text: str, key: str) -> str:
    text = safe(name(text, LONG))
    return re.sub(r"&lt;(br|/?extra)&gt;", r"<\1>", text) if key in TEMPLATES else text


def _lines(text: str, limit: int) -> list[str]:
    return [name(line, limit) for line in text.splitlines() if line.strip()]


def _data_uri(picture: Picture) -> str:
    try:
        data = picture.png if isinstance(picture.png, bytes) else Path(picture.png).read_bytes()
    except OSError as error:
        raise BadInput(f"the picture cannot be read: {error.strerror or error}", where=picture.png) from None
    if not data.startswith(PNG):
        raise BadInput("the picture is not a PNG", where=f"picture {picture.title!r}", do="Save it as PNG.")
    return "data:image/png;base64," + b64encode(data).decode()
