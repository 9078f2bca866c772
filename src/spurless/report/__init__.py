"""Report: records in, one page that a person can read out."""

from __future__ import annotations

from spurless.report.arms import Arm, Change, Estimate, Study
from spurless.report.gather import studies
from spurless.report.page import Picture, write_report
from spurless.report.summary import (
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
    "Picture",
    "Study",
    "Summary",
    "cautions",
    "compare",
    "describe",
    "findings",
    "headline",
    "limits",
    "studies",
    "summarise",
    "supervision",
    "write_report",
]
