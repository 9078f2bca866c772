"""Write a repair as one self-contained HTML page, as short HTML for a notebook, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from spurless.core.arguments import check_arguments
from spurless.core.figures import Figure, Section
from spurless.core.files import replace_text
from spurless.core.findings import Audit
from spurless.core.repairs import (
    OUTCOMES,
    SMALL_GROUP,
    Accuracy,
    Attempt,
    Change,
    Choice,
    Evidence,
    Repair,
    RepairScore,
)
from spurless.reporting.audit_page import render_audit
from spurless.reporting.audit_text import audit_json, display_name, summarize_audit
from spurless.reporting.format import (
    MISSING,
    clean_name,
    format_change,
    format_count,
    format_duration,
    format_interval,
    format_number,
    format_percent,
    format_points,
    join_words,
)
from spurless.reporting.page import render_template

SCHEMA = 1
MAX_TEXT = 2000
SCORE_ROWS = {
    "Average": "average",
    "Worst group": "worst_group",
    "Mean over groups": "group_mean",
    "Under transplants": "transplants",
    "Worst inferred group": "inferred",
    "Worst class": "worst_class",
    "Balanced accuracy": "balanced",
}
"""labels of the accuracies on the hold-out examples, and their fields in a score"""
SCORE_MEANINGS = {
    "Worst group": "The group of label and attribute with the lowest accuracy",
    "Under transplants": "The accuracy if the flagged property comes from random other examples",
    "Worst inferred group": "The suspected or the other examples of a label: the part with the lowest accuracy",
    "Balanced accuracy": "The mean of the accuracies of the classes",
}
RULES: Mapping[Evidence, str] = {
    "groups": "A repair is kept if the worst group rises by more than chance explains (groups with fewer "
    f"than {SMALL_GROUP} examples count as one; if that is small too, the mean over groups or the accuracy under "
    "transplants decides).",
    "transplants": "A repair is kept if the accuracy under transplants rises by more than chance explains: that with "
    "the flagged properties of random other examples.",
    "validation": "A repair is kept if the worst class, the worst inferred group or the balanced accuracy rises by "
    "more than chance explains.",
}
COSTS: Mapping[Evidence, str] = {
    "groups": "with groups weighted alike",
    "transplants": "under transplants",
    "validation": "with inferred groups or classes weighted alike",
}
MAX_FOLLOWED = 12  # properties in the chart of what the models follow


def write_fix(path: Path | str, repair: Repair, *, title: str | None = None) -> Path:
    """Write one page about a repair and return its path; the file is written completely or not at all.

    The page shows the result, the groups of the test split before and after, the methods that were tried, and the audit
    of the old model.
    """
    check_arguments(write_fix, locals())
    return replace_text(path, render_fix(repair, title=title))


def render_fix(repair: Repair, *, title: str | None = None) -> str:
    """Return the page as HTML; the same repair gives the same text."""
    facts = repair.audit_before.facts
    model, data = (display_name(facts.get(key)) for key in ("model", "data"))
    default = f"Repair{f' of {model}' if model else ''}{f' on {data}' if data else ''}"
    # a method that trains on validation has data of its own, but the test split is that of the old model
    after = replace(repair.after, data=repair.before.data)
    records = [repair.before, after] if repair.fixed else [repair.before]
    return render_audit(
        repair.audit_before,
        title=title or clean_name(default, 120),
        before_after=records,
        sections=compare_follow_rates(repair),
        repair=repair_context(repair),
    )


def compare_follow_rates(repair: Repair) -> tuple[Section, ...]:
    """Return a chart of what the old and the new model follow; none without transplants in both audits."""
    audits = {"old model": repair.audit_before, "new model": repair.audit_after}
    rates = {name: _list_follow_rates(audit) for name, audit in audits.items() if audit is not None}
    if len(rates) < 2 or not all(rates.values()):
        return ()
    highest = {key: max(part.get(key, 0.0) for part in rates.values()) for part in rates.values() for key in part}
    names = sorted(highest, key=lambda key: -highest[key])[:MAX_FOLLOWED]
    colors = dict(zip(rates, ("@bad", "@series1"), strict=True))
    values = {model: [100 * part.get(name, 0.0) for name in names] for model, part in rates.items()}
    traces = [
        {
            **{"type": "bar", "orientation": "h", "name": model, "marker": {"color": colors[model]}},
            **{"x": values[model], "y": [clean_name(name) for name in names]},
        }
        for model in rates
    ]
    layout = {
        "barmode": "group",
        "xaxis": {"title": {"text": "% of predictions that follow"}, "range": [0, 100]},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
    }
    lines = [
        f"{clean_name(name)}: {', '.join(f'{m} {values[m][i]:.0f} %' for m in rates)}" for i, name in enumerate(names)
    ]
    caption = "How often a prediction becomes the class of the example that a property comes from."
    figure = Figure(
        "Before and after", caption, {"data": traces, "layout": layout}, "; ".join(lines), 140 + 44 * len(names)
    )
    return (Section("What the model follows", "Properties of the data, the most followed first.", (figure,)),)


def _list_follow_rates(audit: Audit) -> dict[str, float]:
    """Return the follow rates of an audit by property: measured ones, and those of the screening for the others."""
    numbers = next((finding.numbers for finding in audit.findings if finding.audit == "transplants"), {})
    return {
        key.removeprefix(prefix): value
        for prefix in ("screened: ", "follow rate: ")  # the latter override
        for key, value in numbers.items()
        if key.startswith(prefix)
    }


def fix_html(repair: Repair) -> str:
    """Return the result of a repair as short HTML without scripts, for a notebook."""
    check_arguments(fix_html, locals())
    return render_template("fix_brief.html", repair=repair_context(repair))


def fix_json(repair: Repair) -> str:
    """Return the repair without models and pictures as JSON: always the same keys, and null for missing numbers."""
    check_arguments(fix_json, locals())
    before, after = repair.holdout_scores
    content = {
        "schema": SCHEMA,
        "fixed": repair.fixed,
        "said": repair.summary,
        "tolerance": repair.tolerance,
        "named": repair.word,
        "choice": None if repair.choice is None else _choice_json(repair.choice),
        "judged": {"before": _score_json(before), "after": _score_json(after)},
        "evidence": repair.evidence,
        "properties": list(repair.properties),
        "change": _change_json(repair.change),
        "test_change": _change_json(repair.test_change),
        "refitted": repair.refitted,
        "tried": [_attempt_json(attempt) for attempt in repair.attempts],
        "before": json.loads(repair.before.to_json()),
        "after": json.loads(repair.after.to_json()),
        "audit_before": json.loads(audit_json(repair.audit_before)),
        "audit_after": None if repair.audit_after is None else json.loads(audit_json(repair.audit_after)),
    }
    return json.dumps(content, allow_nan=False, indent=2, default=str) + "\n"


def write_fix_json(path: Path | str, repair: Repair) -> Path:
    """Write :func:`fix_json` and return its path; the file is written completely or not at all."""
    check_arguments(write_fix_json, locals())
    return replace_text(path, fix_json(repair), "backslashreplace")


def known_accuracies(score: RepairScore) -> dict[str, Accuracy]:
    """Return the accuracies of a score that are known, by label."""
    accuracies = {label: getattr(score, key) for label, key in SCORE_ROWS.items()}
    return {label: accuracy for label, accuracy in accuracies.items() if accuracy is not None}


def format_paired_change(change: Change | None) -> str:
    """Format a change with its interval: "+12.0 points (5.0 to 20.0)"."""
    if change is None:
        return ""
    low, high = (
        format_change(100 * bound).removesuffix("s").removesuffix(" point") for bound in (change.low, change.high)
    )
    return f"{format_change(100 * change.difference)} ({low} to {high})"


def repair_context(repair: Repair) -> dict[str, Any]:
    """Return the template context of a repair."""
    first, *others = repair.summary
    before, after = (known_accuracies(score) for score in repair.holdout_scores)
    has_transplants = repair.holdout_scores[0].transplants is not None
    now = summarize_audit(repair.audit_after).headline if repair.audit_after is not None else "The old model is kept."
    return {
        "kind": "none-found" if repair.is_confirmed else "suspicious",
        "headline": clean_name(first, MAX_TEXT),
        "was": clean_name(summarize_audit(repair.audit_before).headline, MAX_TEXT),
        "did": clean_name(_describe_repair(repair), MAX_TEXT),
        "now": clean_name(now, MAX_TEXT),
        "caveat": clean_name(_new_limit(repair), MAX_TEXT),
        "notes": [
            clean_name(line, MAX_TEXT) for line in others if line != repair.why and not line.startswith("Before: ")
        ],
        "fixed": repair.fixed,
        "count": f"{repair.holdout_scores[0].average.count:,}",
        "rows": [_score_row(label, before[label], after.get(label, before[label])) for label in before],
        "rule": f"{RULES[repair.evidence]} The accuracy {COSTS[repair.evidence]} may fall by at most "
        f"{format_points(100 * repair.tolerance)}.",
        "decisive": [_change_row(change) for change in (repair.change, repair.test_change) if change is not None],
        "refitted": repair.refitted,
        "properties": [clean_name(name) for name in repair.properties],
        "criterion": "Under transplants" if has_transplants else "Worst class",
        "worst_class": has_transplants,
        "oracle": repair.holdout_scores[0].worst_group is not None,
        "meanings": SCORE_MEANINGS,
        "word": clean_name(repair.word, MAX_TEXT) if repair.word is not None else "",
        "tried": [_attempt_row(attempt) for attempt in repair.attempts],
    }


def _describe_repair(repair: Repair) -> str:
    """Describe the repair that was kept, or that none was."""
    if repair.fixed and repair.choice is not None:
        return f"{repair.choice.display_name}. {repair.why}"
    if not repair.attempts:
        return "Nothing was tried."
    return f"Nothing was changed: {format_count(len(repair.attempts), 'method')} tried or considered, none is kept."


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
    text = format_percent(accuracy.value)
    if accuracy.is_small:
        text = f"{round(accuracy.value * accuracy.count)} of {accuracy.count}"
    return {"text": text, "value": accuracy.value, "note": format_interval(accuracy)}


def _change_row(change: Change) -> dict[str, Any]:
    """Return the change that decided, or that of the test split."""
    return {
        "target": clean_name(change.target),
        "before": _accuracy_cell(change.before),
        "after": _accuracy_cell(change.after),
        "change": format_paired_change(change),
    }


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    score = attempt.score
    names = ("criterion", "average", "worst_class", "oracle")
    accuracies: tuple[Accuracy | None, ...] = (None,) * len(names)
    if score is not None:
        accuracies = (score.criterion, score.average, score.worst_class, score.worst_group)
    options = attempt.choice.options.items()
    settings = [f"{key} {_format_option(value)}" for key, value in options]
    return {
        "name": clean_name(attempt.choice.display_name),
        "settings": clean_name(", ".join(filter(None, (attempt.choice.preset, *settings))), 120),
        **dict(zip(names, map(_accuracy_cell, accuracies), strict=True)),
        "change": format_paired_change(attempt.change),
        "target": "" if attempt.change is None else clean_name(attempt.change.target),
        "seconds": format_duration(attempt.seconds),
        "time": round(attempt.seconds, 3),
        "outcome": attempt.outcome,
        "outcome_label": OUTCOMES[attempt.outcome],
        "error": clean_name(attempt.error, MAX_TEXT),
    }


def _format_option(value: object) -> str:
    if isinstance(value, float):
        return format_number(value)
    return join_words([str(item) for item in value]) if isinstance(value, list | tuple) else str(value)


def _score_json(score: RepairScore) -> dict[str, Any]:
    keys = ("average", "balanced", "worst_class", "inferred", "worst_group", "group_mean", "transplants")
    return {key: _accuracy_json(getattr(score, key)) for key in keys}


def _accuracy_json(accuracy: Accuracy | None) -> dict[str, Any] | None:
    return None if accuracy is None else dict(vars(accuracy))


def _change_json(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    accuracies = {"before": _accuracy_json(change.before), "after": _accuracy_json(change.after)}
    return {"target": change.target, **accuracies, "change": change.difference, "low": change.low, "high": change.high}


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
        "transplants": None if score is None or score.transplants is None else score.transplants.value,
        "change": _change_json(attempt.change),
        "cost": _change_json(attempt.cost),
        "score": None if score is None else _score_json(score),
        "seconds": attempt.seconds,
        "error": attempt.error,
    }
