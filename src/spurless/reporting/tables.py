"""Tables: the rows that the page shows, every cell a string beside the number that it sorts by."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spurless.reporting.arms import Arm, Estimate, Study
from spurless.reporting.words import (
    MINUS,
    SIZES,
    duration,
    listed,
    name,
    percent,
    plain,
    plural,
    points,
    size,
    span,
)

METRICS = {
    "average": ("Average", "Share of all test examples that are right.", "share"),
    "adjusted_average": ("Adjusted average", "Groups weighed by their share of the train split.", "share"),
    "balanced_average": ("Balanced average", "Mean of the groups, each counted once.", "share"),
    "unbiased": ("Unbiased", "The same, where every label has an attribute that goes with it.", "share"),
    "aligned": ("Aligned", "Mean of the groups where the shortcut is right.", "share"),
    "conflicting": ("Conflicting", "Mean of the groups where the shortcut is wrong.", "share"),
    "worst_group": ("Worst group", "The lowest accuracy of any group.", "share"),
    "worst_class": ("Worst class", "The lowest accuracy of any class.", "share"),
    "balanced_accuracy": ("Balanced accuracy", "Mean of the classes, each counted once.", "share"),
    "gap": ("Gap", "Average minus worst group; 0 is best.", "points"),
    "ece": ("Calibration error", "How far confidence is from accuracy; 0 is best.", "share"),
    "worst_group_ece": ("Worst calibration error", "The highest of any group; 0 is best.", "share"),
    "loss": ("Log loss", "Mean surprise at the true label; 0 is best.", "number"),
    "val_average": ("Validation average", "Share of all validation examples that are right.", "share"),
    "prunability": ("Prunability", "Mean share of accuracy that is left, over shares of pruned neurons.", "number"),
    "pruned_accuracy": ("Accuracy under pruning", "The same, without dividing by the accuracy.", "share"),
    "activation_compressibility": ("Compressibility", "How much of a representation a tenth of it holds.", "number"),
    "class_separation": ("Class separation", "R squared of classes among representations.", "number"),
    "csi": ("Class selectivity", "How much a neuron prefers one class, mean over neurons.", "number"),
    "resolution": ("Resolution", "What one example of the worst group is worth.", "points"),
    "aurc": ("Risk-coverage area", "Mean error over all coverages, if the model may abstain; 0 is best.", "share"),
    "excess_aurc": ("Excess area", "What a perfect score would take off that; 0 is best.", "share"),
    "worst_group_aurc": ("Worst risk-coverage area", "The highest within any group; 0 is best.", "share"),
}
"""label, explanation and kind of the numbers that a person reads first; others follow under their own name"""

AT_A_COVERAGE = re.compile(r"(coverage|error|worst_group_error)_at_[\d.e-]+")
"""numbers that have a table of their own where the record says what was kept"""


@dataclass(frozen=True)
class Cell:
    """What is shown, the small print below it, the number to sort by, and whether it is the lowest of its column."""

    text: str
    note: str = ""
    value: float | None = None
    lowest: bool = False


def group_rows(study: Study, groups: list[str]) -> list[dict[str, Any]]:
    """Return one row per group: its sizes and its accuracy under each arm."""
    lowest = {arm.name: arm.worst_names for arm in study.arms}
    rows = []
    for group in groups:
        test, train = study.counts(group)
        cells = [_accuracy(arm.group(group), group in lowest[arm.name]) for arm in study.arms]
        rows.append({"name": name(group), "test": test, "train": train, "cells": cells})
    return rows


def metric_rows(study: Study) -> list[dict[str, Any]]:
    """Return one row per number of the records: first those with a human label, in their order, then the rest."""
    records = [record for arm in study.arms for record in arm.records]
    apart = any(isinstance(r.selective, dict) and r.selective.get("rows") for r in records)
    keys = dict.fromkeys(k for r in records for k in r.metrics if not (apart and AT_A_COVERAGE.fullmatch(k)))
    rows = []
    for key in [*(k for k in METRICS if k in keys), *(k for k in keys if k not in METRICS)]:
        label, why, kind = METRICS.get(key, (name(key).replace("_", " "), "", "number"))
        cells = [_metric(arm.metric(key), kind) for arm in study.arms]
        rows.append({"name": label, "why": why, "cells": cells})
    return rows


def supervision_rows(study: Study) -> list[dict[str, Any]]:
    """Return which labels each arm used, and how its checkpoint was chosen."""
    kinds = ("train_attributes", "val_labels", "val_attributes")
    rows = []
    for arm in study.arms:
        used = ["used" if kind in arm.supervision else "not used" for kind in kinds]
        other = listed([name(k) for k in arm.supervision if k not in kinds])
        chosen = listed([name(c).replace("_", " ") for c in dict.fromkeys(r.selection for r in arm.records) if c])
        rows.append({"name": name(arm.name), "used": used, "other": other, "selection": chosen or "n/a"})
    return rows


def run_facts(arm: Arm) -> list[tuple[str, str]]:
    """Return what was run, as pairs of a word and its value."""
    first = arm.records[0]
    facts = [("Method", name(arm.method)), ("Seeds", listed([str(seed) for seed in arm.seeds]))]
    facts += [("Model", settings({key: value for key, value in first.model.items() if key not in SIZES}))]
    facts += [("Size", size(first.model)), ("Config", settings(first.config)), ("Train", settings(first.train))]
    facts += [("Time per run", listed([duration(sum(r.seconds.values())) for r in arm.records][:8]))]
    facts += [("Stages", settings({k: duration(v) for k, v in first.seconds.items()}))]
    peak = max((r.peak_memory or 0 for r in arm.records), default=0)
    facts += [("Peak memory", f"{peak / 2**20:,.0f} MiB")] if peak else []
    facts += [("Run at", listed([name(r.time) for r in arm.records if r.time][:8]))]
    facts += [("Commit", listed(list(dict.fromkeys(name(r.commit) for r in arm.records if r.commit))))]
    facts += [("Versions", settings(first.versions)), ("Hardware", settings(first.hardware))]
    facts += [
        ("Command", name(first.command, 400)),
        ("Record keys", listed([name(r.key) for r in arm.records if r.key])),
    ]
    return [(word, value) for word, value in facts if value]


def data_facts(study: Study) -> list[tuple[str, str]]:
    """Return what the dataset was, as pairs of a word and its value."""
    data = study.data
    facts = [("Dataset", name(data.get("name", "n/a"))), ("Options", settings(data.get("options")))]
    facts += [("Labels", _few(data.get("labels"))), ("Attributes", _few(data.get("attributes")))]
    facts += [("Counts", settings(data.get("counts"))), ("Fingerprint", name(data.get("fingerprint") or ""))]
    return [(word, value) for word, value in facts if value]


def warnings(study: Study) -> list[tuple[str, str]]:
    """Return each warning once, with the runs that gave it."""
    found: dict[str, dict[str, list[str]]] = {}
    for arm in study.arms:
        for record in arm.records:
            for text in record.warnings:
                found.setdefault(text, {}).setdefault(name(arm.name), []).append(str(record.seed))
    return [
        (name(text, 400), "; ".join(f"{arm}, seed{'s' * (len(s) > 1)} {listed(s)}" for arm, s in who.items()))
        for text, who in found.items()
    ]


def settings(value: object) -> str:
    """Write a mapping as ``key = value`` pairs.

    Example:
        >>> settings({"lr": 0.1, "layers": [1, 2], "inner": {"on": True}})
        'lr = 0.1, layers = [1, 2], inner.on = yes'
    """
    if not isinstance(value, Mapping):
        return "" if value is None else name(value, 400)
    return ", ".join(f"{key} = {shown}" for key, shown in _flat(value))


def _flat(value: Mapping[Any, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, inner in value.items():
        word = prefix + name(key)
        pairs += _flat(inner, f"{word}.") if isinstance(inner, Mapping) else [(word, _setting(inner))]
    return pairs


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    return name(json.dumps(value, default=str) if isinstance(value, list | tuple) else value, 120)


def _few(values: object) -> str:
    if not isinstance(values, list | tuple):
        return settings(values)
    shown = [name(v, 24) for v in values[:8]]
    return ", ".join(shown) + (f" and {plural(len(values) - 8, 'other')}" if len(values) > 8 else "")


def _accuracy(estimate: Estimate, lowest: bool) -> Cell:
    note = "" if estimate.low is None else span(estimate)
    return Cell(percent(estimate.mean), note, estimate.mean, lowest)


def _metric(estimate: Estimate, kind: str) -> Cell:
    mean, spread = estimate.mean, estimate.spread
    if kind == "number":
        return Cell(plain(mean), f"± {plain(spread)}" if spread is not None else "", mean)
    note = "" if spread is None else f"± {100 * spread:.1f}"
    if kind == "share":
        return Cell(percent(mean), note, mean)
    sign = MINUS if mean is not None and round(100 * mean, 1) < 0 else ""
    return Cell(
        points(None if mean is None else 100 * mean) if not sign else f"{sign}{points(100 * (mean or 0))}", note, mean
    )
