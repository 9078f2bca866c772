"""Tests of sizes: what is left of a network beside its worst group, against records made by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spurless.core.records import Record
from spurless.reporting.aggregate import comparisons
from spurless.reporting.page import render
from spurless.reporting.tables import size_table

Make = Callable[..., Record]
WHOLE = {"name": "cnn", "parameters": 2000, "kept_parameters": 2000, "sparsity": 0.0, "flops": 9000, "kept_flops": 9000}


def sparse(share: float, left: int) -> dict[str, Any]:
    return WHOLE | {"sparsity": share, "kept_parameters": left, "kept_flops": 4 * left}


def test_a_sparse_arm_stands_beside_the_dense_one_with_its_worst_group(make: Make) -> None:
    runs = [make(model=WHOLE), make("avp", model=sparse(0.8, 400)), make("avp", seed=1, model=sparse(0.9, 200))]
    table = size_table(comparisons(runs)[0])
    assert table["columns"] == [
        "Worst group",
        "Average",
        "Zero weights",
        "Remaining parameters",
        "Remaining multiply-adds",
    ]
    dense, pruned = ([(cell.text, cell.note) for cell in row["cells"]] for row in table["rows"])
    assert dense[2:] == [("0.0 %", ""), ("2,000", "of 2,000"), ("9,000", "of 9,000")]
    assert pruned[0][0] == "7.1 %"
    assert pruned[2:] == [("85.0 %", "± 7.1"), ("300", "of 2,000"), ("1,200", "of 9,000")]


def test_the_risk_of_one_that_may_abstain_is_beside_it(make: Make) -> None:
    asked = make("avp", model=sparse(0.8, 400), metrics={"average": 0.9, "worst_group_aurc": 0.25})
    table = size_table(comparisons([make(model=WHOLE), asked])[0])
    assert table["columns"][-1] == "Worst risk-coverage area"
    assert [row["cells"][-1].text for row in table["rows"]] == ["n/a", "25.0 %"]


def test_old_records_and_dense_networks_have_no_such_table(make: Make) -> None:
    for runs in ([make()], [make(model=WHOLE)], [make(model=WHOLE | {"sparsity": None, "flops": None})]):
        assert size_table(comparisons(runs)[0]) == {}
        assert "Model size" not in render(runs)


def test_old_records_beside_a_sparse_one_say_that_nobody_counted(make: Make) -> None:
    runs = [make(), make("avp", model=sparse(0.8, 400) | {"flops": None, "kept_flops": "many"})]
    page = render(runs)
    assert "Model size" in page
    old, new = ([cell.text for cell in row["cells"][2:]] for row in size_table(comparisons(runs)[0])["rows"])
    assert (old, new) == (["n/a", "n/a", "n/a"], ["80.0 %", "400", "n/a"])
