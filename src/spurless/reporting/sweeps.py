"""Sweeps: what a hyper-parameter does to a model, value by value; runs that do not count are left out and counted.

The panels are those of the learning-rate study (Barsbey et al. 2025, arXiv:2507.17748): figures 3 to 6 against the
value that is swept, 12 and 13 for the loss ratio, 20 and 21 for pruning. Each is drawn where records have its numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import StatisticsError, correlation, fmean
from typing import Any, TypeAlias

from spurless.core.figures import Figure, Section
from spurless.core.records import Record
from spurless.reporting.arms import number
from spurless.reporting.charts import look
from spurless.reporting.gather import SPELLING
from spurless.reporting.swept import CUT_OFF, DIVERGED, Run, Walked, walks
from spurless.reporting.words import MINUS, listed, name, plain, plural

UNDER_PRUNING = re.compile(r"(magnitude_)?prunability_at_([\d.]+)")
MANY = 8
"""values; with more, an axis chooses its own ticks"""
SPOKEN = {"lr": "learning rate", "l1": "L1", "l2": "L2", "asam": "rho of ASAM"}
PANELS: dict[str, dict[str, str]] = {
    "Accuracy": {
        "unbiased": "unbiased",
        "average": "average",
        "worst_group": "worst group",
        "pruned_accuracy": "under pruning, mean over shares",
    },
    "Prunability": {"prunability": "nodes and kernels", "magnitude_prunability": "single weights"},
    "Compressibility of representations": {
        "activation_compressibility": "with a tenth of the numbers",
        "activation_sparsity": "share of zeros",
        "pq_index": "PQ-index",
    },
    "Selectivity of neurons": {"csi": "for labels (CSI)", "bsi": "for attributes (BSI)"},
    "Separation of representations": {"class_separation": "of labels", "bias_separation": "of attributes"},
}
"""title to metrics, each with its word in the legend"""
RATIOS = {
    "max_loss_ratio": "of a mini-batch",
    "max_loss_ratio_over_10": "of 10 steps",
    "max_loss_ratio_over_100": "of 100 steps",
    "max_loss_ratio_over_an_epoch": "of an epoch",
}
THROUGH = {
    "loss_ratio": ("Loss ratio through training", "Share of the loss of each epoch that conflicting examples have."),
    "follows_shortcut": (
        "Conflicting examples that follow the shortcut",
        "Share of the conflicting train examples that are predicted as the shortcut says, over each epoch.",
    ),
    "spurious_utilisation": (
        "Use of the shortcut by neurons through training",
        "Mean over active neurons of how much each prefers an attribute, whatever the label, after each epoch on the "
        "same train examples; dashed, how much it prefers a label, whatever the attribute.",
    ),
}
DASHED = {"spurious_utilisation": "core_utilisation"}
"""What is drawn beside a number through training."""
AROUND = {"spurious_utilisation": ("spurious_utilisation_10", "spurious_utilisation_90")}
"""What a band reaches from and to, where there are few values; that of the first seed."""
FEW = 3

Point: TypeAlias = tuple[str, float, float, float, float]
"""A value in words, its place, and the mean, lowest and highest number there."""


def sweep_sections(records: Sequence[Record]) -> list[Section]:
    """Return a section for each sweep among the records; see :func:`~spurless.reporting.swept.walks`."""
    return [_section(walked) for walked in walks(records)]


def _section(walked: Walked) -> Section:
    record = (*walked.runs, *walked.left_out)[0].record
    method, data, model = SPELLING.get(record.method, record.method), record.data.get("name"), record.model.get("name")
    title = f"{_spoken(walked.parameter)}: {name(method, 30)} on {name(data, 30)} with {name(model, 30)}"
    drawn = [_panel(walked, panel) for panel in PANELS]
    drawn += [_scatter(walked), *(_through(walked, key) for key in THROUGH)]
    drawn += [_pruning(walked, kind) for kind in ("", "magnitude_")]
    seeds = plural(len({run.record.seed for run in walked.runs}), "seed")
    text = (
        f"{plural(len(walked.runs), 'run')} over {seeds}. Lines are means over seeds; a band reaches from the lowest "
    )
    text += f"run to the highest.\n{_left_out(walked)}"
    return Section(title[:1].upper() + title[1:], text, [figure for figure in drawn if figure is not None])


def _left_out(walked: Walked) -> str:
    """Say how many runs are left out, why, and at which values."""
    said = []
    for why in (DIVERGED, CUT_OFF):
        at = Counter(run.words for run in walked.left_out if run.left_out == why)
        if at:
            said.append(f"{plural(at.total(), 'run')} {why} ({listed([f'{n} at {words}' for words, n in at.items()])})")
    return f"Left out: {'; '.join(said)}." if said else ""


def _panel(walked: Walked, title: str) -> Figure | None:
    """Draw metrics against the value, with a band over seeds."""
    known = {m: word for m, word in PANELS[title].items() if any(run.metric(m) is not None for run in walked.runs)}
    if "unbiased" in known:
        known.pop("average", None)
    traces: list[dict[str, Any]] = []
    told: list[str] = []
    for others, by_value in walked.lines().items():
        for metric, word in known.items():
            called = ", ".join(filter(None, (word, others)))
            numbers = {value: [run.metric(metric) for run in runs] for value, runs in by_value.items()}
            points = [p for value, found in numbers.items() for p in _point(value, walked.place(value), found)]
            traces += _line(points, len(told) + 1, called)
            told.append(f"{called}: " + ", ".join(f"{plain(mean)} at {value}" for value, _, mean, *_ in points))
    if not traces:
        return None
    y = {"ticksuffix": " %" if title == "Accuracy" else "", "nticks": 6}
    alt = f"{title} by {_spoken(walked.parameter)}. {'; '.join(told)}."
    return Figure(title, "", {"data": traces, "layout": {"xaxis": _axis(walked), "yaxis": y}}, alt)


def _point(value: str, place: float, numbers: Sequence[float | None]) -> list[Point]:
    known = [found for found in numbers if found is not None]
    return [(value, place, fmean(known), min(known), max(known))] if known else []


def _line(points: Sequence[Point], index: int, called: str) -> list[dict[str, Any]]:
    """Draw a band from lowest to highest, and the means on it."""
    colour, symbol = look(index)
    x, means, low, high = ([point[i] for point in points] for i in (1, 2, 3, 4))
    band: dict[str, Any] = {
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "mode": "lines",
        "line": {"width": 0},
    }
    band |= {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "hoverinfo": "skip", "showlegend": False}
    text = [f"{called}, {value}: {plain(mean)} ({plain(a)} to {plain(b)})" for value, _, mean, a, b in points]
    line = {"x": x, "y": means, "mode": "lines+markers", "name": name(called), "line": {"color": colour, "width": 2}}
    return [band, line | {"marker": {"color": colour, "symbol": symbol, "size": 8}} | _hover(text)]


def _hover(text: list[str]) -> dict[str, Any]:
    return {"text": text, "hovertemplate": "%{text}<extra></extra>"}


def _axis(walked: Walked) -> dict[str, Any]:
    """Return the axis of the values: logarithmic where they are numbers that grow tenfold."""
    axis: dict[str, Any] = {"title": _spoken(walked.parameter)}
    places = [walked.place(value) for value in walked.values]
    if len(places) <= MANY or not walked.numeric:
        axis |= {"tickvals": places, "ticktext": [name(value, 20) for value in walked.values]}
    if walked.numeric and min(places) > 0 and max(places) >= 10 * min(places):
        axis |= {"type": "log"}
    return axis


def _scatter(walked: Walked) -> Figure | None:
    """Draw accuracy against the highest loss ratio, run by run."""
    traces = []
    for i, (words, runs) in enumerate(walked.arms().items()):
        dots = [(ratio, run) for run in runs if (ratio := run.metric("max_loss_ratio")) is not None]
        colour, symbol = look(i + 1)
        text = [f"{words}, seed {run.record.seed}: {plain(run.accuracy)} % at {plain(ratio)}" for ratio, run in dots]
        trace = {"x": [ratio for ratio, _ in dots], "y": [run.accuracy for _, run in dots], "mode": "markers"}
        trace |= {"name": name(words), "marker": {"color": colour, "symbol": symbol, "size": 10}, "cliponaxis": False}
        traces.append(trace | _hover(text))
    if not any(trace["x"] for trace in traces):
        return None
    told = [f"{r:.2f} {word}" for metric, word in RATIOS.items() if (r := _correlation(walked, metric)) is not None]
    said = f"Correlation over runs with the highest ratio: {listed(told)}.".replace(" -", f" {MINUS}") if told else ""
    axes = {
        "xaxis": {"title": "highest loss ratio of a mini-batch"},
        "yaxis": {"title": "accuracy", "ticksuffix": " %"},
    }
    title = "Accuracy and the highest loss ratio"
    return Figure(title, said, {"data": traces, "layout": axes}, f"{title}, one dot per run. {said}", 360)


def _correlation(walked: Walked, metric: str) -> float | None:
    pairs = [(x, y) for run in walked.runs if (x := run.metric(metric)) is not None and (y := run.accuracy) is not None]
    try:
        return correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 else None
    except StatisticsError:  # one of the two is the same in all runs
        return None


def _through(walked: Walked, key: str) -> Figure | None:
    """Draw a number of the history of every run, epoch by epoch, and what belongs beside it."""
    traces, arms = list[dict[str, Any]](), walked.arms()
    banded = key in AROUND and len(arms) <= FEW
    for i, runs in enumerate(arms.values()):
        for n, run in enumerate(runs):
            traces += _band(run, *AROUND[key], i) if banded and not n else []
            traces += _thread(run, key, i, showlegend=not n)
            traces += _thread(run, DASHED[key], i, "dash") if key in DASHED else []
    if not traces:
        return None
    title, caption = THROUGH[key]
    caption += " A band holds the middle 80 % of the first seed's neurons." if banded else ""
    layout = {"xaxis": {"title": "epoch", "type": "log", "dtick": 1}, "yaxis": {"range": [-0.02, 1.03]}}
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}, one line per run. {caption}", 340)


def _thread(run: Run, metric: str, arm: int, dash: str = "solid", showlegend: bool = False) -> list[dict[str, Any]]:
    """Draw one number of one run, epoch by epoch; nothing where it has none."""
    rows, colour = _history(run, metric), look(arm + 1)[0]
    text = [f"{run.words}, seed {run.record.seed}, epoch {epoch:g}: {plain(value)}" for epoch, value in rows]
    trace: dict[str, Any] = {"x": [epoch for epoch, _ in rows], "y": [value for _, value in rows]}
    trace |= {"mode": "lines+markers", "opacity": 0.8, "line": {"color": colour, "width": 1.75, "dash": dash}}
    trace |= {"marker": {"color": colour, "size": 4}, "legendgroup": str(arm), "showlegend": showlegend}
    return [trace | {"name": name(run.words)} | _hover(text)] if rows else []


def _history(run: Run, metric: str) -> list[tuple[float, float]]:
    """Return a number of every epoch that has it."""
    found = [(number(row.get("epoch")), number(row.get(metric))) for row in run.record.history]
    return [(epoch, value) for epoch, value in found if epoch is not None and value is not None]


def _band(run: Run, low: str, high: str, arm: int) -> list[dict[str, Any]]:
    """Fill what lies between two numbers of one run, epoch by epoch."""
    edge = [*_history(run, high), *reversed(_history(run, low))]
    band: dict[str, Any] = {"x": [epoch for epoch, _ in edge], "y": [value for _, value in edge], "mode": "lines"}
    band |= {"line": {"width": 0}, "fill": "toself", "fillcolor": look(arm + 1)[0], "opacity": 0.12}
    return [band | {"hoverinfo": "skip", "showlegend": False, "legendgroup": str(arm)}] if edge else []


def _pruning(walked: Walked, kind: str) -> Figure | None:
    """Draw the accuracy that is left as more is pruned, one line per value."""
    traces: list[dict[str, Any]] = []
    told: list[str] = []
    for i, (words, runs) in enumerate(walked.arms().items()):
        curves = [curve for run in runs if (curve := _kept(run, kind))]
        kappas = sorted(set.intersection(*map(set, curves))) if curves else []
        points = [p for k in kappas for p in _point(f"{100 * k:g} %", 100 * k, [curve[k] for curve in curves])]
        if points:
            traces += _line(points, i + 1, words)
            told.append(f"{words}: " + ", ".join(f"{plain(mean)} % at {value}" for value, _, mean, *_ in points))
    if not traces:
        return None
    what = "single weights" if kind else "nodes and kernels"
    caption = "Accuracy on the test split, times the share of it that is kept on the examples that were pruned on."
    x = {"title": "pruned share of every layer", "ticksuffix": " %", "nticks": 6}
    layout = {"xaxis": x, "yaxis": {"ticksuffix": " %", "rangemode": "tozero"}}
    title = f"Accuracy under pruning of {what}"
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}. {'; '.join(told)}.", 340)


def _kept(run: Run, kind: str) -> dict[float, float]:
    """Return accuracy in percent by the share that is pruned."""
    whole, found = run.accuracy or 0.0, dict[float, float]()
    for metric in run.record.metrics:
        match, share = UNDER_PRUNING.fullmatch(metric), run.metric(metric)
        if match is not None and (match[1] or "") == kind and share is not None:
            found[float(match[2])] = whole * share
    return {0.0: whole, **found} if found else {}


def _spoken(parameter: str) -> str:
    return SPOKEN.get(parameter, name(parameter).replace("_", " "))
