"""Write an audit as one self-contained HTML page, or as short HTML for a notebook."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spurless.core.arguments import check_arguments
from spurless.core.figures import Section
from spurless.core.files import replace_text
from spurless.core.findings import Audit, Finding, Suspect
from spurless.core.records import Record
from spurless.reporting.aggregate import finite_number
from spurless.reporting.audit_text import (
    FLAGGED,
    STATES,
    audit_stats,
    audit_title,
    count_suspected,
    finding_cards,
    finding_state,
    format_key,
    sort_findings,
    summarize_audit,
    suspects_csv,
)
from spurless.reporting.charts import draw_before_after as before_after_chart
from spurless.reporting.charts import select_groups
from spurless.reporting.format import clean_name, format_count, format_duration, format_number, join_words
from spurless.reporting.health import health_context
from spurless.reporting.page import embed_json, fill_template, read_asset, render_template
from spurless.reporting.sections import picture_context, section_contexts
from spurless.reporting.summary import Summary, summarise
from spurless.reporting.tables import format_settings, group_rows

MAX_PAGE_BYTES = 8_000_000  # bytes of a page; pictures that do not fit are left out, with a note
NO_IMAGE = "data:,"  # source of pictures while the size of the page is measured
RESERVED_BYTES = 20_000  # bytes for that note
MAX_SUSPECTS = 240  # suspects on a page; the CSV has all
SUSPECTS_PER_STEP = 24  # suspects that are added to the gallery at a time
MAX_CSV_LENGTH = 500_000  # characters of the list that can be downloaded from the page
MAX_TEXT = 400
MAX_LIMIT_TEXT = 2000
MIN_SMOOTH_WIDTH = 64  # pixels; smaller pictures are scaled without smoothing
MAX_LIST_ITEMS = 12
CAPTION = "Each line connects worst group and average; a fair model has a short line at the right."


def write_audit(
    path: Path | str,
    audit: Audit,
    *,
    title: str | None = None,
    before_after: Sequence[Record] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write one page about an audit and return its path; the file is written completely or not at all.

    Args:
        path: path of the page.
        audit: the result of ``audit``.
        title: title of the page; by default with the names of model and data.
        before_after: records of the model before and after a repair, for a table of groups.
        sections: further text, pictures and charts, which are shown after the findings.

    Raises:
        InputError: a picture is not a PNG, a chart has no data, or the file cannot be written.
    """
    check_arguments(write_audit, locals())
    return replace_text(path, render_audit(audit, title=title, before_after=before_after, sections=sections))


def render_audit(
    audit: Audit,
    *,
    title: str | None = None,
    before_after: Sequence[Record] = (),
    sections: Sequence[Section] = (),
    repair: Mapping[str, Any] | None = None,
) -> str:
    """Return the page as HTML; the same audit gives the same text. The context of a ``repair`` is shown first."""
    from markupsafe import Markup

    suspects = [_suspect_context(suspect) for suspect in audit.suspects[:MAX_SUSPECTS]]
    cards = finding_cards(audit, {suspect["row"] for suspect in suspects})
    comparisons = [_comparison_context(summary) for summary in summarise(before_after)] if before_after else []
    extra = section_contexts(sections)
    parts = [part for card in cards for part in card["parts"]]
    health = health_context(audit)
    context: dict[str, Any] = {
        "title": clean_name(title, 120) if title else audit_title(audit.facts),
        "summary": summarize_audit(audit),
        "stats": audit_stats(audit),
        "cards": [card for card in cards if card["state"] in FLAGGED],
        "folded": [card for card in cards if card["state"] not in FLAGGED],
        "suspects": suspects,
        "gallery": _gallery_context(audit, suspects),
        "list": Markup(embed_json(_csv_for_download(audit))),
        "comparisons": comparisons,
        "pairs": _pair_contexts(audit),
        "health": health,
        "repair": repair or {},
        "facts": [_format_fact(key, value) for key, value in audit.facts.items()],
        "limits": [clean_name(limit, MAX_LIMIT_TEXT) for limit in audit.limits],
        "extra_style": read_asset("findings.css") + read_asset("audit.css"),
        "extra_script": read_asset("audit.js"),
    }
    charts = [part for part in parts if part["kind"] == "chart"]
    charts += [part for comparison in comparisons for part in comparison["parts"]]
    charts += health["parts"] if health else []
    return _render_within_limit([part for part in parts if part["kind"] == "picture"], context, charts, extra)


def audit_html(audit: Audit) -> str:
    """Return verdict and findings as short HTML without scripts, for a notebook."""
    check_arguments(audit_html, locals())
    findings = sort_findings(audit)
    return render_template(
        "audit_brief.html",
        summary=summarize_audit(audit),
        rows=[_brief_row(finding, audit) for finding in findings if finding.flagged],
        n_other=sum(not finding.flagged for finding in findings),
        suspects=format_count(count_suspected(audit), "suspected example") if audit.suspects else "",
    )


