"""Tests of the chart specifications: the points are the records' numbers, and names stay names."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spurless.core.records import Record
from spurless.reporting.charts import WORST_SHOWN, before_after, by_group, curves, heat_map, look, shown_groups
from spurless.reporting.gather import studies

Make = Callable[..., Record]


def test_the_dumbbell_runs_from_the_worst_group_to_the_average(make: Make) -> None:
    (study,) = studies([make(), make("jtt", worst=0.5, low=0.4, high=0.6)])
    chart = before_after(study)
    assert chart is not None
    lines = [trace for trace in chart.spec["data"] if trace["mode"] == "lines"]
    assert lines[1]["x"] == pytest.approx([50.0, 91.2])
    dots = [trace for trace in chart.spec["data"] if "error_x" in trace]
    assert dots[3]["x"] == [50.0]
    assert dots[3]["error_x"]["array"] == pytest.approx([10.0])
    assert "JTT: 50.0 % and 91.2 %" in chart.alt


def test_single_runs_are_drawn_where_there_are_several(make: Make) -> None:
    (study,) = studies([make(seed=0, worst=0.1), make(seed=1, worst=0.3)])
    chart = before_after(study)
    assert chart is not None
    assert chart.spec["data"][1]["x"] == pytest.approx([10.0, 30.0, 91.2, 91.2])


def test_each_group_has_a_dot_per_arm(make: Make) -> None:
    (study,) = studies([make(), make("jtt")])
    chart = by_group(study)
    assert chart is not None
    assert sorted(trace["x"][0] for trace in chart.spec["data"]) == pytest.approx([7.1, 7.1, 99.0, 99.0])
    assert len({trace["y"][0] for trace in chart.spec["data"]}) == 4


def test_of_many_groups_the_worst_are_shown(grid: Make) -> None:
    (study,) = studies([grid()])
    shown = shown_groups(study)
    assert len(shown) == WORST_SHOWN
    assert shown[:3] == ["0 in 0", "0 in 2", "0 in 3"]  # (0, 1) has no test examples


def test_the_heat_map_has_labels_down_and_attributes_across(grid: Make, make: Make) -> None:
    (study,) = studies([grid()])
    chart = heat_map(study, study.baseline)
    assert chart is not None
    z = chart.spec["data"][0]["z"]
    assert z[2][3] == pytest.approx(100 * 15 / 36)
    assert z[0][1] is None
    (study,) = studies([make()])
    assert heat_map(study, study.baseline) is None


def test_curves_break_between_stages_and_start_with_the_loss(make: Make) -> None:
    rows = [{"stage": s, "epoch": e, "val_worst_group": 0.5, "loss": 1.0} for s in ("one", "two") for e in (0, 1)]
    (study,) = studies([make(history=tuple(rows))])
    drawn = curves(study)
    assert [title for title, _ in drawn] == ["loss", "validation worst group"]
    assert drawn[0][1].spec["data"][0]["y"] == [1.0, 1.0, None, 1.0, 1.0]


def test_a_long_history_is_thinned_but_keeps_its_end(make: Make) -> None:
    rows = tuple({"stage": "t", "epoch": e, "loss": float(e)} for e in range(10_001))
    ((_, chart),) = curves(studies([make(history=rows)])[0])
    y = chart.spec["data"][0]["y"]
    assert len(y) < 500
    assert (y[0], y[-1]) == (0.0, 10_000.0)


def test_without_numbers_there_is_no_chart(make: Make) -> None:
    (study,) = studies([make(groups=(), history=())])
    assert before_after(study) is None
    assert by_group(study) is None
    assert curves(study) == []


def test_names_are_escaped_for_plotly(hostile: list[Record]) -> None:
    (study,) = studies(hostile)
    for chart in (before_after(study), by_group(study)):
        assert chart is not None
        text = json.dumps(chart.spec)
        assert "<script" not in text
        assert "<img" not in text
        assert len(text) < 60_000


def test_every_arm_has_its_own_look() -> None:
    assert len({look(i) for i in range(16)}) == 16
