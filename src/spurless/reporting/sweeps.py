"""Charts of sweeps: metrics against the values of a hyper-parameter, without incomplete runs.

The panels are those of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748): figures 3 to 6 against the
value, 12 and 13 for the loss ratio, 20 and 21 for pruning. Each is drawn if the records have its metrics.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean
from typing import Any, TypeAlias

from spurless.core.figures import Figure, Section
from spurless.core.records import Record, is_cut_off
from spurless.reporting.aggregate import finite_number
from spurless.reporting.charts import marker_style
from spurless.reporting.format import MINUS, clean_name, format_count, format_number, join_words

PRUNED_METRIC = re.compile(r"(magnitude_)?prunability_at_([\d.]+)")
MAX_TICKS = 8  # values; with more, Plotly chooses the ticks
PARAMETER_TITLES = {"lr": "learning rate", "l1": "L1", "l2": "L2", "asam": "rho of ASAM"}
PANELS: dict[str, dict[str, str]] = {
    "Accuracy": {
        "unbiased": "unbiased",
        "average": "average",
        "worst_group": "worst group",
        "pruned_accuracy": "under pruning, mean over fractions",
    },
    "Prunability": {
        "prunability": "nodes and kernels",
        "prunability_above_chance": "nodes and kernels, above chance",
        "magnitude_prunability": "single weights",
    },
    "Compressibility of representations": {
        "activation_compressibility": "with the largest tenth",
        "activation_sparsity": "fraction of zeros",
        "pq_index": "PQ-index",
    },
    "Selectivity of neurons": {"csi": "for labels (CSI)", "bsi": "for attributes (BSI)"},
    "Separation of representations": {"class_separation": "of labels", "bias_separation": "of attributes"},
}
"""metrics by title of the panel, each with its label in the legend"""
RATIOS = {
    "max_loss_ratio": "of a mini-batch",
    "max_loss_ratio_over_10": "of 10 steps",
    "max_loss_ratio_over_100": "of 100 steps",
    "max_loss_ratio_over_an_epoch": "of an epoch",
}
HISTORY_CHARTS = {
    "loss_ratio": ("Loss ratio through training", "Fraction of the loss of each epoch that conflicting examples have."),
    "follows_shortcut": (
        "Conflicting examples that follow the shortcut",
        "Fraction of the conflicting train examples for which the shortcut's class is predicted, in each epoch.",
    ),
    "spurious_utilisation": (
        "Use of the shortcut by neurons through training",
        "Mean preference of active neurons for an attribute, for any label, after each epoch on the same train "
        "examples; dashed: mean preference for a label, for any attribute.",
    ),
}
DASHED = {"spurious_utilisation": "core_utilisation"}  # metrics that are drawn as a dashed line in the same chart
HISTORY_BANDS = {"spurious_utilisation": ("spurious_utilisation_10", "spurious_utilisation_90")}
"""Lower and upper end of a band for the first seed, if there are few values."""
MAX_BANDED_VALUES = 3

Point: TypeAlias = tuple[str, float, float, float, float]
"""A value as text, its position on the axis, and mean, minimum and maximum of a metric."""


def sweep_sections(records: Sequence[Record]) -> list[Section]:
    """Return a section for each sweep among the records; see :func:`find_sweeps`."""
    return [_make_section(sweep) for sweep in find_sweeps(records)]


def _make_section(sweep: SweepRuns) -> Section:
    record = (*sweep.runs, *sweep.excluded)[0].record
    names = [clean_name(name, 30) for name in (record.display_name, record.data.get("name"), record.model.get("name"))]
    title = "{}: {} on {} with {}".format(_parameter_title(sweep.parameter), *names)
    figures = [_draw_panel(sweep, panel) for panel in PANELS]
    figures += [_draw_loss_ratios(sweep), *(_draw_history(sweep, key) for key in HISTORY_CHARTS)]
    figures += [_draw_pruning(sweep, kind) for kind in ("", "magnitude_")]
    seeds = format_count(len({run.record.seed for run in sweep.runs}), "seed")
    text = f"{format_count(len(sweep.runs), 'run')} over {seeds}. Lines are means over seeds; a band spans the lowest "
    text += f"and the highest run.\n{_describe_excluded(sweep)}"
    return Section(title[:1].upper() + title[1:], text, [figure for figure in figures if figure is not None])


def _describe_excluded(sweep: SweepRuns) -> str:
    parts = []
    for why in (DIVERGED, CUT_OFF):
        at = Counter(run.label for run in sweep.excluded if run.exclusion == why)
        values = join_words([f"{n} at {label}" for label, n in at.items()])
        parts += [f"{format_count(at.total(), 'run')} {why} ({values})"] if at else []
    return f"Excluded: {'; '.join(parts)}." if parts else ""


def _draw_panel(sweep: SweepRuns, title: str) -> Figure | None:
    """Draw metrics against the value, with a band over seeds."""
    known = {m: label for m, label in PANELS[title].items() if any(run.metric(m) is not None for run in sweep.runs)}
    if "unbiased" in known:
        known.pop("average", None)
    traces: list[dict[str, Any]] = []
    descriptions: list[str] = []
    for others, by_value in sweep.lines().items():
        for metric, label in known.items():
            label = ", ".join(filter(None, (label, others)))
            numbers = {value: [run.metric(metric) for run in runs] for value, runs in by_value.items()}
            points = [p for value, part in numbers.items() for p in _make_point(value, sweep.position(value), part)]
            traces += _mean_line(points, len(descriptions) + 1, label)
            descriptions.append(_describe_points(label, points))
    if not traces:
        return None
    y = {"ticksuffix": " %" if title == "Accuracy" else "", "nticks": 6}
    alt = f"{title} by {_parameter_title(sweep.parameter)}. {'; '.join(descriptions)}."
    return Figure(title, "", {"data": traces, "layout": {"xaxis": _value_axis(sweep), "yaxis": y}}, alt)


def _make_point(value: str, position: float, numbers: Sequence[float | None]) -> list[Point]:
    known = [number for number in numbers if number is not None]
    return [(value, position, fmean(known), min(known), max(known))] if known else []


def _describe_points(label: str, points: Sequence[Point], unit: str = "") -> str:
    return f"{label}: " + ", ".join(f"{format_number(mean)}{unit} at {value}" for value, _, mean, *_ in points)


def _mean_line(points: Sequence[Point], index: int, label: str) -> list[dict[str, Any]]:
    """Draw the means, and a band from minimum to maximum."""
    colour, symbol = marker_style(index)
    x, means, low, high = ([point[i] for point in points] for i in (1, 2, 3, 4))
    band: dict[str, Any] = {
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "mode": "lines",
        "line": {"width": 0},
    }
    band |= {"fill": "toself", "fillcolor": colour, "opacity": 0.15, "hoverinfo": "skip", "showlegend": False}
    text = [
        f"{label}, {value}: {format_number(mean)} ({format_number(a)} to {format_number(b)})"
        for value, _, mean, a, b in points
    ]
    line: dict[str, Any] = {"x": x, "y": means, "mode": "lines+markers", "name": clean_name(label)}
    line |= {"line": {"color": colour, "width": 2}, "marker": {"color": colour, "symbol": symbol, "size": 8}}
    return [band, line | _hover(text)]


def _hover(text: list[str]) -> dict[str, Any]:
    return {"text": text, "hovertemplate": "%{text}<extra></extra>"}


def _value_axis(sweep: SweepRuns) -> dict[str, Any]:
    """Return the axis of the values: logarithmic if they span a factor of ten."""
    axis: dict[str, Any] = {"title": _parameter_title(sweep.parameter)}
    positions = [sweep.position(value) for value in sweep.values]
    if len(positions) <= MAX_TICKS or not sweep.numeric:
        axis |= {"tickvals": positions, "ticktext": [clean_name(value, 20) for value in sweep.values]}
    if sweep.numeric and min(positions) > 0 and max(positions) >= 10 * min(positions):
        axis |= {"type": "log"}
    return axis


def _draw_loss_ratios(sweep: SweepRuns) -> Figure | None:
    """Draw accuracy against the highest loss ratio, one dot per run."""
    traces = []
    for i, (label, runs) in enumerate(sweep.runs_by_value().items()):
        dots = [(ratio, run) for run in runs if (ratio := run.metric("max_loss_ratio")) is not None]
        colour, symbol = marker_style(i + 1)
        text = [
            f"{label}, seed {run.record.seed}: {format_number(run.accuracy)} % at {format_number(ratio)}"
            for ratio, run in dots
        ]
        trace = {"x": [ratio for ratio, _ in dots], "y": [run.accuracy for _, run in dots], "mode": "markers"}
        marker = {"color": colour, "symbol": symbol, "size": 10}
        traces.append(trace | {"name": clean_name(label), "marker": marker, "cliponaxis": False} | _hover(text))
    if not any(trace["x"] for trace in traces):
        return None
    correlations = [
        f"{r:.2f} {label}" for metric, label in RATIOS.items() if (r := _correlation(sweep, metric)) is not None
    ]
    caption = f"Correlation over runs with the highest ratio: {join_words(correlations)}." if correlations else ""
    caption = caption.replace(" -", f" {MINUS}")
    x, y = {"title": "highest loss ratio of a mini-batch"}, {"title": "accuracy", "ticksuffix": " %"}
    title = "Accuracy and the highest loss ratio"
    return Figure(
        title,
        caption,
        {"data": traces, "layout": {"xaxis": x, "yaxis": y}},
        f"{title}, one dot per run. {caption}",
        360,
    )


def _correlation(sweep: SweepRuns, metric: str) -> float | None:
    pairs = [(x, y) for run in sweep.runs if (x := run.metric(metric)) is not None and (y := run.accuracy) is not None]
    try:
        return correlation(*zip(*pairs, strict=True)) if len(pairs) > 2 else None
    except StatisticsError:  # a constant metric
        return None


def _draw_history(sweep: SweepRuns, key: str) -> Figure | None:
    """Draw a metric of the training history of every run, by epoch."""
    traces, by_value = list[dict[str, Any]](), sweep.runs_by_value()
    has_bands = key in HISTORY_BANDS and len(by_value) <= MAX_BANDED_VALUES
    for i, runs in enumerate(by_value.values()):
        for n, run in enumerate(runs):
            traces += _history_band(run, *HISTORY_BANDS[key], i) if has_bands and not n else []
            traces += _history_line(run, key, i, showlegend=not n)
            traces += _history_line(run, DASHED[key], i, "dash") if key in DASHED else []
    if not traces:
        return None
    title, caption = HISTORY_CHARTS[key]
    caption += " A band contains the middle 80 % of the first seed's neurons." if has_bands else ""
    layout = {"xaxis": {"title": "epoch", "type": "log", "dtick": 1}, "yaxis": {"range": [-0.02, 1.03]}}
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}, one line per run. {caption}", 340)


def _history_line(
    run: SweepRun, metric: str, index: int, dash: str = "solid", showlegend: bool = False
) -> list[dict[str, Any]]:
    """Draw a metric of one run by epoch; nothing if it has none."""
    rows, colour = _history_values(run, metric), marker_style(index + 1)[0]
    text = [f"{run.label}, seed {run.record.seed}, epoch {epoch:g}: {format_number(value)}" for epoch, value in rows]
    trace: dict[str, Any] = {"x": [epoch for epoch, _ in rows], "y": [value for _, value in rows]}
    trace |= {"mode": "lines+markers", "opacity": 0.8, "line": {"color": colour, "width": 1.75, "dash": dash}}
    trace |= {"marker": {"color": colour, "size": 4}, "legendgroup": str(index), "showlegend": showlegend}
    return [trace | {"name": clean_name(run.label)} | _hover(text)] if rows else []


def _history_values(run: SweepRun, metric: str) -> list[tuple[float, float]]:
    rows = [(finite_number(row.get("epoch")), finite_number(row.get(metric))) for row in run.record.history]
    return [(epoch, value) for epoch, value in rows if epoch is not None and value is not None]


def _history_band(run: SweepRun, low: str, high: str, index: int) -> list[dict[str, Any]]:
    edge = [*_history_values(run, high), *reversed(_history_values(run, low))]
    band: dict[str, Any] = {"x": [epoch for epoch, _ in edge], "y": [value for _, value in edge], "mode": "lines"}
    band |= {"line": {"width": 0}, "fill": "toself", "fillcolor": marker_style(index + 1)[0], "opacity": 0.12}
    return [band | {"hoverinfo": "skip", "showlegend": False, "legendgroup": str(index)}] if edge else []


def _draw_pruning(sweep: SweepRuns, kind: str) -> Figure | None:
    """Draw accuracy against the pruned fraction, one line per value."""
    traces: list[dict[str, Any]] = []
    descriptions: list[str] = []
    for i, (label, runs) in enumerate(sweep.runs_by_value().items()):
        curves = [curve for run in runs if (curve := _accuracy_by_fraction(run, kind))]
        kappas = sorted(set.intersection(*map(set, curves))) if curves else []
        points = [p for k in kappas for p in _make_point(f"{100 * k:g} %", 100 * k, [curve[k] for curve in curves])]
        if points:
            traces += _mean_line(points, i + 1, label)
            descriptions.append(_describe_points(label, points, " %"))
    if not traces:
        return None
    unit = "single weights" if kind else "nodes and kernels"
    caption = (
        "Accuracy on the test split, times the fraction of the accuracy that remains on the examples used for pruning."
    )
    x = {"title": "pruned fraction of every layer", "ticksuffix": " %", "nticks": 6}
    layout = {"xaxis": x, "yaxis": {"ticksuffix": " %", "rangemode": "tozero"}}
    title = f"Accuracy under pruning of {unit}"
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}. {'; '.join(descriptions)}.", 340)


def _accuracy_by_fraction(run: SweepRun, kind: str) -> dict[float, float]:
    whole, accuracies = run.accuracy or 0.0, dict[float, float]()
    for metric in run.record.metrics:
        match, fraction = PRUNED_METRIC.fullmatch(metric), run.metric(metric)
        if match is not None and (match[1] or "") == kind and fraction is not None:
            accuracies[float(match[2])] = whole * fraction
    return {0.0: whole, **accuracies} if accuracies else {}


def _parameter_title(parameter: str) -> str:
    return PARAMETER_TITLES.get(parameter, clean_name(parameter).replace("_", " "))


CELL = re.compile(r"(\S+) (\w[\w.]*=[^,=]+(?:, \w[\w.]*=[^,=]+)*)")
"""name of the sweep or claim, and the values of its parameters"""
PERCENT = ("unbiased", "average", "worst_group", "pruned_accuracy")
DIVERGED, CUT_OFF = "diverged", "did not reach the stopping rule"


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep: the values of its parameters, and its record."""

    settings: Mapping[str, str]
    record: Record

    @property
    def label(self) -> str:
        """The values of all parameters, such as ``lr 0.1``."""
        return _format_settings(self.settings)

    def metric(self, metric: str) -> float | None:
        """Return a metric of the record; accuracies in percent."""
        value = finite_number(self.record.metrics.get(metric))
        return value if value is None or metric not in PERCENT else 100 * value

    @property
    def accuracy(self) -> float | None:
        """The unbiased accuracy in percent, or the average if there is none."""
        unbiased = self.metric("unbiased")
        return self.metric("average") if unbiased is None else unbiased

    @property
    def exclusion(self) -> str:
        """Why the run does not count: it diverged, or did not reach its stopping rule; empty if it counts."""
        if self.accuracy is None:
            return DIVERGED
        return CUT_OFF if is_cut_off(self.record) else ""


