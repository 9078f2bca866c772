"""JTT: the second stage sees the mistakes of the first, so much more often."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import Loader
from spurless.fitting import fit
from spurless.methods.jtt import JTT, JTTConfig
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import predict
from spurless.train.loop import minimise
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Objective, Stage

DATA = planted(PlantedConfig(n_train=4000, n_test=4000))


def test_the_mistakes_of_the_first_stage_are_drawn_more_often_in_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    begun: list[Tensor] = []

    def watch(model: nn.Module, loader: Loader, objective: Objective, run: Run, stage: Stage) -> None:
        drawn = torch.bincount(loader.order(0), minlength=4000)
        begun.append(torch.cat([p.detach().flatten().clone() for p in model.parameters()]))
        minimise(model, loader, objective, run, stage)
        seen[stage.name] = drawn, predict(model, DATA.train)

    monkeypatch.setattr("spurless.methods.jtt.minimise", watch)
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=1, batch_size=100))
    JTT(JTTConfig(2, 9.0)).fit(build("linear", DATA), DATA, run)
    drawn, _ = seen["train"]
    wrong = seen["scout"][1] != DATA.train.y
    rate = drawn[wrong].double().mean() / drawn[~wrong].double().mean()
    assert torch.equal(*begun)  # both stages start from the same weights
    assert seen["scout"][0].tolist() == [1] * 4000  # the first stage sees everything once
    assert float(rate) == pytest.approx(10.0, rel=0.1)  # 1 + 9


def test_raises_the_worst_group_on_planted_data_without_any_attribute() -> None:
    train = {"epochs": 5, "lr": 0.05}
    erm = fit("erm", build("linear", DATA), DATA, train=train, compute=Compute("cpu"))
    jtt = fit("jtt", build("linear", DATA), DATA, train=train, compute=Compute("cpu"), first_epochs=2, upweight=20.0)
    before, after = erm.record.metrics["worst_group"], jtt.record.metrics["worst_group"]
    assert before is not None
    assert after is not None
    assert after > before + 0.1
    assert not any(jtt.record.supervision.values())


def test_no_mistake_is_a_warning_and_the_second_stage_is_erm() -> None:
    easy = planted(PlantedConfig(core=50.0, spurious=0.0, n_train=200, n_val=50, n_test=50))
    with pytest.warns(SpurlessWarning, match=r"misclassifies no example after 3 epochs.*Use fewer first_epochs"):
        fitted = fit(
            "jtt",
            build("linear", easy),
            easy,
            train={"epochs": 1},
            compute=Compute("cpu"),
            first_epochs=3,
            upweight=5.0,
        )
    assert "JTT's first stage misclassifies no example" in fitted.record.warnings[0]


def test_no_upweight_draws_evenly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = fit(
            "jtt",
            build("linear", DATA),
            DATA,
            train={"epochs": 2},
            compute=Compute("cpu"),
            first_epochs=1,
            upweight=0.0,
        )
    assert fitted.record.metrics["conflicting"] < 0.5  # type: ignore[operator]  # as ERM


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"first_epochs.* must be at least 1"):
        JTTConfig(0, 1.0)
    with pytest.raises(InputError, match=r"upweight.* must not be negative"):
        JTTConfig(1, -1.0)
