"""Write records, audits, repairs and datasets as self-contained HTML pages."""

from __future__ import annotations

from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.audit_page import audit_html, write_audit
from spurless.reporting.audit_text import (
    AuditSummary,
    audit_json,
    read_audit,
    read_audits,
    summarize_audit,
    write_json,
    write_suspects,
)
from spurless.reporting.card import card_text, write_card
from spurless.reporting.comparison import (
    AuditComparison,
    compare,
    comparison_json,
    write_comparison,
    write_comparison_json,
)
from spurless.reporting.fix_page import fix_html, fix_json, write_fix, write_fix_json
from spurless.reporting.junit import junit_xml, write_junit
from spurless.reporting.page import report, write_sections

__all__ = [
    "AuditComparison",
    "AuditSummary",
    "Figure",
    "Picture",
    "Section",
    "audit_html",
    "audit_json",
    "fix_html",
    "fix_json",
]
__all__ += ["read_audit", "report", "summarize_audit", "write_audit", "write_fix", "write_fix_json", "write_json"]
__all__ += [
    "card_text",
    "compare",
    "comparison_json",
    "read_audits",
    "write_card",
    "write_comparison",
    "write_comparison_json",
]
__all__ += ["junit_xml", "write_junit", "write_sections", "write_suspects"]
