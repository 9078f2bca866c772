"""Audit words: what an audit says, in sentences for people, as JSON and CSV for machines and spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal

from spurless.core.files import replace_file
from spurless.core.findings import Audit, Finding, Suspect, Verdict
from spurless.reporting.words import name, plain, plural

SCHEMA = 1
COLUMNS = ("row", "file", "label", "predicted", "attribute", "score", "suspected")
FORMULA = "=+-@＝＋－＠"  # noqa: RUF001 - the wide signs start a formula as well
"""what a spreadsheet takes for the start of a formula"""
BREAKS = "\t\r\n"
"""what it may drop, and then read on"""

State = Literal["shown", "unsure", "present", "small", "chance", "unasked"]
STATES: Mapping[State, str] = {
    "shown": "Use shown",
    "unsure": "Worth a look",
    "present": "Present, use not shown",
    "small": "Too small to matter",
    "chance": "No more than chance",
    "unasked": "Could not be asked",
}
"""in the order in which they are shown"""
MEANING: Mapping[State, str] = {
    "shown": "The model uses it: more than chance, even though so many questions were asked.",
    "unsure": "More than chance alone, but not once all questions are counted.",
    "present": "It is in the data, or a class is hard; this does not show that the model uses it.",
    "small": "More than chance, and smaller than what matters in practice.",
    "chance": "Nothing that chance would not give.",
    "unasked": "These examples cannot answer it.",
}
LONG = 600


@dataclass(frozen=True)
class Opinion:
    """The verdict in plain words: one headline, then what was found, how sure that is, and what to do next."""

    kind: Verdict
    headline: str
    what: str
    sure: str
    then: str


def opinion(audit: Audit) -> Opinion:
    """Return the verdict of an audit in plain words."""
    if audit.verdict == "leans":
        return _leans(audit)
    if audit.verdict == "look":
        return _look(audit)
    if audit.verdict == "unasked":
        return _unasked(audit)
    return _none(sum(finding.shows_use and finding.p is not None for finding in audit.findings))


def state(finding: Finding, audit: Audit) -> State:
    """Return what may be said of a finding, given all that were asked; see ``STATES`` for the words."""
    if finding.flagged:
        if not finding.shows_use:
            return "present"
        return "shown" if any(proven is finding for proven in audit.proven) else "unsure"
    if finding.p is None:
        return "unasked"
    return "small" if finding.p <= audit.level else "chance"


def chance(p: float | None) -> str:
    """Say a p in words.

    Example:
        >>> chance(0.002)
        'Chance alone would do so in fewer than 1 of 100 (p = 0.002).'
        >>> chance(0.034)
        'Chance alone would do so in about 3 of 100 (p = 0.034).'
    """
    if p is None or math.isnan(p):
        return "There was nothing to compare with chance."
    return f"Chance alone would do so {_how_often(p)} (p = {plain(p)})."


def audit_json(audit: Audit) -> str:
    """Return everything but the pictures as JSON: the same keys each time, and null where there is no number."""
    proven = audit.proven
    found = {
        "schema": SCHEMA,
        "verdict": audit.verdict,
        "headline": opinion(audit).headline,
        "level": audit.level,
        "guesses": audit.guesses,
        "findings": [_finding(finding, any(p is finding for p in proven)) for finding in audit.findings],
        "suspects": [_suspect(suspect) for suspect in audit.suspects],
        "facts": audit.facts,
        "limits": audit.limits,
    }
    return json.dumps(_plain(found), allow_nan=False, indent=2) + "\n"


def write_json(path: Path | str, audit: Audit) -> Path:
    """Write :func:`audit_json` and return its path; the file appears whole or not at all.

    Raises:
        BadInput: the place cannot be written.
    """
    return _write(path, audit_json(audit))


def write_suspects(path: Path | str, audit: Audit) -> Path:
    """Write the suspected minority as CSV, the most suspected first; the file appears whole or not at all.

    A spreadsheet runs a cell that begins with one of ``= + - @``, so that a text of that kind gets an apostrophe in
    front, file names too; a program that needs them as they are reads :func:`audit_json`.

    Raises:
        BadInput: the place cannot be written.
    """
    return _write(path, suspects_csv(audit))


def suspects_csv(audit: Audit) -> str:
    """Return what :func:`write_suspects` writes."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)  # its own line ends: with others, a lone \r in a name would begin a row
    writer.writerow(COLUMNS)
    for suspect in audit.suspects:
        row = _suspect(suspect)
        writer.writerow([_cell(row[column]) for column in COLUMNS])
    return text.getvalue()


