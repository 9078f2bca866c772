"""Metrics: functions from tensors to numbers. ``METRICS`` lists the name, label and direction of each number."""

from __future__ import annotations

from spurless.core.metric_info import COVERAGES, METRICS, MetricInfo
from spurless.metrics.association import Association, associate
from spurless.metrics.calibration import calibration_by_group, expected_calibration_error
from spurless.metrics.groupwise import GroupTable, group_table
from spurless.metrics.intervals import (
    PairedDifference,
    Spread,
    bootstrap_worst,
    compare_paired,
    over_seeds,
    wilson_intervals,
)
from spurless.metrics.selective import (
    CoverageRow,
    RiskCoverage,
    Selective,
    risk_coverage,
    selective_table,
    threshold_for,
    thresholds_for,
)

__all__ = [
    "COVERAGES", "METRICS", "Association", "CoverageRow", "GroupTable", "MetricInfo", "PairedDifference",
    "RiskCoverage", "Selective", "Spread", "associate", "bootstrap_worst", "calibration_by_group", "compare_paired",
    "expected_calibration_error", "group_table", "over_seeds", "risk_coverage", "selective_table", "threshold_for",
    "thresholds_for", "wilson_intervals",
]  # fmt: skip
