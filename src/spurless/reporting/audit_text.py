"""Summarize an audit in sentences, and write it as JSON, which can be read again, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Section
from spurless.core.files import check_not_pipe, replace_text
from spurless.core.findings import Audit, Finding, Suspect, Verdict
from spurless.core.records import GroupRow, Record
from spurless.reporting.aggregate import count_test_examples
from spurless.reporting.format import clean_name, escape_formula, format_count, format_number, format_percent
from spurless.reporting.sections import section_contexts

SCHEMA = 1
ACCURACIES = "accuracies of"  # fact of an audit whose accuracies are not of the audited examples
COLUMNS = ("row", "file", "label", "predicted", "attribute", "score", "suspected")

State = Literal["confirmed", "unsure", "present", "small", "chance", "inconclusive"]
STATES: Mapping[State, str] = {
    "confirmed": "Use confirmed",
    "unsure": "Suspicious",
    "present": "Present, use not confirmed",
    "small": "Effect too small",
    "chance": "Not significant",
    "inconclusive": "Not testable",
}
"""labels of the states, in the order of the page"""
STATE_MEANINGS: Mapping[State, str] = {
    "confirmed": "The model uses it: significant after correction for the number of tests.",
    "unsure": "Significant, but not confirmed: not after correction for the number of tests, or because of a doubt.",
    "present": "It is in the data, or a class is hard; this does not show that the model uses it.",
    "small": "Significant, but too small to matter in practice.",
    "chance": "Chance alone explains it.",
    "inconclusive": "These examples are not sufficient for the test.",
}
MAX_SENTENCE = 600


@dataclass(frozen=True)
class AuditSummary:
    """Headline of an audit, its main finding, how certain that is, and what to do next."""

    kind: Verdict
    headline: str
    what: str
    certainty: str
    next_step: str


def summarize_audit(audit: Audit) -> AuditSummary:
    """Summarize the verdict of an audit."""
    check_arguments(summarize_audit, locals())
    if audit.verdict == "shortcut":
        return _shortcut(audit)
    if audit.verdict == "suspicious":
        return _suspicious(audit)
    if audit.verdict == "inconclusive":
        return _inconclusive(audit)
    return _none_found(sum(finding.shows_use and finding.p is not None for finding in audit.findings))


def finding_state(finding: Finding, audit: Audit) -> State:
    """Return the state of a finding, given all findings; see ``STATES``."""
    if finding.flagged:
        if not finding.shows_use:
            return "present"
        return "confirmed" if any(confirmed is finding for confirmed in audit.confirmed) else "unsure"
    if finding.p is None:
        return "inconclusive"
    return "small" if finding.p <= audit.level else "chance"


def describe_p(p: float | None) -> str:
    """Describe a p-value in a sentence.

    Example:
        >>> describe_p(0.002)
        'Chance alone gives this result in fewer than 1 of 100 cases (p = 0.002).'
        >>> describe_p(0.034)
        'Chance alone gives this result in about 3 of 100 cases (p = 0.034).'
    """
    if p is None or math.isnan(p):
        return "There is no p-value."
    return f"Chance alone gives this result {_format_chance(p)} (p = {format_number(p)})."


def audit_json(audit: Audit) -> str:
    """Return the audit without pictures as JSON: always the same keys, and null for missing numbers."""
    check_arguments(audit_json, locals())
    confirmed = audit.confirmed
    content = {
        "schema": SCHEMA,
        "verdict": audit.verdict,
        "headline": summarize_audit(audit).headline,
        "level": audit.level,
        "guesses": audit.chance_level_reason,
        "gaps": audit.gaps,
        "groups": [asdict(row) for row in audit.groups],
        "findings": [_finding(finding, any(c is finding for c in confirmed)) for finding in audit.findings],
        "suspects": [_suspect(suspect) for suspect in audit.suspects],
        "facts": audit.facts,
        "limits": audit.limits,
        "health": audit.health,
    }
    return json.dumps(_plain(content), allow_nan=False, indent=2) + "\n"


def write_json(path: Path | str, audit: Audit) -> Path:
    """Write :func:`audit_json` and return its path; the file is written completely or not at all."""
    check_arguments(write_json, locals())
    return replace_text(path, audit_json(audit), "backslashreplace")


def write_suspects(path: Path | str, audit: Audit) -> Path:
    """Write the suspected minority as CSV, sorted by score; the file is written completely or not at all.

    A spreadsheet evaluates a cell that starts with one of ``= + - @``, so such texts and file names get an apostrophe
    in front; programs that need the original text should read :func:`audit_json`.
    """
    check_arguments(write_suspects, locals())
    return replace_text(path, suspects_csv(audit), "backslashreplace")


def suspects_csv(audit: Audit) -> str:
    """Return the text that :func:`write_suspects` writes."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)  # default line ends: with others, a single \r in a name would start a row
    writer.writerow(COLUMNS)
    for suspect in audit.suspects:
        row = _suspect(suspect)
        writer.writerow([_csv_cell(row[column]) for column in COLUMNS])
    return text.getvalue()


