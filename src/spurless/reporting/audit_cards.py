"""Audit cards: the verdict and the findings of an audit as a page shows them, its own or that of a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spurless.core.figures import Section
from spurless.core.findings import Audit, Finding
from spurless.reporting.audit_words import MEANING, STATES, chance, opinion, state
from spurless.reporting.sections import shown_sections
from spurless.reporting.words import name, plain

MOST_ROWS = 12
"""row numbers of a finding"""
FLAGGED = ("shown", "unsure", "present")
LONG = 2000


def shown_audit(audit: Audit, number: int) -> dict[str, Any]:
    """Return what a report shows of an audit: verdict, counts, what is flagged with its evidence, and the rest."""
    cards = finding_cards(audit, set(), f"audit-{number}-finding")
    flagged = [card for card in cards if card["state"] in FLAGGED]
    return {
        "id": f"audit-{number}",
        "title": audit_title(audit.facts),
        "opinion": opinion(audit),
        "stats": audit_stats(audit),
        "cards": flagged,
        "others": [card for card in cards if card not in flagged],
        "charts": [part for card in flagged for part in card["parts"] if part["kind"] == "chart"],
        "limits": [name(limit, LONG) for limit in audit.limits],
    }


def finding_cards(audit: Audit, shown: set[int], prefix: str = "finding") -> list[dict[str, Any]]:
    """Return a card for each finding, in order; ``shown`` are the rows of examples that the page has a picture of."""
    found = []
    for place, finding in enumerate(in_order(audit)):
        kind = state(finding, audit)
        found.append(
            {
                "id": f"{prefix}-{place}",
                "state": kind,
                "word": STATES[kind],
                "meaning": MEANING[kind],
                "title": name(finding.title, 300),
                "audit": name(finding.audit),
                "severity": f"{finding.severity:.2f}",
                "width": round(100 * finding.severity, 1),
                "because": name(finding.because, LONG),
                "chance": chance(finding.p),
                "remedy": name(finding.remedy, LONG),
                "shortcut": name(finding.shortcut, 120) if finding.shortcut else "",
                "rows": [(row, row in shown) for row in finding.rows[:MOST_ROWS]],
                "more": max(0, len(finding.rows) - MOST_ROWS),
                "numbers": [(spoken(key), plain(value)) for key, value in finding.numbers.items()],
                "parts": shown_sections([Section("", "", finding.items)])[0]["parts"],
            }
        )
    return found


def in_order(audit: Audit) -> list[Finding]:
    """Return the findings as they are read: what is shown first, the most severe first."""
    order = list(STATES)
    return sorted(audit.findings, key=lambda finding: (order.index(state(finding, audit)), -finding.severity))


def audit_stats(audit: Audit) -> list[tuple[str, str, str]]:
    """Return a few counts: a word, a number and what it means."""
    asked = sum(finding.p is not None for finding in audit.findings)
    unasked = sum(state(finding, audit) == "unasked" for finding in audit.findings)
    stats = [
        ("Questions asked", f"{asked:,}", f"{unasked} could not be answered" if unasked else "all could be answered"),
        ("Flagged", f"{len(audit.flagged):,}", f"more than chance at a level of {plain(audit.level)}"),
        ("Use shown", f"{len(audit.proven):,}", "after counting all the questions together"),
    ]
    if audit.suspects:
        stats.append(("Suspected minority", f"{suspected(audit):,}", "examples that seem to break the shortcut"))
    return stats


def suspected(audit: Audit) -> int:
    """Count the examples that are suspected."""
    return sum(suspect.suspected for suspect in audit.suspects)


def audit_title(facts: Mapping[str, Any]) -> str:
    """Return what a page about an audit is called, by its model and its data."""
    model, data = (called(facts.get(key)) for key in ("model", "data"))
    return name(f"Audit{f' of {model}' if model else ''}{f' on {data}' if data else ''}", 120)


def called(fact: object) -> str:
    """Return what a fact is called, where it is a name or has one."""
    found = fact.get("name") if isinstance(fact, Mapping) else fact
    # a model of one's own is called by its place, of which the end tells most
    return name(Path(found).name if found.startswith("/") else found, 50) if isinstance(found, str) else ""


def spoken(key: str) -> str:
    """Write the name of a number as a person would."""
    words = name(key).replace("_", " ")
    return words[:1].upper() + words[1:]
