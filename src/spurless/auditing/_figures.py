"""Charts and pictures of findings: bar charts with intervals, and rows of images with heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from spurless.auditing._context import AuditContext
from spurless.core.figures import Figure, Picture
from spurless.data.input_masks import InputMask
from spurless.explain.gradients import NoGradientError
from spurless.explain.maps import AUTO
from spurless.explain.overlays import compare_heat_maps

MAX_IMAGES = 4  # images in a picture


@dataclass(frozen=True)
class Series:
    """Values to draw, one per category."""

    name: str
    values: Sequence[float]
    colour: str  # a colour of the theme, such as ``@bad``
    low: Sequence[float] | None = None  # lower ends of the intervals
    high: Sequence[float] | None = None
    kind: Literal["bar", "markers", "lines+markers"] = "bar"


@dataclass(frozen=True)
class Axis:
    """The title of an axis, and its range."""

    title: str = ""
    range: tuple[float, float] | Literal["tozero"] | None = None

    def layout(self, **more: Any) -> dict[str, Any]:
        """Return the Plotly axis."""
        axis: dict[str, Any] = {"title": {"text": self.title}} if self.title else {}
        if self.range is not None:
            axis |= {"rangemode": "tozero"} if self.range == "tozero" else {"range": list(self.range)}
        return axis | more


def bars(  # noqa: PLR0913 - one call per chart
    text: tuple[str, str],
    categories: Sequence[str],
    series: Sequence[Series],
    *,
    values: Axis,
    category_title: str = "",
    horizontal: bool = False,
    stacked: bool = False,
) -> Figure:
    """Return a bar chart with a text alternative that lists its values.

    Args:
        text: title and caption.
        categories: one name per bar; of horizontal bars the first is on top.
        series: one or more values per category.
        values: the axis of the values.
        category_title: title of the other axis.
        horizontal: draw bars from left to right, with a height that fits the number of categories.
        stacked: draw several series on top of each other, not next to each other.

    Example:
        >>> chart = bars(("Errors", ""), ["a"], [Series("errors", [1.0], "@bad")], values=Axis("% incorrect"))
        >>> chart.spec["data"][0]["y"], chart.spec["layout"]["yaxis"], chart.alt
        ([1.0], {'title': {'text': '% incorrect'}}, 'Bars, % incorrect. errors: a 1.')
    """
    at, along = ("y", "x") if horizontal else ("x", "y")
    other = Axis(category_title).layout(
        type="category", **({"autorange": "reversed", "automargin": True} if horizontal else {})
    )
    layout: dict[str, Any] = {f"{along}axis": values.layout(), f"{at}axis": other}
    if len(series) > 1:
        layout["barmode"] = "stack" if stacked else "group"
    traces = [{at: list(categories), along: list(row.values), "name": row.name} | _style(row, along) for row in series]
    for trace in traces:
        if horizontal and trace["type"] == "bar":
            trace["orientation"] = "h"
    height = 120 + 26 * min(len(categories), 20) if horizontal else 280
    lines = [f"{row.name}: {', '.join(map(_format_value, categories, row.values))}" for row in series]
    alt = f"Bars, {values.title}. {'; '.join(lines)}."
    return Figure(*text, {"data": traces, "layout": layout}, alt, height=height)


def _format_value(category: str, value: float) -> str:
    return f"{category} {round(value, 2):,g}"


def _style(series: Series, along: str) -> dict[str, Any]:
    style: dict[str, Any] = {"type": "bar" if series.kind == "bar" else "scatter", "marker": {"color": series.colour}}
    if series.kind != "bar":
        style |= {"mode": series.kind, "marker": {"color": series.colour, "size": 9}, "line": {"color": series.colour}}
    if series.low is not None and series.high is not None:
        up = [high - value for high, value in zip(series.high, series.values, strict=True)]
        down = [value - low for low, value in zip(series.low, series.values, strict=True)]
        style[f"error_{along}"] = {"type": "data", "array": up, "arrayminus": down, "color": "@muted"}
    return style


def image_rows(
    context: AuditContext, rows: Sequence[int], title: str, hidden: InputMask | None = None
) -> tuple[Picture, ...]:
    """Return a picture of examples with their heat maps; none without examples, or if no gradient reaches the input.

    The first ``MAX_IMAGES`` of ``rows`` are drawn; ``hidden`` has one region per drawn example.
    """
    if not rows:
        return ()
    first = list(rows[:MAX_IMAGES])
    try:
        picture = compare_heat_maps(context.model, context.split, first, hidden=hidden, how=AUTO, across=True)
    except NoGradientError:  # the audit warns about it once
        return ()
    return (replace(picture, title=title),)