def _leans(audit: Audit) -> Opinion:
    first, *others = audit.proven
    use = [finding for finding in audit.findings if finding.shows_use and finding.p is not None]
    named = f": “{name(first.shortcut, 80)}”" if first.shortcut else ""
    also = f" {plural(len(others), 'other question')} found use as well." if others else ""
    corrected = ", counted against all of them together" if len(use) > 1 else ""
    return Opinion(
        "leans",
        f"This model leans on a shortcut{named}.",
        f"{_sentence(first.title)}{also}",
        f"{len(others) + 1} of {plural(len(use), 'question')} about use found more than chance gives{corrected}. "
        f"{chance(first.p)}",
        _sentence(first.remedy),
    )


def _look(audit: Audit) -> Opinion:
    first = max(audit.flagged, key=lambda finding: (finding.shows_use, finding.severity))
    use = sum(finding.shows_use and finding.p is not None for finding in audit.findings)
    if first.shows_use:
        sure = (
            f"Alone it is more than chance, but {plural(use, 'question')} were asked, and one of so many may be luck."
        )
    else:
        sure = "It is in the data, or a class is hard; that the model uses it is not shown."
    return Opinion(
        "look",
        "Something is worth a look; use of a shortcut is not shown.",
        _sentence(first.title),
        f"{sure} {chance(first.p)}",
        _sentence(first.remedy),
    )


def _none(asked: int) -> Opinion:
    return Opinion(
        "none",
        "No sign of a shortcut.",
        f"{plural(asked, 'question')} about use {'was' if asked == 1 else 'were'} asked, and no answer is both more "
        "than chance and large enough to matter.",
        "That is no proof that there is none: an audit finds only what it asks for.",
        "There is nothing to repair. Give attributes where you know them, so that it can ask more.",
    )


def _unasked(audit: Audit) -> Opinion:
    if audit.guesses is not None:
        return Opinion(
            "unasked",
            "This audit cannot tell: the model is no better than guessing.",
            name(audit.guesses, LONG),
            "A model that has learnt nothing has no shortcut to lean on; what is flagged is in the data, or is what it "
            "does not know.",
            "Train it first; or see whether the weights, the order of the classes and the preparation of the inputs "
            "are those of its training.",
        )
    return Opinion(
        "unasked",
        "This audit cannot tell.",
        "No question about use could be answered with these examples." if audit.findings else "No question was asked.",
        "It is neither a good sign nor a bad one.",
        "Give more held-out examples, with mistakes among them, and attributes where you know them.",
    )


def _sentence(text: str) -> str:
    text = name(text, LONG)
    return text if text.endswith((".", "!", "?", "…")) or not text else f"{text}."


def _how_often(p: float) -> str:
    if p < 0.001:
        return "in fewer than 1 of 1,000"
    if p < 0.01:
        return "in fewer than 1 of 100"
    return "nearly always" if p > 0.99 else f"in about {round(100 * p)} of 100"


def _finding(finding: Finding, proven: bool) -> dict[str, Any]:
    keys = ("audit", "title", "severity", "flagged", "p", "because", "remedy", "shows_use", "shortcut")
    found = {key: getattr(finding, key) for key in keys}
    return found | {"proven": proven, "numbers": finding.numbers, "rows": finding.rows}


def _suspect(suspect: Suspect) -> dict[str, Any]:
    return {key: getattr(suspect, key) for key in (*COLUMNS, "text")}


def _cell(value: object) -> str:
    """Write a value so that a spreadsheet shows it, and does nothing else with it."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return json.dumps(_plain(value))
    risky = value[:1] in tuple(BREAKS) or value.lstrip()[:1] in tuple(FORMULA)
    return f"'{value}" if risky else value


def _plain(value: object) -> Any:
    """Return a value as JSON has it; what is no number becomes null, and what is nothing of that becomes its text."""
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


def _write(path: Path | str, text: str) -> Path:
    path, data = Path(path), text.encode("utf-8", "backslashreplace")
    replace_file(path, lambda scratch: scratch.write_bytes(data))
    return path
