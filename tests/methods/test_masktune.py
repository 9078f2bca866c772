"""MaskTune: thresholds by hand, the paper's propositions, and what it does to a model that looks at a square."""

import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.input_masks import InputMask, SoftInputMask
from spurless.data.loader import Loader, sequential_order
from spurless.data.loaders.tensors import from_tensors
from spurless.data.split import Splits
from spurless.fitting import fit
from spurless.methods import make_method
from spurless.methods.masktune import MaskTune, MaskTuneConfig, _finetune_lr, above_threshold, compute_masks
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.evaluate import evaluate
from spurless.train.run import Compute, make_run

CPU = Compute("cpu")
TRAIN = {"steps": 170, "batch_size": 64, "lr": 0.01}


@pytest.fixture(scope="module")
def digits() -> Splits:
    return load("patched-digits", conflicting=0.01, seed=0)


@pytest.fixture(scope="module")
def trained(digits: Splits) -> Classifier:
    return fit("erm", build("small-cnn", digits, seed=0), digits, seed=0, train=TRAIN, compute=CPU).model


def test_the_threshold_is_mean_plus_k_deviations_of_what_is_above_zero() -> None:
    heat = torch.tensor([[0.0, 0.0, 0.1, 0.2, 0.3, 1.0]]).view(1, 2, 3)
    positive = heat[heat > 0]
    for k in (0.0, 1.0, 1.5, 2.0, 3.0):
        limit = positive.mean() + k * positive.std(correction=0)
        assert torch.equal(above_threshold(heat, MaskTuneConfig(k=k)), heat > limit)


def test_a_map_without_heat_or_of_one_temperature_hides_nothing() -> None:
    for heat in (torch.zeros(2, 3, 3), torch.full((2, 3, 3), 0.5)):
        for config in (MaskTuneConfig(k=0.0), MaskTuneConfig(), MaskTuneConfig(threshold="top")):
            assert not above_threshold(heat, config).any()


def test_the_hottest_share_is_hidden_where_the_threshold_is_top() -> None:
    heat = torch.rand(4, 10, 10)
    found = above_threshold(heat, MaskTuneConfig(threshold="top", top=0.07))
    assert found.flatten(1).sum(dim=1).tolist() == [7] * 4
    assert all(heat[i][found[i]].min() > heat[i][~found[i]].max() for i in range(4))


