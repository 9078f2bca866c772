"""DCWP's claims: the weight ratio is in the record, agrees with the theory, and is judged by its rise."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from spurless.bench.claims import CLAIMS, ClaimResult, check_claim
from spurless.bench.claims.dcwp import (
    AGREEMENTS,
    COLORED_DIGITS,
    LINEAR_RATIO,
    accuracy_if_best,
    increasing_ratio,
    margin_of_all_parts,
    measure_start,
    measure_weight_ratio,
)
from spurless.bench.reproduce import reproduce
from spurless.core.records import Record, read_records
from spurless.data import load
from spurless.data.mined import MinedExamples, data_fingerprint
from spurless.fitting import Fitted, evaluate_given
from spurless.methods import make_method
from spurless.methods._learn_mask import Subnetwork
from spurless.metrics.theory.shortcut import GradientFlow, weights_at
from spurless.models import build
from spurless.train.run import Compute

SMALL = {"n_train": 2000, "n_val": 10, "n_test": 100}


def record() -> Record:
    data = load("linear-bits", **SMALL)
    return evaluate_given("fresh", build("linear", data), data, compute=Compute("cpu"))


def rows(*ratios: float) -> dict[str, Record]:
    made = record()
    return {f"p {p}": replace(made, metrics={"weight_ratio": r}) for p, r in zip(AGREEMENTS, ratios, strict=True)}


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_the_ratio_counts_where_it_rises() -> None:
    assert increasing_ratio(rows(0.1, 0.3, 0.8, 0.97)) == 0.97
    assert increasing_ratio(rows(0.1, 0.3, 0.8, 0.7)) == 0.7  # at the end one seed may fall
    assert increasing_ratio(rows(0.1, 0.3, 0.8, 0.2)) == 0.0
    assert increasing_ratio(rows(0.4, 0.3, 0.8, 0.97)) == 0.0
    assert increasing_ratio(rows(0.1, 0.9, 0.8, 0.97)) == 0.0


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_the_ratio_is_of_the_difference_of_the_rows() -> None:
    data = load("linear-bits", **SMALL, spurious=3)
    model = build("linear", data)
    with torch.no_grad():
        model.get_parameter("head.weight").copy_(torch.tensor([[-1.0, 0.0, 1.0, 0.0], [1.0, 3.0, 2.0, 2.0]]))
    fitted = Fitted(model, evaluate_given("given", model, data, compute=Compute("cpu")))
    assert measure_weight_ratio(fitted, data) == {"weight_ratio": 1.0}


def test_the_number_is_in_the_records_and_they_alone_are_judged(tmp_path: Path) -> None:
    epochs = 150
    short = {
        name: replace(cell, data_options={**cell.data_options, **SMALL}, train={**cell.train, "epochs": epochs})
        for name, cell in LINEAR_RATIO.experiments.items()
    }
    claim = replace(LINEAR_RATIO, experiments=short)
    verdict = reproduce(claim, seeds=2, compute=Compute("cpu"), out=tmp_path / "records.jsonl")
    records = read_records(tmp_path / "records.jsonl")
    assert check_claim(claim, records).values == verdict.values
    assert all(value > 0.4 for value in verdict.values)  # so it rises on both seeds
    for one in records:
        p, found = one.data["options"]["p"], one.metrics["weight_ratio"]
        # two rows of weights move twice as fast; where p is low, where they began is long forgotten
        time = 2 * 0.1 * 2 * epochs
        (invariant, spurious) = weights_at(GradientFlow(p), [time], "logistic", step=0.2)[0].tolist()
        if p == 0.6:
            assert found == pytest.approx(spurious / invariant, rel=0.2)


def test_seeds_are_put_together_by_their_median() -> None:
    assert CLAIMS["dcwp/linear-ratio"] is LINEAR_RATIO
    verdict = ClaimResult(LINEAR_RATIO, (0.9, 1.1, 9.0))
    assert verdict.ours == 1.1
    assert verdict.holds
    assert not ClaimResult(LINEAR_RATIO, (0.5, 0.6, 9.0)).holds


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_the_gain_is_in_points_over_erm_and_a_missing_number_is_none() -> None:
    made = record()
    rows = {name: replace(made, metrics={"unbiased": value}) for name, value in (("dcwp", 0.9), ("erm", 0.7))}
    assert COLORED_DIGITS.measure(rows) == pytest.approx(20.0)
    rows["erm"] = replace(made, metrics={"unbiased": None})
    assert COLORED_DIGITS.measure(rows) != COLORED_DIGITS.measure(rows)


def test_erm_has_as_many_steps_as_all_stages_together() -> None:
    cells = COLORED_DIGITS.experiments
    config = make_method("dcwp", cells["dcwp"].preset).config
    stages = cells["dcwp"].train["steps"] + config.mining.steps + config.prune_steps + config.steps
    assert stages == cells["erm"].train["steps"] == cells["erm, 10 times the rate"].train["steps"]
    mrm = make_method("mrm", cells["mrm"].preset).config
    assert 2 * cells["mrm"].train["steps"] + mrm.prune_steps == stages
    batches = {config.batch_size, config.mining.batch_size, *(cell.train["batch_size"] for cell in cells.values())}
    assert len(batches) == 1
    for name, cell in cells.items():
        assert (cell.dataset, cell.model, cell.data_options) == ("colored-digits", "pooled-cnn", {"conflicting": 0.1})
        assert name.startswith("erm") or make_method(cell.method, cell.preset, **cell.method_options)


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_colored_mnist_is_the_accuracy_of_dcwp_where_no_rival_without_attributes_is_ahead() -> None:
    made = record()
    cells = CLAIMS["dcwp/colored-mnist-1"].experiments
    rows = {name: replace(made, metrics={"unbiased": 0.5}) for name in cells}
    rows["dcwp"] = replace(made, metrics={"unbiased": 0.9})
    rows["end"] = replace(made, metrics={"unbiased": 0.99})  # it is given attributes
    assert accuracy_if_best(rows) == pytest.approx(90)
    rows["disent"] = replace(made, metrics={"unbiased": 0.91})
    assert accuracy_if_best(rows) == 0


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_the_ablation_is_of_the_extremes() -> None:
    made = record()
    values = [0.4, 0.7, 0.7, 0.7, 0.7, 0.7, 0.8, 0.85, 0.88]
    rows = {f"row {n}": replace(made, metrics={"unbiased": value}) for n, value in enumerate(values, 1)}
    assert margin_of_all_parts(rows) == pytest.approx(3)
    rows["row 1"] = replace(made, metrics={"unbiased": 0.75})
    assert math.isnan(margin_of_all_parts(rows))


def test_every_row_of_the_ablation_has_the_parts_of_table_2() -> None:
    rows = {n: cell.method_options for n, cell in CLAIMS["dcwp/ablation"].experiments.items()}
    masked = [rows[f"row {n}"]["mask"] for n in range(1, 10)]
    assert masked == [False, False, False, True, True, True, False, True, True]
    assert {row["mining"].lr for row in rows.values()} == {0.01}
    gce = [rows[f"row {n}"]["mining"].how == "gce" for n in range(1, 10)]
    assert gce == [False, False, True, False, False, False, True, True, True]
    assert [rows[f"row {n}"]["align"] > 0 for n in range(1, 10)] == [n in (5, 6, 7, 9) for n in range(1, 10)]
    assert [rows[f"row {n}"]["prune_align"] > 0 for n in range(1, 10)] == [n in (6, 9) for n in range(1, 10)]
    assert [n for n, options in rows.items() if "upweight" in options] == ["row 1"]


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_what_dcwp_began_with_is_told_beside_it() -> None:
    data = load("linear-bits", **SMALL)
    before, after = (build("linear", data, seed=seed) for seed in (0, 1))
    told = [evaluate_given("dcwp", model, data, compute=Compute("cpu")) for model in (before, after)]
    assert told[0].metrics["unbiased"] != told[1].metrics["unbiased"]
    assert measure_start(Fitted(after, told[1], before), data) == {"start_unbiased": told[0].metrics["unbiased"]}
    assert measure_start(Fitted(after, told[1]), data) == {}


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_the_quality_of_the_mined_list_is_told_beside_it() -> None:
    data = load("linear-bits", p=0.8, **SMALL)
    model = build("linear", data)
    made = evaluate_given("dcwp", model, data, compute=Compute("cpu"))
    conflicting = data.train.y != data.train.a
    chosen = conflicting.clone()
    chosen[conflicting.nonzero()[:2]] = False  # two are missed
    chosen[(~conflicting).nonzero()[0]] = True  # one is taken for one
    n = int(conflicting.sum())
    mined = MinedExamples(chosen.float(), chosen, "gce", data_fingerprint(data.train))
    found = measure_start(Fitted(model, made, explanation=Subnetwork(mined, 0.0, {}, ())), data)
    assert found == {"mined_precision": (n - 2) / (n - 1), "mined_recall": (n - 2) / n}