def _shortcut(audit: Audit) -> AuditSummary:
    first, *others = audit.confirmed
    use = [finding for finding in audit.findings if finding.shows_use and finding.p is not None]
    shortcut = f": “{clean_name(first.shortcut, 80)}”" if first.shortcut else ""
    also = f" {format_count(len(others), 'other test')} also confirmed use." if others else ""
    verb = "are" if others else "is"
    corrected = ", after correction for their number" if len(use) > 1 else ""
    return AuditSummary(
        "shortcut",
        f"This model uses a shortcut{shortcut}.",
        f"{_end_sentence(first.title)}{also}",
        f"{len(others) + 1} of {format_count(len(use), 'test')} of use {verb} significant{corrected}. "
        f"{describe_p(first.p)}",
        _end_sentence(first.remedy),
    )


def _suspicious(audit: Audit) -> AuditSummary:
    first = max(audit.flagged, key=lambda finding: (finding.shows_use, finding.severity))
    use = sum(finding.shows_use and finding.p is not None for finding in audit.findings)
    if first.doubt:
        sure = first.doubt
    elif first.shows_use:
        sure = f"By itself it is significant, but not after correction for {format_count(use, 'test')}."
    else:
        sure = "It is in the data, or a class is hard; this does not show that the model uses it."
    return AuditSummary(
        "suspicious",
        "Suspicious, but use of a shortcut is not confirmed.",
        _end_sentence(first.title),
        f"{sure} {describe_p(first.p)}",
        _end_sentence(first.remedy),
    )


def _none_found(n_tests: int) -> AuditSummary:
    return AuditSummary(
        "none-found",
        "No sign of a shortcut.",
        f"{format_count(n_tests, 'test')} of use {'was' if n_tests == 1 else 'were'} run, and no effect is both "
        "significant and large enough to matter.",
        "This does not prove that there is none: an audit finds only what it tests.",
        "There is nothing to repair. Add attributes, if you know them, so that more can be tested.",
    )


def _inconclusive(audit: Audit) -> AuditSummary:
    if audit.chance_level_reason is not None:
        return AuditSummary(
            "inconclusive",
            "This audit is inconclusive: the model is not better than guessing.",
            clean_name(audit.chance_level_reason, MAX_SENTENCE),
            "A model that guesses cannot use a shortcut; flagged findings are about the data, or about classes that "
            "the model does not know.",
            "Train it first, or check that weights, class order and preprocessing are those of its training.",
        )
    n_tests = sum(finding.shows_use and finding.p is not None for finding in audit.findings)
    if n_tests and audit.gaps:
        return AuditSummary(
            "inconclusive",
            "No shortcut was found, but these examples cannot rule one out.",
            clean_name(audit.gaps[0], MAX_SENTENCE),
            f"{format_count(n_tests, 'test')} of use found nothing. This is neither a good nor a bad sign.",
            " ".join(clean_name(gap, MAX_SENTENCE) for gap in audit.gaps[1:])
            or "Add held-out examples in which the suspected shortcut does not hold, and attributes if you know them.",
        )
    return AuditSummary(
        "inconclusive",
        "This audit is inconclusive.",
        "No test of use was possible with these examples." if audit.findings else "No test was run.",
        "This is neither a good nor a bad sign.",
        "Add more held-out examples, including misclassified ones, and attributes if you know them.",
    )


def _end_sentence(text: str) -> str:
    text = clean_name(text, MAX_SENTENCE)
    return text if text.endswith((".", "!", "?", "…")) or not text else f"{text}."


def _format_chance(p: float) -> str:
    if p < 0.001:
        return "in fewer than 1 of 1,000 cases"
    if p < 0.01:
        return "in fewer than 1 of 100 cases"
    return "nearly always" if p > 0.99 else f"in about {round(100 * p)} of 100 cases"


def _finding(finding: Finding, confirmed: bool) -> dict[str, Any]:
    keys = ("audit", "title", "severity", "flagged", "p", "because", "remedy", "shows_use", "doubt", "shortcut")
    fields = {key: getattr(finding, key) for key in keys}
    return fields | {"confirmed": confirmed, "numbers": finding.numbers, "rows": finding.rows}


def _suspect(suspect: Suspect) -> dict[str, Any]:
    return {key: getattr(suspect, key) for key in (*COLUMNS, "text")}


