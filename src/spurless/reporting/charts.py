"""Plotly charts of comparisons. A colour ``@name`` is replaced by the page, so that it follows the theme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spurless.reporting.aggregate import Comparison, Estimate, MethodRuns, finite_number
from spurless.reporting.format import clean_name, format_interval, format_percent

MAX_GROUPS = 30  # groups in a chart; of more, only the worst
MAX_WORST_GROUPS = 15
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star")
MAX_POINTS = 400
TICKS = (0, 20, 40, 60, 80, 100)
PERCENT_TICKS = {"tickvals": list(TICKS), "ticktext": [f"{tick} %" for tick in TICKS]}
NOT_CURVES = ("stage", "epoch", "step", "seconds", "lr", "seed")


@dataclass(frozen=True)
class Chart:
    """A Plotly specification, its height in pixels, and its description for screen readers."""

    spec: dict[str, Any]
    height: int
    alt: str


def marker_style(index: int) -> tuple[str, str]:
    """Return the colour and the symbol of a method; the baseline is neutral."""
    return f"@series{index % len(SYMBOLS)}", SYMBOLS[index % len(SYMBOLS)] + ("-open" if index >= len(SYMBOLS) else "")


def draw_before_after(comparison: Comparison) -> Chart | None:
    """Draw one line per method from its worst group to its average, with intervals and single runs."""
    methods = [runs for runs in comparison.methods if runs.worst.mean is not None and runs.average.mean is not None]
    if not methods:
        return None
    traces: list[dict[str, Any]] = []
    for row, runs in enumerate(methods):
        colour, _ = marker_style(comparison.methods.index(runs))
        values = [runs.worst.mean or 0.0, runs.average.mean or 0.0]
        line = {"color": colour, "width": 2}
        lines = {"x": [100 * v for v in values], "y": [row, row], "mode": "lines", "line": line, "opacity": 0.45}
        values = [100 * v for v in (*runs.worst.runs, *runs.average.runs)] if len(runs.records) > 1 else []
        ticks = {"color": colour, "size": 6, "symbol": "line-ns-open", "line": {"color": colour, "width": 1.5}}
        dots = {"x": values, "y": [row + 0.25] * len(values), "mode": "markers", "marker": ticks, "opacity": 0.8}
        traces += [lines | {"hoverinfo": "skip"}, dots | {"hoverinfo": "skip"}]
        ends = ((runs.average, "average", "circle-open"), (runs.worst, "worst group", "circle"))
        for estimate, label, symbol in ends:
            hover = _hover(f"{clean_name(runs.name, 30)}, {label}", estimate)
            traces.append(_make_dot(estimate, row, colour, symbol, size=12) | {"hovertemplate": hover})
    layout = _row_layout([runs.name for runs in methods], [float(row) for row in range(len(methods))], -0.42)
    layout["annotations"] += [label for row, runs in enumerate(methods) for label in _end_labels(runs, row)]
    layout["xaxis"] |= {"range": [-20, 119]}
    layout["yaxis"] |= {"range": [len(methods) - 0.55, -0.75]}
    if len(methods) > 1:
        mark = 100 * (methods[0].worst.mean or 0.0)
        line = {"color": "@muted", "width": 1, "dash": "dot"}
        layout["shapes"] = [_make_line(line, xs=(mark, mark), ys=(0, 1), yref="paper")]
    description = "; ".join(
        f"{clean_name(a.name)}: {format_percent(a.worst.mean)} and {format_percent(a.average.mean)}" for a in methods
    )
    return Chart({"data": traces, "layout": layout}, 64 * len(methods) + 64, f"Worst group and average. {description}.")


def draw_groups(comparison: Comparison) -> Chart | None:
    """Draw the accuracy of each group with each method; of many groups, the worst ones."""
    groups = select_groups(comparison)
    if not groups:
        return None
    lane, gap = 15, 38  # pixels per method, and for the group's name
    band = lane * len(comparison.methods) + gap
    traces = []
    for i, runs in enumerate(comparison.methods):
        colour, symbol = marker_style(i)
        for g, group in enumerate(groups):
            estimate = runs.group(group)
            if estimate.mean is not None:
                dot = _make_dot(estimate, band * g + gap + lane * i, colour, symbol, size=10)
                hover = _hover(f"{clean_name(runs.name, 30)}, {clean_name(group, 40)}", estimate)
                traces.append(dot | {"hovertemplate": hover})
    layout = _row_layout(groups, [float(band * g + gap) for g in range(len(groups))], -20.0)
    layout["xaxis"] |= {"range": [-3, 103]}
    layout["yaxis"] |= {"range": [band * len(groups), 0]}
    edge = {"color": "@grid", "width": 1}
    edges = [band * g for g in range(1, len(groups))]
    layout["shapes"] = [_make_line(edge, xs=(0, 1), ys=(y, y), xref="paper") for y in edges]
    alt = f"Accuracy of {len(groups)} groups for {len(comparison.methods)} methods; the table below has the numbers."
    return Chart({"data": traces, "layout": layout}, band * len(groups) + 48, alt)


def draw_heat_map(comparison: Comparison, runs: MethodRuns) -> Chart | None:
    """Draw the accuracy by label (rows) and attribute (columns), if the groups form such a grid."""
    labels, attributes = _plain_names(comparison.data.get("labels")), _plain_names(comparison.data.get("attributes"))
    if not labels or not attributes or len(comparison.groups) != len(labels) * len(attributes):
        return None
    cells = [runs.group(group).mean for group in comparison.groups]
    n_columns = len(attributes)
    percents = [None if v is None else 100 * v for v in cells]
    z = [percents[n_columns * y : n_columns * (y + 1)] for y in range(len(labels))]
    trace: dict[str, Any] = {"type": "heatmap", "z": z, "zmin": 0, "zmax": 100, "xgap": 2, "ygap": 2}
    trace |= {"colorscale": [[0, "@heat0"], [0.5, "@heat1"], [1, "@heat2"]], "showscale": False}
    trace |= {"hovertemplate": "%{y} with %{x}<br>%{z:.1f} %<extra></extra>", "hoverongaps": False}
    if n_columns <= 12:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 11}}
    layout = base_layout()
    for axis, names, title in (("xaxis", attributes, "attribute"), ("yaxis", labels, "label")):
        ticks = [escape_markup(clean_name(n, 12)) for n in names]
        layout[axis] |= {"tickvals": list(range(len(names))), "ticktext": ticks}
        layout[axis] |= {"title": {"text": title, "standoff": 6}, "automargin": True, "showgrid": False}
    layout["xaxis"] |= {"tickangle": -45}
    layout["yaxis"] |= {"autorange": "reversed"}
    layout["margin"] = {"l": 10, "r": 8, "t": 8, "b": 10}
    alt = f"Heat map of accuracy by label and attribute for {clean_name(runs.name)}; the table has the numbers."
    return Chart({"data": [trace], "layout": layout}, max(220, 30 * len(labels) + 80), alt)


def draw_curves(comparison: Comparison) -> list[tuple[str, Chart]]:
    """Draw each number of the training histories, one line per run; a new stage starts a new line."""
    rows = [row for runs in comparison.methods for record in runs.records for row in record.history]
    keys = dict.fromkeys(
        k for row in rows for k, v in row.items() if k not in NOT_CURVES and finite_number(v) is not None
    )
    return [(_format_key(key), _draw_curve(comparison, key)) for key in sorted(keys, key=lambda k: k != "loss")[:4]]


def select_groups(comparison: Comparison) -> list[str]:
    """Return all groups with an accuracy, or the worst ones if there are many."""
    accuracies = {g: [runs.group(g).mean for runs in comparison.methods] for g in comparison.groups}
    known = {g: [v for v in values if v is not None] for g, values in accuracies.items()}
    groups = [g for g, values in known.items() if values]
    if len(comparison.groups) <= MAX_GROUPS:
        return groups
    return sorted(groups, key=lambda g: (min(known[g]), sum(known[g]) / len(known[g])))[:MAX_WORST_GROUPS]


def _draw_curve(comparison: Comparison, key: str) -> Chart:
    traces = []
    for i, runs in enumerate(comparison.methods):
        for record in runs.records:
            x, y = _history_points(record.history, key)
            title = f"{escape_markup(clean_name(runs.name, 30))}, seed {record.seed}"
            hover = f"{title}<br>epoch %{{x}}: %{{y:.3g}}<extra></extra>"
            line = {"color": marker_style(i)[0], "width": 1.75}
            mode = "lines" if len(x) > 1 else "markers"
            traces.append({"x": x, "y": y, "mode": mode, "line": line, "opacity": 0.8, "hovertemplate": hover})
            traces[-1]["marker"] = {"color": marker_style(i)[0], "size": 7}
    layout = base_layout()
    layout["xaxis"] |= {"title": {"text": "epoch, counted over all stages", "standoff": 8}}
    layout["margin"] = {"l": 8, "r": 12, "t": 12, "b": 44}
    layout["yaxis"] |= {"automargin": True, "rangemode": "tozero", "nticks": 5}
    return Chart({"data": traces, "layout": layout}, 260, f"{clean_name(key)} by epoch for each run.")


def _format_key(key: str) -> str:
    title = clean_name(key).replace("_", " ")
    return "validation " + title.removeprefix("val ") if title.startswith("val ") else title


def _history_points(history: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float | None]]:
    """Return epochs counted over all stages, with a gap after each stage; long histories are thinned."""
    x: list[int] = []
    y: list[float | None] = []
    step, stage = max(1, len(history) // MAX_POINTS), None
    for n, row in enumerate(history):
        if n and row.get("stage") != stage:
            x, y = [*x, n], [*y, None]
        if n % step == 0 or row.get("stage") != stage or n == len(history) - 1:
            x.append(n + 1)
            y.append(finite_number(row.get(key)))
        stage = row.get("stage")
    return x, y


def _make_dot(estimate: Estimate, y: float, colour: str, symbol: str, size: int) -> dict[str, Any]:
    mean = 100 * (estimate.mean or 0.0)
    marker = {"color": colour, "symbol": symbol, "size": size, "line": {"color": colour, "width": 2}}
    dot: dict[str, Any] = {"x": [mean], "y": [y], "mode": "markers", "marker": marker, "cliponaxis": False}
    if estimate.low is not None and estimate.high is not None:
        error = {"array": [max(0.0, 100 * estimate.high - mean)], "arrayminus": [max(0.0, mean - 100 * estimate.low)]}
        dot["error_x"] = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 3} | error
    return dot


def _end_labels(runs: MethodRuns, row: int) -> list[dict[str, Any]]:
    """Return labels outside the intervals, so that they do not overlap."""
    worst, average, font = runs.worst, runs.average, {"color": "@ink", "size": 13}
    left = {"x": 100 * min(worst.mean or 0.0, worst.low or 1.0), "xanchor": "right", "xshift": -8}
    right = {"x": 100 * max(average.mean or 0.0, average.high or 0.0), "xanchor": "left", "xshift": 8}
    both = {"y": row, "showarrow": False, "font": font, "yanchor": "middle", "bgcolor": "@card"}
    return [both | left | {"text": format_percent(worst.mean)}, both | right | {"text": format_percent(average.mean)}]


def _hover(title: str, estimate: Estimate) -> str:
    title = escape_markup(title).replace("%{", "% {")
    return f"{title}<br>{format_percent(estimate.mean)} (95 % interval {format_interval(estimate)})<extra></extra>"


def _make_line(line: dict[str, Any], *, xs: tuple[float, float], ys: tuple[float, float], **to: str) -> dict[str, Any]:
    return {"type": "line", "x0": xs[0], "x1": xs[1], "y0": ys[0], "y1": ys[1], "line": line, "layer": "below"} | to


def _row_layout(names: Sequence[str], at: Sequence[float], lift: float) -> dict[str, Any]:
    """Return a layout with percentages below and the name of each row above it, so that long names need no margin."""
    layout = base_layout()
    layout["xaxis"] |= PERCENT_TICKS
    layout["yaxis"] |= {"visible": False}
    label = {"xref": "paper", "x": 0, "xanchor": "left", "showarrow": False, "yanchor": "middle", "bgcolor": "@card"}
    label |= {"font": {"color": "@ink", "size": 13}}
    titles = zip((escape_markup(clean_name(name, 44)) for name in names), at, strict=True)
    layout["annotations"] = [label | {"y": y + lift, "text": title} for title, y in titles]
    return layout


def base_layout() -> dict[str, Any]:
    """Return the layout that all charts share."""
    axis = {"gridcolor": "@grid", "zeroline": False, "fixedrange": True, "linecolor": "@grid", "tickcolor": "@grid"}
    layout = {"xaxis": dict(axis), "yaxis": dict(axis), "showlegend": False}
    layout |= {"margin": {"l": 8, "r": 22, "t": 8, "b": 36}, "paper_bgcolor": "@clear", "plot_bgcolor": "@clear"}
    layout |= {"dragmode": False, "hovermode": "closest", "font": {"color": "@soft", "size": 12}}
    hover = {"bgcolor": "@card", "bordercolor": "@grid", "font": {"color": "@ink", "size": 13}}
    return layout | {"hoverlabel": hover}


def escape_markup(text: str) -> str:
    """Escape the characters that Plotly would read as markup."""
    return re.sub("[&<>]", lambda m: {"&": "&amp;", "<": "&lt;", ">": "&gt;"}[m[0]], text)


def _plain_names(value: object) -> list[str]:
    """Return a list of names; empty if the value is not a list of names, as for several attributes."""
    is_list = isinstance(value, list | tuple) and all(isinstance(v, str | int) for v in value)
    return [str(v) for v in value] if is_list and isinstance(value, list | tuple) else []
