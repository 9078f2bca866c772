"""Assessment: numbers by hand on a rule whose answers are known."""

import math
import sys

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.split import Split, Splits
from spurless.fitting.assess import (
    assess,
    describe_data,
    describe_environment,
    describe_model,
    thin_history,
    validation_average,
)
from spurless.metrics import METRICS
from spurless.models import Classifier
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

GROUPS = Groups(("no", "yes"), ("left", "right"))
# x is the attribute, so a model that reads x is right where a == y
TEST = Split(torch.tensor([[-1.0], [-1], [1], [1]]), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), GROUPS)
TRAIN = TEST.select(torch.tensor([0, 0, 0, 3, 3, 3, 1, 2]))
DATA = Splits(TRAIN, TEST, TEST, "toy", {"ratio": 0.25})


def reader(scale: float) -> Classifier:
    head = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[-scale / 2], [scale / 2]]))
    return Classifier(nn.Identity(), head)


def test_metrics_by_hand() -> None:
    run = make_run(Compute("cpu"), 0, TrainConfig())
    metrics, table = assess(reader(math.log(3.0)), DATA, run)  # confidence 3/4 everywhere, right on half
    assert table.accuracy.tolist() == [1.0, 0.0, 0.0, 1.0]
    assert metrics["average"] == 0.5
    assert metrics["adjusted_average"] == pytest.approx(6 / 8)  # 3 + 3 of the 8 train examples
    assert metrics["worst_group"] == 0.0
    assert metrics["ece"] == pytest.approx(0.25)  # 3/4 sure, 1/2 right
    assert metrics["worst_group_ece"] == pytest.approx(0.75)  # 3/4 sure, never right
    assert metrics["loss"] == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)


@pytest.mark.parametrize("weight", [math.nan, math.inf])
def test_a_model_that_says_no_numbers_is_refused_by_name(weight: float) -> None:
    with pytest.raises(InputError, match=r"the logits of example 0 are not finite .* have diverged"):
        assess(reader(weight), DATA, make_run(Compute("cpu"), 0, TrainConfig()))


def test_the_validation_accuracy_is_that_of_the_split_as_it_is() -> None:
    run = make_run(Compute("cpu"), 0, TrainConfig())
    uneven = Splits(TRAIN, TRAIN, TEST)
    assert validation_average(reader(1.0), uneven, run) == 6 / 8  # 3 + 3 of 8 are aligned
    assert validation_average(reader(-1.0), uneven, run) == 2 / 8


def test_every_metric_is_in_the_table() -> None:
    metrics, _ = assess(reader(1.0), DATA, make_run(Compute("cpu"), 0, TrainConfig()))
    assert set(metrics) <= set(METRICS)


def test_the_data_are_described_by_name_options_and_counts() -> None:
    said = describe_data(DATA, "mark")
    assert said["name"] == "toy"
    assert said["options"] == {"ratio": 0.25}
    assert said["fingerprint"] == "mark"
    assert said["sizes"] == {"train": 8, "val": 4, "test": 4}
    assert said["counts"] == {"train": [3, 1, 1, 3], "val": [1, 1, 1, 1], "test": [1, 1, 1, 1]}


def test_the_model_is_described_by_its_parameters() -> None:
    assert describe_model(reader(1.0)) == {"name": "own model", "options": {}, "parameters": 2}


def test_with_a_split_the_model_is_described_by_what_is_left_of_it() -> None:
    model = reader(1.0)
    with torch.no_grad():
        model.get_parameter("head.weight")[0] = 0
    said = describe_model(model, TEST)
    assert {key: said[key] for key in ("sparsity", "kept_parameters", "flops", "kept_flops")} == {
        "sparsity": 0.5,
        "kept_parameters": 1,
        "flops": 2,
        "kept_flops": 1,
    }


def test_the_circumstances_name_command_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/spurless", "fit", "two words"])
    said = describe_environment(torch.device("cpu"))
    assert said["command"] == "spurless fit 'two words'"
    assert {"spurless", "python", "torch"} <= set(said["versions"])
    assert said["hardware"]["device"] == "cpu"
    assert said["time"].endswith("+00:00")


def test_a_long_history_is_thinned_stage_by_stage_and_keeps_the_ends() -> None:
    rows = [{"stage": "erm", "epoch": i} for i in range(7000)] + [{"stage": "tune", "epoch": i} for i in range(40)]
    kept = thin_history(rows)
    erm = [row["epoch"] for row in kept if row["stage"] == "erm"]
    assert 490 <= len(erm) <= 501
    assert (erm[0], erm[-1]) == (0, 6999)
    assert [row["epoch"] for row in kept if row["stage"] == "tune"] == list(range(40))
    assert kept == tuple(sorted(kept, key=rows.index))  # in order
