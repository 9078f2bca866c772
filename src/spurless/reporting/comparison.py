"""Compare two audits: two models, two versions, or a model before and after a repair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from spurless.core.arguments import check_arguments
from spurless.core.figures import Figure, Section
from spurless.core.files import replace_text
from spurless.core.findings import Audit, Finding
from spurless.core.records import GroupRow
from spurless.core.stats import newcombe_interval, wilson_interval
from spurless.reporting.aggregate import finite_number
from spurless.reporting.audit_text import ACCURACIES, STATES, State, audit_title, finding_state, summarize_audit
from spurless.reporting.format import (
    MISSING,
    clean_name,
    format_change,
    format_count,
    format_number,
    format_percent,
    join_words,
)
from spurless.reporting.page import fill_template
from spurless.reporting.sections import section_contexts

SCHEMA = 1
KIND = "comparison of audits"
Outcome = Literal["gained", "lost", "same", "unknown"]
OUTCOMES: Mapping[Outcome, str] = {
    "gained": "gained",
    "lost": "lost",
    "same": "no clear change",
    "unknown": "cannot be compared",
}
UNPAIRED = (
    "Differences are unpaired: these files contain no predictions, so the examples of the two audits count as "
    "independent samples. If the examples are the same, a paired comparison would usually give narrower intervals."
)
NOT_CORRECTED = (
    "Each interval covers one difference at 95 %. Of 20 groups that do not change, about one is listed as gained or "
    "lost by chance."
)
FACTS = {"data": "data", "part": "split", "examples": "number of examples", "labels": "classes"}
"""facts that differ if the audits are not of the same examples, with their names"""
MAX_BARS = 20  # groups in the chart
MAX_NAMES = 5  # groups in a sentence


@dataclass(frozen=True)
class AccuracyChange:
    """The accuracy of a group in both audits, and the 95 % interval of the difference; None if it is in one only."""

    name: str
    before: GroupRow | None
    after: GroupRow | None
    low: float | None
    high: float | None

    @property
    def difference(self) -> float | None:
        """The accuracy after minus the accuracy before."""
        if self.before is None or self.after is None:
            return None
        return (self.after.accuracy or 0.0) - (self.before.accuracy or 0.0)

    @property
    def outcome(self) -> Outcome:
        """Whether the interval excludes 0, and on which side."""
        if self.low is None or self.high is None:
            return "unknown"
        return "gained" if self.low > 0 else "lost" if self.high < 0 else "same"


@dataclass(frozen=True)
class FindingChange:
    """The finding of one audit in both; None where it did not run."""

    audit: str
    before: Finding | None
    after: Finding | None
    states: tuple[State | None, State | None]

    @property
    def outcome(self) -> Outcome:
        """``gained`` if a flag is gone after a test, ``lost`` if it is new, ``unknown`` if one was not tested."""
        known = [finding is not None and (finding.p is not None or finding.flagged) for finding in self._pair]
        if not all(known):
            return "unknown"
        old, new = (finding is not None and finding.flagged for finding in self._pair)
        return "same" if old == new else "gained" if old else "lost"

    @property
    def _pair(self) -> tuple[Finding | None, Finding | None]:
        return self.before, self.after


@dataclass(frozen=True)
class AuditComparison:
    """Two audits: what changes from the first to the second."""

    before: Audit
    after: Audit
    average: AccuracyChange
    groups: tuple[AccuracyChange, ...]  # the largest losses first
    findings: tuple[FindingChange, ...]  # lost and gained ones first
    notes: tuple[str, ...]  # what limits the comparison, a sentence each

    @property
    def summary(self) -> tuple[str, ...]:
        """What changed, in sentences, the verdict first."""
        old, new = self.before.verdict, self.after.verdict
        verdict = f"The verdict stays “{new}”." if old == new else f"The verdict changes from “{old}” to “{new}”."
        return verdict, *filter(None, (_describe(self, "gained"), _describe(self, "lost"), _describe_worst(self)))


def compare(before: Audit, after: Audit) -> AuditComparison:
    """Compare two audits: findings by the name of the audit, accuracies by the name of the group.

    Args:
        before: the first audit, such as that of the old model.
        after: the second audit.
    """
    check_arguments(compare, locals())
    rows = [{row.name: row for row in audit.groups} for audit in (before, after)]
    groups = [_compare_rows(name, *(part.get(name) for part in rows)) for name in dict.fromkeys([*rows[0], *rows[1]])]
    order: list[Outcome] = ["lost", "gained", "same", "unknown"]
    findings = _compare_findings(before, after)
    return AuditComparison(
        before,
        after,
        _compare_rows("all examples", *map(average_row, (before, after))),
        tuple(sorted(groups, key=lambda row: (row.difference is None, row.difference or 0.0))),
        tuple(sorted(findings, key=lambda change: order.index(change.outcome))),
        _list_notes(before, after),
    )


def comparison_json(comparison: AuditComparison) -> str:
    """Return the comparison as JSON: always the same keys, and null for what is unknown."""
    check_arguments(comparison_json, locals())
    content = {
        "schema": SCHEMA,
        "kind": KIND,
        "verdicts": [comparison.before.verdict, comparison.after.verdict],
        "summary": comparison.summary,
        "average": _change_json(comparison.average),
        "groups": [_change_json(change) for change in comparison.groups],
        "findings": [
            {"audit": change.audit, "outcome": change.outcome, "states": change.states}
            | {key: _finding_json(getattr(change, key)) for key in ("before", "after")}
            for change in comparison.findings
        ],
        "notes": comparison.notes,
    }
    return json.dumps(content, allow_nan=False, indent=2) + "\n"


def write_comparison_json(path: Path | str, comparison: AuditComparison) -> Path:
    """Write :func:`comparison_json` and return its path; the file is written completely or not at all."""
    check_arguments(write_comparison_json, locals())
    return replace_text(path, comparison_json(comparison), "backslashreplace")


def write_comparison(path: Path | str, comparison: AuditComparison, *, title: str | None = None) -> Path:
    """Write one page about two audits and return its path; the file is written completely or not at all."""
    check_arguments(write_comparison, locals())
    return replace_text(path, render_comparison(comparison, title=title))


def render_comparison(comparison: AuditComparison, *, title: str | None = None) -> str:
    """Return the page as HTML; the same comparison gives the same text."""
    audits = (comparison.before, comparison.after)
    return fill_template(
        "comparison.html",
        [],
        section_contexts(_draw_groups(comparison)),
        title=clean_name(title, 120) if title else "Comparison of two audits",
        summary=comparison.summary,
        models=[audit_title(audit.facts) for audit in audits],
        headlines=[summarize_audit(audit).headline for audit in audits],
        accuracies=[
            {"name": clean_name(row.name), "cells": accuracy_cells(row), "outcome": row.outcome}
            for row in (comparison.average, *comparison.groups)
        ],
        findings=[
            {"name": clean_name(row.audit), "cells": finding_cells(row), "outcome": row.outcome}
            for row in comparison.findings
        ],
        outcomes=OUTCOMES,
        notes=comparison.notes,
    )


def accuracy_cells(change: AccuracyChange) -> tuple[tuple[str, str], tuple[str, str], tuple[str, str]]:
    """Return the accuracy before and after and the difference, each with its interval."""
    before, after = (
        (MISSING, "") if row is None else (format_percent(row.accuracy), f"{_format_interval(row)}, n = {row.count:,}")
        for row in (change.before, change.after)
    )
    if change.difference is None:
        return before, after, (MISSING, "")
    low, high = (format_change(None if end is None else 100 * end) for end in (change.low, change.high))
    return before, after, (format_change(100 * change.difference), f"{low.removesuffix(' points')} to {high}")


def finding_cells(change: FindingChange) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return state and severity in both audits, each with the title of the finding."""
    before, after = (
        (MISSING, "not run") if finding is None or state is None else (STATES[state], _describe_finding(finding))
        for finding, state in zip((change.before, change.after), change.states, strict=True)
    )
    return before, after


