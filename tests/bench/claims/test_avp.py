"""AVP's claims: what is measured, what is in the records, and that all cells begin with the same net."""

from dataclasses import replace

import pytest
import torch

from spurless.bench.claims import CLAIMS
from spurless.bench.claims.avp import BIASED, NET, OVERFIT, UNBIASED, measure_wrong_labels
from spurless.bench.experiment import run_experiment
from spurless.core.records import Record
from spurless.data import load
from spurless.fitting import Fitted, evaluate_given
from spurless.models import build
from spurless.train.run import Compute


def record(average: float) -> Record:
    return Record("m", 0, {}, {}, {}, {}, {}, "last", (), {"average": average}, {})


def test_the_gain_is_in_points_over_training_on() -> None:
    assert BIASED.measure({"avp": record(0.972), "no pruning": record(0.937)}) == pytest.approx(3.5)
    assert not BIASED.bar.holds(0.0)  # no gain is no gain
    assert BIASED.bar.holds(0.2)  # one test example of 500 is
    assert BIASED.over == UNBIASED.over == "min"


@pytest.mark.filterwarnings("ignore:The model predicts")
def test_obedience_is_counted_on_wrong_labels_alone() -> None:
    data = load("gaussians", biased=False, seed=3)
    model = build("mlp", data, **NET)
    with torch.no_grad():
        model.get_parameter("head.weight").zero_()
        model.get_parameter("head.bias").copy_(torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0]))
    fitted = Fitted(model, evaluate_given("given", model, data, compute=Compute("cpu")))
    found = measure_wrong_labels(fitted, data)
    twos = int((data.train.y[-25:] == 2).sum())  # the wrong labels come last
    assert twos != 5  # so that the share is not that of the right ones
    assert found["obeyed"] == pytest.approx(twos / 25)  # it always says class 2
    assert found["sparsity"] == pytest.approx(160 / 1248)  # the head's weights


def test_all_cells_begin_with_the_same_net_on_the_same_data() -> None:
    for claim, biased in ((BIASED, True), (UNBIASED, False)):
        assert CLAIMS[claim.id] is claim
        for name, cell in claim.experiments.items():
            assert (cell.dataset, cell.model, cell.data_options) == ("gaussians", "mlp", {"biased": biased})
            assert cell.model_options == NET
            assert name == "early stopping" or (cell.train == OVERFIT and cell.select == "last")
    data = load("gaussians")
    assert len(data.train) == OVERFIT["batch_size"]  # full batches


def test_the_overfitted_net_obeys_the_wrong_labels() -> None:
    cell = UNBIASED.experiments["overfitted"]
    easy: dict[str, int | bool] = {"biased": False, "per_class": 20, "mislabelled": 1}
    fitted = run_experiment(
        replace(cell, data_options=easy, train={**cell.train, "batch_size": 105}), 100, Compute("cpu")
    )
    data = load("gaussians", seed=100, **easy)
    assert measure_wrong_labels(fitted, data)["obeyed"] == 1.0
    assert fitted.record.history[-1]["train_accuracy"] == 1.0
