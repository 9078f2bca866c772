"""Selection by accuracy under transplants in ``fit``: which epoch is kept, what is recorded, and what is refused."""

from typing import Any

import pytest

from spurless.bench.experiment import Experiment, make_protocol_and_method
from spurless.core.errors import InputError, UnknownNameError
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.transplants import get_transplants
from spurless.fitting import Fitted, fit
from spurless.models import build
from spurless.train.run import Compute
from spurless.train.transplant_accuracy import transplant_examples

CPU = Compute("cpu")
DATA = planted(PlantedConfig(n_train=400, n_val=200, n_test=200, agreement=0.9))
TRAIN = {"epochs": 6, "batch_size": 10, "lr": 0.1}
SELECT = "val-transplants:feature 1"


def run(method: str = "erm", select: str = SELECT, **options: Any) -> Fitted:
    return fit(method, build("linear", DATA), DATA, train=TRAIN, select=select, compute=CPU, **options)


def test_the_epoch_with_the_highest_accuracy_under_transplants_is_kept_and_recorded() -> None:
    fitted = run()
    scores = [row["score"] for row in fitted.record.history if "score" in row]
    assert len(scores) == 6
    assert len(set(scores)) > 1
    examples = transplant_examples(DATA.val, get_transplants(DATA.val, ["feature 1"]))
    by_hand, name = examples.find_lowest(examples.compute_correct(fitted.model, next(fitted.model.parameters()).device))
    assert by_hand == pytest.approx(max(scores))
    assert name == "feature 1"
    record = fitted.record
    assert record.selection == SELECT
    assert record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}
    (row,) = [row for row in record.history if row["stage"] == "selection"]
    assert (row["criterion"], row["donors"], row["examples"]) == (SELECT, 3, 200)
    assert "lowest mean accuracy" in row["what"]


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # the worst group may fall
def test_a_repair_is_selected_too_and_its_definition_is_recorded_once() -> None:
    fitted = run("masktune")
    assert [row["stage"] for row in fitted.record.history].count("selection") == 1


def test_unknown_properties_and_methods_on_features_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="No property is called 'feature 7'"):
        run(select="val-transplants:feature 7")
    with pytest.raises(InputError, match="needs the names of the properties"):
        run(select="val-transplants")
    with pytest.raises(InputError, match="evaluates a head on features"):
        run("class-balanced-head", epochs=1, batches=2)


def test_a_sweep_is_refused_before_it_starts() -> None:
    with pytest.raises(InputError, match="needs the names of the properties"):
        make_protocol_and_method(Experiment("planted", "linear", "erm", select="val-transplants"), CPU)
    protocol, _ = make_protocol_and_method(Experiment("planted", "linear", "erm", select=SELECT), CPU)
    assert protocol.select == SELECT
