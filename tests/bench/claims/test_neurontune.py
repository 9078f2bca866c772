"""NeuronTune's claims: what counts as found, and what is refused as a rise."""

from dataclasses import replace
from typing import Any

import pytest

from spurless.bench.claims import CLAIMS
from spurless.bench.claims.neurontune import (
    DIGITS,
    PATCHED_DIGITS,
    SYNTHETIC,
    SYNTHETIC_ERM,
    identifies_shortcut,
    worst_group_gain,
)
from spurless.bench.experiment import run_experiment
from spurless.core.records import Record
from spurless.train.run import Compute


def record(average: float, worst: float, unbiased: float = 0.5, found: dict[str, Any] | None = None) -> Record:
    history = () if found is None else ({"stage": "neurons", "found": {"most_biased": found}},)
    return Record(
        "m", 0, {}, {}, {}, {}, {}, "last", (), {"average": average, "worst_group": worst, "unbiased": unbiased}, {},
        history=history,
    )  # fmt: skip


FOUND = {"minus": [[1, 0.4], [2, 0.0], [0, -0.5]], "plus": [[2, 0.01], [1, -0.3], [0, -0.5]]}


def test_the_shortcut_is_found_where_it_has_the_highest_score_of_a_label_and_one_above_zero() -> None:
    assert identifies_shortcut(record(0.9, 0.5, found=FOUND))
    assert not identifies_shortcut(record(0.9, 0.5, found={"minus": [[2, 0.4], [1, 0.3], [0, 0.0]]}))
    assert not identifies_shortcut(record(0.9, 0.5, found={"minus": [[1, -0.1], [2, -0.3], [0, -0.4]]}))
    assert not identifies_shortcut(record(0.9, 0.5))


def test_a_rise_counts_only_where_the_shortcut_is_found_and_the_gap_shrinks() -> None:
    records = {
        "erm": record(0.7, 0.5),
        "neurontune": record(0.8, 0.75, found=FOUND),
        "erm, like train": record(0.95, 0.6),
        "neurontune, like train": record(0.9, 0.88),
    }
    assert worst_group_gain(records) == pytest.approx(25)
    assert worst_group_gain({**records, "neurontune": record(0.8, 0.75)}) == 0.0
    assert worst_group_gain({**records, "neurontune, like train": record(0.95, 0.6)}) == 0.0
    assert not SYNTHETIC.bar.holds(0.0)


def test_the_gain_is_in_points_of_unbiased_accuracy() -> None:
    assert PATCHED_DIGITS.measure({"erm": record(0, 0, 0.56), "neurontune": record(0, 0, 0.9)}) == pytest.approx(34)


def test_the_synthetic_claim_holds_for_a_seed_that_it_does_not_use() -> None:
    compute = Compute("cpu")
    names = ("erm", "neurontune", "erm, like train", "neurontune, like train")
    records = {name: run_experiment(SYNTHETIC.experiments[name], 100, compute).record for name in names}
    assert worst_group_gain(records) > 10.0


def test_the_twin_and_the_method_start_from_the_same_model() -> None:
    for claim in (SYNTHETIC, PATCHED_DIGITS):
        first, *others = claim.experiments.values()
        for cell in others:
            same = replace(cell, method="erm", data_options={}, preset=None, method_options={})
            assert same == replace(first, method_options={})
    assert all(cell.train == DIGITS for cell in PATCHED_DIGITS.experiments.values())


def test_the_claims_are_in_the_table() -> None:
    for claim in (SYNTHETIC, SYNTHETIC_ERM, PATCHED_DIGITS):
        assert CLAIMS[claim.id] is claim
        assert claim.cost == "cpu"
    assert SYNTHETIC.over == PATCHED_DIGITS.over == "min"
    assert SYNTHETIC.seeds == 20