def _describe_finding(finding: Finding) -> str:
    p = "" if finding.p is None else f", p = {format_number(finding.p)}"
    return f"{clean_name(finding.title, 160)} (severity {finding.severity:.2f}{p})"


def _format_interval(row: GroupRow) -> str:
    return MISSING if row.low is None or row.high is None else f"{100 * row.low:.1f} to {format_percent(row.high)}"


def _compare_rows(name: str, before: GroupRow | None, after: GroupRow | None) -> AccuracyChange:
    if before is None or after is None:
        return AccuracyChange(name, before, after, None, None)
    new, old = ((round((row.accuracy or 0.0) * row.count), row.count) for row in (after, before))
    return AccuracyChange(name, before, after, *newcombe_interval(new, old))


def average_row(audit: Audit) -> GroupRow | None:
    """Return the accuracy of all examples, from the facts of the audit; None if they are missing."""
    accuracy, count = finite_number(audit.facts.get("accuracy")), audit.facts.get("examples")
    if accuracy is None or not 0 <= accuracy <= 1 or type(count) is not int or count < 1:
        return None
    return GroupRow("all examples", count, accuracy, *wilson_interval(accuracy, count))


def _compare_findings(before: Audit, after: Audit) -> list[FindingChange]:
    audits = (before, after)
    findings = [{finding.audit: finding for finding in audit.findings} for audit in audits]
    changes = []
    for name in dict.fromkeys([*findings[0], *findings[1]]):
        pair = [part.get(name) for part in findings]
        states = [None if f is None else finding_state(f, audit) for f, audit in zip(pair, audits, strict=True)]
        changes.append(FindingChange(name, pair[0], pair[1], (states[0], states[1])))
    return changes


