"""Together: the model and the record of every run are those of fit_under, and a failure is its own.

On a CPU runs are done one after another; the fixture ``lock_step`` makes the fleet advance them there too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import DivergedError, InputError, SpurlessWarning
from spurless.core.records import Record
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import concurrent as together
from spurless.fitting.concurrent import fit_concurrently
from spurless.fitting.protocol import FitRequest, Fitted, Protocol, fit_with_protocol
from spurless.methods import make_method
from spurless.methods.base import Info
from spurless.methods.erm import ERM, ERMConfig
from spurless.methods.erm_loss_ratio import LossRatios
from spurless.models import Classifier, build
from spurless.train import concurrent as fleet
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run
from spurless.train.step import GraphedSteps

DATA = planted(PlantedConfig(n_train=210, n_val=80, n_test=80, agreement=0.75))
CPU = Compute("cpu")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def requests(compute: Compute = CPU, folder: Path | None = None, data: Splits = DATA) -> list[FitRequest]:
    """Runs that differ in method, settings, selection and seed."""
    base = Protocol(TrainConfig(epochs=4, batch_size=16, lr=0.2), compute=compute, folder=folder)
    other = replace(base, train=TrainConfig(epochs=5, batch_size=20, lr=0.02, optimiser="adam"), select="val-average")
    return [
        FitRequest(base, make_method("erm"), build("mlp", data, width=8), data, 0),
        FitRequest(other, make_method("erm"), build("mlp", data, width=8, seed=1), data, 1),
        FitRequest(base, make_method("class-reweight"), build("mlp", data, width=8), data, 2),
        FitRequest(other, make_method("group-resample"), build("mlp", data, width=8), data, 0),
        FitRequest(replace(other, select="val-worst-group"), make_method("group-dro"), build("linear", data), data, 3),
        FitRequest(
            replace(base, coverages=(0.5,)), make_method("group-subsample"), build("mlp", data, width=8), data, 0
        ),
    ]


@pytest.fixture
def lock_step(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let runs advance together on a CPU; return how many did, for each time the graph would be captured."""
    crews: list[int] = []

    def turn(self: GraphedSteps) -> Tensor:
        row = int(self.counter)
        for group in self.optimiser.param_groups:
            group["lr"] = float(self.rates[row])
        self.counter += 1
        return self.rows[row]

    def graph(groups: Sequence[Sequence[GraphedSteps]], _: object) -> Callable[[], None]:
        crews.append(sum(map(len, groups)))
        members = [member for group in groups for member in group]

        def replay() -> None:
            for member in members:
                member.body()

        return replay

    monkeypatch.setattr(GraphedSteps, "next_indices", turn)
    monkeypatch.setattr(GraphedSteps, "_run_on_side_stream", GraphedSteps.body)
    monkeypatch.setattr(GraphedSteps, "_capture", lambda _: None)
    monkeypatch.setattr(fleet, "_capture_groups", graph)
    for place in (fleet, together):
        monkeypatch.setattr(place, "can_run_concurrently", lambda job: job.stage.static)
    return crews


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.state_dict().values()])


def lasting(record: Record) -> dict[str, Any]:
    """A record without what differs between two equal runs."""
    row = asdict(record)
    row["hardware"] = {key: value for key, value in row["hardware"].items() if key != "together"}
    return {key: value for key, value in row.items() if key not in ("seconds", "time", "peak_memory")}


def together_in_order(asked: list[FitRequest], at_once: int = fleet.MAX_CONCURRENT) -> list[Fitted | Exception]:
    """What comes of runs that go together, in the order in which they were asked for."""
    ended = dict(fit_concurrently(asked, at_once))
    return [ended[number] for number in range(len(asked))]


def fits(results: list[Fitted | Exception]) -> list[Fitted]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Fitted)]


def assert_as_alone(results: list[Fitted | Exception], asked: list[FitRequest]) -> None:
    for fitted, request in zip(fits(results), asked, strict=True):
        alone = fit_with_protocol(*request)
        assert torch.equal(weights(fitted.model), weights(alone.model))
        assert lasting(fitted.record) == lasting(alone.record)
        assert fitted.record.seconds.keys() == alone.record.seconds.keys()
        assert fitted.record.seconds["total"] >= fitted.record.seconds["train"] > 0
        assert fitted.model.trained
        assert next(fitted.model.parameters()).device.type == "cpu"