def _render_within_limit(
    evidence: list[dict[str, Any]], context: dict[str, Any], charts: list[dict[str, Any]], extra: list[dict[str, Any]]
) -> str:
    """Fill the page with as many pictures as fit, starting with those that are visible first."""
    thumbs = [suspect["picture"] for suspect in context["suspects"] if suspect["picture"]]
    heat_maps = [suspect["heat"] for suspect in context["suspects"] if suspect["heat"]]
    n = SUSPECTS_PER_STEP
    first = [example["picture"] for example in context["pairs"]]
    pictures = [*first, *thumbs[:n], *evidence, *heat_maps[:n], *thumbs[n:], *heat_maps[n:]]
    sources = [picture["src"] for picture in pictures]
    for picture in pictures:
        picture["src"] = NO_IMAGE
    empty = fill_template("audit.html", charts, extra, left_out="", **context).encode("utf-8", "replace")
    left = MAX_PAGE_BYTES - RESERVED_BYTES - len(empty)
    n_left_out = 0
    for picture, source in zip(pictures, sources, strict=True):
        fits = len(source) <= left
        picture["src"] = source if fits else ""
        left, n_left_out = left - fits * len(source), n_left_out + (not fits)
    left_out = format_count(n_left_out, "picture") if n_left_out else ""
    return fill_template("audit.html", charts, extra, left_out=left_out, **context)


def _brief_row(finding: Finding, audit: Audit) -> dict[str, str]:
    return {
        "title": clean_name(finding.title, 300),
        "state_label": STATES[finding_state(finding, audit)],
        "severity": f"{finding.severity:.2f}",
        "p": format_number(finding.p),
    }


def _suspect_context(suspect: Suspect) -> dict[str, Any]:
    score = finite_number(suspect.score)
    picture = picture_context(suspect.picture) if suspect.picture else None
    return {
        "row": suspect.row,
        "label": clean_name(suspect.label),
        "predicted": clean_name(suspect.predicted),
        "is_wrong": suspect.label != suspect.predicted,
        "score": "n/a" if score is None else f"{score:.2f}",
        "width": round(100 * min(1.0, max(0.0, score or 0.0)), 1),
        "suspected": suspect.suspected,
        "attribute": None if suspect.attribute is None else clean_name(suspect.attribute),
        "file": clean_name(suspect.file, 160) if suspect.file else "",
        "text": clean_name(suspect.text, MAX_TEXT) if suspect.text else "",
        "picture": picture,
        "is_small": picture is not None and _image_width(picture["src"]) <= MIN_SMOOTH_WIDTH,
        "heat": picture_context(suspect.heat) if suspect.heat else None,
        "raw": {"label": suspect.label, "predicted": suspect.predicted},
    }


def _pair_contexts(audit: Audit) -> list[dict[str, Any]]:
    """Return the typical examples with a picture, each followed by the first suspect of its label."""
    pairs: list[dict[str, Any]] = []
    for typical in audit.typical:
        with_picture = (suspect for suspect in audit.suspects if suspect.picture and suspect.label == typical.label)
        for kind, example in (("Typical", typical), ("Suspected", next(with_picture, None))):
            if example is not None and example.picture is not None:
                pairs.append(_suspect_context(example) | {"kind": kind})
    return pairs


def _image_width(source: str) -> int:
    return int.from_bytes(b64decode(source.partition(",")[2][:32])[16:20])


def _gallery_context(audit: Audit, suspects: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the options of the filters; options are numbered, so that names need not be HTML attributes."""
    options = {}
    for key in ("label", "predicted"):
        counts = Counter(suspect["raw"][key] for suspect in suspects)
        numbers = {value: number for number, value in enumerate(counts)}
        options[key] = [(numbers[value], clean_name(value, 40), f"{count:,}") for value, count in counts.items()]
        for suspect in suspects:
            suspect[f"{key}_number"] = numbers[suspect["raw"][key]]
    return {
        "options": options,
        "step": SUSPECTS_PER_STEP,
        "count": len(suspects),
        "hidden": len(audit.suspects) - len(suspects),
        "suspected": sum(suspect["suspected"] for suspect in suspects),
        "kind": "pictures" if any(suspect["picture"] for suspect in suspects) else "texts",
        "heat": any(suspect["heat"] for suspect in suspects),
    }


def _csv_for_download(audit: Audit) -> str:
    """Return the CSV for download; empty if it is too long, see :func:`write_suspects`."""
    text = suspects_csv(audit) if audit.suspects else ""
    return text if len(text) <= MAX_CSV_LENGTH else ""


def _comparison_context(summary: Summary) -> dict[str, Any]:
    comparison, chart = summary.comparison, before_after_chart(summary.comparison)
    part = {"kind": "chart", "title": "Worst group and average", "caption": CAPTION}
    return {
        "name": clean_name(comparison.name),
        "headline": summary.headline,
        "methods": [clean_name(runs.name) for runs in comparison.methods],
        "rows": group_rows(comparison, select_groups(comparison)),
        "parts": [part | {"alt": chart.alt, "height": chart.height, "spec": chart.spec}] if chart else [],
    }


def _format_fact(key: str, value: object) -> tuple[str, str]:
    return format_key("time" if key == "seconds" else key), _format_value(key, value)


def _format_value(key: str, value: object) -> str:
    if key == "seconds" and isinstance(value, Mapping):
        return format_settings({k: format_duration(v) for k, v in value.items()})
    if key == "seconds":
        return format_duration(finite_number(value))
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if key == "notes" and isinstance(value, list | tuple):  # sentences
        return " ".join(clean_name(note, MAX_LIMIT_TEXT) for note in value)
    if isinstance(value, list | tuple):
        more = [f"{len(value) - MAX_LIST_ITEMS:,} more"] if len(value) > MAX_LIST_ITEMS else []
        return join_words([*(clean_name(v, 40) for v in value[:MAX_LIST_ITEMS]), *more]) or "none"
    return format_settings(value)
