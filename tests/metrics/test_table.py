"""The table of metrics names what the metrics return, and nothing else."""

from dataclasses import fields

import torch

from spurless import metrics
from spurless.core.groups import Groups
from spurless.metrics import COVERAGES, METRICS, Association, group_table, selective_table, thresholds_for


def test_the_table_begins_with_the_summary_in_its_order() -> None:
    one = torch.zeros(1, dtype=torch.long)
    summary = group_table(one, one, one, Groups(("no", "yes"), ("left", "right"))).summary()
    assert list(METRICS)[: len(summary)] == list(summary)


def test_then_come_calibration_and_the_numbers_of_an_association() -> None:
    numbers = {field.name for field in fields(Association) if field.type == "float"}
    assert set(list(METRICS)[11:20]) == {"ece", "worst_group_ece", "loss", "ece_by_group"} | numbers


def test_then_comes_the_summary_of_abstaining_in_its_order_and_last_what_a_sweep_adds() -> None:
    one = torch.zeros(1, dtype=torch.long)
    groups = Groups(("no", "yes"), ("left", "right"))
    thresholds = thresholds_for(torch.ones(1).double(), COVERAGES)
    summary = selective_table(torch.ones(1).double(), one, one, one, groups, thresholds).summary()
    assert list(METRICS)[20 : 20 + len(summary)] == list(summary)
    assert list(METRICS)[20 + len(summary) :] == [
        "val_average", "activation_compressibility", "activation_sparsity", "pq_index", "class_separation",
        "bias_separation", "csi", "bsi", "prunability", "prunability_above_chance", "pruned_accuracy",
    ]  # fmt: skip  # tests/bench/test_large_lr_metrics.py has the numbers


def test_every_row_has_a_label_a_description_and_its_needs() -> None:
    assert all(name == info.name and info.label and info.description and info.needs for name, info in METRICS.items())


def test_every_public_name_exists() -> None:
    assert [name for name in metrics.__all__ if not hasattr(metrics, name)] == []
