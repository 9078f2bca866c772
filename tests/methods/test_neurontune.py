"""NeuronTune: what it suppresses, by hand; what it does to a model that leans on a shortcut; when it refuses."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.records import Record
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.loader import Order, balanced_order
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods import make_method
from spurless.methods._head import split_halves, tune_head
from spurless.methods.base import method_info
from spurless.methods.neurontune import NeuronTuneConfig, SuppressingHead
from spurless.metrics.spuriousness import biased_features, sfit, spuriousness
from spurless.models import Classifier, build
from spurless.train.evaluate import evaluate, predict
from spurless.train.run import Compute

CPU = Compute("cpu")
SHORT: dict[str, Any] = {"batches": 50, "batch_size": 64, "epochs": 1, "lr": 0.01}


@pytest.fixture(scope="module")
def data() -> Splits:
    return load("core-spurious-noise", n_train=1500, n_val=1500, n_test=1500, seed=0)


def linear(weights: Tensor, bias: float = 0.0, backbone: nn.Module | None = None) -> Classifier:
    """A trained model that says 1 where ``weights`` times the features, plus ``bias``, is above 0."""
    head = nn.Linear(len(weights), 2)
    with torch.no_grad():
        head.weight[0], head.weight[1] = -weights / 2, weights / 2
        head.bias[0], head.bias[1] = -bias / 2, bias / 2
    return Classifier(backbone or nn.Flatten(), head, trained=True)


def leaning() -> Classifier:
    """A model that reads the spurious component most."""
    return linear(torch.tensor([1.0, 4.0, 0.0]), -2.0)


def run(data: Splits, model: Classifier | None = None, seed: int = 0, **options: Any) -> Fitted:
    return fit("neurontune", model or leaning(), data, seed=seed, compute=CPU, **{**SHORT, **options})


def rows(x: Tensor, y: list[int], labels: tuple[str, ...] = ("cat", "dog")) -> Splits:
    """The same examples three times."""
    part = Split(x, torch.tensor(y), torch.zeros(len(y), dtype=torch.long), Groups(labels, ("any",)))
    return Splits(part, part, part)


def test_the_folded_head_has_the_same_logits_and_the_old_shape() -> None:
    head, x = SuppressingHead(nn.Linear(5, 3)), torch.randn(7, 5)
    for value in (0.0, 0.3):
        head.suppress(torch.tensor([True, False, False, True, False]), value)
        assert head.scale.tolist() == pytest.approx([value, 1, 1, value, 1])
        folded = head.to_linear()
        assert type(folded) is nn.Linear
        torch.testing.assert_close(folded(x), head(x))
    head.suppress(torch.zeros(5, dtype=torch.bool), 0.0)
    torch.testing.assert_close(head(x), head.linear(x))


def test_the_shortcut_is_found_by_the_mistakes_on_validation_and_no_longer_read(data: Splits) -> None:
    fitted = run(data, epochs=5, lr=0.01, reidentify=False, keep="last")
    start = leaning()
    assert isinstance(data.val.x, Tensor)
    by_hand = spuriousness(data.val.x, data.val.y, predict(start, data.val), 2)
    found = fitted.explanation
    torch.testing.assert_close(found.scores.delta, by_hand.delta)
    assert torch.equal(found.suppressed, biased_features(by_hand))
    assert found.most_biased(0, 1) == [1]  # where the label is minus, mistakes have the mark
    head = fitted.model.head
    assert isinstance(head, nn.Linear)
    assert torch.equal((head.weight == 0).all(dim=0), found.suppressed)
    before, after = evaluate(start, data.test), evaluate(fitted.model, data.test)
    assert after.worst[0] > before.worst[0] + 0.3
    assert after.average - after.worst[0] < before.average - before.worst[0]


def test_a_value_of_one_is_the_class_balanced_head(data: Splits) -> None:  # table 5's last column, table 4's NT = No
    plain = fit("class-balanced-head", leaning(), data, compute=CPU, **SHORT)
    off: tuple[dict[str, Any], ...] = ({"value": 1.0}, {"threshold": 100.0})
    for options in off:
        tuned = run(data, **options)
        for ours, theirs in zip(tuned.model.parameters(), plain.model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)
    half = run(data, value=0.5)
    assert not torch.allclose(next(half.model.parameters()), next(plain.model.parameters()))


def test_epochs_draw_the_batches_of_the_class_balanced_head(data: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def spy(head: nn.Module, rows: Split, order: Order, *others: Any) -> None:
        drawn.append(order(0))
        tune_head(head, rows, order, *others)

    monkeypatch.setattr("spurless.methods.neurontune.tune_head", spy)
    run(data, epochs=2)
    theirs = balanced_order(data.train.y, Seeds(0).child("tune"), 50 * 64)
    assert [order.tolist() for order in drawn] == [theirs(epoch).tolist() for epoch in (0, 1)]
    assert not torch.equal(*drawn)


def test_every_epoch_identifies_by_the_mistakes_of_the_head_as_it_then_is(data: Splits) -> None:
    first = run(data, lr=0.01, batches=100)
    assert isinstance(data.val.x, Tensor)
    scores = spuriousness(data.val.x, data.val.y, predict(first.model, data.val), 2)
    second = run(data, lr=0.01, batches=100, epochs=2, keep="last").explanation
    assert torch.equal(second.suppressed, biased_features(scores))
    torch.testing.assert_close(second.scores.delta, scores.delta)
    assert first.explanation.fitness == second.fitness[:1]
    assert second.fitness[0] == pytest.approx(sfit(scores))  # on features before suppression, after the tuning
    once = run(data, lr=0.01, batches=100, epochs=2, keep="last", reidentify=False).explanation
    assert torch.equal(once.suppressed, first.explanation.suppressed)
    torch.testing.assert_close(once.scores.delta, first.explanation.scores.delta)


def test_the_epoch_is_chosen_by_the_worst_class_or_sfit_or_is_the_last_or_by_the_users_criterion(data: Splits) -> None:
    options: dict[str, Any] = {"epochs": 6, "lr": 0.01, "batches": 50}
    fitted = run(data, **options, keep="sfit")
    best = max(range(6), key=lambda i: fitted.explanation.fitness[i])
    assert fitted.explanation.epoch == best + 1
    worst = run(data, **options)
    by_hand = fit(make_method("neurontune", **SHORT | options), leaning(), data, compute=CPU, select="val-worst-class")
    assert worst.explanation.epoch == by_hand.explanation.epoch  # val is what it identifies on
    assert torch.equal(worst.explanation.suppressed, by_hand.explanation.suppressed)
    scores = [row["score"] for row in by_hand.record.history if row["stage"] == "tune"]
    assert evaluate(worst.model, data.val).worst_class[0] == pytest.approx(max(scores))
    method = make_method("neurontune", **SHORT | options, keep="last")
    last = fit(method, leaning(), data, compute=CPU)
    assert last.explanation.epoch == 6
    assert last.explanation.fitness == fitted.explanation.fitness
    chosen = fit(make_method("neurontune", **SHORT | options), leaning(), data, compute=CPU, select="val-worst-group")
    scores = [row["score"] for row in chosen.record.history if row["stage"] == "tune"]
    assert chosen.explanation.epoch == scores.index(max(scores)) + 1
    assert evaluate(chosen.model, data.val).worst[0] == pytest.approx(max(scores))
    assert len(set(scores)) > 1


def test_what_identifies_and_what_tunes(data: Splits) -> None:
    for splits, expected in (("val/train", True), ("half/half", True), ("train/train", False)):
        assert method_info(make_method("neurontune", splits=splits)).val_labels is expected
    assert run(data, splits="train/train").record.supervision["val_labels"] is False
    assert isinstance(data.train.x, Tensor)
    by_train = spuriousness(data.train.x, data.train.y, predict(leaning(), data.train), 2)
    torch.testing.assert_close(run(data, splits="train/train").explanation.scores.delta, by_train.delta)
    part = data.val.select(split_halves(data.val.y, Seeds(0))[0])
    assert isinstance(part.x, Tensor)
    by_half = spuriousness(part.x, part.y, predict(leaning(), part), 2)
    torch.testing.assert_close(run(data, splits="half/half").explanation.scores.delta, by_half.delta)
    other = replace(data, train=data.train.select(torch.arange(100)))  # half/half never looks at train
    one, two = (run(d, splits="half/half").model for d in (data, other))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    other = replace(data, val=data.val.select(torch.arange(100)))  # nor train/train at val
    one, two = (run(d, splits="train/train").model for d in (data, other))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")
def test_signed_activations_are_another_choice(data: Splits) -> None:
    assert isinstance(data.val.x, Tensor)
    signed = spuriousness(data.val.x, data.val.y, predict(leaning(), data.val), 2, absolute=False)
    found = run(data, activations="signed").explanation
    torch.testing.assert_close(found.scores.delta, signed.delta)
    assert bool(found.suppressed[0])  # of minus, the core component of mistakes is less negative: the core is lost


def test_a_killed_run_goes_on_to_the_same_weights(data: Splits, tmp_path: Path) -> None:
    one = run(data, epochs=3, folder=tmp_path)
    for late in tmp_path.rglob("*tune*3*"):
        late.unlink()
    two = run(data, epochs=3, folder=tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert two.explanation.fitness == one.explanation.fitness


def test_the_record_holds_the_epochs_and_what_was_found(data: Splits) -> None:
    fitted = run(data, epochs=3)
    record = Record.from_json(fitted.record.to_json())
    epochs = [row for row in record.history if row["stage"] == "tune"]
    assert [row["epoch"] for row in epochs] == [1, 2, 3]
    assert [row["sfit"] for row in epochs] == pytest.approx(list(fitted.explanation.fitness))
    assert all(row["loss"] > 0 and 0 <= row["suppressed"] <= 3 for row in epochs)
    found = record.history[-1]["found"]
    assert found["epoch"] == fitted.explanation.epoch
    assert found["features"] == 3
    assert {"identify", "tune"} <= record.seconds.keys()
    assert not [name for name in record.seconds if name.startswith("tune ")]  # not forty of them


CAT_WRONG = torch.tensor([[1.0, 0.0], [1.0, 0.0], [2.0, 3.0], [0.0, 5.0], [0.0, 5.0]])
"""Three cats, the last of which looks like the two dogs."""


def test_a_label_without_mistakes_is_skipped_and_named_once() -> None:
    model = linear(torch.tensor([-1.0, 1.0]))
    with pytest.warns(SpurlessWarning, match=r"'dog' \(4 of 4 times\)") as heard:
        fitted = run(rows(CAT_WRONG, [0, 0, 0, 1, 1]), model, epochs=4, lr=1e-6, threshold=1.0, value=1.0)
    assert len([w for w in heard if "identify on" in str(w.message)]) == 1
    assert fitted.explanation.scores.skipped == (1,)
    assert fitted.explanation.suppressed.tolist() == [False, True]  # 1 is not above 1, 3 is


def test_a_model_without_mistakes_is_tuned_as_it_is() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [0.0, 5.0]])
    data = rows(x, [0, 0, 1, 1])
    with pytest.warns(SpurlessWarning, match=r"no feature is suppressed, and the head was tuned as it is"):
        fitted = run(data, linear(torch.tensor([-1.0, 1.0])))
    assert not fitted.explanation.suppressed.any()
    plain = fit("class-balanced-head", linear(torch.tensor([-1.0, 1.0])), data, compute=CPU, **SHORT)
    torch.testing.assert_close(next(fitted.model.parameters()), next(plain.model.parameters()))


def test_once_no_mistake_is_left_what_is_suppressed_stays_so() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 3.0], [-1.0, 0.0], [-1.0, 0.0]])  # a cat with a mark
    with pytest.warns(SpurlessWarning, match=r"'cat' \(2 of 3 times\), 'dog' \(3 of 3 times\); other labels decided"):
        fitted = run(rows(x, [0, 0, 0, 1, 1]), linear(torch.tensor([-1.0, 1.0])), epochs=3, lr=1e-6, keep="last")
    assert fitted.explanation.suppressed.tolist() == [False, True]
    assert fitted.explanation.epoch == 3
    assert [row["suppressed"] for row in fitted.record.history if row["stage"] == "tune"] == [1, 1, 1]
    assert fitted.explanation.fitness == (0.0, 0.0, 0.0)


def test_where_every_feature_is_biased_an_error_names_a_threshold_that_works() -> None:
    generator = Seeds(0).generator("dense")
    y = torch.arange(400) % 2
    up = torch.arange(8) % 2 == 0
    towards = torch.where(torch.rand(400, generator=generator) < 0.7, y, 1 - y)  # mistakes look like the other label
    level = 1 + torch.rand(8, generator=generator) * (towards[:, None] == up)
    x = level + 0.01 * torch.rand(400, 8, generator=generator)
    model = linear(torch.where(up, 1.0, -1.0))
    data = rows(x, y.tolist())
    with pytest.raises(InputError, match=r"8 of 8 features are biased with threshold 0.*Raise the threshold") as caught:
        run(data, model)
    named = float(str(caught.value).split("threshold=")[1].split()[0])
    left = int((~run(data, model, threshold=named).explanation.suppressed).sum())
    assert 3 <= left <= 5
    with warnings.catch_warnings():  # partly suppressed features are still read
        warnings.simplefilter("error")
        assert run(data, model, value=0.5).explanation.suppressed.all()


def test_features_that_are_averaged_over_the_image_are_all_biased() -> None:
    digits = load("patched-digits", seed=0)
    model = build("pooled-cnn", digits, seed=0, channels=(16, 32, 64))
    with pytest.raises(InputError, match=r"64 of 64 features are biased.*before they are averaged over the image"):
        fit("neurontune", model, digits, compute=CPU, train={"steps": 120, "batch_size": 64, "lr": 0.01}, **SHORT)


def test_a_few_features_that_are_left_are_worth_a_warning() -> None:
    x = torch.cat([torch.zeros(3, 40), torch.ones(1, 40), torch.zeros(2, 40)]) + 1
    x = torch.cat([x, torch.tensor([[-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]]).T], dim=1)
    model = linear(torch.tensor([0.0] * 40 + [1.0]))
    data = rows(x, [0, 0, 0, 0, 1, 1])
    with (
        pytest.warns(SpurlessWarning, match=r"40 of 41 features are biased with threshold 0. Few are left to tune"),
        pytest.warns(SpurlessWarning, match=r"of some labels .*'dog'"),
    ):
        assert run(data, model).explanation.suppressed.sum() == 40


def test_later_on_it_ends_where_nothing_is_left(data: Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = iter([torch.tensor([False, True, False]), torch.ones(3, dtype=torch.bool)])
    monkeypatch.setattr("spurless.methods.neurontune.biased_features", lambda *_: next(masks))
    with pytest.warns(
        SpurlessWarning, match=r"3 of 3 features are biased with threshold 0. NeuronTune ended before epoch 2"
    ):
        fitted = run(data, epochs=5)
    assert fitted.explanation.epoch == 1
    assert fitted.explanation.suppressed.tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:Validation differs from train")
def test_one_label_to_identify_on_is_refused(data: Splits) -> None:
    only = replace(data, val=data.val.select(data.val.y == 1))
    with pytest.raises(InputError, match=r"must have at least two labels \(got plus\).*train/train"):
        run(only)


def test_a_head_that_is_not_linear_is_refused(data: Splits) -> None:
    model = Classifier(nn.Flatten(), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"NeuronTune tunes a linear head"):
        run(data, model)


def test_the_backbone_is_left_as_it_was() -> None:
    digits = load("patched-digits", seed=0)
    start = build("small-cnn", digits, seed=0)
    start.trained = True
    before = {name: value.clone() for name, value in start.backbone.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        fitted = run(digits, start)
    assert all(torch.equal(value, before[name]) for name, value in fitted.model.backbone.state_dict().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"value": 1.5}, r"value must be a fraction"),
        ({"threshold": float("nan")}, r"threshold must be a finite number"),
        ({"epochs": 0}, r"epochs.* must be at least 1"),
        ({"batches": 0}, r"batches.* must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        NeuronTuneConfig(**options)


def test_the_presets_are_table_10() -> None:
    for name, epochs, optimiser, lr in (
        ("waterbirds", 40, "sgd", 1e-3),
        ("celeba", 40, "sgd", 1e-3),
        ("imagenet-9", 1, "sgd", 1e-3),
        ("multinli", 60, "adamw", 1e-5),
        ("civilcomments", 60, "adamw", 1e-3),
    ):
        config = make_method("neurontune", name).config
        assert (config.epochs, config.optimiser, config.lr) == (epochs, optimiser, lr)
        assert (config.batches, config.batch_size, config.threshold, config.value) == (200, 128, 0.0, 0.0)
        assert make_method("neurontune", f"{name}-paper").config == replace(config, keep="sfit")
        if name != "imagenet-9":  # tables 1 and 2 have the dagger of the other four
            assert make_method("neurontune", f"{name}-half").config == replace(config, splits="half/half")


@pytest.mark.parametrize("rule", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_a_head_whose_weight_is_computed_has_the_logits_that_were_tuned(rule: Any) -> None:
    linear = rule(nn.Linear(4, 2))
    head = SuppressingHead(linear)
    head.suppress(torch.tensor([False, True, False, True]), 0.0)
    head.eval()
    x = torch.randn(6, 4, generator=Seeds(0).generator("x"))
    folded = head.to_linear()
    torch.testing.assert_close(folded(x), head(x))
    assert (folded.weight[:, [1, 3]] == 0).all()
    assert parametrize.is_parametrized(linear, "weight")  # the copy alone is plain
    linear(x)