def test_on_a_cpu_records_are_those_of_single_runs() -> None:
    results = together_in_order(requests())
    assert_as_alone(results, requests())
    assert all("together" not in fitted.record.hardware for fitted in fits(results))


def test_in_lock_step_records_are_those_of_single_runs(lock_step: list[int]) -> None:
    asked = requests()
    results = together_in_order(asked)
    assert_as_alone(results, requests())
    assert lock_step[0] == 6
    assert [fitted.record.hardware["together"] for fitted in fits(results)] == [6] * 6
    again = together_in_order(asked, at_once=2)
    assert [fitted.record.hardware["together"] for fitted in fits(again)] == [2] * 6
    assert_as_alone(again, asked)  # the models that were asked for are as they were: each run had a copy


def test_runs_on_other_data_are_other_runs(lock_step: list[int]) -> None:
    other = planted(PlantedConfig(n_train=210, n_val=80, n_test=80, agreement=0.75, seed=1))
    asked = [requests()[0], requests(data=other)[0]]
    results = together_in_order(asked)
    assert_as_alone(results, asked)
    one, two = fits(results)
    assert one.record.key != two.record.key
    assert lock_step == [2]


def test_a_failure_is_its_own(lock_step: list[int]) -> None:
    asked = requests()
    wild = replace(asked[0][0], train=TrainConfig(epochs=4, batch_size=16, lr=1e30, weight_decay=0.5))
    misfit = build("linear", input_shape=(5,), n_classes=2)
    asked[1] = asked[0]._replace(protocol=wild)
    asked[2] = asked[2]._replace(model=misfit)
    results = together_in_order(asked)
    assert isinstance(results[1], DivergedError)
    assert isinstance(results[2], InputError)
    assert lock_step[0] == 5
    assert_as_alone([results[0], *results[3:]], [asked[0], *asked[3:]])


def test_a_method_of_several_stages_or_with_a_trained_start_is_done_alone(lock_step: list[int]) -> None:
    train = Protocol(TrainConfig(epochs=2, batch_size=16, lr=0.2), compute=CPU)
    model = build("linear", DATA)
    asked: list[FitRequest] = [
        FitRequest(train, make_method("jtt", first_epochs=1, upweight=2.0), model, DATA, 0),
        FitRequest(train, make_method("erm"), model, DATA, 0),
        FitRequest(train, Twice(), model, DATA, 0),
        FitRequest(train, Repair(), model, DATA, 0),
    ]
    fitted = fits(together_in_order(asked))
    assert lock_step == [1]  # ERM; the start of Repair is trained by itself
    for one, request in zip(fitted, asked, strict=True):
        assert torch.equal(weights(one.model), weights(fit_with_protocol(*request).model))
    assert not torch.equal(weights(fitted[1].model), weights(fitted[2].model))
    assert fitted[3].start is not None


def test_a_watched_run_is_explained_as_if_it_were_alone(lock_step: list[int], tmp_path: Path) -> None:
    def asked(folder: Path | None = None) -> list[FitRequest]:
        protocol = Protocol(TrainConfig(epochs=4, batch_size=16, lr=0.2), compute=CPU, folder=folder)
        watched = [
            FitRequest(protocol, make_method("erm-loss-ratio"), build("mlp", DATA, width=8), DATA, k) for k in range(2)
        ]
        return [*watched, requests(folder=folder)[1]]

    together = fits(together_in_order(asked(tmp_path)))
    assert lock_step[0] == 3
    assert_as_alone(list(together), asked())
    finished = fits(together_in_order(asked(tmp_path)))  # their stages are found, and explained all the same
    for results in (together, finished):
        for fitted, request in zip(results[:2], asked(), strict=False):
            alone = fit_with_protocol(*request).explanation
            assert isinstance(fitted.explanation, LossRatios)
            for name in ("conflicting", "followed", "steps_per_epoch", "utilisation", "per_step"):
                torch.testing.assert_close(getattr(fitted.explanation, name), getattr(alone, name), rtol=0, atol=0)
            assert len(fitted.explanation.utilisation) == 4
        assert results[2].explanation is None


