"""Reporting: records or an audit in, one page that a person can read out."""

from __future__ import annotations

from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.arms import Arm, Change, Estimate, Study
from spurless.reporting.audit_page import audit_html, write_audit
from spurless.reporting.audit_reading import read_audit
from spurless.reporting.audit_words import Opinion, audit_json, opinion, write_json, write_suspects
from spurless.reporting.fix_page import fix_html, fix_json, write_fix, write_fix_json
from spurless.reporting.gather import studies
from spurless.reporting.page import report, write_report, write_sections
from spurless.reporting.summary import (
    Summary,
    cautions,
    compare,
    describe,
    findings,
    headline,
    limits,
    summarise,
    supervision,
)

__all__ = [
    "Arm",
    "Change",
    "Estimate",
    "Figure",
    "Opinion",
    "Picture",
    "Section",
    "Study",
    "Summary",
    "audit_html",
    "audit_json",
    "cautions",
    "compare",
    "describe",
    "findings",
    "fix_html",
    "fix_json",
    "headline",
    "limits",
    "opinion",
    "read_audit",
    "report",
    "studies",
    "summarise",
    "supervision",
    "write_audit",
    "write_fix",
    "write_fix_json",
    "write_json",
    "write_report",
    "write_sections",
    "write_suspects",
]
