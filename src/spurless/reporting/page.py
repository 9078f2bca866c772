"""Write records as one self-contained HTML page, which loads nothing from the network."""

from __future__ import annotations

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.figures import Picture, Section
from spurless.core.files import replace_text
from spurless.core.findings import Audit
from spurless.core.records import Record
from spurless.reporting import selective, tables
from spurless.reporting.aggregate import Comparison, MethodRuns, count_test_examples
from spurless.reporting.audit_text import audit_context
from spurless.reporting.charts import (
    MAX_GROUPS,
    Chart,
    draw_before_after,
    draw_curves,
    draw_groups,
    draw_heat_map,
    marker_style,
    select_groups,
)
from spurless.reporting.format import (
    clean_name,
    format_change,
    format_count,
    format_interval,
    format_percent,
    join_words,
)
from spurless.reporting.sections import picture_context, section_contexts
from spurless.reporting.summary import Summary, describe_supervision, limits, summarise
from spurless.reporting.sweeps import PRUNED_METRIC, sweep_sections

TEMPLATES = Path(__file__).parent / "templates"
MAX_OPEN_METHODS = 6  # methods; with more, the comparisons are collapsed
UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class HasRecord(Protocol):
    """An object with a record, such as the result of ``fit``."""

    @property
    def record(self) -> Record:
        """The record of the run."""


def report(
    path: Path | str,
    runs: Sequence[HasRecord | Record],
    *,
    audits: Audit | Sequence[Audit] = (),
    title: str | None = None,
    pictures: Sequence[Picture] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write one page about runs and return its path; the file is written completely or not at all.

    Args:
        path: path of the page.
        runs: results of ``fit``, or records; those that differ only in their seed are aggregated.
        audits: one or several results of ``audit``; verdict and findings are shown after the chapters.
        title: title of the page; by default the names of the datasets.
        pictures: pictures that are shown in the chapters.
        sections: further text, pictures and charts, which are shown after the chapters.

    Raises:
        InputError: there are no runs, an argument has the wrong type, a chart has no data, or the file cannot be
            written.
    """
    if not isinstance(runs, Iterable) or getattr(runs, "shape", None) == ():  # an array of one number
        raise InputError("the runs must be a list", got=type(runs).__name__, hint="Write runs=[run].")
    records, audits = [_get_record(run) for run in runs], audits if isinstance(audits, Iterable) else [audits]
    if not records:
        raise InputError("there is nothing to report", expected="at least one record", hint="Run spurless fit first.")
    for kind in (type(audit).__name__ for audit in audits if not isinstance(audit, Audit)):
        raise InputError("this is not an audit", expected="the result of sp.audit, or a list of them", got=kind)
    check_arguments(report, locals())
    return replace_text(path, render(records, audits=audits, title=title, pictures=pictures, sections=sections))


def _get_record(run: object) -> Record:
    record = run if isinstance(run, Record) else getattr(run, "record", None)
    if not isinstance(record, Record):
        raise InputError("this is not a run", expected="the result of sp.fit, or a record", got=type(run).__name__)
    return record


def write_sections(path: Path | str, title: str, sections: Sequence[Section], *, about: str = "") -> Path:
    """Write one page of sections without records and return its path; completely or not at all.

    Raises:
        InputError: there are no sections, a picture is not a PNG, a chart has no data, or the file cannot be written.
    """
    check_arguments(write_sections, locals())
    if not sections:
        raise InputError("there is nothing to show", expected="at least one section")
    return replace_text(path, render_sections(title, sections, about=about))


def render(
    records: Sequence[Record],
    *,
    audits: Sequence[Audit] = (),
    title: str | None = None,
    pictures: Sequence[Picture] = (),
    sections: Sequence[Section] = (),
) -> str:
    """Return the page as HTML; the same records give the same text."""
    from markupsafe import Markup

    summaries = summarise(records)
    chapters = [_chapter_context(summary) for summary in summaries]
    shown_audits = [audit_context(audit, number) for number, audit in enumerate(audits)]
    charts = [chart for part in (*chapters, *shown_audits) for chart in part["charts"]]
    names = join_words([clean_name(summary.comparison.name, 40) for summary in summaries[:3]])
    return fill_template(
        "page.html",
        charts,
        section_contexts([*sweep_sections(records), *sections]),
        title=clean_name(title, 120) if title else f"Shortcuts in {names}",
        chapters=chapters,
        audits=shown_audits,
        extra_style=read_asset("findings.css") if shown_audits else "",
        record_count=len(records),
        pictures=[picture_context(picture) for picture in pictures],
        records=Markup(embed_json("".join(record.to_json() + "\n" for record in records))),
    )


def render_sections(title: str, sections: Sequence[Section], *, about: str = "") -> str:
    """Return a page of sections as HTML; the same sections give the same text."""
    return fill_template(
        "sections.html", [], section_contexts(sections), title=clean_name(title, 120), about=clean_name(about, 400)
    )


def render_template(template: str, **context: Any) -> str:
    """Render a Jinja template; every string is escaped, and a missing variable is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    blocks: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True}
    blocks |= {"autoescape": True, "undefined": StrictUndefined, "finalize": _replace_control_characters}
    environment = Environment(loader=FileSystemLoader(TEMPLATES), **blocks)
    environment.filters["keep_units"] = _keep_units_together
    return environment.get_template(template).render(**context)


def _replace_control_characters(value: Any) -> Any:
    """Replace characters that HTML does not allow, in plain text only: scripts and escaped JSON are markup."""
    return value.translate(_CONTROL_CHARACTERS) if type(value) is str else value


_CONTROL_CHARACTERS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}


