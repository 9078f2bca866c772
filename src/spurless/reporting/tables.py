"""Rows of the tables of a page; each cell has a text and the number to sort by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spurless.core.metric_info import METRICS, MetricInfo, Unit
from spurless.reporting.aggregate import SIZE_FIELDS, Comparison, Estimate, MethodRuns
from spurless.reporting.format import (
    MINUS,
    MISSING,
    clean_name,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_points,
    format_size,
    is_sparse,
    join_words,
)

COVERAGE_METRIC = re.compile(r"(coverage|error|worst_group_error)_at_[\d.e-]+")
"""metrics that are shown in the table of coverages instead, if the record has one"""


@dataclass(frozen=True)
class TableCell:
    """A text, the note below it, the number to sort by, and whether it is the lowest of its column."""

    text: str
    note: str = ""
    value: float | None = None
    lowest: bool = False


def group_rows(comparison: Comparison, groups: list[str]) -> list[dict[str, Any]]:
    """Return one row per group: its sizes and its accuracy with each method."""
    lowest = {runs.name: runs.worst_names for runs in comparison.methods}
    rows = []
    for group in groups:
        test, train = comparison.counts(group)
        cells = [_accuracy_cell(runs.group(group), group in lowest[runs.name]) for runs in comparison.methods]
        rows.append({"name": clean_name(group), "test": test, "train": train, "cells": cells})
    return rows


def metric_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return one row per metric of the records: first those of the table of metrics, in its order."""
    records = [record for runs in comparison.methods for record in runs.records]
    has_coverage_table = any(isinstance(r.selective, dict) and r.selective.get("rows") for r in records)
    keys = dict.fromkeys(
        k for r in records for k in r.metrics if not (has_coverage_table and COVERAGE_METRIC.fullmatch(k))
    )
    rows = []
    for key in [*(k for k in METRICS if k in keys), *(k for k in keys if k not in METRICS)]:
        info = METRICS.get(key) or MetricInfo(key, clean_name(key).replace("_", " "), "", "", "number", None)
        cells = [_metric_cell(runs.metric(key), info.unit) for runs in comparison.methods]
        rows.append({"key": key, "name": info.label, "description": _describe_metric(info), "cells": cells})
    return rows


def _describe_metric(info: MetricInfo) -> str:
    if not info.description:
        return ""
    best = "; lower is better" if info.higher_is_better is False else ""
    return f"{info.description[:1].upper()}{info.description[1:]}{best}."


def supervision_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Return which labels each method used, and how its checkpoint was selected."""
    kinds = ("train_attributes", "val_labels", "val_attributes")
    rows = []
    for runs in comparison.methods:
        used = ["used" if kind in runs.supervision else "not used" for kind in kinds]
        other = join_words([clean_name(k) for k in runs.supervision if k not in kinds])
        criteria = dict.fromkeys(record.selection for record in runs.records if record.selection)
        selection = join_words([clean_name(criterion).replace("_", " ") for criterion in criteria])
        rows.append({"name": clean_name(runs.name), "used": used, "other": other, "selection": selection or MISSING})
    return rows


def run_facts(runs: MethodRuns) -> list[tuple[str, str]]:
    """Return settings, time and environment of a method's runs, as pairs of a label and a value."""
    first = runs.records[0]
    facts = [("Method", clean_name(runs.method)), ("Seeds", join_words([str(seed) for seed in runs.seeds]))]
    facts += [("Model", format_settings({key: value for key, value in first.model.items() if key not in SIZE_FIELDS}))]
    facts += [("Size", format_size(first.model)), ("Config", format_settings(first.config))]
    facts += [("Train", format_settings(first.train))]
    facts += [("Time per run", join_words([format_duration(sum(r.seconds.values())) for r in runs.records][:8]))]
    facts += [("Stages", format_settings({k: format_duration(v) for k, v in first.seconds.items()}))]
    peak = max((r.peak_memory or 0 for r in runs.records), default=0)
    facts += [("Peak memory", f"{peak / 2**20:,.0f} MiB")] if peak else []
    facts += [("Run at", join_words([clean_name(r.time) for r in runs.records if r.time][:8]))]
    facts += [("Commit", join_words(list(dict.fromkeys(clean_name(r.commit) for r in runs.records if r.commit))))]
    facts += [("Versions", format_settings(first.versions)), ("Hardware", format_settings(first.hardware))]
    facts += [("Command", clean_name(first.command, 400))]
    facts += [("Record keys", join_words([clean_name(r.key) for r in runs.records if r.key]))]
    return [(label, value) for label, value in facts if value]


