"""Audit page: what an audit found as one self-contained page, and in brief for a notebook."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spurless.core.figures import Section
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.records import Record
from spurless.reporting.arms import number
from spurless.reporting.audit_cards import FLAGGED, audit_stats, audit_title, finding_cards, in_order, spoken, suspected
from spurless.reporting.audit_words import STATES, opinion, state, suspects_csv
from spurless.reporting.charts import before_after as before_after_chart
from spurless.reporting.charts import shown_groups
from spurless.reporting.page import TEMPLATES, embed, fill, house, write_page
from spurless.reporting.sections import shown_picture, shown_sections
from spurless.reporting.summary import Summary, summarise
from spurless.reporting.tables import group_rows, settings
from spurless.reporting.words import duration, listed, name, plain, plural

LARGEST = 8_000_000
"""bytes of a page; pictures that do not fit are left out, and the page says so"""
BLANK = "data:,"
"""in the place of a picture while the page is weighed"""
NOTE = 20_000
"""bytes kept for saying so"""
MOST_SUSPECTS = 240
"""that a page shows; the CSV has all"""
STEP = 24
"""suspects shown at once"""
MOST_CSV = 500_000
"""characters of the list that the page carries for download"""
TEXT = 400
LONG = 2000
TINY = 64
"""pixels; a smaller picture is shown in squares rather than blurred"""
FEW = 12
CAPTION = "Each line runs from the worst group to the average; a short line high up is what a fair model looks like."


def write_audit(
    path: Path | str,
    audit: Audit,
    *,
    title: str | None = None,
    before_after: Sequence[Record] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write one page about an audit and return its path; the file appears whole or not at all.

    Args:
        path: of the page.
        audit: what was found.
        title: of the page; by default what the model and the data are called.
        before_after: records of the model before and after a repair, the one before first; shown as group tables.
        sections: shown after the findings, in their order: text, pictures and charts of your own.

    Raises:
        BadInput: a picture is no PNG, a chart has no data, or the place cannot be written.
    """
    return write_page(path, render_audit(audit, title=title, before_after=before_after, sections=sections))


def render_audit(
    audit: Audit,
    *,
    title: str | None = None,
    before_after: Sequence[Record] = (),
    sections: Sequence[Section] = (),
    story: Mapping[str, Any] | None = None,
) -> str:
    """Return the page as text; the same audit gives the same text. A ``story`` of a repair goes before the audit."""
    from markupsafe import Markup

    suspects = [_suspect(suspect) for suspect in audit.suspects[:MOST_SUSPECTS]]
    cards = finding_cards(audit, {suspect["row"] for suspect in suspects})
    repairs = [_repair(summary) for summary in summarise(before_after)] if before_after else []
    extra = shown_sections(sections)
    parts = [part for card in cards for part in card["parts"]]
    words: dict[str, Any] = {
        "title": name(title, 120) if title else audit_title(audit.facts),
        "opinion": opinion(audit),
        "stats": audit_stats(audit),
        "cards": [card for card in cards if card["state"] in FLAGGED],
        "folded": [card for card in cards if card["state"] not in FLAGGED],
        "suspects": suspects,
        "gallery": _gallery(audit, suspects),
        "list": Markup(embed(_list(audit))),
        "repairs": repairs,
        "story": story or {},
        "facts": [
            ("Time" if key == "seconds" else spoken(key), _fact(key, value)) for key, value in audit.facts.items()
        ],
        "limits": [name(limit, LONG) for limit in audit.limits],
        "own_style": Markup(
            "".join((TEMPLATES / n).read_text(encoding="utf-8") for n in ("findings.css", "audit.css"))
        ),
        "own_script": Markup((TEMPLATES / "audit.js").read_text(encoding="utf-8")),
    }
    charts = [part for part in parts if part["kind"] == "chart"]
    charts += [part for repair in repairs for part in repair["parts"]]
    return _within([part for part in parts if part["kind"] == "picture"], words, charts, extra)


def audit_html(audit: Audit) -> str:
    """Return the verdict and the findings as a short piece of HTML without scripts, for a notebook."""
    findings = in_order(audit)
    text: str = (
        house()
        .get_template("audit_brief.html")
        .render(
            opinion=opinion(audit),
            rows=[_brief(finding, audit) for finding in findings if finding.flagged],
            rest=plural(sum(not finding.flagged for finding in findings), "other question"),
            some=any(not finding.flagged for finding in findings),
            suspects=plural(suspected(audit), "suspected example") if audit.suspects else "",
        )
    )
    return text


