"""Heads on features: halves by hand, batches by count, selection by brute force, and one pass over each split."""

import warnings
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import Order
from spurless.data.loaders.tensors import from_tensors
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods import _head, make_method
from spurless.methods._config import constant_lr_config
from spurless.methods._head import check_classes, head_train_config, split_halves, train_again
from spurless.methods.class_balanced_head import ClassBalancedHeadConfig
from spurless.methods.erm import ERM
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, Run, make_run

CPU = Compute("cpu")
DATA = planted(PlantedConfig(n_train=1000, n_val=600, n_test=4000))
SHORT: dict[str, Any] = {"epochs": 3, "batches": 5, "batch_size": 32}


class Counting(nn.Module):
    """Passes examples on and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return x


def cheat(backbone: nn.Module | None = None) -> Classifier:
    """A trained model whose features are the inputs and whose head reads the spurious one alone."""
    model = Classifier(backbone or nn.Identity(), nn.Linear(2, 2), trained=True)
    model.head.load_state_dict({"weight": torch.tensor([[0.0, -1.0], [0.0, 1.0]]), "bias": torch.zeros(2)})
    return model


def tuned(data: Splits = DATA, **options: Any) -> Fitted:
    return fit("class-balanced-head", cheat(), data, compute=CPU, **options)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_halves_share_every_cell_and_no_example() -> None:
    cells = torch.tensor([0] * 10 + [1] * 4 + [2] * 3)
    first, second = split_halves(cells, Seeds(0))
    assert torch.bincount(cells[first]).tolist() == [5, 2, 1]
    assert torch.bincount(cells[second]).tolist() == [5, 2, 2]
    assert sorted(torch.cat([first, second]).tolist()) == list(range(17))
    assert torch.equal(split_halves(cells, Seeds(0))[1], second)
    assert not torch.equal(split_halves(cells, Seeds(1))[1], second)


def watched(monkeypatch: pytest.MonkeyPatch, module: str) -> list[tuple[Split, Order]]:
    """Keep what a module tunes its head on."""
    seen: list[tuple[Split, Order]] = []
    plain = _head.tune_head

    def watch(head: nn.Module, rows: Split, order: Order, *rest: Any) -> None:
        seen.append((rows, order))
        plain(head, rows, order, *rest)

    monkeypatch.setattr(f"spurless.methods.{module}.tune_head", watch)
    return seen


def test_half_is_the_second_half_of_validation_and_the_one_that_neurontune_tunes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = watched(monkeypatch, "class_balanced_head"), watched(monkeypatch, "neurontune")
    tuned(on="half", seed=5, **SHORT)
    fit("neurontune", cheat(), DATA, compute=CPU, seed=5, splits="half/half", threshold=10.0, **SHORT)
    expected = DATA.val.select(split_halves(DATA.val.y, Seeds(5))[1])
    for rows, _ in (ours[0], theirs[0]):
        assert torch.equal(torch.as_tensor(rows.x), torch.as_tensor(expected.x))
        assert torch.equal(rows.y, expected.y)


def test_batches_hold_as_many_examples_of_every_class(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(monkeypatch, "class_balanced_head")
    few = torch.cat([(DATA.train.y == 0).nonzero().flatten(), (DATA.train.y == 1).nonzero().flatten()[:200]])
    tuned(Splits(DATA.train.select(few), DATA.val, DATA.test), **{**SHORT, "batches": 100})
    ((rows, order),) = seen
    drawn = torch.cat([order(epoch) for epoch in range(3)])
    assert len(drawn) == 3 * 100 * 32
    assert float(rows.y[drawn].double().mean()) == pytest.approx(0.5, abs=0.02)  # 4 standard errors


def test_the_head_ends_where_scikit_learn_does() -> None:
    from sklearn.linear_model import LogisticRegression

    fitted = tuned(on="val", epochs=30, lr=0.05, weight_decay=0.0)
    head = fitted.model.head
    assert isinstance(head, nn.Linear)
    x = torch.as_tensor(DATA.val.x).double().numpy()
    theirs = LogisticRegression(C=1e6, class_weight="balanced").fit(x, DATA.val.y.numpy())
    slope = (head.weight[1] - head.weight[0]).detach().double()
    torch.testing.assert_close(slope, torch.from_numpy(theirs.coef_[0]), atol=0.15, rtol=0)


@pytest.mark.parametrize("criterion", ["val-worst-group", "val-worst-class", "val-average", "val-worst-inferred"])
def test_the_epoch_that_is_kept_is_the_one_that_brute_force_prefers(criterion: str) -> None:
    options: dict[str, Any] = {
        "on": "train",
        "batches": 1,
        "batch_size": 8,
        "lr": 2.0,
    }  # wild steps, so that epochs differ
    heads = [tuned(epochs=k, **options).model for k in range(1, 9)]
    tables = [evaluate(model, DATA.val) for model in heads]
    right = evaluate(cheat(), DATA.val)  # of its prediction, right where attribute and label agree by the sign
    assert right.average < 0.6
    kept = tuned(epochs=8, select=criterion, **options)
    scores = [row["score"] for row in kept.record.history if row["stage"] == "tune"]
    best = max(range(8), key=scores.__getitem__)
    assert torch.equal(weights(kept.model), weights(heads[best]))
    assert len(set(scores)) > 2
    by_hand = {
        "val-worst-group": [table.worst[0] for table in tables],
        "val-worst-class": [table.worst_class[0] for table in tables],
        "val-average": [table.average for table in tables],
    }
    if criterion in by_hand:
        assert scores == pytest.approx(by_hand[criterion])


@pytest.mark.parametrize(
    ("on", "criterion", "passes"),
    [("train", False, 1000), ("train", True, 1600), ("val", False, 600), ("val", True, 600), ("half", True, 600)],
)
def test_every_image_is_seen_once(on: str, criterion: bool, passes: int) -> None:
    backbone = Counting()
    run = make_run(CPU, 0, TrainConfig())
    if criterion:
        run = replace(
            run,
            score_predictions=lambda pred: float((pred == DATA.val.y).double().mean()),
            score=lambda _: pytest.fail("the criterion needed a pass over the images"),
        )
    make_method("class-balanced-head", on=on, **SHORT).fit(cheat(backbone), DATA, run)
    assert backbone.seen == passes


@pytest.mark.slow
def test_it_helps_where_what_it_is_tuned_on_is_balanced_and_nowhere_else() -> None:
    options: dict[str, Any] = {"epochs": 5, "lr": 0.05}
    for seed in range(3):
        data = planted(PlantedConfig(n_train=2000, n_val=1000, n_test=4000, seed=seed))
        before = fit("erm", build("linear", data), data, seed=seed, train=options, compute=CPU).model
        worst = {}
        for on in ("train", "val", "half"):
            with warnings.catch_warnings():
                if on == "train":
                    warnings.filterwarnings("ignore", "The worst-group accuracy on validation fell", SpurlessWarning)
                fitted = fit("class-balanced-head", before, data, seed=seed, compute=CPU, on=on, **options)
            worst[on] = evaluate(fitted.model, data.test).worst[0]
        start_of = evaluate(before, data.test).worst[0]
        assert worst["val"] > start_of + 0.2
        assert worst["half"] > start_of + 0.2
        assert worst["train"] < start_of + 0.1


@pytest.mark.parametrize(("on", "labels"), [("train", False), ("val", True), ("half", True)])
def test_the_record_says_whose_labels_were_used(on: str, labels: bool) -> None:
    used = tuned(on=on, **SHORT).record.supervision
    assert used == {"train_attributes": False, "val_labels": labels, "val_attributes": False}


def test_the_loop_of_a_head_is_its_own() -> None:
    base = TrainConfig(epochs=7, steps=9, schedule="cosine", warmup_steps=3, stop_accuracy=0.9, stop_loss=0.1, clip=2.0)
    settings = head_train_config(
        ClassBalancedHeadConfig(
            on="val", epochs=4, batches=5, batch_size=6, optimiser="adam", lr=0.7, weight_decay=0.2
        ),
        base,
    )
    assert settings == TrainConfig(4, None, 6, "adam", 0.7, weight_decay=0.2, clip=2.0)
    assert constant_lr_config(base, steps=11).steps == 11
    heavy = replace(base, l1=1e-3, asam=0.5)
    assert (constant_lr_config(heavy).l1, constant_lr_config(heavy).asam, constant_lr_config(heavy, l1=0.1).l1) == (
        0.0,
        0.0,
        0.1,
    )


def retraining(epochs: int, on: Literal["start", "again"]) -> tuple[Tensor, Run]:
    """Train the start as a run does, or once more from the model that the run keeps."""
    run = make_run(CPU, 3, TrainConfig(epochs=epochs, batch_size=50, lr=0.05))
    if on == "start":
        return weights(ERM().fit(build("mlp", DATA, seed=3), DATA, run)), run
    run = replace(
        run,
        make_untrained=lambda: build("mlp", DATA, seed=3),
        score_predictions=lambda _: 0.0,
        score=lambda _: pytest.fail("a second training uses no criterion"),
    )
    return weights(train_again("once more", DATA, run, run.train, "")), run


def test_training_again_gives_the_weights_that_the_start_had_at_that_time() -> None:
    again, run = retraining(2, "again")
    assert torch.equal(again, retraining(2, "start")[0])
    assert not torch.equal(again, retraining(3, "start")[0])
    assert [row["stage"] for row in run.history] == ["once more"] * 2
    assert list(run.seconds) == ["once more"]
    assert run.stages == set()  # the method may call its own stage train


def test_a_model_that_was_trained_elsewhere_cannot_be_trained_again() -> None:
    with pytest.raises(
        InputError, match=r"'once more' trains the model again, .* a trained model was passed\. Do that\."
    ):
        train_again("once more", DATA, make_run(CPU, 0, TrainConfig()), TrainConfig(), "Do that.")


def test_a_head_that_is_not_linear_is_refused() -> None:
    model = Classifier(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"class-balanced-head tunes a linear head \(got Sequential\)"):
        fit("class-balanced-head", model, DATA, compute=CPU)


@pytest.mark.filterwarnings("ignore:Validation differs from train")
def test_one_class_is_refused_and_a_missing_one_is_a_warning() -> None:
    one = Splits(DATA.train, DATA.val.select(DATA.val.y == 1), DATA.test)
    with pytest.raises(InputError, match=r"class-balanced-head needs examples of at least two classes .*and none of "):
        tuned(one, on="val", **SHORT)
    groups = Groups(labels=("a", "b", "c"), attributes=("left", "right"))
    rows = Split(torch.zeros(4, 2), torch.tensor([0, 0, 2, 2]), torch.zeros(4).long(), groups)
    with pytest.warns(SpurlessWarning, match=r"someone tunes the head on 4 examples without the class b"):
        check_classes(rows, "someone")


@pytest.mark.parametrize("name", ["epochs", "batches", "batch_size"])
def test_settings_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1"):
        ClassBalancedHeadConfig(**{name: 0})  # type: ignore[arg-type]  # a number, whatever the field


HEADS: dict[str, dict[str, Any]] = {
    "class-balanced-head": SHORT,
    "jtt-head": SHORT,
    "neurontune": {**SHORT, "threshold": 1.0},
    "self": {**SHORT, "n": 100, "disagreement": "mistakes"},
    "afr": {"steps": 5},
    "dfr": {"refits": 1},
}


@pytest.mark.parametrize("method", HEADS)
def test_a_model_that_came_frozen_has_its_head_tuned_all_the_same(method: str) -> None:
    backbone = nn.Linear(2, 2)
    backbone.load_state_dict({"weight": torch.eye(2), "bias": torch.zeros(2)})
    model = cheat(backbone).requires_grad_(False)
    before = weights(model)
    fitted = fit(method, model, DATA, compute=CPU, **HEADS[method]).model
    assert not torch.equal(weights(fitted.head), weights(model.head))
    assert torch.equal(weights(fitted.backbone), weights(model.backbone))
    assert torch.equal(weights(model), before)
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in fitted.backbone.parameters())


def test_a_part_of_the_head_that_came_frozen_stays() -> None:
    model = cheat()
    bias = model.head.get_parameter("bias").requires_grad_(False)
    fitted = fit("class-balanced-head", model, DATA, compute=CPU, **SHORT).model
    assert torch.equal(fitted.head.get_parameter("bias"), bias)
    assert not torch.equal(fitted.head.get_parameter("weight"), model.head.get_parameter("weight"))


@pytest.mark.parametrize("method", ["erm", "lff", "rebias", "masktune", "dcwp", "avp", "jtt"])
def test_a_frozen_model_is_refused_by_methods_that_train_it(method: str) -> None:
    model = cheat(nn.Linear(2, 2)).requires_grad_(False)
    with pytest.raises(InputError, match=r"nothing would be trained: no parameter requires a gradient\. Call"):
        fit(method, model, DATA, compute=CPU, train={"epochs": 1})


class Double(nn.Module):
    """Computes in float64, whatever it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x.double()).relu()  # type: ignore[no-any-return]  # a module returns Any


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # tiny runs teach nothing
@pytest.mark.parametrize("method", ["class-balanced-head", "jtt-head", "afr", "neurontune", "dfr"])
def test_a_head_of_another_precision_is_tuned_and_keeps_it(method: str) -> None:
    few: dict[str, Any] = {"epochs": 1, "batches": 2, "batch_size": 16}
    options: dict[str, Any] = {"afr": {"steps": 2}, "dfr": {"refits": 1}, "neurontune": {**few, "threshold": 1.0}}.get(
        method, few
    )
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    data = from_tensors(x, x[:, 0] > 0, x[:, 1] > 0)
    model = Classifier(Double(), nn.Linear(6, 2).double(), trained=True)
    done = fit(method, model, data, compute=Compute("cpu"), **options).model
    assert {p.dtype for p in done.parameters()} == {torch.float64}
    assert not torch.equal(done.get_parameter("head.weight"), model.get_parameter("head.weight"))
