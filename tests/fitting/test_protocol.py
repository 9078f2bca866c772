"""Fitting: the protocol, the record, and what is refused before anything is trained."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from spurless.core.errors import InputError, MissingAttributesError, SpurlessWarning, UnknownNameError
from spurless.core.progress import Progress
from spurless.core.records import Record
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import shuffled_order
from spurless.data.split import Split, Splits
from spurless.fitting import evaluate_given, fit
from spurless.fitting.protocol import Protocol, fit_with_protocol, hash_run
from spurless.methods import make_method
from spurless.methods.base import Info
from spurless.methods.erm import ERMConfig, mean_loss
from spurless.models import Classifier, build, wrap
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate, predict
from spurless.train.loop import minimise
from spurless.train.run import Compute, Run
from spurless.train.selective import Abstainer, assess_selective
from spurless.train.step import Stage

DATA = planted(PlantedConfig(n_train=400, n_val=200, n_test=200, agreement=0.9))
CPU = Compute("cpu")
TRAIN = {"epochs": 2, "batch_size": 50, "lr": 0.05}


def test_the_record_says_what_was_used_and_found() -> None:
    fitted = fit("erm", build("linear", DATA), DATA, seed=4, train=TRAIN, select="val-average", compute=CPU)
    record = fitted.record
    table = evaluate(fitted.model, DATA.test)
    assert record.method == "erm"
    assert record.seed == 4
    assert record.selection == "val-average"
    assert record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}
    assert record.data["counts"]["train"] == DATA.train.counts.tolist()
    assert record.data["fingerprint"] == DATA.fingerprint()
    assert [row.accuracy for row in record.groups] == table.accuracy.tolist()
    assert [row.train_count for row in record.groups] == DATA.train.counts.tolist()
    assert record.metrics["worst_group"] == table.worst[0]
    assert record.metrics["adjusted_average"] == table.adjusted(DATA.train.counts)
    assert record.train["lr"] == 0.05
    assert [row["epoch"] for row in record.history] == [1, 2]
    assert record.seconds["total"] >= record.seconds["train"] > 0
    assert record.hardware["device"] == "cpu"
    assert Record.from_json(record.to_json()).metrics == record.metrics


def test_the_record_says_what_a_pruning_method_left_and_an_evaluation_says_the_same() -> None:
    options: dict[str, Any] = {"epochs": 2, "target_sparsity": 0.5, "probability": 1.0, "keep": "last"}
    fitted = fit("magnitude-prune", build("mlp", DATA, width=8), DATA, train=TRAIN, compute=CPU, **options)
    said = fitted.record.model
    assert said["sparsity"] == pytest.approx(fitted.record.history[-1]["sparsity"]) == pytest.approx(0.5, abs=0.01)
    assert said["kept_parameters"] < said["parameters"]
    assert said["kept_flops"] == pytest.approx(0.5 * said["flops"], rel=0.02)  # each weight of an mlp works once
    again = evaluate_given("again", fitted.model, DATA, compute=CPU).model
    assert again == said
    assert Record.from_json(fitted.record.to_json()).model["sparsity"] == said["sparsity"]


def test_the_record_carries_what_must_be_known_of_the_data() -> None:
    data = replace(DATA, notes=("The images are lossy.",))
    fitted = fit("erm", build("linear", data), data, train=TRAIN, compute=CPU)
    assert fitted.record.warnings == ("The images are lossy.",)
    assert evaluate_given("again", fitted.model, data, compute=CPU).warnings == ("The images are lossy.",)


@pytest.mark.parametrize("method", ["group-dro", "group-resample"])
def test_a_method_is_given_domains_and_the_record_speaks_of_groups(method: str) -> None:
    def mixed(split: Split) -> Split:
        return replace(split, domain=(split.y == split.a).long(), domains=("conflicting", "aligned"))

    data, longer = replace(DATA, train=mixed(DATA.train), val=mixed(DATA.val)), {**TRAIN, "epochs": 10}
    fitted = fit(method, build("linear", data), data, train=longer, select="val-worst-group", compute=CPU)
    assert [row.name for row in fitted.record.groups] == list(DATA.groups.names)
    assert fitted.record.data["counts"]["train"] == DATA.train.counts.tolist()
    plain = fit("erm", build("linear", DATA), DATA, train=longer, compute=CPU)
    # two domains that tell aligned from conflicting are all that balancing needs here
    assert (fitted.record.metrics["worst_group"] or 0) > (plain.record.metrics["worst_group"] or 0) + 0.1


def test_selection_by_groups_is_supervision_and_is_recorded() -> None:
    record = fit("erm", build("linear", DATA), DATA, train=TRAIN, select="val-worst-group", compute=CPU).record
    assert record.supervision["val_attributes"]


def test_the_key_knows_everything_that_decides_the_outcome() -> None:
    model = build("linear", DATA)
    base = {"seed": 0, "train": TRAIN, "compute": CPU}
    runs = [
        fit("erm", model, DATA, **base),  # type: ignore[arg-type]  # a dict of arguments
        fit("erm", build("linear", DATA, seed=1), DATA, **base),  # type: ignore[arg-type]
        fit("erm", model, DATA, **{**base, "seed": 1}),  # type: ignore[arg-type]
        fit("erm", model, DATA, **{**base, "train": {**TRAIN, "lr": 0.06}}),  # type: ignore[arg-type]
        fit("erm", model, DATA, select="val-average", **base),  # type: ignore[arg-type]
        fit("class-resample", model, DATA, **base),  # type: ignore[arg-type]
        fit("erm", model, planted(PlantedConfig(n_train=400, n_val=200, n_test=200, seed=1)), **base),  # type: ignore[arg-type]
    ]
    assert len({run.record.key for run in runs}) == len(runs)
    assert fit("erm", model, DATA, **base).record.key == runs[0].record.key  # type: ignore[arg-type]


def test_a_seed_of_numpy_is_the_same_seed() -> None:
    model, train = build("mlp", DATA, seed=0, width=4), {"steps": 3}
    seed = np.arange(3)[2]
    plain, other = (fit("erm", model, DATA, seed=number, train=train) for number in (2, seed))
    assert (plain.record.key, plain.record.metrics) == (other.record.key, other.record.metrics)
    assert type(other.record.seed) is int
    for one, two in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    protocol = Protocol(TrainConfig(steps=3))
    assert hash_run(protocol, make_method("erm"), model, DATA, seed).key == plain.record.key
    assert type(evaluate_given("mine", plain.model, DATA, seed=seed).seed) is int


def test_the_key_is_known_before_the_run() -> None:
    protocol, method = Protocol(TrainConfig(epochs=1), compute=CPU), make_method("jtt")
    module = nn.Linear(2, 2)
    key = hash_run(protocol, method, module, DATA, 5).key
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        assert fit_with_protocol(protocol, method, module, DATA, 5).record.key == key


def test_any_module_can_be_fitted_and_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    before = module[0].weight.clone()  # type: ignore[operator]  # a linear layer
    fitted = fit("erm", module, DATA, train=TRAIN, compute=CPU)
    assert torch.equal(before, module[0].weight)  # type: ignore[arg-type]  # a parameter
    assert fitted.model.trained


def test_settings_may_be_a_config_or_a_dict_and_unknown_ones_are_refused() -> None:
    model = build("linear", DATA)
    one = fit("erm", model, DATA, train=TrainConfig(epochs=2, batch_size=50, lr=0.05), compute=CPU)
    assert one.record.key == fit("erm", model, DATA, train=TRAIN, compute=CPU).record.key
    with pytest.raises(InputError, match=r"the training loop has no option 'epoch'\. Did you mean 'epochs'"):
        fit("erm", model, DATA, train={"epoch": 3}, compute=CPU)


def test_a_killed_fit_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    class KillError(Exception):
        pass

    def until(step: int) -> Progress:
        def progress(_: str, at: int, total: int, __: str) -> None:
            if at == total and total > step:
                raise KillError

        return progress

    model = build("linear", DATA)
    whole = fit("jtt", model, DATA, train=TRAIN, compute=CPU, first_epochs=1, upweight=2.0)
    with pytest.raises(KillError):  # at the end of a stage, after it was saved
        fit(
            "jtt",
            model,
            DATA,
            train=TRAIN,
            compute=CPU,
            folder=tmp_path,
            progress=until(1),
            first_epochs=1,
            upweight=2.0,
        )
    stages = {path.name for path in tmp_path.rglob("stage-*.pt")}
    again = fit("jtt", model, DATA, train=TRAIN, compute=CPU, folder=tmp_path, first_epochs=1, upweight=2.0)
    assert stages <= {"stage-scout.pt", "stage-train.pt"}
    assert again.record.metrics == whole.record.metrics
    assert again.record.history == whole.record.history
    assert all(map(torch.equal, whole.model.state_dict().values(), again.model.state_dict().values()))


def test_a_constant_predictor_is_a_warning_in_the_record() -> None:
    model = wrap(nn.Linear(2, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    with pytest.warns(SpurlessWarning, match="predicts 'minus' for every test example"):
        record = evaluate_given("zero", model, DATA, compute=CPU)
    assert "for every test example" in record.warnings[0]
    assert record.metrics["average"] == pytest.approx(float((DATA.test.y == 0).double().mean()))


def test_validation_of_another_kind_is_spoken_of_where_its_labels_are_used() -> None:
    val = DATA.val
    shifted = replace(DATA, val=replace(val, x=torch.as_tensor(val.x) + 50))
    one_class = replace(DATA, val=replace(val, y=(torch.arange(len(val)) % 50 > 0).long()))
    for data, said in ((shifted, "standard deviations from"), (one_class, "98 % of its labels")):
        with pytest.warns(SpurlessWarning, match="Validation differs from train") as caught:
            record = fit("erm", build("linear", data), data, train=TRAIN, select="val-average", compute=CPU).record
        assert [said in warning for warning in record.warnings] == [True]
        assert caught[0].filename == __file__
        with pytest.warns(SpurlessWarning, match=said):
            assert said in fit("afr", build("linear", data), data, train=TRAIN, compute=CPU).record.warnings[0]
        assert not fit("erm", build("linear", data), data, train=TRAIN, compute=CPU).record.warnings  # it is not used


def test_warnings_of_others_pass_through() -> None:
    class Loud(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn("loud", UserWarning, stacklevel=2)
            return super().forward(x)

    with pytest.warns(UserWarning, match="loud"):
        record = evaluate_given("loud", Loud(2, 2), DATA, compute=CPU)
    assert not any("loud" in said for said in record.warnings)


def test_what_was_said_before_an_error_is_said_all_the_same() -> None:
    class Late(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 2:  # not while the model is looked over
                warnings.warn("beware", SpurlessWarning, stacklevel=2)
                raise RuntimeError("broken")
            return super().forward(x)

    with pytest.warns(SpurlessWarning, match="beware"), pytest.raises(InputError, match="broken"):
        evaluate_given("late", Late(2, 2), DATA, compute=CPU)


def test_what_cannot_work_is_refused_before_anything_is_trained() -> None:
    model = build("linear", DATA)
    with pytest.raises(UnknownNameError, match="No method is called 'er'"):
        fit("er", model, DATA)
    with pytest.raises(UnknownNameError, match="No selection criterion is called 'best'"):
        fit("erm", model, DATA, select="best")
    with pytest.raises(InputError, match="has 3 outputs but the data 2 classes"):
        fit("erm", build("linear", input_shape=(2,), n_classes=3), DATA, compute=CPU)
    with pytest.raises(InputError, match="does not accept"):
        fit("erm", build("linear", input_shape=(5,), n_classes=2), DATA, compute=CPU)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x).relu()).relu())  # type: ignore[no-any-return]  # of a module


@pytest.mark.parametrize("method", ["avp", "random-prune", "magnitude-prune", "mrm", "dcwp"])
def test_weights_that_cannot_be_pruned_are_refused_before_a_model_is_trained_for_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spurless.fitting.protocol.train_by_erm", lambda *_: pytest.fail("a model was trained"))
    with pytest.raises(InputError, match=r"'backbone\.first\.weight' is shared by several layers"):
        fit(method, wrap(Tied(), trained=False), DATA, train=TRAIN, compute=CPU)


def test_groups_that_cannot_be_halved_are_refused_before_a_model_is_trained_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spurless.fitting.protocol.train_by_erm", lambda *_: pytest.fail("a model was trained"))
    rare = torch.cat([torch.nonzero(DATA.val.g == group)[: 1 if group == 0 else 20, 0] for group in range(4)])
    few = replace(DATA, val=DATA.val.select(rare))
    with pytest.raises(InputError, match=r"two examples of every group.*got 1 in the smallest"):
        fit("dfr", build("linear", few), few, train=TRAIN, compute=CPU)


def test_selection_by_attributes_that_are_not_there_is_refused() -> None:
    hidden = Splits(DATA.train, DATA.val.hide_attributes(), DATA.test)
    with pytest.raises(MissingAttributesError, match="Selection by val-worst-group needs the attribute"):
        fit("erm", build("linear", DATA), hidden, select="val-worst-group", compute=CPU)


def test_methods_that_need_no_attributes_are_named_where_they_are_missing() -> None:
    hidden = Splits(DATA.train.hide_attributes(), DATA.val, DATA.test)
    with pytest.raises(
        MissingAttributesError, match=r"group-dro needs .* or use a method that needs none: .*erm, .*jtt"
    ):
        fit("group-dro", build("linear", DATA), hidden, compute=CPU)


def test_data_without_any_attribute_are_evaluated_by_class() -> None:
    from spurless.data import from_tensors

    assert isinstance(DATA.train.x, torch.Tensor)
    data = from_tensors(DATA.train.x, DATA.train.y)
    record = fit("erm", build("linear", data), data, train=TRAIN, compute=CPU).record
    assert [row.name for row in record.groups] == ["0", "1"]
    assert record.metrics["worst_group"] == record.metrics["worst_class"]


def test_a_method_of_one_s_own_is_fitted_under_the_same_protocol() -> None:
    from spurless.methods.jtt import JTT, JTTConfig

    own = JTT(JTTConfig(1, 2.0))
    model = build("linear", DATA)
    by_name = fit("jtt", model, DATA, train=TRAIN, compute=CPU, first_epochs=1, upweight=2.0)
    assert fit(own, model, DATA, train=TRAIN, compute=CPU).record.key == by_name.record.key
    with pytest.raises(InputError, match="already configured"):
        fit(own, model, DATA, compute=CPU, upweight=3.0)


class Repair:
    """Tunes a trained model for some epochs, and keeps what it was given."""

    info: ClassVar[Info] = Info("repair", "nobody", "for these tests", start="trained")
    presets: ClassVar[Mapping[str, ERMConfig]] = {"plain": ERMConfig()}

    def __init__(self, config: ERMConfig = ERMConfig()) -> None:  # noqa: B008  # frozen
        self.config = config
        self.scores: list[float] = []
        self.make_untrained: list[nn.Module] = []

    def fit(self, model: Classifier, data: Splits, run: Run) -> Classifier:
        if run.make_untrained is not None:
            self.make_untrained = [run.make_untrained(), run.make_untrained()]
        if (score := run.score) is not None:

            def heard(model: nn.Module) -> float:
                self.scores.append(score(model))
                return self.scores[-1]

            run = replace(run, score=heard)
        order = shuffled_order(len(data.train), run.seeds.child("tune"))
        settings = replace(run.train, epochs=6, lr=0.5)
        minimise(model, run.loader(data.train, order), mean_loss, run, Stage("tune", settings))
        run.explain({"found": 7})
        return model


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_start_is_kept_of_a_method_that_repairs_and_of_no_other() -> None:
    model = build("mlp", DATA)
    erm = fit("erm", model, DATA, train=TRAIN, compute=CPU)
    with pytest.warns(SpurlessWarning, match="The worst-group accuracy on validation fell"):  # MaskTune is for images
        tuned = fit("masktune", model, DATA, train=TRAIN, compute=CPU)
    assert erm.start is None
    assert tuned.start is not None
    assert torch.equal(weights(tuned.start), weights(erm.model))  # the same settings, seed and selection
    assert not torch.equal(weights(tuned.start), weights(tuned.model))
    with pytest.warns(SpurlessWarning, match="The worst-group accuracy on validation fell"):
        given = fit("masktune", erm.model, DATA, train=TRAIN, compute=CPU)
    assert given.start is not None
    assert torch.equal(weights(given.start), weights(erm.model))
    assert given.start is not erm.model


def test_a_method_can_ask_for_the_untrained_model_where_the_start_was_trained_here() -> None:
    model, method = build("linear", DATA), Repair()
    fitted = fit(method, model, DATA, train=TRAIN, compute=CPU)
    first, second = method.make_untrained
    assert torch.equal(weights(first), weights(model))
    assert first is not second  # each its own
    assert fitted.explanation == {"found": 7}
    again = Repair()
    fit(again, fitted.model, DATA, train=TRAIN, compute=CPU)
    assert again.make_untrained == []  # nobody knows how that one began


def test_the_worst_inferred_group_decides_which_epoch_is_kept() -> None:
    method = Repair()
    # a small batch and a high rate, so that the epochs differ
    fitted = fit(
        method, build("linear", DATA), DATA, train={**TRAIN, "batch_size": 10}, select="val-worst-inferred", compute=CPU
    )
    assert fitted.start is not None
    y, right = DATA.val.y, predict(fitted.start, DATA.val) == DATA.val.y
    hits = predict(fitted.model, DATA.val) == y
    cells = [(y == label) & (right == was) for label in (0, 1) for was in (False, True)]
    by_hand = min(float(hits[cell].double().mean()) for cell in cells if cell.any())
    assert len(method.scores) >= 6
    assert len(set(method.scores)) > 1
    assert max(method.scores) == pytest.approx(by_hand)
    assert fitted.record.selection == "val-worst-inferred"
    assert fitted.record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}
    with pytest.raises(InputError, match=r"val-worst-inferred infers .* erm trains from scratch"):
        fit("erm", build("linear", DATA), DATA, select="val-worst-inferred", compute=CPU)


def test_coverages_reach_the_record_and_the_key() -> None:
    model = build("linear", DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        plain, shy, shyer, other = (
            fit("masktune", model, DATA, train=TRAIN, compute=CPU, coverages=coverages, score=score)
            for coverages, score in (((), "auto"), ((0.9,), "auto"), ((0.8,), "auto"), ((0.8,), "softmax"))
        )
    assert plain.record.selective == {}
    assert len({run.record.key for run in (plain, shy, shyer, other)}) == 4
    assert (shyer.record.selective["score"], other.record.selective["score"]) == ("product", "softmax")
    assert shyer.start is not None
    by_hand = assess_selective(Abstainer((shyer.start, shyer.model), "product"), DATA, (0.8,))
    assert shyer.record.metrics["error_at_80"] == by_hand.at(0.8).error
    assert shyer.record.selective["rows"][0]["threshold"] == by_hand.at(0.8).threshold
    same = [run.record.metrics["worst_group"] for run in (plain, shy, shyer, other)]
    assert same == same[:1] * 4  # abstaining changes nothing else


def test_a_score_that_cannot_be_is_refused_before_anything_is_trained() -> None:
    model = build("linear", DATA)

    def never(*_: object) -> None:
        raise AssertionError("trained")

    for score, match in (
        ("sofmax", "Did you mean 'softmax'"),
        ("product", "needs two models"),
        ("selector", "is trained"),
    ):
        with pytest.raises((InputError, UnknownNameError), match=match):
            fit("erm", model, DATA, compute=CPU, coverages=(0.8,), score=score, progress=never)
    with pytest.raises(InputError, match=r"the coverage must be a fraction \(expected above 0 and at most 1, got 80"):
        fit("erm", model, DATA, compute=CPU, coverages=(1.0, 80), progress=never)
