"""Tests of the tables: every cell against a record made by hand."""

from __future__ import annotations

from collections.abc import Callable

from spurless.core.records import Record
from spurless.reporting.aggregate import comparisons
from spurless.reporting.tables import (
    data_facts,
    group_rows,
    metric_rows,
    run_facts,
    supervision_rows,
    warning_rows,
)

Make = Callable[..., Record]


def test_group_rows_mark_the_worst(make: Make) -> None:
    (comparison,) = comparisons([make()])
    worst, rest = group_rows(comparison, list(comparison.groups))
    assert (worst["name"], worst["test"], worst["train"]) == ("digits 0-4, unmarked", 121, 5)
    assert (worst["cells"][0].text, worst["cells"][0].note, worst["cells"][0].lowest) == (
        "7.1 %",
        "3.7 to 13.2 %",
        True,
    )
    assert not rest["cells"][0].lowest


def test_metrics_have_human_labels_in_a_fixed_order(make: Make) -> None:
    numbers = {"my_number": 12.5, "gap": 0.841, "ece": None, "average": 0.912}
    (comparison,) = comparisons([make(metrics=numbers), make(seed=1, metrics=numbers | {"average": 0.932})])
    rows = metric_rows(comparison)
    assert [row["name"] for row in rows] == ["Average", "Gap", "Calibration error", "my number"]
    assert [row["cells"][0].text for row in rows] == ["92.2 %", "84.1 points", "n/a", "12.5"]
    assert rows[0]["cells"][0].note == "± 1.4"  # 2 points apart: 2 / sqrt(2)
    assert rows[0]["description"] == "Accuracy on the whole split."
    assert rows[1]["description"] == "Average minus worst group; lower is better."


def test_supervision_rows(make: Make) -> None:
    used = {"train_attributes": True, "val_labels": False, "oracle": True}
    row = supervision_rows(comparisons([make(supervision=used, selection="val_worst_group")])[0])[0]
    assert row["used"] == ["used", "not used", "not used"]
    assert (row["other"], row["selection"]) == ("oracle", "val worst group")


def test_facts_say_what_was_run(make: Make) -> None:
    run = make(
        config={"lr": 0.1}, versions={"torch": "2.11"}, commit="abc", hardware={"device": "cpu"}, peak_memory=2**21
    )
    (comparison,) = comparisons([run])
    facts = dict(run_facts(comparison.baseline))
    assert facts["Config"] == "lr = 0.1"
    assert facts["Peak memory"] == "2 MiB"
    assert {"Commit", "Versions", "Hardware", "Command", "Seeds", "Time per run", "Run at", "Model"} <= facts.keys()
    assert dict(data_facts(comparison))["Options"] == "size = 28"
    assert (facts["Model"], facts["Size"]) == ("name = small-cnn", "1,234 parameters")


def test_a_warning_is_said_once_with_its_runs(make: Make) -> None:
    runs = [make(seed=s, warnings=("careful",)) for s in (0, 1)] + [make("jtt", warnings=("careful",))]
    assert warning_rows(comparisons(runs)[0]) == [("careful", "ERM, seeds 0 and 1; JTT, seed 0")]