def read_asset(name: str) -> Any:
    """Return a style sheet or script of the templates, as markup."""
    from markupsafe import Markup

    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def fill_template(template: str, charts: list[dict[str, Any]], sections: list[dict[str, Any]], **context: Any) -> str:
    """Fill a template and number its charts; a page without charts does not contain Plotly."""
    from markupsafe import Markup

    charts = [*charts, *(part for section in sections for part in section["parts"] if part["kind"] == "chart")]
    for number, chart in enumerate(charts):
        chart["id"] = f"chart-{number}"
    return render_template(
        template,
        sections=sections,
        charts=Markup(embed_json({chart["id"]: chart["spec"] for chart in charts})),
        style=read_asset("style.css"),
        script=read_asset("page.js"),
        plotly=Markup(_compress_plotly()) if charts or "records" in context else "",
        **context,
    )


@cache
def _compress_plotly() -> str:
    """Return Plotly's script as base64 of gzip, which the page decompresses; always the same text."""
    from plotly.offline import get_plotlyjs

    return b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()


def embed_json(value: object) -> str:
    r"""Return JSON that is safe inside a script element.

    Example:
        >>> print(embed_json("</script>"))
        "\u003c/script\u003e"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(UNSAFE)


def _chapter_context(summary: Summary) -> dict[str, Any]:
    comparison = summary.comparison
    folded = list(summary.findings[1 : len(comparison.methods)]) if len(comparison.methods) > MAX_OPEN_METHODS else []
    has_many_groups, groups = len(comparison.groups) > MAX_GROUPS, select_groups(comparison)
    mapped = (comparison.baseline, *comparison.best[:1]) if has_many_groups else ()
    drawn: dict[str, list[tuple[str, Chart | None]]] = {
        "before_after": [("", draw_before_after(comparison))],
        "groups": [("", draw_groups(comparison))],
        "selective": [("", selective.draw_risk_coverage(comparison))],
        "heat_maps": [(clean_name(runs.name), draw_heat_map(comparison, runs)) for runs in mapped],
        "curves": [*draw_curves(comparison)],
    }
    figures = {key: [_chart_context(*chart) for chart in charts if chart[1]] for key, charts in drawn.items()}
    return {
        "name": clean_name(comparison.name),
        "about": _describe_runs(comparison),
        "summary": summary,
        "findings": [f for f in summary.findings if f not in folded],
        "folded": folded,
        "stats": _headline_numbers(comparison),
        "methods": [
            _method_context(i, runs) | {"supervision": describe_supervision(runs), "facts": tables.run_facts(runs)}
            for i, runs in enumerate(comparison.methods)
        ],
        "has_several_runs": any(len(runs.records) > 1 for runs in comparison.methods),
        "figures": figures,
        "charts": [f for charts in figures.values() for f in charts],
        "groups": tables.group_rows(comparison, groups if has_many_groups else list(comparison.groups)),
        "all_groups": tables.group_rows(comparison, list(comparison.groups)) if has_many_groups else [],
        "metrics": [row for row in tables.metric_rows(comparison) if not PRUNED_METRIC.fullmatch(row["key"])],
        "sizes": tables.size_table(comparison),
        "selective": _selective_context(comparison),
        "supervision": tables.supervision_rows(comparison),
        "data": tables.data_facts(comparison),
        "warnings": tables.warning_rows(comparison),
        "limits": limits(comparison),
    }


def _selective_context(comparison: Comparison) -> dict[str, Any]:
    """Return the part about selective prediction; empty if no run may abstain."""
    methods = [_method_context(i, runs) for i, runs in selective.selective_methods(comparison)]
    if not methods:
        return {}
    texts = {"scores": selective.describe_scores(comparison), "warnings": selective.selective_warnings(comparison)}
    return {"methods": methods, "rows": selective.coverage_table(comparison), **texts}


def _method_context(index: int, runs: MethodRuns) -> dict[str, Any]:
    return {"name": clean_name(runs.name), "style": marker_style(index)}


def _chart_context(title: str, chart: Chart | None) -> dict[str, Any]:
    return {"title": title, "spec": chart.spec, "height": chart.height, "alt": chart.alt} if chart else {}


def _headline_numbers(comparison: Comparison) -> list[dict[str, str]]:
    """Return worst group and average of the best method, with those of the baseline."""
    runs, baseline = comparison.best[0] if comparison.best else comparison.baseline, comparison.baseline
    numbers = []
    for label, change in (("Worst group", comparison.change(runs)), ("Average", comparison.average_change(runs))):
        after, who = change.after, clean_name(runs.name)
        row = {"label": label, "before": "", "after": format_percent(after.mean), "change": ""}
        row |= {"intervals": format_interval(after), "who": who}
        if runs is not baseline:
            row |= {"before": format_percent(change.before.mean), "change": format_change(change.points)}
            row["intervals"] = f"{format_interval(change.before)}, then {format_interval(after)}"
            row["who"] = f"{clean_name(baseline.name)} to {who}"
        numbers.append(row)
    return numbers


def _describe_runs(comparison: Comparison) -> str:
    counts = {"method": len(comparison.methods), "seed": len({s for runs in comparison.methods for s in runs.seeds})}
    counts |= {"group": len(comparison.groups), "test example": count_test_examples(comparison.baseline.records[0])}
    return ", ".join(format_count(count, noun) for noun, count in counts.items())


def _keep_units_together(text: str) -> str:
    """Replace spaces between numbers and units, so that they stay on one line."""
    return text.replace(" %", "\u00a0%").replace("n = ", "n\u00a0=\u00a0").replace(" point", "\u00a0point")
