"""JTT on the head: mistakes are drawn so much more often, and that is what helps."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import Order
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods import jtt_head, make_method
from spurless.methods._head import tune_head
from spurless.models import Classifier, build
from spurless.train.evaluate import evaluate, predict
from spurless.train.run import Compute

CPU = Compute("cpu")
TRAIN = {"epochs": 2, "lr": 0.01}
SHORT: dict[str, Any] = {"epochs": 5, "batches": 50, "upweight": 20.0}


def clear(seed: int = 0) -> Splits:
    """Data whose label can be read off almost always, so that mistakes are the minority's."""
    return planted(PlantedConfig(core=2.5, spurious=4.0, n_train=2000, n_val=1000, n_test=4000, seed=seed))


DATA = clear()


def tuned(model: nn.Module, data: Splits = DATA, seed: int = 0, **options: Any) -> Fitted:
    return fit("jtt-head", model, data, seed=seed, train=TRAIN, compute=CPU, **{**SHORT, **options})


@pytest.mark.parametrize("on", ["train", "val", "half"])
def test_mistakes_are_drawn_at_the_stated_rate(on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    trained = fit("erm", build("linear", DATA), DATA, train=TRAIN, compute=CPU).model

    def watch(head: nn.Module, rows: Split, order: Order, *rest: Any) -> None:
        wrong = predict(trained.head, rows) != rows.y
        drawn = torch.cat([torch.bincount(order(epoch), minlength=len(rows))[None] for epoch in range(3)]).sum(dim=0)
        rates.append(float(drawn[wrong].double().mean() / drawn[~wrong].double().mean()))
        tune_head(head, rows, order, *rest)

    monkeypatch.setattr(jtt_head, "tune_head", watch)
    fitted = tuned(trained, on=on, upweight=9.0, batches=200)
    assert rates == pytest.approx([10.0], rel=0.05)
    assert fitted.record.supervision == {
        "train_attributes": False,
        "val_labels": on != "train",
        "val_attributes": False,
    }


def test_it_raises_the_worst_group_by_the_mistakes_on_train_alone() -> None:
    for seed in range(3):
        data, worst = clear(seed), {}
        for upweight in (0.0, 20.0):
            fitted = tuned(build("linear", data, seed=seed), data, seed, upweight=upweight)
            worst[upweight] = fitted.record.metrics["worst_group"] or 0.0
            assert not any(fitted.record.supervision.values())
        assert fitted.start is not None
        assert worst[20.0] > evaluate(fitted.start, data.test).worst[0] + 0.3
        assert worst[20.0] > worst[0.0] + 0.1
        assert worst[20.0] > 0.95  # Phi(2.5) = 0.994 is the best there is


def test_no_mistake_is_a_warning() -> None:
    easy = planted(PlantedConfig(core=50.0, spurious=0.0, n_train=200, n_val=50, n_test=50))
    with pytest.warns(SpurlessWarning, match=r"jtt-head found no misclassified example on train, .* \(on='val'\)"):
        fitted = tuned(build("linear", easy), easy)
    assert "jtt-head found no misclassified example" in fitted.record.warnings[0]


def test_the_criterion_chooses_the_epoch() -> None:
    fitted = tuned(build("linear", DATA), select="val-worst-group")
    scores = [row["score"] for row in fitted.record.history if row["stage"] == "tune"]
    assert len(scores) == 5
    assert evaluate(fitted.model, DATA.val).worst[0] == pytest.approx(max(scores))


@pytest.mark.filterwarnings("ignore:Validation differs from train")
def test_what_cannot_be_is_refused() -> None:
    other = Classifier(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"jtt-head tunes a linear head \(got Sequential\)"):
        tuned(other)
    one = Splits(DATA.train, DATA.val.select(DATA.val.y == 1), DATA.test)
    with pytest.raises(InputError, match="jtt-head needs examples of at least two classes"):
        tuned(build("linear", DATA), one, on="val")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"upweight": -1.0}, "upweight.* must not be negative"),
        ({"upweight": math.inf}, "'upweight'"),
        ({"batches": 0}, "batches.* must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("jtt-head", **options)
