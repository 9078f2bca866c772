"""Write a repair as one self-contained HTML page, as short HTML for a notebook, or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spurless.core.files import replace_text
from spurless.core.repairs import OUTCOMES, Accuracy, Attempt, Choice, Repair, RepairScore
from spurless.reporting.audit_page import render_audit
from spurless.reporting.audit_text import audit_json, display_name, summarize_audit
from spurless.reporting.format import (
    MISSING,
    clean_name,
    format_change,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_points,
)
from spurless.reporting.page import render_template

SCHEMA = 1
MAX_TEXT = 2000
SCORE_ROWS = {
    "Average": "average",
    "Worst group": "worst_group",
    "Worst inferred group": "inferred",
    "Worst class": "worst_class",
    "Balanced accuracy": "balanced",
}
"""labels of the accuracies on the hold-out examples, and their fields in a score"""


def write_fix(path: Path | str, repair: Repair, *, title: str | None = None) -> Path:
    """Write one page about a repair and return its path; the file is written completely or not at all.

    The page shows the result, the groups of the test split before and after, the methods that were tried, and the audit
    of the old model.
    """
    return replace_text(path, render_fix(repair, title=title))


def render_fix(repair: Repair, *, title: str | None = None) -> str:
    """Return the page as HTML; the same repair gives the same text."""
    facts = repair.audit_before.facts
    model, data = (display_name(facts.get(key)) for key in ("model", "data"))
    default = f"Repair{f' of {model}' if model else ''}{f' on {data}' if data else ''}"
    records = [repair.before, repair.after] if repair.fixed else [repair.before]
    return render_audit(
        repair.audit_before,
        title=title or clean_name(default, 120),
        before_after=records,
        repair=repair_context(repair),
    )


def fix_html(repair: Repair) -> str:
    """Return the result of a repair as short HTML without scripts, for a notebook."""
    return render_template("fix_brief.html", repair=repair_context(repair))


def fix_json(repair: Repair) -> str:
    """Return the repair without models and pictures as JSON: always the same keys, and null for missing numbers."""
    before, after = repair.holdout_scores
    content = {
        "schema": SCHEMA,
        "fixed": repair.fixed,
        "said": repair.summary,
        "tolerance": repair.tolerance,
        "named": repair.word,
        "choice": None if repair.choice is None else _choice_json(repair.choice),
        "judged": {"before": _score_json(before), "after": _score_json(after)},
        "tried": [_attempt_json(attempt) for attempt in repair.attempts],
        "before": json.loads(repair.before.to_json()),
        "after": json.loads(repair.after.to_json()),
        "audit_before": json.loads(audit_json(repair.audit_before)),
        "audit_after": None if repair.audit_after is None else json.loads(audit_json(repair.audit_after)),
    }
    return json.dumps(content, allow_nan=False, indent=2, default=str) + "\n"


def write_fix_json(path: Path | str, repair: Repair) -> Path:
    """Write :func:`fix_json` and return its path; the file is written completely or not at all."""
    return replace_text(path, fix_json(repair), "backslashreplace")


def known_accuracies(score: RepairScore) -> dict[str, Accuracy]:
    """Return the accuracies of a score that are known, by label."""
    accuracies = {label: getattr(score, key) for label, key in SCORE_ROWS.items()}
    return {label: accuracy for label, accuracy in accuracies.items() if accuracy is not None}


def repair_context(repair: Repair) -> dict[str, Any]:
    """Return the template context of a repair."""
    first, *others = repair.summary
    before, after = (known_accuracies(score) for score in repair.holdout_scores)
    now = summarize_audit(repair.audit_after).headline if repair.audit_after is not None else "The old model is kept."
    return {
        "kind": "none-found" if repair.fixed else "suspicious",
        "headline": clean_name(first, MAX_TEXT),
        "was": clean_name(summarize_audit(repair.audit_before).headline, MAX_TEXT),
        "did": clean_name(repair.why, MAX_TEXT) or "Nothing was tried.",
        "now": clean_name(now, MAX_TEXT),
        "caveat": clean_name(_new_limit(repair), MAX_TEXT),
        "notes": [
            clean_name(line, MAX_TEXT) for line in others if line != repair.why and not line.startswith("Before: ")
        ],
        "fixed": repair.fixed,
        "count": f"{repair.holdout_scores[0].average.count:,}",
        "rows": [_score_row(label, before[label], after.get(label, before[label])) for label in before],
        "tolerance": format_points(100 * repair.tolerance),
        "criterion": "Worst class",
        "oracle": repair.holdout_scores[0].worst_group is not None,
        "word": clean_name(repair.word, MAX_TEXT) if repair.word is not None else "",
        "tried": [_attempt_row(attempt) for attempt in repair.attempts],
    }


def _new_limit(repair: Repair) -> str:
    """Return a limit of the new model's audit that the old model's audit does not have."""
    after, before = repair.audit_after, repair.audit_before
    return next((limit for limit in after.limits if limit not in before.limits), "") if after is not None else ""


def _score_row(label: str, before: Accuracy, after: Accuracy) -> dict[str, Any]:
    cells = [_accuracy_cell(a) | {"of": clean_name(a.of), "count": f"{a.count:,}"} for a in (before, after)]
    change = after.value - before.value
    return {"label": label, "cells": cells, "change": format_change(100 * change), "value": change}


def _accuracy_cell(accuracy: Accuracy | None) -> dict[str, Any]:
    if accuracy is None:
        return {"text": MISSING, "value": "", "note": ""}
    return {"text": format_percent(accuracy.value), "value": accuracy.value, "note": format_interval(accuracy)}


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    score = attempt.score
    accuracies = (score.criterion, score.average, score.worst_group) if score is not None else (None,) * 3
    options = attempt.choice.options.items()
    settings = [f"{key} {format_number(value) if isinstance(value, float) else value}" for key, value in options]
    return {
        "name": clean_name(attempt.choice.display_name),
        "settings": clean_name(", ".join(filter(None, (attempt.choice.preset, *settings))), 120),
        **dict(zip(("criterion", "average", "oracle"), map(_accuracy_cell, accuracies), strict=True)),
        "seconds": format_duration(attempt.seconds),
        "time": round(attempt.seconds, 3),
        "outcome": attempt.outcome,
        "outcome_label": OUTCOMES[attempt.outcome],
        "error": clean_name(attempt.error, MAX_TEXT),
    }


def _score_json(score: RepairScore) -> dict[str, Any]:
    accuracies = {key: getattr(score, key) for key in ("average", "balanced", "worst_class", "inferred", "worst_group")}
    return {key: None if accuracy is None else dict(vars(accuracy)) for key, accuracy in accuracies.items()}


def _choice_json(choice: Choice) -> dict[str, Any]:
    return {"method": choice.method, "preset": choice.preset, "options": dict(choice.options), "why": choice.why}


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    score = attempt.score
    return {
        **_choice_json(attempt.choice),
        "fate": attempt.outcome,
        "criterion": None if score is None else score.criterion.value,
        "average": None if score is None else score.average.value,
        "oracle": None if score is None or score.worst_group is None else score.worst_group.value,
        "score": None if score is None else _score_json(score),
        "seconds": attempt.seconds,
        "error": attempt.error,
    }
