"""What a method declares: a configuration may say that it uses less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.methods import METHODS, make_method
from spurless.methods.base import Info, OneStageMethod, is_one_stage, method_info
from spurless.methods.erm import ERM
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.loop import Job, minimise_job
from spurless.train.run import Compute, Run, make_run


@dataclass(frozen=True)
class FrugalConfig:
    """Looks at validation, unless told not to."""

    look: bool = True
    wrong: bool = False

    @property
    def uses(self) -> Mapping[str, bool]:
        return {"labels": True} if self.wrong else {"val_labels": self.look}


class Frugal:
    info: ClassVar[Info] = Info("frugal", "nobody", "x", val_labels=True, start="trained", score="product")
    presets: ClassVar[Mapping[str, FrugalConfig]] = {"plain": FrugalConfig()}

    def __init__(self, config: FrugalConfig) -> None:
        self.config = config

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        raise NotImplementedError


def test_a_configuration_that_uses_less_says_so_and_the_rest_stays() -> None:
    less = method_info(Frugal(FrugalConfig(look=False)))
    assert not less.val_labels
    assert (less.name, less.start, less.score) == ("frugal", "trained", "product")
    assert method_info(Frugal(FrugalConfig())) == Frugal.info
    assert Frugal.info.val_labels  # the class itself is not changed


def test_a_configuration_without_a_word_uses_what_the_method_declares() -> None:
    assert method_info(ERM()) == ERM.info


def test_a_use_that_there_is_not_is_an_error_of_the_author() -> None:
    with pytest.raises(TypeError, match="labels"):
        method_info(Frugal(FrugalConfig(wrong=True)))


class Longer(ERM):
    """Overrides ``fit`` alone: its inherited job would be half of it."""

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        return super().fit(model, data, run)


class Shorter(ERM):
    """Overrides ``job`` alone."""

    def job(self, model: Classifier, data: Splits, run: Run) -> Job:
        return super().job(model, data, run)


def test_a_method_is_of_one_stage_unless_it_overrides_fit() -> None:
    assert is_one_stage(ERM())
    assert not is_one_stage(Longer())
    assert is_one_stage(Shorter())
    assert not is_one_stage(Frugal(FrugalConfig()))


def test_a_one_stage_method_must_have_a_job() -> None:
    with pytest.raises(NotImplementedError):
        OneStageMethod(ERM().config).fit(*[None] * 3)  # type: ignore[arg-type]


SINGLE = ["erm", "focal", "group-dro", "erm-loss-ratio"] + [
    f"{c}-{how}" for c in ("class", "group") for how in ("reweight", "resample", "subsample")
]


@pytest.mark.parametrize("name", SINGLE)
def test_the_job_of_a_method_is_its_fit_not_yet_done(name: str) -> None:
    method, data = make_method(name), planted(PlantedConfig(n_train=64, n_val=32, n_test=32))
    assert is_one_stage(method)
    models = []
    for number in range(2):
        model = build("mlp", data, width=4)
        run = make_run(Compute("cpu"), 5, TrainConfig(epochs=2, batch_size=16))
        if number == 0:
            assert method.fit(model, data, run) is model
        else:
            job = method.job(model, data, run)
            assert run.history == []
            minimise_job(job)
        assert len(run.history) == 2
        models.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*models)


def test_every_method_of_one_stage_is_tried_here() -> None:
    assert sorted(name for name in METHODS if is_one_stage(make_method(name))) == sorted(SINGLE)
