"""Page: records in, one self-contained HTML file out; it asks nothing of any network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from spurless.core.errors import BadInput
from spurless.core.figures import Picture, Section
from spurless.core.files import replace_file
from spurless.core.findings import Audit
from spurless.core.records import Record
from spurless.reporting.abstaining import abstaining, hurts, kept_rows, risk_coverage, scores
from spurless.reporting.arms import Study, size_of
from spurless.reporting.audit_cards import shown_audit
from spurless.reporting.charts import MANY_GROUPS, Chart, before_after, by_group, curves, heat_map, look, shown_groups
from spurless.reporting.sections import shown_picture, shown_sections
from spurless.reporting.sizes import size_table
from spurless.reporting.summary import Summary, limits, summarise, supervision
from spurless.reporting.sweeps import UNDER_PRUNING, sweep_sections
from spurless.reporting.tables import data_facts, group_rows, metric_rows, run_facts, supervision_rows, warnings
from spurless.reporting.words import listed, name, percent, plural, signed, span

TEMPLATES = Path(__file__).parent / "templates"
MANY_ARMS = 6
"""with more, the comparisons are folded, so that the verdict is no wall of text"""
UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


class HasRecord(Protocol):
    """Anything that carries its record, such as what ``fit`` returns."""

    @property
    def record(self) -> Record:
        """What the run used and found."""


def report(
    path: Path | str,
    runs: Sequence[HasRecord | Record],
    *,
    audits: Audit | Sequence[Audit] = (),
    title: str | None = None,
    pictures: Sequence[Picture] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write one page about some runs, as returned by ``fit`` or read from records; see :func:`write_report`."""
    if not isinstance(runs, Iterable):
        raise BadInput("the runs must be a list", got=type(runs).__name__, do="Write runs=[run].")
    records = [_record(run) for run in runs]
    return write_report(path, records, audits=audits, title=title, pictures=pictures, sections=sections)


def write_report(
    path: Path | str,
    records: Sequence[Record],
    *,
    audits: Audit | Sequence[Audit] = (),
    title: str | None = None,
    pictures: Sequence[Picture] = (),
    sections: Sequence[Section] = (),
) -> Path:
    """Write one page about the records and return its path; the file appears whole or not at all.

    Args:
        path: of the page.
        records: of the runs; those that differ by seed alone are put together.
        audits: what ``audit`` returned, one or several; verdict and findings of each are shown after the chapters.
        title: of the page; by default what the data are called.
        pictures: shown among the chapters, small.
        sections: shown after the chapters, in their order: text, pictures and charts of your own.

    Raises:
        BadInput: there are no records, an audit is none, a picture is no PNG, a chart has no data, or the place cannot
            be written.
    """
    if not records:
        raise BadInput("there is nothing to report", expected="at least one record", do="Run spurless fit first.")
    return write_page(path, render(records, audits=_audits(audits), title=title, pictures=pictures, sections=sections))


def _audits(audits: object) -> list[Audit]:
    found = list(audits) if isinstance(audits, Iterable) else [audits]
    return [_audit(each) for each in found]


def _audit(audit: object) -> Audit:
    if not isinstance(audit, Audit):
        raise BadInput("this is no audit", expected="what sp.audit returned, or a list", got=type(audit).__name__)
    return audit


def _record(run: object) -> Record:
    record = run if isinstance(run, Record) else getattr(run, "record", None)
    if not isinstance(record, Record):
        raise BadInput("this is no run", expected="what sp.fit returned, or a record", got=type(run).__name__)
    return record


def write_sections(path: Path | str, title: str, sections: Sequence[Section], *, about: str = "") -> Path:
    """Write one page of sections alone, where there are no records, and return its path; whole or not at all.

    Raises:
        BadInput: there are no sections, a picture is no PNG, a chart has no data, or the place cannot be written.
    """
    if not sections:
        raise BadInput("there is nothing to show", expected="at least one section")
    return write_page(path, render_sections(title, sections, about=about))


def render(
    records: Sequence[Record],
    *,
    audits: Sequence[Audit] = (),
    title: str | None = None,
    pictures: Sequence[Picture] = (),
    sections: Sequence[Section] = (),
) -> str:
    """Return the page as text; the same records give the same text."""
    from markupsafe import Markup

    summaries = summarise(records)
    chapters = [_chapter(summary) for summary in summaries]
    asked = [shown_audit(audit, number) for number, audit in enumerate(audits)]
    charts = [chart for part in (*chapters, *asked) for chart in part["charts"]]
    return fill(
        "page.html",
        charts,
        shown_sections([*sweep_sections(records), *sections]),
        title=name(title, 120) if title else _title(summaries),
        chapters=chapters,
        audits=asked,
        own_style=Markup((TEMPLATES / "findings.css").read_text(encoding="utf-8")) if asked else "",
        record_count=len(records),
        pictures=[shown_picture(picture) for picture in pictures],
        records=Markup(embed("".join(record.to_json() + "\n" for record in records))),
    )


def render_sections(title: str, sections: Sequence[Section], *, about: str = "") -> str:
    """Return a page of sections alone as text; the same sections give the same text."""
    return fill("sections.html", [], shown_sections(sections), title=name(title, 120), about=name(about, 400))


