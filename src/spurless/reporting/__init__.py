"""Reporting: records in, one page that a person can read out."""

from __future__ import annotations

from spurless.core.figures import Figure, Picture, Section
from spurless.reporting.arms import Arm, Change, Estimate, Study
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
    "Picture",
    "Section",
    "Study",
    "Summary",
    "cautions",
    "compare",
    "describe",
    "findings",
    "headline",
    "limits",
    "report",
    "studies",
    "summarise",
    "supervision",
    "write_report",
    "write_sections",
]
