"""Prepare the general health of a model for the page of an audit: tables, charts and duplicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spurless.core.figures import Figure
from spurless.core.findings import Audit
from spurless.reporting.format import MISSING, clean_name, format_count, format_percent
from spurless.reporting.sections import figure_context

MAX_MATRIX = 12  # classes up to which the confusion matrix is drawn; of more, the most frequent confusions
MAX_COLOURS = 6  # labels with a colour of their own on the map
MAX_CLASS_ROWS = 50  # classes in the table, those with the lowest recall first
POINT_SIZE = 6
HOVER = "row %{customdata}: %{text}<extra></extra>"


def health_context(audit: Audit) -> dict[str, Any]:
    """Return the template context; empty if the audit has no health, such as one of an older version."""
    health = audit.health
    if not health:
        return {}
    classes = [row for row in health["classes"] if row["count"] or row["predicted"]]
    classes = sorted(classes, key=lambda row: (row["recall"] is None, row["recall"]))
    names = [clean_name(row["label"], 40) for row in health["classes"]]
    figures = [_draw_calibration(health["calibration"]), *_draw_maps(health["map"], names)]
    return {
        "classes": [_class_row(row) for row in classes[:MAX_CLASS_ROWS]],
        "hidden_classes": max(0, len(classes) - MAX_CLASS_ROWS),
        "labels": names,
        "matrix": _matrix(health["confusion"], names) if len(names) <= MAX_MATRIX else [],
        "confused": [
            (clean_name(pair["label"], 40), clean_name(pair["predicted"], 40), f"{pair['count']:,}")
            for pair in health["confused"]
        ],
        "duplicates": _describe_duplicates(health["duplicates"]),
        "duplicate_rows": {
            "audited": [tuple(pair) for pair in health["duplicates"]["within_rows"]],
            "train": [tuple(pair) for pair in health["duplicates"]["train_rows"]],
        },
        "unreadable": [clean_name(note, 400) for note in audit.facts.get("notes", ()) if "cannot be read" in str(note)],
        "suspects": format_count(sum(suspect.suspected for suspect in audit.suspects), "example"),
        "parts": [figure_context(figure) for figure in figures if figure is not None],
    }


def _class_row(row: Mapping[str, Any]) -> dict[str, Any]:
    note = f"{100 * row['recall_low']:.1f} to {100 * row['recall_high']:.1f} %" if row["recall"] is not None else ""
    f1 = row["f1"]
    return {
        "name": clean_name(row["label"], 40),
        "count": row["count"],
        "predicted": row["predicted"],
        "precision": (format_percent(row["precision"]), _sort_key(row["precision"])),
        "recall": (format_percent(row["recall"]), _sort_key(row["recall"])),
        "note": note,
        "f1": (MISSING if f1 is None else f"{f1:.2f}", _sort_key(f1)),
    }


def _sort_key(value: float | None) -> float | str:
    return "" if value is None else value


def _matrix(counts: Sequence[Sequence[int]] | None, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of the confusion matrix, each cell with its percentage of the row."""
    rows = []
    for y, row in enumerate(counts or ()):
        total = sum(row)
        cells = [
            {"count": f"{n:,}", "percent": round(100 * n / total) if total else 0, "is_error": y != x}
            for x, n in enumerate(row)
        ]
        rows.append({"name": names[y], "cells": cells, "total": f"{total:,}"})
    return rows


def _describe_duplicates(duplicates: Mapping[str, Any]) -> list[str]:
    """Return what was compared, and how many examples are equal."""
    compared = format_count(duplicates["compared"], "audited example")
    repeated = f"{duplicates['within']:,} of {compared} have the same content as an earlier one."
    if not duplicates["compared_train"]:
        return [repeated, "There is no training split to compare with."]
    train = format_count(duplicates["compared_train"], "training example")
    also = "An accuracy on examples that were trained on is too high." if duplicates["in_train"] else ""
    return [repeated, f"{duplicates['in_train']:,} have the same content as one of {train}. {also}".strip()]