def house() -> Any:
    """Return what fills the templates: every string escaped, and none missing."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["tight"] = _tight
    return made


def fill(template: str, charts: list[dict[str, Any]], sections: list[dict[str, Any]], **words: Any) -> str:
    """Fill a template whose charts are numbered; one that draws nothing carries nothing to draw with."""
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    charts = [*charts, *(part for section in sections for part in section["parts"] if part["kind"] == "chart")]
    for number, chart in enumerate(charts):
        chart["id"] = f"chart-{number}"
    text: str = (
        house()
        .get_template(template)
        .render(
            sections=sections,
            charts=Markup(embed({chart["id"]: chart["spec"] for chart in charts})),
            style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
            script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
            plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")) if charts or "records" in words else "",
            **words,
        )
    )
    return text


def write_page(path: Path | str, text: str) -> Path:
    """Write a page and return its path; the file appears whole or not at all."""
    path = Path(path)
    data = text.encode("utf-8", "replace")
    replace_file(path, lambda scratch: scratch.write_bytes(data))
    return path


def embed(value: object) -> str:
    r"""Return JSON that can stand inside a script element, whatever strings it holds.

    Example:
        >>> print(embed("</script>"))
        "\u003c/script\u003e"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(UNSAFE)


def _chapter(summary: Summary) -> dict[str, Any]:
    study = summary.study
    folded = list(summary.findings[1 : len(study.arms)]) if len(study.arms) > MANY_ARMS else []
    many, shown = len(study.groups) > MANY_GROUPS, shown_groups(study)
    maps = [(name(arm.name), heat_map(study, arm)) for arm in (study.baseline, *study.best[:1])] if many else []
    figures: dict[str, list[dict[str, Any]]] = {
        "before": [_figure("", before_after(study))],
        "groups": [_figure("", by_group(study))],
        "abstaining": [_figure("", risk_coverage(study))],
        "maps": [_figure(title, chart) for title, chart in maps],
        "curves": [_figure(title, chart) for title, chart in curves(study)],
    }
    figures = {place: [f for f in found if f] for place, found in figures.items()}
    return {
        "name": name(study.name),
        "about": _about(study),
        "summary": summary,
        "findings": [f for f in summary.findings if f not in folded],
        "folded": folded,
        "stats": _stats(study),
        "arms": [
            {"name": name(a.name), "look": look(i), "supervision": supervision(a), "facts": run_facts(a)}
            for i, a in enumerate(study.arms)
        ],
        "several": any(len(arm.records) > 1 for arm in study.arms),
        "figures": figures,
        "charts": [f for found in figures.values() for f in found],
        "shown": group_rows(study, shown if many else list(study.groups)),
        "rest": group_rows(study, list(study.groups)) if many else [],
        "metrics": [row for row in metric_rows(study) if not UNDER_PRUNING.fullmatch(row["name"].replace(" ", "_"))],
        "sizes": size_table(study),
        "abstaining": _abstaining(study),
        "supervision": supervision_rows(study),
        "data": data_facts(study),
        "warnings": warnings(study),
        "limits": limits(study),
    }


def _abstaining(study: Study) -> dict[str, Any]:
    """Return the part about abstaining; empty where no run may abstain."""
    arms = [{"name": name(arm.name), "look": look(i)} for i, arm in abstaining(study)]
    if not arms:
        return {}
    return {"arms": arms, "rows": kept_rows(study), "scores": scores(study), "hurts": hurts(study)}


def _figure(title: str, chart: Chart | None) -> dict[str, Any]:
    return {"title": title, "spec": chart.spec, "height": chart.height, "alt": chart.alt} if chart else {}


def _stats(study: Study) -> list[dict[str, str]]:
    """Return the two numbers that the verdict is about, before and after."""
    arm = study.best[0] if study.best else study.baseline
    found = []
    for word, change in (("Worst group", study.change(arm)), ("Average", study.average_change(arm))):
        alone = arm is study.baseline
        found.append(
            {
                "word": word,
                "before": "" if alone else percent(change.before.mean),
                "after": percent(change.after.mean),
                "change": "" if alone else signed(change.points),
                "intervals": span(change.after) if alone else f"{span(change.before)}, then {span(change.after)}",
                "who": name(arm.name) if alone else f"{name(study.baseline.name)} to {name(arm.name)}",
            }
        )
    return found


def _about(study: Study) -> str:
    seeds = sorted({seed for arm in study.arms for seed in arm.seeds})
    size = size_of(study.baseline.records[0])
    parts = [plural(len(study.arms), "method"), plural(len(seeds), "seed"), plural(len(study.groups), "group")]
    return ", ".join([*parts, plural(size, "test example")])


def _title(summaries: Sequence[Summary]) -> str:
    return f"Shortcuts in {listed([name(s.study.name, 40) for s in summaries[:3]])}"


def _tight(text: str) -> str:
    """Keep a number and its unit on one line."""
    return text.replace(" %", "\u00a0%").replace("n = ", "n\u00a0=\u00a0").replace(" point", "\u00a0point")
