"""Tests of the chart specifications: the points are the records' numbers, and names stay names."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spurless.core.records import Record
from spurless.reporting.aggregate import comparisons
from spurless.reporting.charts import (
    MAX_WORST_GROUPS,
    draw_before_after,
    draw_curves,
    draw_groups,
    draw_heat_map,
    marker_style,
    select_groups,
)

Make = Callable[..., Record]


def test_the_dumbbell_runs_from_the_worst_group_to_the_average(make: Make) -> None:
    (comparison,) = comparisons([make(), make("jtt", worst=0.5, low=0.4, high=0.6)])
    chart = draw_before_after(comparison)
    assert chart is not None
    lines = [trace for trace in chart.spec["data"] if trace["mode"] == "lines"]
    assert lines[1]["x"] == pytest.approx([50.0, 91.2])
    dots = [trace for trace in chart.spec["data"] if "error_x" in trace]
    assert dots[3]["x"] == [50.0]
    assert dots[3]["error_x"]["array"] == pytest.approx([10.0])
    assert "JTT: 50.0 % and 91.2 %" in chart.alt


def test_single_runs_are_drawn_where_there_are_several(make: Make) -> None:
    (comparison,) = comparisons([make(seed=0, worst=0.1), make(seed=1, worst=0.3)])
    chart = draw_before_after(comparison)
    assert chart is not None
    assert chart.spec["data"][1]["x"] == pytest.approx([10.0, 30.0, 91.2, 91.2])


def test_each_group_has_a_dot_per_arm(make: Make) -> None:
    (comparison,) = comparisons([make(), make("jtt")])
    chart = draw_groups(comparison)
    assert chart is not None
    assert sorted(trace["x"][0] for trace in chart.spec["data"]) == pytest.approx([7.1, 7.1, 99.0, 99.0])
    assert len({trace["y"][0] for trace in chart.spec["data"]}) == 4


def test_of_many_groups_the_worst_are_shown(grid: Make) -> None:
    (comparison,) = comparisons([grid()])
    shown = select_groups(comparison)
    assert len(shown) == MAX_WORST_GROUPS
    assert shown[:3] == ["0 in 0", "0 in 2", "0 in 3"]  # (0, 1) has no test examples


def test_the_heat_map_has_labels_down_and_attributes_across(grid: Make, make: Make) -> None:
    (comparison,) = comparisons([grid()])
    chart = draw_heat_map(comparison, comparison.baseline)
    assert chart is not None
    z = chart.spec["data"][0]["z"]
    assert z[2][3] == pytest.approx(100 * 15 / 36)
    assert z[0][1] is None
    (comparison,) = comparisons([make()])
    assert draw_heat_map(comparison, comparison.baseline) is None


def test_curves_break_between_stages_and_start_with_the_loss(make: Make) -> None:
    rows = [{"stage": s, "epoch": e, "val_worst_group": 0.5, "loss": 1.0} for s in ("one", "two") for e in (0, 1)]
    (comparison,) = comparisons([make(history=tuple(rows))])
    drawn = draw_curves(comparison)
    assert [title for title, _ in drawn] == ["loss", "validation worst group"]
    assert drawn[0][1].spec["data"][0]["y"] == [1.0, 1.0, None, 1.0, 1.0]


def test_a_long_history_is_thinned_but_keeps_its_end(make: Make) -> None:
    rows = tuple({"stage": "t", "epoch": e, "loss": float(e)} for e in range(10_001))
    ((_, chart),) = draw_curves(comparisons([make(history=rows)])[0])
    y = chart.spec["data"][0]["y"]
    assert len(y) < 500
    assert (y[0], y[-1]) == (0.0, 10_000.0)


def test_without_numbers_there_is_no_chart(make: Make) -> None:
    (comparison,) = comparisons([make(groups=(), history=())])
    assert draw_before_after(comparison) is None
    assert draw_groups(comparison) is None
    assert draw_curves(comparison) == []


def test_names_are_escaped_for_plotly(hostile: list[Record]) -> None:
    (comparison,) = comparisons(hostile)
    for chart in (draw_before_after(comparison), draw_groups(comparison)):
        assert chart is not None
        text = json.dumps(chart.spec)
        assert "<script" not in text
        assert "<img" not in text
        assert len(text) < 60_000


def test_every_arm_has_its_own_look() -> None:
    assert len({marker_style(i) for i in range(16)}) == 16
