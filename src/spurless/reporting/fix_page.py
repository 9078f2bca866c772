"""Fix page: what a repair did as one self-contained page, in brief for a notebook, and as JSON for machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spurless.core.files import replace_file
from spurless.core.repairs import FATES, Attempt, Measure, Repair, Score
from spurless.reporting.audit_cards import called
from spurless.reporting.audit_page import render_audit
from spurless.reporting.audit_words import audit_json, opinion
from spurless.reporting.gather import SPELLING
from spurless.reporting.page import house, write_page
from spurless.reporting.words import MISSING, duration, name, percent, plain, points, signed

SCHEMA = 1
LONG = 2000
ROWS = {
    "Average": "average",
    "Worst group": "worst_group",
    "Worst inferred group": "inferred",
    "Worst class": "worst_class",
    "Balanced accuracy": "balanced",
}
"""what is told of the judging examples, and where a score has it"""


def write_fix(path: Path | str, repair: Repair, *, title: str | None = None) -> Path:
    """Write one page about a repair and return its path; the file appears whole or not at all.

    What came of it is first, then what was tried, how the groups of the test split fared before and after, and the
    audit of the old model.

    Raises:
        BadInput: the place cannot be written.
    """
    return write_page(path, render_fix(repair, title=title))


def render_fix(repair: Repair, *, title: str | None = None) -> str:
    """Return the page as text; the same repair gives the same text."""
    facts = repair.audit_before.facts
    model, data = (called(facts.get(key)) for key in ("model", "data"))
    usual = f"Repair{f' of {model}' if model else ''}{f' on {data}' if data else ''}"
    records = [repair.before, repair.after] if repair.fixed else [repair.before]
    return render_audit(
        repair.audit_before, title=title or name(usual, 120), before_after=records, story=story_of(repair)
    )


def fix_html(repair: Repair) -> str:
    """Return what came of a repair as a short piece of HTML without scripts, for a notebook."""
    text: str = house().get_template("fix_brief.html").render(story=story_of(repair))
    return text


def fix_json(repair: Repair) -> str:
    """Return everything but models and pictures as JSON: the same keys each time, and null where there is no number."""
    before, after = repair.judged
    choice = repair.choice
    found = {
        "schema": SCHEMA,
        "fixed": repair.fixed,
        "said": repair.said,
        "tolerance": repair.tolerance,
        "named": repair.named,
        "choice": None if choice is None else _choice(choice.method, choice.preset, dict(choice.options), choice.why),
        "judged": {"before": _score(before), "after": _score(after)},
        "tried": [_attempt(attempt) for attempt in repair.tried],
        "before": json.loads(repair.before.to_json()),
        "after": json.loads(repair.after.to_json()),
        "audit_before": json.loads(audit_json(repair.audit_before)),
        "audit_after": None if repair.audit_after is None else json.loads(audit_json(repair.audit_after)),
    }
    return json.dumps(found, allow_nan=False, indent=2, default=str) + "\n"


def write_fix_json(path: Path | str, repair: Repair) -> Path:
    """Write :func:`fix_json` and return its path; the file appears whole or not at all."""
    path, data = Path(path), fix_json(repair).encode("utf-8", "backslashreplace")
    replace_file(path, lambda scratch: scratch.write_bytes(data))
    return path


def measured(score: Score) -> dict[str, Measure]:
    """Return what is known of a score, by what a person calls it."""
    found = {word: getattr(score, key) for word, key in ROWS.items()}
    return {word: measure for word, measure in found.items() if measure is not None}


def span_of(measure: Measure) -> str:
    """Write the interval of a measure.

    Example:
        >>> span_of(Measure(0.07, 0.037, 0.1322, 100))
        '3.7 to 13.2 %'
    """
    return f"{percent(measure.low).removesuffix(' %')} to {percent(measure.high)}"


def method_name(attempt: Attempt) -> str:
    """Return a method as a person writes it."""
    return SPELLING.get(attempt.choice.method, attempt.choice.method)


def story_of(repair: Repair) -> dict[str, Any]:
    """Return what the templates show of a repair, every string ready to be escaped."""
    first, *others = repair.said
    before, after = (measured(score) for score in repair.judged)
    now = opinion(repair.audit_after).headline if repair.audit_after is not None else "The old model is kept."
    return {
        "kind": "none" if repair.fixed else "look",
        "headline": name(first, LONG),
        "was": name(opinion(repair.audit_before).headline, LONG),
        "did": name(repair.why, LONG) or "Nothing was tried.",
        "now": name(now, LONG),
        "caveat": name(_caveat(repair), LONG),
        "notes": [name(line, LONG) for line in others if line != repair.why and not line.startswith("Before: ")],
        "fixed": repair.fixed,
        "count": f"{repair.judged[0].average.count:,}",
        "rows": [_row(word, before[word], after.get(word, before[word])) for word in before],
        "tolerance": points(100 * repair.tolerance),
        "criterion": "Worst class",
        "oracle": repair.judged[0].worst_group is not None,
        "named": name(repair.named, LONG) if repair.named is not None else "",
        "tried": [_tried(attempt) for attempt in repair.tried],
    }


def _caveat(repair: Repair) -> str:
    """Return what is to be said against the audit of the new model and not against that of the old one."""
    after, before = repair.audit_after, repair.audit_before
    return next((limit for limit in after.limits if limit not in before.limits), "") if after is not None else ""


def _row(word: str, before: Measure, after: Measure) -> dict[str, Any]:
    return {
        "word": word,
        "cells": [
            {"text": percent(m.value), "value": m.value, "note": span_of(m), "of": name(m.of), "count": f"{m.count:,}"}
            for m in (before, after)
        ],
        "change": signed(100 * (after.value - before.value)),
        "value": after.value - before.value,
    }


def _tried(attempt: Attempt) -> dict[str, Any]:
    score = attempt.score
    cells = (score.criterion, score.average, score.worst_group) if score is not None else (None, None, None)
    shown = [
        {"text": MISSING, "value": "", "note": ""}
        if measure is None
        else {"text": percent(measure.value), "value": measure.value, "note": span_of(measure)}
        for measure in cells
    ]
    settings = ", ".join(f"{key} {_brief(value)}" for key, value in attempt.choice.options.items())
    return {
        "name": name(method_name(attempt)),
        "settings": name(", ".join(filter(None, (attempt.choice.preset or "", settings))), 120),
        "criterion": shown[0],
        "average": shown[1],
        "oracle": shown[2],
        "seconds": duration(attempt.seconds),
        "time": round(attempt.seconds, 3),
        "fate": attempt.fate,
        "word": FATES[attempt.fate],
        "error": name(attempt.error, LONG),
    }


def _brief(value: object) -> str:
    return plain(value) if isinstance(value, float) else str(value)


def _score(score: Score) -> dict[str, Any]:
    keys = ("average", "balanced", "worst_class", "inferred", "worst_group")
    return {key: _measure(getattr(score, key)) for key in keys}


def _measure(measure: Measure | None) -> dict[str, Any] | None:
    return None if measure is None else dict(vars(measure))


def _choice(method: str, preset: str | None, options: dict[str, Any], why: str) -> dict[str, Any]:
    return {"method": method, "preset": preset, "options": options, "why": why}


def _attempt(attempt: Attempt) -> dict[str, Any]:
    choice, score = attempt.choice, attempt.score
    return {
        **_choice(choice.method, choice.preset, dict(choice.options), choice.why),
        "fate": attempt.fate,
        "criterion": None if score is None else score.criterion.value,
        "average": None if score is None else score.average.value,
        "oracle": None if score is None or score.worst_group is None else score.worst_group.value,
        "score": None if score is None else _score(score),
        "seconds": attempt.seconds,
        "error": attempt.error,
    }
