"""Tests of the tables: every cell against a record made by hand."""

from __future__ import annotations

from collections.abc import Callable

from spurless.core.records import Record
from spurless.reporting.gather import studies
from spurless.reporting.tables import (
    METRICS,
    data_facts,
    group_rows,
    metric_rows,
    run_facts,
    supervision_rows,
    warnings,
)

Make = Callable[..., Record]


def test_group_rows_mark_the_worst(make: Make) -> None:
    (study,) = studies([make()])
    worst, rest = group_rows(study, list(study.groups))
    assert (worst["name"], worst["test"], worst["train"]) == ("digits 0-4, unmarked", 121, 5)
    assert (worst["cells"][0].text, worst["cells"][0].note, worst["cells"][0].lowest) == (
        "7.1 %",
        "3.7 to 13.2 %",
        True,
    )
    assert not rest["cells"][0].lowest


def test_metrics_have_human_labels_in_a_fixed_order(make: Make) -> None:
    numbers = {"my_number": 12.5, "gap": 0.841, "ece": None, "average": 0.912}
    (study,) = studies([make(metrics=numbers), make(seed=1, metrics=numbers | {"average": 0.932})])
    rows = metric_rows(study)
    assert [row["name"] for row in rows] == ["Average", "Gap", "Calibration error", "my number"]
    assert [row["cells"][0].text for row in rows] == ["92.2 %", "84.1 points", "n/a", "12.5"]
    assert rows[0]["cells"][0].note == "± 1.4"  # 2 points apart: 2 / sqrt(2)
    assert rows[0]["why"] == "Share of all test examples that are right."


def test_supervision_rows(make: Make) -> None:
    used = {"train_attributes": True, "val_labels": False, "oracle": True}
    row = supervision_rows(studies([make(supervision=used, selection="val_worst_group")])[0])[0]
    assert row["used"] == ["used", "not used", "not used"]
    assert (row["other"], row["selection"]) == ("oracle", "val worst group")


def test_facts_say_what_was_run(make: Make) -> None:
    run = make(
        config={"lr": 0.1}, versions={"torch": "2.11"}, commit="abc", hardware={"device": "cpu"}, peak_memory=2**21
    )
    (study,) = studies([run])
    facts = dict(run_facts(study.baseline))
    assert facts["Config"] == "lr = 0.1"
    assert facts["Peak memory"] == "2 MiB"
    assert {"Commit", "Versions", "Hardware", "Command", "Seeds", "Time per run", "Run at", "Model"} <= facts.keys()
    assert dict(data_facts(study))["Options"] == "size = 28"
    assert (facts["Model"], facts["Size"]) == ("name = small-cnn", "1,234 parameters")


def test_a_warning_is_said_once_with_its_runs(make: Make) -> None:
    runs = [make(seed=s, warnings=("careful",)) for s in (0, 1)] + [make("jtt", warnings=("careful",))]
    assert warnings(studies(runs)[0]) == [("careful", "ERM, seeds 0 and 1; JTT, seed 0")]


def test_the_page_explains_numbers_that_the_metrics_room_has() -> None:
    from spurless.metrics import METRICS as ROOM

    assert set(METRICS) <= set(ROOM)