def data_facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the facts about the dataset, as pairs of a label and a value."""
    data = comparison.data
    facts = [("Dataset", clean_name(data.get("name", MISSING))), ("Options", format_settings(data.get("options")))]
    facts += [("Labels", _format_few(data.get("labels"))), ("Attributes", _format_few(data.get("attributes")))]
    facts += [("Counts", format_settings(data.get("counts")))]
    facts += [("Fingerprint", clean_name(data.get("fingerprint") or ""))]
    return [(label, value) for label, value in facts if value]


def warning_rows(comparison: Comparison) -> list[tuple[str, str]]:
    """Return each warning once, with the runs that raised it."""
    by_text: dict[str, dict[str, list[str]]] = {}
    for name, record in ((clean_name(runs.name), record) for runs in comparison.methods for record in runs.records):
        for text in record.warnings:
            by_text.setdefault(text, {}).setdefault(name, []).append(str(record.seed))
    who = [
        "; ".join(f"{method}, seed{'s' * (len(s) > 1)} {join_words(s)}" for method, s in seeds.items())
        for seeds in by_text.values()
    ]
    return [(clean_name(text, 400), runs) for text, runs in zip(by_text, who, strict=True)]


def format_settings(value: object) -> str:
    """Format a mapping as ``key = value`` pairs.

    Example:
        >>> format_settings({"lr": 0.1, "layers": [1, 2], "inner": {"on": True}})
        'lr = 0.1, layers = [1, 2], inner.on = yes'
    """
    if not isinstance(value, Mapping):
        return "" if value is None else clean_name(value, 400)
    return ", ".join(f"{key} = {text}" for key, text in _flatten(value))


def _flatten(value: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, inner in value.items():
        label = prefix + clean_name(key)
        pairs += _flatten(inner, f"{label}.") if isinstance(inner, Mapping) else [(label, _format_setting(inner))]
    return pairs


def _format_setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return clean_name(json.dumps(value, default=str) if isinstance(value, list | tuple) else value, 120)


def _format_few(values: object) -> str:
    if not isinstance(values, list | tuple):
        return format_settings(values)
    names = [clean_name(v, 24) for v in values[:8]]
    return ", ".join(names) + (f" and {format_count(len(values) - 8, 'other')}" if len(values) > 8 else "")


def _accuracy_cell(estimate: Estimate, lowest: bool = False) -> TableCell:
    note = "" if estimate.low is None else format_interval(estimate)
    return TableCell(format_percent(estimate.mean), note, estimate.mean, lowest)


def _metric_cell(estimate: Estimate, unit: Unit) -> TableCell:
    mean, spread = estimate.mean, estimate.spread
    if unit == "number":
        return TableCell(format_number(mean), f"± {format_number(spread)}" if spread is not None else "", mean)
    cell = fraction_cell(estimate)
    if unit == "fraction":
        return cell
    sign = MINUS if mean is not None and round(100 * mean, 1) < 0 else ""
    return replace(cell, text=sign + format_points(None if mean is None else 100 * mean))


RISK_METRIC = "worst_group_aurc"  # the risk of a model that may abstain, as one number


def size_table(comparison: Comparison) -> dict[str, Any]:
    """Return columns and one row per method; empty if no method has sparse weights."""
    if not any(is_sparse(record.model) for runs in comparison.methods for record in runs.records):
        return {}
    columns = ["Worst group", "Average", "Zero weights", "Remaining parameters", "Remaining multiply-adds"]
    has_risk = any(runs.metric(RISK_METRIC).mean is not None for runs in comparison.methods)
    columns += ["Worst risk-coverage area"] if has_risk else []
    rows = [{"name": clean_name(a.name), "cells": _size_cells(a)[: len(columns)]} for a in comparison.methods]
    return {"columns": columns, "has_risk": has_risk, "rows": rows}


def _size_cells(runs: MethodRuns) -> list[TableCell]:
    return [
        *(_accuracy_cell(estimate) for estimate in (runs.worst, runs.average)),
        fraction_cell(runs.model_size("sparsity")),
        _remaining_cell(runs.model_size("kept_parameters"), runs.model_size("parameters")),
        _remaining_cell(runs.model_size("kept_flops"), runs.model_size("flops")),
        fraction_cell(runs.metric(RISK_METRIC)),
    ]


def fraction_cell(estimate: Estimate) -> TableCell:
    """Return a cell with the mean in percent and the standard deviation over runs."""
    spread = estimate.spread
    return TableCell(format_percent(estimate.mean), "" if spread is None else f"± {100 * spread:.1f}", estimate.mean)


def _remaining_cell(remaining: Estimate, total: Estimate) -> TableCell:
    if remaining.mean is None:
        return TableCell(MISSING)
    note = "" if total.mean is None else f"of {total.mean:,.0f}"
    return TableCell(f"{remaining.mean:,.0f}", note, remaining.mean)
