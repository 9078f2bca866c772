"""Prepare sections, pictures and figures for the templates; strings are never read as markup."""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from spurless.core.errors import InputError
from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.charts import base_layout, escape_markup
from spurless.reporting.format import clean_name

PNG = b"\x89PNG\r\n\x1a\n"
MAX_LINE = 400  # characters of a line of a caption, and of a string in a chart
MAX_PARAGRAPH = 2000  # characters of a paragraph
TEMPLATES = ("hovertemplate", "texttemplate")  # keys whose values may contain Plotly's <br> and <extra>
COLOURS = [f"@series{i}" for i in (1, 2, 3, 4, 5, 6, 0, 7)]


def section_contexts(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the template context of each section; raise if a picture is not a PNG, or a chart has no data."""
    return [
        {
            "id": f"section-{number}",
            "title": clean_name(section.title, 120),
            "text": _clean_lines(section.text, MAX_PARAGRAPH),
            "parts": [_item_context(item) for item in section.items],
        }
        for number, section in enumerate(sections)
    ]


def picture_context(picture: Picture) -> dict[str, Any]:
    """Return the template context of a picture, with its bytes as a data URI; raise if it is not a PNG."""
    return {
        "kind": "picture",
        "title": clean_name(picture.title, 120),
        "caption": "\n".join(_clean_lines(picture.caption, MAX_LINE)),
        "alt": picture.alt,
        "src": _data_uri(picture),
    }


def figure_context(figure: Figure) -> dict[str, Any]:
    """Return the template context of a chart: its specification on top of the default layout, escaped.

    Raises:
        InputError: the specification has no data, or contains something else than text and numbers.
    """
    where = f"figure {figure.title!r}"
    data, layout = figure.spec.get("data"), figure.spec.get("layout")
    if not isinstance(data, list | tuple) or not data or not all(isinstance(t, Mapping) and t for t in data):
        hint, expected = (
            "Leave the figure out if there is nothing to draw.",
            '{"data": [a trace, ...], "layout": {...}}',
        )
        raise InputError("the specification has no data", where=where, expected=expected, hint=hint)
    traces = [_plain(dict(trace), "", where) for trace in data]
    user_layout = _plain(dict(layout) if isinstance(layout, Mapping) else {}, "", where)
    return {
        "kind": "chart",
        "title": clean_name(figure.title, 120),
        "caption": "\n".join(_clean_lines(figure.caption, MAX_LINE)),
        "alt": figure.alt,
        "height": int(figure.height),
        "spec": {"data": traces, "layout": _merge(_default_layout(user_layout, traces), user_layout)},
    }


def _item_context(item: Picture | Figure) -> dict[str, Any]:
    return picture_context(item) if isinstance(item, Picture) else figure_context(item)


def _default_layout(user_layout: Mapping[str, Any], traces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the default layout: axes with automatic margins, colours, and a legend above the chart."""
    layout = base_layout()
    axis = layout["xaxis"] | {"automargin": True, "title": {"standoff": 8}}
    layout |= {key: dict(axis) for key in ("xaxis", "yaxis", *user_layout) if re.fullmatch(r"[xy]axis\d*", key)}
    layout |= {"colorway": list(COLOURS), "margin": {"l": 8, "r": 22, "t": 8, "b": 44}}
    layout["showlegend"] = sum("name" in trace for trace in traces) > 1
    layout["legend"] = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    return layout


def _merge(base: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    both = {k: _merge(base[k], v) for k, v in update.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **update, **both}


def _plain(value: Any, key: str, where: str) -> Any:
    """Return a value for JSON and Plotly: strings escaped, no NaN, titles as objects."""
    if isinstance(value, str):
        text = _escape(value, key)
        return {"text": text} if key == "title" else text
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):  # also NumPy integers
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v, str(k), where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, key, where) for v in value]
    what, hint = f"the specification contains a {type(value).__name__} under {key!r}", "Call .tolist() on it."
    raise InputError(what, where=where, expected="lists, numbers and strings", hint=hint)


def _escape(text: str, key: str) -> str:
    text = escape_markup(clean_name(text, MAX_LINE))
    return re.sub(r"&lt;(br|/?extra)&gt;", r"<\1>", text) if key in TEMPLATES else text


def _clean_lines(text: str, limit: int) -> list[str]:
    return [clean_name(line, limit) for line in text.splitlines() if line.strip()]


def _data_uri(picture: Picture) -> str:
    try:
        data = picture.png if isinstance(picture.png, bytes) else Path(picture.png).read_bytes()
    except OSError as error:
        raise InputError(f"the picture cannot be read: {error.strerror or error}", where=picture.png) from None
    if not data.startswith(PNG):
        raise InputError("the picture is not a PNG", where=f"picture {picture.title!r}", hint="Save it as PNG.")
    return "data:image/png;base64," + b64encode(data).decode()