def _csv_cell(value: object) -> str:
    """Return a value as text that a spreadsheet does not evaluate."""
    if value is None:
        return ""
    return escape_formula(value) if isinstance(value, str) else json.dumps(_plain(value))


def _plain(value: object) -> Any:
    """Return a value for JSON; NaN and infinities become null, and objects of other types their text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return str(value)


MAX_CARD_TEXT = 2000
MAX_ROWS = 12  # row numbers of a finding
FLAGGED = ("confirmed", "unsure", "present")  # states of findings that a page shows open


def audit_context(audit: Audit, number: int) -> dict[str, Any]:
    """Return the template context of an audit: verdict, counts, flagged findings with evidence, and the others."""
    cards = finding_cards(audit, set(), f"audit-{number}-finding")
    flagged = [card for card in cards if card["state"] in FLAGGED]
    return {
        "id": f"audit-{number}",
        "title": audit_title(audit.facts),
        "summary": summarize_audit(audit),
        "stats": audit_stats(audit),
        "cards": flagged,
        "others": [card for card in cards if card not in flagged],
        "charts": [part for card in flagged for part in card["parts"] if part["kind"] == "chart"],
        "limits": [clean_name(limit, MAX_CARD_TEXT) for limit in audit.limits],
    }


def finding_cards(audit: Audit, linked_rows: set[int], prefix: str = "finding") -> list[dict[str, Any]]:
    """Return the template context of each finding; ``linked_rows`` are the examples that the page shows."""
    cards = []
    for number, finding in enumerate(sort_findings(audit)):
        state = finding_state(finding, audit)
        card: dict[str, Any] = {
            "state_label": STATES[state],
            "title": clean_name(finding.title, 300),
            "because": clean_name(f"{finding.because} {finding.doubt}".strip(), MAX_CARD_TEXT),
            "remedy": clean_name(finding.remedy, MAX_CARD_TEXT),
            "shortcut": clean_name(finding.shortcut, 120) if finding.shortcut else "",
            "rows": [(row, row in linked_rows) for row in finding.rows[:MAX_ROWS]],
            "numbers": [(format_key(key), format_number(value)) for key, value in finding.numbers.items()],
            "parts": section_contexts([Section("", "", finding.items)])[0]["parts"],
        }
        card |= {"id": f"{prefix}-{number}", "state": state, "meaning": STATE_MEANINGS[state]}
        card |= {"severity": f"{finding.severity:.2f}", "width": round(100 * finding.severity, 1)}
        card |= {"audit": clean_name(finding.audit), "chance": describe_p(finding.p)}
        cards.append(card | {"more": max(0, len(finding.rows) - MAX_ROWS)})
    return cards


def sort_findings(audit: Audit) -> list[Finding]:
    """Return the findings by state and severity."""
    order = list(STATES)
    return sorted(audit.findings, key=lambda finding: (order.index(finding_state(finding, audit)), -finding.severity))


def audit_stats(audit: Audit) -> list[tuple[str, str, str]]:
    """Return counts: a label, a number and an explanation."""
    n_tests = sum(finding.p is not None for finding in audit.findings)
    n_inconclusive = sum(finding_state(finding, audit) == "inconclusive" for finding in audit.findings)
    stats = [
        *_accuracy_stats(audit.health),
        ("Tests", f"{n_tests:,}", f"{n_inconclusive} were not possible" if n_inconclusive else "all were possible"),
        ("Flagged", f"{len(audit.flagged):,}", f"significant at level {format_number(audit.level)}"),
        ("Use confirmed", f"{len(audit.confirmed):,}", "after correction for the number of tests"),
    ]
    suspected = ("Suspected minority", f"{count_suspected(audit):,}", "examples that probably contradict the shortcut")
    return [*stats, suspected] if audit.suspects else stats


def _accuracy_stats(health: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the accuracy with its interval, and that of the worst group, or else of the worst class."""
    accuracy = health.get("accuracy") or {}
    if accuracy.get("value") is None:
        return []
    note = f"{100 * accuracy['low']:.1f} to {100 * accuracy['high']:.1f} % (95 % interval)"
    classes = [row for row in health.get("classes", ()) if row["recall"] is not None]
    worst = health.get("worst_group")
    if worst is not None and worst["value"] is not None:
        group = f"worst group “{clean_name(worst['name'])}”: {format_percent(worst['value'])} of {worst['count']:,}"
        note = f"{note}; {group}"
    elif classes:
        lowest = min(classes, key=lambda row: row["recall"])
        name, recall = clean_name(lowest["label"]), format_percent(lowest["recall"])
        note = f"{note}; worst class “{name}”: {recall} of {lowest['count']:,}"
    return [("Accuracy", format_percent(accuracy["value"]), note)]


