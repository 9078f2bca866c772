"""The table of metrics: units and directions by which a page prints and sorts a number."""

import subprocess
import sys

from spurless.core.metric_info import COVERAGES, METRICS


def test_rows_are_keyed_by_name_and_labels_are_unique() -> None:
    assert all(key == metric.name for key, metric in METRICS.items())
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)


def test_errors_and_gaps_are_better_if_lower_and_accuracies_if_higher() -> None:
    assert not any(METRICS[name].higher_is_better for name in ("gap", "ece", "loss", "aurc", "error_at_90"))
    assert all(METRICS[name].higher_is_better for name in ("average", "worst_group", "conflicting", "coverage_at_90"))
    assert METRICS["cramers_v"].higher_is_better is None


def test_units_tell_percent_points_and_plain_numbers_apart() -> None:
    assert [METRICS[name].unit for name in ("average", "gap", "loss")] == ["fraction", "points", "number"]


def test_each_default_coverage_has_three_metrics() -> None:
    assert [name for name in METRICS if name.endswith("_at_85")] == [
        "coverage_at_85",
        "error_at_85",
        "worst_group_error_at_85",
    ]
    assert sum("_at_" in name for name in METRICS) == 3 * len(COVERAGES)


def test_the_table_is_read_without_torch() -> None:
    code = "import spurless.core.metric_info, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