def test_one_level_for_all_maps_where_the_threshold_is_the_mean() -> None:
    heat = torch.stack([torch.full((2, 2), 0.2), torch.full((2, 2), 0.6)])
    assert above_threshold(heat, MaskTuneConfig(threshold="mean"), level=0.4).flatten(1).all(dim=1).tolist() == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epochs": 0}, "must be at least 1"),
        ({"iterations": 0}, "must be at least 1"),
        ({"top": 1.0}, "top.* must be a fraction"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("masktune", **options)


def test_the_rate_is_the_first_or_the_last_of_the_training_before() -> None:
    train = TrainConfig(epochs=100, lr=0.01, schedule="step", decay_epochs=25, decay_factor=0.5)
    assert _finetune_lr(train, 375, "initial") == 0.01
    assert _finetune_lr(train, 375, "last") == pytest.approx(0.01 / 8)


@pytest.mark.parametrize("schedule", ["cosine", "one-cycle"])
def test_a_last_rate_that_is_nothing_is_told(schedule: Literal["cosine", "one-cycle"]) -> None:
    train = TrainConfig(epochs=100, lr=0.01, schedule=schedule)
    with pytest.warns(SpurlessWarning, match=r"the model will hardly change. Use rate='initial'"):
        assert _finetune_lr(train, 375, "last") < 1e-7


def test_the_paper_s_own_last_rates_are_no_nothing(recwarn: pytest.WarningsRecorder) -> None:
    cifar = TrainConfig(epochs=300, lr=0.1, schedule="step", decay_epochs=25, decay_factor=0.5)
    assert _finetune_lr(cifar, 313, "last") == pytest.approx(0.1 / 2048)
    assert not recwarn.list


def test_the_mask_of_a_model_that_cheats_lies_on_the_square(digits: Splits, trained: Classifier) -> None:
    run = make_run(CPU, 0, TrainConfig())
    hidden = compute_masks(trained, digits.train, MaskTuneConfig(), run)
    assert isinstance(hidden, InputMask)
    masks = hidden.masks(torch.arange(len(digits.train)))
    marked = digits.train.a == 0
    corner = masks[marked][:, :8, :8].sum() / masks[marked].sum()
    assert corner > 0.6  # 64 of 784 pixels: chance is 0.08
    assert 0.005 < hidden.fraction < 0.2
    assert compute_masks(trained, digits.train, MaskTuneConfig(k=3.0), run).fraction < hidden.fraction
    assert isinstance(compute_masks(trained, digits.train, MaskTuneConfig(threshold="soft"), run), SoftInputMask)


@pytest.mark.slow
def test_the_mean_of_the_data_can_stand_in_for_hidden_pixels(digits: Splits, trained: Classifier) -> None:
    hidden = compute_masks(trained, digits.train, MaskTuneConfig(value="mean"), make_run(CPU, 0, TrainConfig()))
    assert isinstance(digits.train.x, Tensor)
    assert hidden.value == pytest.approx(digits.train.x.double().mean(dim=(0, 2, 3)).tolist(), rel=0.05)


def test_it_helps_a_model_that_looks_at_the_square(digits: Splits, trained: Classifier) -> None:
    tuned = fit("masktune", trained, digits, seed=0, preset="digits", train=TRAIN, compute=CPU)
    before, after = evaluate(trained, digits.test), evaluate(tuned.model, digits.test)
    assert after.unbiased > before.unbiased + 0.2  # from 0.59 to 0.96
    assert after.worst[0] > 0.85
    assert set(tuned.record.seconds) >= {"masks", "tune 1"}


@pytest.mark.slow
def test_without_a_shortcut_it_costs_next_to_nothing() -> None:
    costs = []
    for seed in range(2):
        data = load("patched-digits", conflicting=0.5, seed=seed)  # the square says nothing
        settings = {**TRAIN, "steps": 250}
        plain = fit("erm", build("small-cnn", data, seed=seed), data, seed=seed, train=settings, compute=CPU)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The average accuracy on validation fell", SpurlessWarning)  # a little
            tuned = fit("masktune", plain.model, data, seed=seed, preset="digits", train=settings, compute=CPU)
        costs.append((plain.record.metrics["average"] or 0) - (tuned.record.metrics["average"] or 0))
    assert sum(costs) / len(costs) <= 0.015


@pytest.mark.slow
def test_iterations_add_up_and_stop_when_nothing_can_be_fitted(digits: Splits, trained: Classifier) -> None:
    stages = fit("masktune", trained, digits, iterations=2, fitted=0.0, train=TRAIN, compute=CPU).record.seconds
    assert {"tune 1", "tune 2"} <= set(stages)
    with pytest.warns(SpurlessWarning, match=r"MaskTune stopped after 1 iterations: .* could not be fitted"):
        stopped = fit("masktune", trained, digits, iterations=3, fitted=1.0, train=TRAIN, compute=CPU)
    once = fit("masktune", trained, digits, iterations=1, train=TRAIN, compute=CPU)
    assert all(map(torch.equal, stopped.model.state_dict().values(), once.model.state_dict().values()))


def test_soft_masks_add_up_too(digits: Splits, trained: Classifier) -> None:
    def fading(iterations: int) -> Tensor:
        run, found = make_run(Compute("cpu"), 0, TrainConfig(epochs=1)), list[Tensor]()
        method = MaskTune(MaskTuneConfig(threshold="soft", iterations=iterations, fitted=0.0))
        tune = method._finetune

        def seen(model: Classifier, train: Any, *rest: Any) -> None:
            found.append(train.hidden.heat)
            tune(model, train, *rest)

        method._finetune = seen  # type: ignore[method-assign,assignment]
        method.fit(deepcopy(trained), digits, run)
        return found[-1]

    assert bool((fading(2) >= fading(1)).all())


def test_maps_of_resized_images_are_brought_back_to_the_raw_ones(digits: Splits, trained: Classifier) -> None:
    some = digits.train.select(torch.arange(20))
    assert isinstance(some.x, Tensor)
    side = some.x.shape[-1]

    def smaller(x: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(x.float() / 255, size=(side, side))

    train = replace(some, x=torch.nn.functional.interpolate(some.x, scale_factor=2.0), transform=smaller)
    kinds: tuple[tuple[Literal["soft", "sigma"], type], ...] = (("soft", SoftInputMask), ("sigma", InputMask))
    for threshold, kind in kinds:
        hidden = compute_masks(
            trained, train, MaskTuneConfig(threshold=threshold), make_run(Compute("cpu"), 0, TrainConfig())
        )
        assert isinstance(hidden, kind)
        shown = replace(train, hidden=hidden).select(torch.arange(4))
        (batch,) = Loader(shown, sequential_order(4), 4).batches()
        assert isinstance(batch.x, Tensor)
        assert batch.x.shape[-1] == side
        frame = hidden.heat.shape[1:] if isinstance(hidden, SoftInputMask) else hidden.shape
        assert tuple(frame) == (2 * side, 2 * side)


def test_texts_are_masked_by_their_tokens() -> None:
    data = load("negated-claims", conflicting=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpurlessWarning)
        model = build("token-mean", data, vocabulary=64)
        erm = fit("erm", model, data, train={"epochs": 4, "optimiser": "adam", "lr": 0.003}, compute=CPU).model
        hidden = compute_masks(erm, data.train, MaskTuneConfig(k=0.5), make_run(CPU, 0, TrainConfig()))
        fit("masktune", erm, data, train={"epochs": 1, "lr": 0.001, "optimiser": "adam"}, compute=CPU)
    assert isinstance(hidden, InputMask)
    assert isinstance(data.train.x, dict)
    masks, attended = hidden.masks(torch.arange(len(data.train))), data.train.x["attention_mask"].bool()
    assert not (masks & ~attended).any()
    assert not masks[:, 0].any()  # the first token is kept
    assert 0 < masks.float().mean() < 0.5


def test_proposition_1_masking_never_makes_the_simplest_fit_simpler() -> None:
    generator = Seeds(0).generator("proposition 1")
    for _ in range(20):
        x, y = torch.randn(6, 10, generator=generator).double(), torch.randn(6, generator=generator).double()
        initial = torch.linalg.pinv(x) @ y  # the fit of least norm
        kept = torch.ones(10).double()
        kept[int(initial.abs().argmax())] = 0
        final = torch.linalg.pinv(x * kept) @ y
        assert torch.allclose(x @ initial, y)
        assert torch.allclose((x * kept) @ final, y)
        assert final.norm() >= initial.norm()


def test_proposition_2_the_two_models_agree_where_the_hidden_feature_can_be_told_from_the_rest() -> None:
    generator = Seeds(0).generator("proposition 2")
    z, s = torch.randn(5, 9, generator=generator).double(), torch.randn(5, generator=generator).double()
    y = torch.randn(5, generator=generator).double()
    with_s, without_s = torch.linalg.pinv(torch.cat([z, s[:, None]], dim=1)) @ y, torch.linalg.pinv(z) @ y
    beta = z.T @ torch.linalg.inv(z @ z.T) @ s
    new = torch.randn(50, 9, generator=generator).double()
    told = new @ beta

    def gap(s_new: Tensor) -> Tensor:
        whole, rest = torch.cat([new, s_new[:, None]], dim=1) @ with_s, new @ without_s
        return torch.as_tensor(whole - rest).abs()

    assert gap(told).max() < 1e-9
    shift = torch.randn(50, generator=generator).double()
    assert torch.allclose(gap(told + shift), (shift * with_s[-1]).abs())  # they differ, and by just that much
    assert gap(told + 1).min() > 1e-3


def test_the_config_of_the_class_is_the_first_preset() -> None:
    assert MaskTune().config == next(iter(MaskTune.presets.values()))


def test_a_dict_that_is_no_text_is_refused_before_anything_is_trained() -> None:
    class Summed(nn.Module):
        def forward(self, num: Tensor, tab: Tensor) -> Tensor:
            return num + tab

    y = torch.arange(120) % 2
    mixed = from_tensors({"num": torch.rand(120, 3), "tab": torch.rand(120, 3)}, y, y)
    with pytest.raises(InputError, match=r"MaskTune supports.*got a dict of num and tab, without input_ids"):
        fit("masktune", Classifier(Summed(), nn.Linear(3, 2)), mixed, compute=CPU)