def count_suspected(audit: Audit) -> int:
    """Count the suspected examples."""
    return sum(suspect.suspected for suspect in audit.suspects)


def audit_title(facts: Mapping[str, Any]) -> str:
    """Return the title of a page about an audit, from its model and its data."""
    model, data = (display_name(facts.get(key)) for key in ("model", "data"))
    return clean_name(f"Audit{f' of {model}' if model else ''}{f' on {data}' if data else ''}", 120)


def display_name(fact: object) -> str:
    """Return the name of a model or dataset; of a path, its last part."""
    text = fact.get("name") if isinstance(fact, Mapping) else fact
    return clean_name(Path(text).name if text.startswith("/") else text, 50) if isinstance(text, str) else ""


def format_key(key: str) -> str:
    """Format the name of a number as a title."""
    title = clean_name(key).replace("_", " ")
    return title[:1].upper() + title[1:]


DERIVED_FIELDS = ("confirmed", "proven")
"""Fields of a finding that are computed from all findings; ``proven`` is the name in older files."""


def read_audit(path: Path | str) -> Audit:
    """Read an audit that ``write_json`` wrote or ``spurless audit --json`` printed.

    Raises:
        InputError: the file cannot be read, or does not contain an audit of this version.
    """
    check_arguments(read_audit, locals())
    return _parse_audit(_read_json(path), path)


def read_audits(path: Path | str) -> list[Audit]:
    """Read the audit of a file, or those before and after from a file of ``spurless fix``.

    If the old model was kept, there is one. The accuracies of groups and of all examples are those of the test split,
    because the repair may have learned from the audited examples.

    Raises:
        InputError: the file cannot be read, or contains neither an audit nor a repair of this version.
    """
    check_arguments(read_audits, locals())
    content = _read_json(path)
    if not isinstance(content, dict) or "audit_before" not in content:
        return [_parse_audit(content, path)]
    return [_parse_repair(content, key, path) for key in ("before", "after") if content.get(f"audit_{key}") is not None]


def _read_json(path: Path | str) -> Any:
    check_not_pipe(path)
    try:
        return json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise _error(path, "no such file") from None
    except (OSError, ValueError, RecursionError):
        raise _error(path, "the audit cannot be read") from None


def _parse_repair(content: Mapping[str, Any], key: str, path: Path | str) -> Audit:
    """Return the audit before or after a repair, with the accuracies of the test split."""
    audit = _parse_audit(content[f"audit_{key}"], path)
    record = Record.from_json(json.dumps(content.get(key)), f"{path}, {key!r}")
    facts = {"accuracy": record.metrics.get("average"), "examples": count_test_examples(record)}
    groups = tuple(row for row in record.groups if row.count and row.accuracy is not None)
    return replace(audit, groups=groups, facts={**audit.facts, **facts, ACCURACIES: "the test split"})


def _parse_audit(content: Any, path: Path | str) -> Audit:
    """Return the audit in the content of a file."""
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or "verdict" not in content:
        raise _error(path, "this is not an audit of this version")
    try:
        findings = tuple(_read_finding(row) for row in content["findings"])
        suspects = tuple(Suspect(**row) for row in content["suspects"])
        limits, level = tuple(map(str, content["limits"])), float(content["level"])
        gaps = tuple(map(str, content.get("gaps", ())))
        groups = tuple(_read_group(row) for row in content.get("groups", ()))
        facts, health = dict(content["facts"]), dict(content.get("health", {}))
        return Audit(findings, suspects, facts, limits, level, content.get("guesses"), gaps, groups, health=health)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _error(path, f"the audit is incomplete: {error}") from None


def _read_finding(row: Mapping[str, Any]) -> Finding:
    """Return a finding; ``confirmed`` is derived from all findings, and null numbers are left out."""
    fields = {key: value for key, value in row.items() if key not in DERIVED_FIELDS}
    fields["numbers"] = {key: value for key, value in fields["numbers"].items() if value is not None}
    return Finding(**fields | {"rows": tuple(fields["rows"])})


def _read_group(row: Mapping[str, Any]) -> GroupRow:
    """Return the accuracy of a group that has examples."""
    group = GroupRow(**row)
    fractions = (group.accuracy, group.low, group.high)
    is_valid = all(isinstance(value, int | float) and 0 <= value <= 1 for value in fractions)
    if not is_valid or not isinstance(group.name, str) or type(group.count) is not int or group.count < 1:
        raise ValueError("the accuracy of a group is not valid")
    return group


def _error(path: Path | str, what: str) -> InputError:
    return InputError(what, where=path, expected="the JSON file that spurless audit writes next to its page")
