"""Tests of abstaining on the page: the numbers are the records', and where it hurts it is said."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spurless.core.records import Record
from spurless.reporting.aggregate import Comparison, MethodRuns, comparisons
from spurless.reporting.page import render
from spurless.reporting.selective import (
    coverage_rows,
    coverage_table,
    describe_scores,
    draw_risk_coverage,
    mean_curve,
    selective_methods,
    selective_warnings,
)
from spurless.reporting.tables import metric_rows

Make = Callable[..., Record]


def row(target: float, coverage: float, error: float | None, worst: float | None, n: int = 50) -> dict[str, Any]:
    groups = [{"name": "small", "count": 60, "kept": n, "error": worst}, {"name": "large", "kept": 900, "error": 0.0}]
    told = {"target": target, "threshold": 0.5, "coverage": coverage, "error": error, "worst_group_error": worst}
    return told | {"worst_group": "small", "groups": groups}


def line(*points: tuple[float, float | None, float | None]) -> list[dict[str, float | None]]:
    return [{"coverage": c, "error": e, "worst_group_error": w} for c, e, w in points]


def chosen(rows: Sequence[Any], points: Sequence[Any] = (), **more: Any) -> dict[str, Any]:
    return {"score": "softmax", "rows": list(rows), "curve": list(points)} | more


@pytest.fixture
def two(make: Make) -> list[Record]:
    """Two seeds of one method: at coverage 0.5 the errors are 0.1 and 0.3, in the worst group 0.4 and 0.6."""
    first = chosen([row(0.5, 0.48, 0.1, 0.4, 40)], line((0.5, 0.1, 0.4), (1.0, 0.2, 0.2)))
    second = chosen([row(0.5, 0.52, 0.3, 0.6, 44)], line((0.5, 0.3, 0.6), (1.0, 0.4, 0.4)))
    return [make(seed=0, selective=first), make(seed=1, selective=second)]


def only(records: Sequence[Record]) -> tuple[Comparison, MethodRuns]:
    (comparison,) = comparisons(records)
    return comparison, comparison.baseline


def test_the_table_has_the_means_of_the_records(two: list[Record]) -> None:
    comparison, arm = only(two)
    (found,) = coverage_rows(arm)
    assert (found.coverage.mean, found.error.mean, found.worst.mean) == pytest.approx((0.5, 0.2, 0.5))
    assert (found.groups, found.sizes) == (("small",), (40, 44))
    (shown,) = coverage_table(comparison)
    assert [cell.text for cell in shown["cells"]] == ["50.0 %", "50.0 %", "20.0 %", "50.0 %", "small"]
    assert [cell.note for cell in shown["cells"]] == ["", "± 2.8", "± 14.1", "± 14.1", "n = 40 to 44"]


def test_coverages_come_from_high_to_low(make: Make) -> None:
    _, arm = only([make(selective=chosen([row(0.5, 0.5, 0.1, 0.1), row(1.0, 1, 0.1, 0.1), row(0.9, 0.9, 0.1, 0.1)]))])
    assert [found.target for found in coverage_rows(arm)] == [1.0, 0.9, 0.5]


def test_the_curve_is_the_mean_over_runs(two: list[Record]) -> None:
    grid, error, worst = mean_curve(only(two)[1])
    assert grid == [0.5, 1.0]
    assert error == pytest.approx([0.2, 0.3])
    assert worst == pytest.approx([0.5, 0.3])


def test_runs_with_other_coverages_are_interpolated_and_never_extended(make: Make) -> None:
    first = chosen([], line((0.2, 0.0, 0.0), (0.6, 0.4, 0.8), (1.0, 0.4, 0.8)))
    second = chosen([], line((0.4, 0.1, 0.1), (1.0, 0.1, 0.1)))
    grid, error, worst = mean_curve(only([make(seed=0, selective=first), make(seed=1, selective=second)])[1])
    assert grid == [0.4, 0.6, 1.0]  # 0.2 is a point of one run alone
    assert error == pytest.approx([(0.2 + 0.1) / 2, (0.4 + 0.1) / 2, (0.4 + 0.1) / 2])
    assert worst == pytest.approx([(0.4 + 0.1) / 2, (0.8 + 0.1) / 2, (0.8 + 0.1) / 2])


def test_a_number_that_some_run_lacks_is_a_gap(make: Make) -> None:
    first, second = chosen([], line((0.5, 0.1, None), (1, 0.1, 0.2))), chosen([], line((0.5, 0.3, 0.4), (1, 0.1, 0.2)))
    _, error, worst = mean_curve(only([make(seed=0, selective=first), make(seed=1, selective=second)])[1])
    assert error[0] == pytest.approx(0.2)
    assert worst[0] is None


def test_the_chart_has_a_solid_and_a_dashed_line_per_arm(two: list[Record], make: Make) -> None:
    other = make("jtt", selective=chosen([row(0.5, 0.5, 0.1, 0.2)], line((0.5, 0.1, 0.2), (1.0, 0.2, 0.3))))
    plain = make("dfr")
    (comparison,) = comparisons([*two, plain, other])
    assert [arm.name for _, arm in selective_methods(comparison)] == ["ERM", "JTT"]
    chart = draw_risk_coverage(comparison)
    assert chart is not None
    lines = [trace for trace in chart.spec["data"] if trace["mode"] == "lines"]
    assert [trace["line"]["dash"] for trace in lines] == ["solid", "dash"] * 2
    assert lines[0]["x"] == [50.0, 100.0]
    assert lines[0]["y"] == pytest.approx([20.0, 30.0])
    assert lines[1]["y"] == pytest.approx([50.0, 30.0])
    assert lines[3]["y"] == pytest.approx([20.0, 30.0])
    assert lines[0]["line"]["color"] == lines[1]["line"]["color"] != lines[2]["line"]["color"] == "@series2"
    marks = [trace for trace in chart.spec["data"] if trace["mode"] == "markers"]
    assert (marks[1]["x"], marks[1]["y"]) == (pytest.approx([50.0]), pytest.approx([50.0]))
    assert "ERM, error and worst-group error: 20.0 % and 50.0 % at 50.0 %." in chart.alt


def test_where_abstaining_hurts_the_worst_group_it_is_said(two: list[Record]) -> None:
    (sentence,) = selective_warnings(only(two)[0])
    assert sentence == (
        "Abstaining increases the worst-group error of ERM: at a target coverage of 50.0 % the error of 'small' is "
        "50.0 %; if every example is predicted, no group has an error above 30.0 %. The error over all groups falls "
        "from 30.0 % to 20.0 % at the same time."
    )


def test_where_it_helps_nothing_is_said(make: Make) -> None:
    fine = chosen([row(0.5, 0.5, 0.1, 0.2)], line((1.0, 0.2, 0.3)))
    assert selective_warnings(only([make(selective=fine)])[0]) == []
    same = chosen([row(0.5, 0.5, 0.1, 0.30001)], line((1.0, 0.2, 0.3)))  # no reader would see it
    assert selective_warnings(only([make(selective=same)])[0]) == []


def test_few_examples_and_runs_that_disagree_are_said(make: Make) -> None:
    bad = chosen([row(0.5, 0.5, 0.1, 0.9, 7)], full={"error": 0.2, "worst_group_error": 0.3})
    good = chosen([row(0.5, 0.5, 0.1, 0.2, 9)], full={"error": 0.2, "worst_group_error": 0.3})
    (sentence,) = selective_warnings(only([make(seed=0, selective=bad), make(seed=1, selective=good)])[0])
    assert "no group has an error above 30.0 %. This is so in 1 of 2 runs. The error over all groups" in sentence
    assert sentence.endswith("Only 7 examples of that group are predicted there.")


def test_of_several_coverages_one_with_enough_examples_speaks(make: Make) -> None:
    rows = [row(0.8, 0.8, 0.1, 0.5, 30), row(0.5, 0.5, 0.1, 1.0, 2)]
    (sentence,) = selective_warnings(
        only([make(selective=chosen(rows, full={"error": 0.2, "worst_group_error": 0.3}))])[0]
    )
    assert "at a target coverage of 80.0 % the error of 'small' is 50.0 %" in sentence
    assert "Only" not in sentence


def test_without_a_curve_the_groups_of_the_record_are_the_whole(make: Make) -> None:
    record = make(worst=0.8, average=0.9, selective=chosen([row(0.5, 0.5, 0.05, 0.4)]))
    assert (
        "no group has an error above 20.0 %. The error over all groups falls from 10.0 %"
        in selective_warnings(only([record])[0])[0]
    )


def test_each_arm_names_its_score(make: Make) -> None:
    one, two = chosen([row(1, 1, 0, 0)]), chosen([row(1, 1, 0, 0)], score="product")
    (comparison,) = comparisons([make(selective=one), make("jtt", selective=one), make("masktune", selective=two)])
    assert describe_scores(comparison) == "'softmax' (ERM and JTT); 'product' (MaskTune)"


def test_numbers_at_a_coverage_are_not_told_twice(make: Make) -> None:
    numbers = {"average": 0.9, "aurc": 0.1, "error_at_90": 0.1, "worst_group_error_at_99.5": 0.2, "coverage_at_90": 0.9}
    with_table, without = make(metrics=numbers, selective=chosen([row(0.9, 0.9, 0.1, 0.2)])), make(metrics=numbers)
    assert [row["name"] for row in metric_rows(only([with_table])[0])] == ["Average", "Risk-coverage area"]
    assert len(metric_rows(only([without])[0])) == 5


def test_the_numbers_of_the_page_are_those_of_the_records(two: list[Record]) -> None:
    text = render(two).replace("\u00a0", " ")
    part = text[text.index('aria-labelledby="selective-0"') :].partition("</section>")[0]
    for said in (
        "Selective prediction",
        "Abstaining increases the worst-group error of ERM",
        ">20.0 %",
        ">50.0 %",
        "small",
    ):
        assert said in part
    assert '<a href="#selective-0">' in text


def test_a_page_without_abstaining_says_nothing_of_it(make: Make) -> None:
    text = render([make(), make("jtt")]).partition("<script")[0]
    assert "bstain" not in text
    assert "section-0" not in text


@pytest.mark.parametrize(
    "odd",
    [
        None,
        [],
        {"rows": None, "curve": 3},
        {"rows": [1, {}], "curve": ["x", {"coverage": "a"}]},
        {"rows": [{"target": 0.5, "groups": 7, "worst_group": "<b>"}], "curve": [{"coverage": 0.5}]},
    ],
)
def test_odd_records_still_make_a_page(make: Make, odd: Any) -> None:
    record = Record.from_json(json.dumps(json.loads(make().to_json()) | {"selective": odd}))
    assert "<b>" not in render([record]).partition("<script")[0]


def test_names_are_escaped_for_plotly(hostile: list[Record]) -> None:
    from dataclasses import replace

    records = [replace(r, selective=chosen([row(0.5, 0.5, 0.1, 0.2)], line((1.0, 0.1, 0.1)))) for r in hostile]
    chart = draw_risk_coverage(comparisons(records)[0])
    assert chart is not None
    assert "<script" not in json.dumps(chart.spec)