def _list_notes(before: Audit, after: Audit) -> tuple[str, ...]:
    """Return what limits the comparison; ``UNPAIRED`` always does."""
    differing = [name for key, name in FACTS.items() if before.facts.get(key) != after.facts.get(key)]
    measured = {audit.facts.get(ACCURACIES) for audit in (before, after)} - {None}
    notes = [f"Accuracies are of {clean_name(split)}, findings of validation." for split in measured]
    notes += [clean_name(limit, 600) for limit in after.limits if limit not in before.limits]
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        notes.append(f"The examples are not the same: {join_words(differing)} {verb}. Differences may be of the data.")
    if not before.groups or not after.groups:
        notes.append("An audit of an older version contains no accuracies of groups; audit that model again.")
    elif {row.name for row in before.groups} != {row.name for row in after.groups}:
        notes.append("The audits have different groups; those in one only cannot be compared.")
    if before.level != after.level:
        notes.append(f"The significance levels differ: {before.level:g} and {after.level:g}.")
    return *notes, UNPAIRED, NOT_CORRECTED


def _describe(comparison: AuditComparison, outcome: Outcome) -> str:
    """Return a sentence on what is gained or lost; empty if nothing is."""
    findings = [clean_name(change.audit) for change in comparison.findings if change.outcome == outcome]
    groups = [f"“{clean_name(row.name)}”" for row in comparison.groups if row.outcome == outcome]
    word = "gone" if outcome == "gained" else "new"
    parts = [f"{format_count(len(findings), 'flag')} {word} ({join_words(findings)})"] if findings else []
    if groups:
        more = f" and {len(groups) - MAX_NAMES} more" if len(groups) > MAX_NAMES else ""
        direction = "higher" if outcome == "gained" else "lower"
        noun = format_count(len(groups), "group")
        parts.append(f"{direction} accuracy of {noun} ({', '.join(groups[:MAX_NAMES])}{more})")
    return f"{outcome.capitalize()}: {'; '.join(parts)}." if parts else ""


def _describe_worst(comparison: AuditComparison) -> str:
    """Return a sentence on the worst group of each audit; a difference of two minima has no simple interval."""
    rows = (comparison.before.worst_group, comparison.after.worst_group)
    texts = [f"{format_percent(row.accuracy)} (“{clean_name(row.name)}”, n = {row.count:,})" for row in rows if row]
    return f"Worst group: {texts[0]} before, {texts[1]} after." if len(texts) == 2 else ""


def _change_json(change: AccuracyChange) -> dict[str, Any]:
    sides = {key: None if row is None else asdict(row) for key, row in _sides(change).items()}
    numbers = {"difference": change.difference, "low": change.low, "high": change.high}
    return {"name": change.name, "outcome": change.outcome, **sides, **numbers}


def _sides(change: AccuracyChange) -> dict[str, GroupRow | None]:
    return {"before": change.before, "after": change.after}


def _finding_json(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None:
        return None
    return {key: getattr(finding, key) for key in ("title", "severity", "flagged", "p", "shortcut")}


def _draw_groups(comparison: AuditComparison) -> list[Section]:
    """Return a chart of the accuracy of the groups in both audits; none without common groups."""
    rows = [row for row in comparison.groups if row.before is not None and row.after is not None][:MAX_BARS]
    if not rows:
        return []
    names = [clean_name(row.name) for row in rows]
    data = []
    for model, color, symbol in (("before", "@bad", "circle"), ("after", "@series1", "diamond")):
        sides = [side for row in rows if (side := _sides(row)[model]) is not None]
        x = [100 * (side.accuracy or 0.0) for side in sides]
        error = {"type": "data", "symmetric": False, "thickness": 1.5}
        error |= {"array": [100 * (side.high or 0.0) - value for side, value in zip(sides, x, strict=True)]}
        error |= {"arrayminus": [value - 100 * (side.low or 0.0) for side, value in zip(sides, x, strict=True)]}
        marker = {"color": color, "symbol": symbol, "size": 9}
        data.append({"type": "scatter", "mode": "markers", "name": model, "x": x, "y": names, "marker": marker})
        data[-1]["error_x"] = error | {"color": color}
    layout = {
        "xaxis": {"title": {"text": "accuracy in %"}, "range": [-3, 103]},
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True},
        "scattermode": "group",
    }
    alt = "; ".join(f"{row.name}: {' then '.join(cell[0] for cell in accuracy_cells(row)[:2])}" for row in rows)
    caption = f"95 % Wilson intervals. {len(rows)} of {len(comparison.groups)} groups, the largest losses first."
    figure = Figure("Accuracy of each group", caption, {"data": data, "layout": layout}, alt, 140 + 36 * len(rows))
    return [Section("Groups in a chart", "", (figure,))]