def _draw_calibration(calibration: Mapping[str, Any]) -> Figure | None:
    """Draw accuracy by confidence; a calibrated model is on the diagonal."""
    bins = calibration["bins"]
    if not bins:
        return None
    x, y, low, high = ([100 * part[key] for part in bins] for key in ("confidence", "value", "low", "high"))
    up = [b - a for a, b in zip(y, high, strict=True)]
    down = [a - b for a, b in zip(y, low, strict=True)]
    line = {"x": [0, 100], "y": [0, 100], "mode": "lines", "name": "perfectly calibrated", "hoverinfo": "skip"}
    dots = {"x": x, "y": y, "mode": "markers", "name": "this model", "marker": {"color": "@series1", "size": 10}}
    error = {"type": "data", "array": up, "arrayminus": down, "color": "@muted"}
    text = [format_count(part["count"], "example") for part in bins]
    hover = "confidence %{x:.0f} %, accuracy %{y:.0f} %, %{text}<extra></extra>"
    dots |= {"error_y": error, "text": text, "hovertemplate": hover}
    layout = {
        "xaxis": {"title": {"text": "mean confidence, %"}, "range": [0, 102]},
        "yaxis": {"title": {"text": "accuracy, %"}, "range": [0, 102]},
    }
    values = "; ".join(f"{a:.0f} %: {b:.0f} % of {part['count']:,}" for a, b, part in zip(x, y, bins, strict=True))
    caption = (
        "Of predictions with a confidence of 80 %, 80 % should be correct. Expected calibration error: "
        f"{100 * calibration['error']:.1f} points. Intervals are 95 %."
    )
    spec = {"data": [line | {"line": {"color": "@muted", "dash": "dot"}}, dots], "layout": layout}
    return Figure("Calibration", caption, spec, f"Accuracy by confidence. {values}.", 340)


def _draw_maps(examples: Mapping[str, Any], names: Sequence[str]) -> list[Figure]:
    """Draw the examples by label, and by the result of the prediction."""
    if not examples["rows"]:
        return []
    keys = ("rows", "x", "y", "label", "predicted", "suspected")
    points = list(zip(*(examples[key] for key in keys), strict=True))
    frequent = sorted(set(examples["label"]), key=lambda label: (-examples["label"].count(label), label))[:MAX_COLOURS]
    by_label = {names[label]: [p for p in points if p[3] == label] for label in frequent}
    rest = [point for point in points if point[3] not in frequent]
    by_label |= {"other labels": rest} if rest else {}
    by_result = {
        "correct": [p for p in points if p[3] == p[4] and not p[5]],
        "incorrect": [p for p in points if p[3] != p[4] and not p[5]],
        "suspected": [p for p in points if p[5]],
    }
    caption = (
        "Features of the model on their first two principal components: near examples are similar to the model. "
        "Click a suspected example to see it in the gallery."
    )
    colours = [f"@series{number}" for number in (1, 2, 3, 4, 5, 6, 0)]
    return [
        _draw_map("Map of the examples by label", caption, by_label, colours, names),
        _draw_map("Map of the examples by result", caption, by_result, ["@series0", "@bad", "@series4"], names),
    ]


def _draw_map(
    title: str, caption: str, groups: Mapping[str, list[Any]], colours: Sequence[str], names: Sequence[str]
) -> Figure:
    symbols = ("circle", "x", "diamond", "square", "triangle-up", "cross", "star")
    traces: list[dict[str, Any]] = [
        {
            **{"type": "scatter", "mode": "markers", "name": name, "hovertemplate": HOVER},
            **{"x": [p[1] for p in points], "y": [p[2] for p in points], "customdata": [p[0] for p in points]},
            "text": [f"{names[p[3]]}, predicted {names[p[4]]}" for p in points],
            "marker": {"color": colour, "size": POINT_SIZE, "opacity": 0.75, "symbol": symbol},
        }
        for (name, points), colour, symbol in zip(groups.items(), colours, symbols, strict=False)
        if points
    ]
    counts = ", ".join(f"{len(points):,} {name}" for name, points in groups.items())
    axis = {"showticklabels": False, "zeroline": False}
    layout = {"xaxis": axis | {"title": {"text": "first component"}}, "yaxis": axis | {"title": {"text": "second"}}}
    return Figure(title, caption, {"data": traces, "layout": layout}, f"{title}: {counts}.", 380)