@dataclass(frozen=True)
class SweepRuns:
    """The runs of one sweep by the values of one of its parameters."""

    parameter: str
    values: tuple[str, ...]  # values in order; numbers are sorted
    runs: tuple[SweepRun, ...]  # the runs that count
    excluded: tuple[SweepRun, ...]

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return _are_numeric(self.values)

    def position(self, value: str) -> float:
        """Return the position of a value on the axis."""
        return float(value) if self.numeric else float(self.values.index(value))

    def lines(self) -> dict[str, dict[str, list[SweepRun]]]:
        """Return the runs by the values of all other parameters, and by that of this one."""
        lines: dict[str, dict[str, list[SweepRun]]] = {}
        for value in self.values:
            for run in (run for run in self.runs if run.settings[self.parameter] == value):
                others = _format_settings({key: other for key, other in run.settings.items() if key != self.parameter})
                lines.setdefault(others, {}).setdefault(value, []).append(run)
        return lines

    def runs_by_value(self) -> dict[str, list[SweepRun]]:
        """Return the runs by the values of all parameters."""
        by_value: dict[str, list[SweepRun]] = {}
        for run in sorted(self.runs, key=lambda run: self.values.index(run.settings[self.parameter])):
            by_value.setdefault(run.label, []).append(run)
        return by_value