def _within(
    evidence: list[dict[str, Any]], words: dict[str, Any], charts: list[dict[str, Any]], extra: list[dict[str, Any]]
) -> str:
    """Fill the page with as many pictures as it may carry, those that are seen first before the others."""
    thumbs = [suspect["picture"] for suspect in words["suspects"] if suspect["picture"]]
    heats = [suspect["heat"] for suspect in words["suspects"] if suspect["heat"]]
    pictures = [*thumbs[:STEP], *evidence, *heats[:STEP], *thumbs[STEP:], *heats[STEP:]]
    sources = [picture["src"] for picture in pictures]
    for picture in pictures:
        picture["src"] = BLANK
    left = LARGEST - NOTE - len(fill("audit.html", charts, extra, left_out="", **words).encode("utf-8", "replace"))
    lost = 0
    for picture, source in zip(pictures, sources, strict=True):
        fits = len(source) <= left
        picture["src"], left, lost = source if fits else "", left - fits * len(source), lost + (not fits)
    return fill("audit.html", charts, extra, left_out=plural(lost, "picture") if lost else "", **words)


def _brief(finding: Finding, audit: Audit) -> dict[str, str]:
    return {
        "title": name(finding.title, 300),
        "word": STATES[state(finding, audit)],
        "severity": f"{finding.severity:.2f}",
        "p": plain(finding.p),
    }


def _suspect(suspect: Suspect) -> dict[str, Any]:
    score = number(suspect.score)
    picture = shown_picture(suspect.picture) if suspect.picture else None
    return {
        "row": suspect.row,
        "label": name(suspect.label),
        "predicted": name(suspect.predicted),
        "wrong": suspect.label != suspect.predicted,
        "score": "n/a" if score is None else f"{score:.2f}",
        "width": round(100 * min(1.0, max(0.0, score or 0.0)), 1),
        "suspected": suspect.suspected,
        "attribute": None if suspect.attribute is None else name(suspect.attribute),
        "file": name(suspect.file, 160) if suspect.file else "",
        "text": name(suspect.text, TEXT) if suspect.text else "",
        "picture": picture,
        "tiny": picture is not None and _width(picture["src"]) <= TINY,
        "heat": shown_picture(suspect.heat) if suspect.heat else None,
        "raw": {"label": suspect.label, "predicted": suspect.predicted},
    }


def _width(source: str) -> int:
    """Return how many pixels wide a picture is, from the head of its PNG."""
    return int.from_bytes(b64decode(source.partition(",")[2][:32])[16:20])


def _gallery(audit: Audit, suspects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the filters offer; a choice is known by its number, so that no name needs to be an attribute."""
    offers = {}
    for key in ("label", "predicted"):
        counts = Counter(suspect["raw"][key] for suspect in suspects)
        numbers = {value: place for place, value in enumerate(counts)}
        offers[key] = [(numbers[value], name(value, 40), f"{count:,}") for value, count in counts.items()]
        for suspect in suspects:
            suspect[f"{key}_number"] = numbers[suspect["raw"][key]]
    return {
        "offers": offers,
        "step": STEP,
        "count": len(suspects),
        "hidden": len(audit.suspects) - len(suspects),
        "suspected": sum(suspect["suspected"] for suspect in suspects),
        "kind": "pictures" if any(suspect["picture"] for suspect in suspects) else "texts",
        "heat": any(suspect["heat"] for suspect in suspects),
    }


def _list(audit: Audit) -> str:
    """Return the list for download; a very long one is left to :func:`write_suspects`."""
    text = suspects_csv(audit) if audit.suspects else ""
    return text if len(text) <= MOST_CSV else ""


def _repair(summary: Summary) -> dict[str, Any]:
    """Return the group table of one study, and the chart above it."""
    study, chart = summary.study, before_after_chart(summary.study)
    part = {"kind": "chart", "title": "Worst group and average", "caption": CAPTION}
    return {
        "name": name(study.name),
        "headline": summary.headline,
        "arms": [name(arm.name) for arm in study.arms],
        "rows": group_rows(study, shown_groups(study)),
        "parts": [part | {"alt": chart.alt, "height": chart.height, "spec": chart.spec}] if chart else [],
    }


def _fact(key: str, value: object) -> str:
    if key == "seconds":
        return (
            settings({k: duration(v) for k, v in value.items()})
            if isinstance(value, Mapping)
            else duration(number(value))
        )
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if key == "notes" and isinstance(value, list | tuple):  # sentences
        return " ".join(name(note, LONG) for note in value)
    if isinstance(value, list | tuple):
        more = [f"{len(value) - FEW:,} more"] if len(value) > FEW else []
        return listed([*(name(v, 40) for v in value[:FEW]), *more]) or "none"
    return settings(value)
