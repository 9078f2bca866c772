"""Write an audit as Markdown: a model card with Hugging Face front matter, or a summary of one page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spurless.core.arguments import check_arguments
from spurless.core.files import replace_text
from spurless.core.findings import Audit
from spurless.core.records import GroupRow
from spurless.reporting.audit_text import (
    ACCURACIES,
    STATES,
    display_name,
    finding_state,
    format_key,
    sort_findings,
    summarize_audit,
)
from spurless.reporting.comparison import average_row, compare
from spurless.reporting.format import clean_name, format_number, format_percent, join_words

LICENSE_NOTE = "# license: not stated; add the identifier of the license of this model"
TO_ADD = (
    "An audit knows nothing about the license, the intended use, the training data and the people affected. Add them "
    "before you publish this model."
)
USED = ("data", "part", ACCURACIES, "examples", "labels", "attributes", "permutations", "level", "seed", "versions")
"""facts that a card lists"""
MAX_GROUPS, MAX_GROUPS_BRIEF = 50, 5
MAX_FINDINGS_BRIEF = 3
MAX_TEXT, MAX_TEXT_BRIEF = 2000, 300
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#&~$!])")


def write_card(
    path: Path | str, audit: Audit, *, before: Audit | None = None, brief: bool = False, license: str = ""
) -> Path:
    """Write :func:`card_text` and return its path; the file is written completely or not at all."""
    check_arguments(write_card, locals())
    return replace_text(path, card_text(audit, before=before, brief=brief, license=license))


def card_text(audit: Audit, *, before: Audit | None = None, brief: bool = False, license: str = "") -> str:
    """Return an audit as Markdown; the same audit gives the same text.

    Args:
        audit: the audit of the model.
        before: the audit of the old model, if this one was repaired; what changed is described.
        brief: write a summary of one page without front matter, instead of a model card.
        license: identifier of the model's license for the front matter; by default a comment reminds of it.
    """
    check_arguments(card_text, locals())
    name = display_name(audit.facts.get("model")) or "Model"
    parts = _brief_parts(audit, before, name) if brief else _card_parts(audit, before, name)
    front = "" if brief else _front_matter(audit, name, license)
    return front + "\n\n".join(filter(None, parts)) + "\n"


def escape_markdown(text: object, limit: int = 160) -> str:
    r"""Return a text on one line in which nothing is Markdown or HTML.

    Example:
        >>> print(escape_markdown("a|b <i>*c*"))
        a\|b \<i\>\*c\*
    """
    return _SPECIAL.sub(r"\\\1", clean_name(text, limit))


def _card_parts(audit: Audit, before: Audit | None, name: str) -> list[str]:
    summary = summarize_audit(audit)
    verdict = [summary.headline, summary.what, summary.certainty, summary.next_step]
    return [
        f"# {escape_markdown(name)}",
        "## Shortcuts",
        "\n\n".join(escape_markdown(line, MAX_TEXT) for line in verdict if line),
        "## Accuracy",
        _describe_accuracy(audit),
        _group_table(audit, MAX_GROUPS),
        "## Findings",
        _finding_table(audit),
        _list([f"{f.audit}: {f.title}. {f.because} {f.doubt} {f.remedy}" for f in audit.flagged]),
        *_repair_parts(audit, before),
        "## What was used",
        _list([f"{format_key(key)}: {_format_fact(audit.facts[key])}" for key in USED if key in audit.facts]),
        "## Limits",
        _list([*audit.gaps, *audit.limits, TO_ADD]),
        "This card was written by Spurless from an audit on held-out examples.",
    ]


def _brief_parts(audit: Audit, before: Audit | None, name: str) -> list[str]:
    summary = summarize_audit(audit)
    data = display_name(audit.facts.get("data"))
    changes = compare(before, audit).summary if before is not None else ()
    findings = [f"{f.title} ({STATES[finding_state(f, audit)].lower()})" for f in sort_findings(audit) if f.flagged]
    limits = [*audit.gaps[:1], *audit.limits[:2]]
    return [
        f"# {escape_markdown(name)}{f' on {escape_markdown(data)}' if data else ''}: summary",
        f"**{escape_markdown(summary.headline, MAX_TEXT_BRIEF)}**",
        escape_markdown(summary.what, MAX_TEXT_BRIEF),
        escape_markdown(summary.certainty, MAX_TEXT_BRIEF),
        "## Accuracy",
        _describe_accuracy(audit),
        _group_table(audit, MAX_GROUPS_BRIEF),
        "## What was found" if findings else "",
        _list(findings[:MAX_FINDINGS_BRIEF], MAX_TEXT_BRIEF),
        "## What the repair changed" if changes else "",
        _list(changes, MAX_TEXT_BRIEF),
        "## What to do next",
        escape_markdown(summary.next_step, MAX_TEXT_BRIEF),
        "## What this does not show",
        _list(limits, MAX_TEXT_BRIEF),
    ]


def _front_matter(audit: Audit, name: str, license: str) -> str:
    """Return the YAML that Hugging Face reads; every text is a JSON string, which is also YAML."""
    metrics = []
    for title, row in (("Accuracy", average_row(audit)), ("Accuracy of the worst group", audit.worst_group)):
        if row is not None:
            detail = "" if title == "Accuracy" else f": {row.name}"
            metrics.append({"type": "accuracy", "name": f"{title}{detail}", "value": round(row.accuracy or 0.0, 4)})
    dataset = display_name(audit.facts.get("data")) or "not stated"
    result = {"task": {"type": "other", "name": "classification"}}
    result |= {"dataset": {"type": "other", "name": dataset}}
    lines = [
        "---",
        f"license: {_to_yaml(license)}" if license else LICENSE_NOTE,
        f"tags: {_to_yaml(['spurless', 'shortcut-learning'])}",
        f"metrics: {_to_yaml(['accuracy'])}",
        *(
            [f"model-index: {_to_yaml([{'name': name, 'results': [result | {'metrics': metrics}]}])}"]
            if metrics
            else []
        ),
        "---",
    ]
    return "\n".join(lines) + "\n\n"


def _to_yaml(value: Any) -> str:
    return json.dumps(_printable(value), ensure_ascii=False)


def _printable(value: Any) -> Any:
    """Return a value with texts that YAML accepts: one line, without characters that it forbids."""
    if isinstance(value, str):
        return "".join(c for c in clean_name(value, 120) if c.isprintable())
    if isinstance(value, Mapping):
        return {key: _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value


def _describe_accuracy(audit: Audit) -> str:
    average, worst = average_row(audit), audit.worst_group
    split = audit.facts.get(ACCURACIES)
    lines = [] if average is None else [f"The accuracy is {_format_row(average)}."]
    if worst is not None:
        lines.append(f"The worst group, “{escape_markdown(worst.name)}”, has {_format_row(worst)}.")
    lines += [f"These are accuracies of {escape_markdown(split)}."] if split and lines else []
    return " ".join(lines) or "This audit contains no accuracies."


def _format_row(row: GroupRow) -> str:
    interval = "" if row.low is None or row.high is None else f", {_format_interval(row)}"
    return f"{format_percent(row.accuracy)} (n = {row.count:,}{interval})"


def _format_interval(row: GroupRow) -> str:
    return f"95 % interval {100 * (row.low or 0.0):.1f} to {format_percent(row.high)}"


def _group_table(audit: Audit, limit: int) -> str:
    """Return a table of the groups, the worst first."""
    rows = sorted(audit.groups, key=lambda row: row.accuracy or 0.0)
    lines = [
        (
            escape_markdown(row.name),
            format_percent(row.accuracy),
            _format_interval(row).removeprefix("95 % interval "),
            f"{row.count:,}",
        )
        for row in rows[:limit]
    ]
    more = f"\n\nThe worst {limit} of {len(rows):,} groups." if len(rows) > limit else ""
    return _table(("Group", "Accuracy", "95 % interval", "Examples"), lines) + more


def _finding_table(audit: Audit) -> str:
    rows = [
        (
            escape_markdown(finding.audit),
            STATES[finding_state(finding, audit)],
            escape_markdown(finding.title),
            f"{finding.severity:.2f}",
            format_number(finding.p),
        )
        for finding in sort_findings(audit)
    ]
    return _table(("Audit", "Result", "Finding", "Severity (0 to 1)", "p"), rows)


def _repair_parts(audit: Audit, before: Audit | None) -> list[str]:
    if before is None:
        return []
    comparison = compare(before, audit)
    return ["## Repair", _list(comparison.summary), _list(comparison.notes)]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) if rows else ""


def _list(texts: Iterable[str], limit: int = MAX_TEXT) -> str:
    return "\n".join(f"* {escape_markdown(text, limit)}" for text in texts)


def _format_fact(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return join_words(list(map(str, value))) or "none" if isinstance(value, list | tuple) else str(value)