def find_sweeps(records: Iterable[Record]) -> list[SweepRuns]:
    """Return every sweep among the records: runs whose cell contains their values, as in ``sweep-1a2b lr=0.1, l2=0``.

    Records with the same cell and key are the same run and count once.
    """
    by_sweep: dict[str, dict[str, SweepRun]] = {}
    for n, record in enumerate(records):
        match = CELL.fullmatch(record.cell)
        if match is not None:
            settings = dict(part.split("=", 1) for part in match[2].split(", "))
            by_sweep.setdefault(match[1], {})[f"{match[2]} {record.key or n}"] = SweepRun(settings, record)
    return [sweep for runs in by_sweep.values() if (sweep := _make_sweep(list(runs.values()))) is not None]


def _make_sweep(runs: Sequence[SweepRun]) -> SweepRuns | None:
    """Choose the parameter for the axis: the first with several values, numeric ones first."""
    keys = [key for key in runs[0].settings if all(key in run.settings for run in runs)]
    values = {key: list(dict.fromkeys(run.settings[key] for run in runs)) for key in keys}
    varied = sorted((key for key in keys if len(values[key]) > 1), key=lambda key: not _are_numeric(values[key]))
    if not varied:
        return None
    key = varied[0]
    ordered = sorted(values[key], key=float) if _are_numeric(values[key]) else values[key]
    counted = tuple(run for run in runs if not run.exclusion)
    return SweepRuns(key, tuple(ordered), counted, tuple(run for run in runs if run.exclusion))


def _format_settings(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items())


def _are_numeric(values: Iterable[str]) -> bool:
    try:
        return all(float(value) == float(value) for value in values)
    except ValueError:
        return False
