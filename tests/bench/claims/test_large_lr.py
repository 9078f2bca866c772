"""Claims of the learning-rate study: what is measured, from records made by hand and from a short run."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from spurless.bench.claims import CLAIMS, check_claim
from spurless.bench.claims.large_lr import CLAIMS as OURS
from spurless.bench.claims.large_lr import (
    COMPARISON,
    LONGEST,
    LOSS_RATIO,
    PARITY,
    RATES,
    RESNET18,
    ROWS,
    accuracy_rise,
    complete_metric,
    correlation_with_accuracy,
    margin_of_high_rate,
    rate,
)
from spurless.bench.reproduce import reproduce
from spurless.core.records import Record, read_records
from spurless.methods import make_method
from spurless.train.config import TrainConfig
from spurless.train.run import Compute

END = ({"stage": "train", "epoch": 1, "loss": 0.1, "train_accuracy": 1.0},)
SHORT = ({"stage": "train", "epoch": 1, "loss": 0.1, "train_accuracy": 0.99},)


def record(metrics: Mapping[str, float | None], end: bool = True) -> Record:
    return Record(
        method="erm",
        seed=0,
        data={},
        model={},
        config={},
        train={"stop_accuracy": 1.0},
        supervision={},
        selection="last",
        groups=(),
        metrics=dict(metrics),
        seconds={},
        history=END if end else SHORT,
    )


def parity(
    unbiased: float = 0.8, pruned: float = 0.7, csi: float = 0.2, separation: float = 0.1, end: bool = True
) -> dict[str, Record]:
    low = {"unbiased": 0.55, "prunability": 0.56, "csi": 0.03, "class_separation": 0.01}
    high = {"unbiased": unbiased, "prunability": pruned, "csi": csi, "class_separation": separation}
    return {rate(0.01): record(low), rate(0.1): record(low), rate(0.75): record(high, end)}


def test_the_rise_counts_where_everything_rises() -> None:
    assert PARITY.measure(parity()) == pytest.approx(25)
    assert PARITY.measure(parity(pruned=0.56)) == 0.0
    assert PARITY.measure(parity(csi=0.02)) == 0.0
    assert PARITY.measure(parity(separation=0.0)) == 0.0
    assert PARITY.measure(parity(unbiased=0.5)) == pytest.approx(-5)


def test_a_run_that_was_cut_off_or_has_no_number_makes_none() -> None:
    assert math.isnan(PARITY.measure(parity(end=False)))
    assert math.isnan(PARITY.measure({**parity(), rate(0.01): record({"unbiased": 0.5})}))
    assert complete_metric(record({"unbiased": None}), "unbiased") != complete_metric(
        record({"unbiased": None}), "unbiased"
    )
    assert complete_metric(record({"unbiased": 0.5}), "unbiased") == 0.5
    assert math.isnan(complete_metric(record({"unbiased": 0.5}, end=False), "unbiased"))


def test_half_of_the_papers_rise_is_the_bar_and_prunability_must_rise() -> None:
    bars = {claim.id: (round(claim.paper or 0, 2), claim.bar.low) for claim in RESNET18}
    assert bars == {
        "large-lr/colored-mnist-resnet18": (23.2, 11.6),
        "large-lr/double-mnist-resnet18": (10.14, 5.07),
        "large-lr/mnist-cifar-resnet18": (21.28, 10.64),
        "large-lr/corrupted-cifar10-resnet18": (12.64, 6.32),
    }
    for claim in RESNET18:
        low, *_, high = claim.experiments
        rows = {
            low: record({"unbiased": 0.5, "prunability": 0.3}),
            high: record({"unbiased": 0.75, "prunability": 0.6}),
        }
        assert claim.measure(rows) == pytest.approx(25)
        assert claim.measure({**rows, high: record({"unbiased": 0.75, "prunability": 0.3})}) == 0.0


def test_the_correlation_is_over_rates_and_none_where_a_run_is_missing() -> None:
    accuracies = (0.70, 0.75, 0.78, 0.88, 0.89, 0.91)
    rows = {
        rate(lr): record({"unbiased": a, "max_loss_ratio": 2 * a - 1}) for lr, a in zip(RATES, accuracies, strict=True)
    }
    assert correlation_with_accuracy(rows) == pytest.approx(1)
    turned = {
        cell: replace(one, metrics={**one.metrics, "max_loss_ratio": -(one.metrics["unbiased"] or 0)})
        for cell, one in rows.items()
    }
    assert correlation_with_accuracy(turned) == pytest.approx(-1)
    assert math.isnan(correlation_with_accuracy({**rows, rate(0.25): replace(rows[rate(0.25)], history=SHORT)}))
    alike = {
        cell: replace(one, metrics={"unbiased": 0.5, "max_loss_ratio": one.metrics["max_loss_ratio"]})
        for cell, one in rows.items()
    }
    assert math.isnan(correlation_with_accuracy(alike))


def test_the_better_high_rate_is_compared_with_the_best_other_row() -> None:
    rows = {row: record({"unbiased": 0.7}) for row in ROWS}
    rows |= {"high rate": record({"unbiased": 0.9}), "high rate, l2 0.0001": record({"unbiased": 0.94})}
    rows["focal 5"] = record({"unbiased": 0.92}, end=False)  # a rival counts as far as it came
    assert margin_of_high_rate(rows) == pytest.approx(2)
    rows["high rate, l2 0.0001"] = record({"unbiased": 0.94}, end=False)  # ours does not
    assert margin_of_high_rate(rows) == pytest.approx(-2)
    rows["high rate"] = record({"unbiased": 0.9}, end=False)
    assert math.isnan(margin_of_high_rate(rows))


def test_settings_are_the_papers() -> None:
    assert [claim.id for claim in OURS if claim.id not in CLAIMS] == []
    for claim in OURS:
        for name, cell in claim.experiments.items():
            train = TrainConfig(**cell.train)
            make_method(cell.method, cell.preset, **cell.method_options)
            assert (train.schedule, train.optimiser, train.stop_accuracy) == ("constant", "sgd", 1.0), name
            assert name in ROWS or (train.momentum, train.weight_decay, train.batch_size) == (0.0, 0.0, 100)
            assert claim.cost == "cpu" or train.epochs <= LONGEST
    assert list(LOSS_RATIO.experiments) == list(RESNET18[0].experiments)
    assert {cell.method for cell in LOSS_RATIO.experiments.values()} == {"erm-loss-ratio"}
    changed = {
        name: {k: v for k, v in cell.train.items() if v != ROWS["low rate"].train.get(k)} for name, cell in ROWS.items()
    }
    assert changed == {
        "low rate": {},
        "high rate": {"lr": 0.15},
        "high rate, l2 0.0001": {"lr": 0.15, "weight_decay": 0.0001},
        "batch size 10": {"batch_size": 10, "epochs": 20},
        "momentum 0.99": {"momentum": 0.99},
        "l1 0.0001": {"l1": 0.0001, "epochs": 150},
        "l2 0.05": {"weight_decay": 0.05},
        "asam 1": {"asam": 1.0, "epochs": 150},
        "focal 5": {"epochs": 150},
    }
    assert COMPARISON.experiments["focal 5"].method_options == {"gamma": 5.0}


def test_a_short_parity_has_every_number_and_is_judged_by_its_records_alone(tmp_path: Path) -> None:
    data, net = {"core": 2, "noise": 1, "n_train": 200, "n_val": 10, "n_test": 500}, {"width": 50}
    cells = {
        rate(lr): replace(
            cell, data_options=data, model_options=net, train={**cell.train, "lr": 10 * lr, "batch_size": 20}
        )
        for lr, cell in ((0.01, PARITY.experiments[rate(0.01)]), (0.75, PARITY.experiments[rate(0.75)]))
    }
    cells[rate(0.75)] = replace(cells[rate(0.75)], train={**cells[rate(0.75)].train, "lr": 0.5})
    claim = replace(PARITY, experiments=cells)
    verdict = reproduce(claim, seeds=1, compute=Compute("cpu"), out=tmp_path / "records.jsonl")
    records = read_records(tmp_path / "records.jsonl")
    assert check_claim(claim, records).values == pytest.approx(verdict.values)
    for one in records:
        assert one.history[-1]["train_accuracy"] == 1.0
        assert {"prunability", "pruned_accuracy", "csi", "bsi", "class_separation", "max_loss_ratio"} <= set(
            one.metrics
        )
        assert "loss_ratio" in one.history[0]
    low, high = (one.metrics["unbiased"] or 0.0 for one in records)
    assert accuracy_rise({"a": records[0], "b": records[1]}, "a", "b", ()) == pytest.approx(100 * (high - low))