class Twice(ERM):
    """Overrides ``fit`` and not ``job``: what it inherits would do half of it."""

    info: ClassVar[Info] = replace(ERM.info, name="twice")

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        super().fit(model, data, run)
        run.stages.clear()
        return super().fit(model, data, run)


class Repair(ERM):
    """One stage, from a trained start."""

    info: ClassVar[Info] = replace(ERM.info, name="repair", start="trained")
    presets: ClassVar[Mapping[str, ERMConfig]] = ERM.presets


def test_a_run_is_there_when_it_ends_and_not_when_all_have(lock_step: list[int]) -> None:
    asked, told = requests(), list[tuple[int, int]]()
    for number, request in enumerate(asked):
        listened = replace(request.protocol, progress=lambda _, step, total, __: told.append((step, total)))
        asked[number] = request._replace(protocol=listened)
    for number, fitted in fit_concurrently(asked):
        assert isinstance(fitted, Fitted)
        alone = fit_with_protocol(*requests()[number])
        assert torch.equal(weights(fitted.model), weights(alone.model))
        assert fitted.record.metrics == alone.record.metrics
        break
    assert {total for step, total in told if step == total} < {total for _, total in told}  # others are on their way
    assert lock_step[0] == 6


class Kill(BaseException):
    """Stands for a kill."""


def test_killed_runs_go_on_to_the_same_records(lock_step: list[int], tmp_path: Path) -> None:
    def killed(stage: str, step: int, total: int, _: str) -> None:
        if step == total and stage == "train":
            raise Kill

    first = requests(folder=tmp_path)
    first[0] = first[0]._replace(protocol=replace(first[0].protocol, progress=killed))
    with pytest.raises(Kill):
        together_in_order(first)  # at the end of the first run; the others are half-way
    assert lock_step[0] == 6
    assert len(list(tmp_path.rglob("stage-train.pt"))) in range(1, 6)
    assert_as_alone(together_in_order(requests(folder=tmp_path)), requests())
    assert len(list(tmp_path.rglob("stage-train.pt"))) == 6


def test_what_is_said_while_training_together_is_in_the_record(lock_step: list[int]) -> None:
    constant = replace(DATA, notes=("Look out.",))
    asked = requests(data=constant)
    asked[0] = FitRequest(replace(asked[0][0], train=TrainConfig(steps=1)), asked[0][1], dull(constant), constant, 0)
    with pytest.warns(SpurlessWarning, match="for every test example"):
        results = fits(together_in_order(asked))
    assert results[0].record.warnings[0] == "Look out."
    assert "for every test example" in results[0].record.warnings[1]
    assert results[2].record.warnings == ("Look out.",)  # said of another run
    assert lock_step


def dull(data: Splits) -> Classifier:
    """A net that predicts one class."""
    model = build("mlp", data, width=8)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def test_inputs_that_several_runs_have_lie_on_the_device_once(
    lock_step: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {id(split.x): name for name, split in (("train", DATA.train), ("val", DATA.val), ("test", DATA.test))}
    copied: list[str] = []
    to = Tensor.to

    def counted(self: Tensor, *args: Any, **options: Any) -> Tensor:
        if id(self) not in inputs:
            return to(self, *args, **options)
        copied.append(inputs[id(self)])
        return to(self, *args, **options).clone()

    monkeypatch.setattr(Tensor, "to", counted)  # as if the device were another one
    fits(together_in_order(requests()))
    assert sorted(copied) == ["test", "train", "val"]  # six runs, some of which look at val after every epoch
    assert lock_step


@gpu
@pytest.mark.gpu
def test_on_the_device_records_are_those_of_single_runs() -> None:
    asked: list[FitRequest] = [
        request._replace(protocol=replace(request.protocol, train=replace(request.protocol.train, epochs=12, lr=0.05)))
        for request in requests(Compute("cuda"))
    ]
    for fitted, request in zip(fits(together_in_order(asked)), asked, strict=True):
        alone = fit_with_protocol(*request)
        assert fitted.record.key == alone.record.key
        assert fitted.record.hardware["together"] == 6
        torch.testing.assert_close(weights(fitted.model), weights(alone.model), rtol=1e-2, atol=1e-3)
        assert fitted.record.metrics["average"] == pytest.approx(alone.record.metrics["average"], abs=0.03)
