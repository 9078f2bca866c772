"""Charts: plain Plotly specifications; a colour is written ``@name``, and the page fills it in to follow its theme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spurless.reporting.arms import Arm, Estimate, Study, number
from spurless.reporting.words import name, percent, span

MANY_GROUPS = 30
WORST_SHOWN = 15
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "hexagon", "star")
MOST_POINTS = 400
TICKS = (0, 20, 40, 60, 80, 100)
NOT_CURVES = ("stage", "epoch", "step", "seconds", "lr", "seed")


@dataclass(frozen=True)
class Chart:
    """A figure, how tall it is, and what it shows for those who cannot see it."""

    spec: dict[str, Any]
    height: int
    alt: str


def look(index: int) -> tuple[str, str]:
    """Return the colour and the symbol of an arm; the baseline is neutral."""
    return f"@arm{index % len(SYMBOLS)}", SYMBOLS[index % len(SYMBOLS)] + ("-open" if index >= len(SYMBOLS) else "")


def before_after(study: Study) -> Chart | None:
    """Draw one line per arm from its worst group to its average, with intervals and single runs."""
    arms = [arm for arm in study.arms if arm.worst.mean is not None and arm.average.mean is not None]
    if not arms:
        return None
    traces: list[dict[str, Any]] = []
    for row, arm in enumerate(arms):
        colour, _ = look(study.arms.index(arm))
        ends = [arm.worst.mean or 0.0, arm.average.mean or 0.0]
        line = {"color": colour, "width": 2}
        traces.append(_quiet({"x": [100 * v for v in ends], "y": [row, row], "mode": "lines", "line": line}, 0.45))
        runs = [100 * v for v in (*arm.worst.runs, *arm.average.runs)] if len(arm.records) > 1 else []
        ticks = {"color": colour, "size": 6, "symbol": "line-ns-open", "line": {"color": colour, "width": 1.5}}
        traces.append(_quiet({"x": runs, "y": [row + 0.25] * len(runs), "mode": "markers", "marker": ticks}, 0.8))
        for estimate, word, symbol in ((arm.average, "average", "circle-open"), (arm.worst, "worst group", "circle")):
            hover = _hover(f"{name(arm.name, 30)}, {word}", estimate)
            traces.append(_dot(estimate, row, colour, symbol, size=12) | {"hovertemplate": hover})
    layout = _rows([arm.name for arm in arms], [float(row) for row in range(len(arms))], -0.42)
    layout["annotations"] += [label for row, arm in enumerate(arms) for label in _ends(arm, row)]
    layout["xaxis"] |= {"range": [-20, 119]}
    layout["yaxis"] |= {"range": [len(arms) - 0.55, -0.75]}
    if len(arms) > 1:
        mark = 100 * (arms[0].worst.mean or 0.0)
        line = {"color": "@muted", "width": 1, "dash": "dot"}
        layout["shapes"] = [_line(line, xs=(mark, mark), ys=(0, 1), yref="paper")]
    told = "; ".join(f"{name(a.name)}: {percent(a.worst.mean)} and {percent(a.average.mean)}" for a in arms)
    return Chart({"data": traces, "layout": layout}, 64 * len(arms) + 64, f"Worst group and average. {told}.")


def by_group(study: Study) -> Chart | None:
    """Draw the accuracy of each group, arms side by side; of many groups, the worst ones."""
    groups = shown_groups(study)
    if not groups:
        return None
    lane, gap = 15, 38  # pixels per arm, and for the group's name
    band = lane * len(study.arms) + gap
    traces = []
    for i, arm in enumerate(study.arms):
        colour, symbol = look(i)
        for g, group in enumerate(groups):
            estimate = arm.group(group)
            if estimate.mean is not None:
                dot = _dot(estimate, band * g + gap + lane * i, colour, symbol, size=10)
                traces.append(dot | {"hovertemplate": _hover(f"{name(arm.name, 30)}, {name(group, 40)}", estimate)})
    layout = _rows(groups, [float(band * g + gap) for g in range(len(groups))], -20.0)
    layout["xaxis"] |= {"range": [-3, 103]}
    layout["yaxis"] |= {"range": [band * len(groups), 0]}
    edge = {"color": "@grid", "width": 1}
    layout["shapes"] = [_line(edge, xs=(0, 1), ys=(band * g, band * g), xref="paper") for g in range(1, len(groups))]
    alt = f"Accuracy of {len(groups)} groups for {len(study.arms)} methods; the table below has the numbers."
    return Chart({"data": traces, "layout": layout}, band * len(groups) + 48, alt)


def heat_map(study: Study, arm: Arm) -> Chart | None:
    """Draw the accuracy of every label (rows) with every attribute (columns), where the groups are such a grid."""
    labels, attributes = _names(study.data.get("labels")), _names(study.data.get("attributes"))
    if not labels or not attributes or len(study.groups) != len(labels) * len(attributes):
        return None
    cells = [arm.group(group).mean for group in study.groups]
    wide = len(attributes)
    z = [[None if v is None else 100 * v for v in cells[wide * y : wide * (y + 1)]] for y in range(len(labels))]
    trace: dict[str, Any] = {"type": "heatmap", "z": z, "zmin": 0, "zmax": 100, "xgap": 2, "ygap": 2}
    trace |= {"colorscale": [[0, "@heat0"], [0.5, "@heat1"], [1, "@heat2"]], "showscale": False}
    trace |= {"hovertemplate": "%{y} with %{x}<br>%{z:.1f} %<extra></extra>", "hoverongaps": False}
    if wide <= 12:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 11}}
    layout = blank()
    for axis, names, title in (("xaxis", attributes, "attribute"), ("yaxis", labels, "label")):
        layout[axis] |= {"tickvals": list(range(len(names))), "ticktext": [safe(name(n, 12)) for n in names]}
        layout[axis] |= {"title": {"text": title, "standoff": 6}, "automargin": True, "showgrid": False}
    layout["xaxis"] |= {"tickangle": -45}
    layout["yaxis"] |= {"autorange": "reversed"}
    layout["margin"] = {"l": 10, "r": 8, "t": 8, "b": 10}
    alt = f"Heat map of accuracy by label and attribute for {name(arm.name)}; the table has the numbers."
    return Chart({"data": [trace], "layout": layout}, max(220, 30 * len(labels) + 80), alt)


def curves(study: Study) -> list[tuple[str, Chart]]:
    """Draw each number that the histories hold, one line per run; a new stage starts a new line."""
    rows = [row for arm in study.arms for record in arm.records for row in record.history]
    keys = dict.fromkeys(k for row in rows for k, v in row.items() if k not in NOT_CURVES and number(v) is not None)
    return [(_spoken(key), _curve(study, key)) for key in sorted(keys, key=lambda k: k != "loss")[:4]]


def shown_groups(study: Study) -> list[str]:
    """Return the groups worth a row: all of them, or the worst where there are many."""
    seen = {g: [arm.group(g).mean for arm in study.arms] for g in study.groups}
    known = {g: [v for v in values if v is not None] for g, values in seen.items()}
    groups = [g for g, values in known.items() if values]
    if len(study.groups) <= MANY_GROUPS:
        return groups
    return sorted(groups, key=lambda g: (min(known[g]), sum(known[g]) / len(known[g])))[:WORST_SHOWN]


def _curve(study: Study, key: str) -> Chart:
    traces = []
    for i, arm in enumerate(study.arms):
        for record in arm.records:
            x, y = _walk(record.history, key)
            hover = f"{safe(name(arm.name, 30))}, seed {record.seed}<br>epoch %{{x}}: %{{y:.3g}}<extra></extra>"
            line = {"color": look(i)[0], "width": 1.75}
            mode = "lines" if len(x) > 1 else "markers"
            traces.append({"x": x, "y": y, "mode": mode, "line": line, "opacity": 0.8, "hovertemplate": hover})
            traces[-1]["marker"] = {"color": look(i)[0], "size": 7}
    layout = blank()
    layout["xaxis"] |= {"title": {"text": "epoch, all stages in a row", "standoff": 8}}
    layout["margin"] = {"l": 8, "r": 12, "t": 12, "b": 44}
    layout["yaxis"] |= {"automargin": True, "rangemode": "tozero", "nticks": 5}
    return Chart({"data": traces, "layout": layout}, 260, f"{name(key)} by epoch for each run.")


def _spoken(key: str) -> str:
    words = name(key).replace("_", " ")
    return "validation " + words.removeprefix("val ") if words.startswith("val ") else words


def _walk(history: Sequence[dict[str, Any]], key: str) -> tuple[list[int], list[float | None]]:
    """Return epochs counted through all stages, with a gap where a stage ends; long histories are thinned."""
    x: list[int] = []
    y: list[float | None] = []
    step, stage = max(1, len(history) // MOST_POINTS), None
    for n, row in enumerate(history):
        if n and row.get("stage") != stage:
            x, y = [*x, n], [*y, None]
        if n % step == 0 or row.get("stage") != stage or n == len(history) - 1:
            x.append(n + 1)
            y.append(number(row.get(key)))
        stage = row.get("stage")
    return x, y


def _dot(estimate: Estimate, y: float, colour: str, symbol: str, size: int) -> dict[str, Any]:
    mean = 100 * (estimate.mean or 0.0)
    marker = {"color": colour, "symbol": symbol, "size": size, "line": {"color": colour, "width": 2}}
    dot: dict[str, Any] = {"x": [mean], "y": [y], "mode": "markers", "marker": marker, "cliponaxis": False}
    if estimate.low is not None and estimate.high is not None:
        arms = {"array": [max(0.0, 100 * estimate.high - mean)], "arrayminus": [max(0.0, mean - 100 * estimate.low)]}
        dot["error_x"] = {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, "width": 3} | arms
    return dot


def _ends(arm: Arm, row: int) -> list[dict[str, Any]]:
    """Write each number beyond the end of its interval, so that neither hides the other."""
    worst, average, font = arm.worst, arm.average, {"color": "@ink", "size": 13}
    left = {"x": 100 * min(worst.mean or 0.0, worst.low or 1.0), "xanchor": "right", "xshift": -8}
    right = {"x": 100 * max(average.mean or 0.0, average.high or 0.0), "xanchor": "left", "xshift": 8}
    both = {"y": row, "showarrow": False, "font": font, "yanchor": "middle", "bgcolor": "@card"}
    return [both | left | {"text": percent(worst.mean)}, both | right | {"text": percent(average.mean)}]


def _hover(title: str, estimate: Estimate) -> str:
    title = safe(title).replace("%{", "% {")
    return f"{title}<br>{percent(estimate.mean)} (95 % interval {span(estimate)})<extra></extra>"


def _line(line: dict[str, Any], *, xs: tuple[float, float], ys: tuple[float, float], **to: str) -> dict[str, Any]:
    return {"type": "line", "x0": xs[0], "x1": xs[1], "y0": ys[0], "y1": ys[1], "line": line, "layer": "below"} | to


def _quiet(trace: dict[str, Any], opacity: float) -> dict[str, Any]:
    return trace | {"opacity": opacity, "hoverinfo": "skip"}


def _rows(names: Sequence[str], at: Sequence[float], lift: float) -> dict[str, Any]:
    """Return a layout with percentages below and the name of each row above it: long names need no margin."""
    layout = blank()
    layout["xaxis"] |= {"tickvals": list(TICKS), "ticktext": [f"{tick} %" for tick in TICKS]}
    layout["yaxis"] |= {"visible": False}
    look_alike = {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "showarrow": False,
        "yanchor": "middle",
        "bgcolor": "@card",
    }
    font = {"color": "@ink", "size": 13}
    layout["annotations"] = [
        look_alike | {"y": y + lift, "text": safe(name(n, 44)), "font": font} for n, y in zip(names, at, strict=True)
    ]
    return layout


def blank() -> dict[str, Any]:
    """Return the layout that every chart of the house starts from."""
    axis = {"gridcolor": "@grid", "zeroline": False, "fixedrange": True, "linecolor": "@grid", "tickcolor": "@grid"}
    return {
        "xaxis": dict(axis),
        "yaxis": dict(axis),
        "showlegend": False,
        "margin": {"l": 8, "r": 22, "t": 8, "b": 36},
        "paper_bgcolor": "@clear",
        "plot_bgcolor": "@clear",
        "dragmode": False,
        "hovermode": "closest",
        "font": {"color": "@soft", "size": 12},
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@grid", "font": {"color": "@ink", "size": 13}},
    }


def safe(text: str) -> str:
    """Escape what Plotly would read as markup, so that a name stays a name."""
    return re.sub("[&<>]", lambda m: {"&": "&amp;", "<": "&lt;", ">": "&gt;"}[m[0]], text)


def _names(value: object) -> list[str]:
    """Return a plain list of names; several attributes at once are no axis of a grid."""
    simple = isinstance(value, list | tuple) and all(isinstance(v, str | int) for v in value)
    return [str(v) for v in value] if simple and isinstance(value, list | tuple) else []
