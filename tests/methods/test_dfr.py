"""DFR: the refit against scikit-learn, the head against theory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loaders.tensors import from_tensors
from spurless.data.split import Splits
from spurless.fitting import fit
from spurless.methods import make_method
from spurless.methods.dfr import DFR, _l1_settings, group_weights, refit, stratified_folds
from spurless.models import Classifier, build
from spurless.train.run import Compute

DATA = planted(PlantedConfig(n_train=4000, n_val=4000, n_test=20000))


def cheat() -> Classifier:
    """A trained model whose features are the inputs and whose head reads the spurious one alone."""
    model = Classifier(nn.Identity(), nn.Linear(2, 2), trained=True)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))  # type: ignore[operator]  # a parameter
    return model


@pytest.mark.parametrize("classes", [2, 3])
def test_the_folded_head_predicts_what_scikit_learn_predicts_on_scaled_features(classes: int) -> None:
    generator = Seeds(0).generator("x")
    features = torch.randn(300, 5, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 3.0, 1.0]) + 2.0
    y = torch.randint(classes, (300,), generator=generator)
    weight, bias, _ = refit(features, y, 0.5, classes)
    scaled = StandardScaler().fit_transform(features.double().numpy())
    theirs = LogisticRegression(C=0.5, random_state=0, **_l1_settings(binary=classes == 2)).fit(scaled, y.numpy())
    ours = (features @ weight.T + bias).softmax(dim=1).double()
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(scaled)), atol=1e-4, rtol=0)


def test_refits_that_are_cut_off_are_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.methods.dfr.MAX_ITERATIONS", 2)
    generator = Seeds(0).generator("x")
    x, y = torch.randn(300, 4, generator=generator), torch.arange(300) % 3
    data = from_tensors(x, y, torch.arange(300) % 2, seed=0)
    model = Classifier(nn.Identity(), nn.Linear(4, 3), trained=True)
    with pytest.warns(SpurlessWarning) as caught:
        record = fit("dfr", model, data, compute=Compute("cpu"), refits=4, strengths=(1.0,)).record
    said = [str(warning.message) for warning in caught if "DFR" in str(warning.message)]
    assert said == [warning for warning in record.warnings if "DFR" in warning]
    assert said == ["4 of 4 regressions of DFR did not converge; the head is the mean of all of them."]


def test_a_strong_penalty_drops_every_feature() -> None:
    features = torch.randn(100, 4, generator=Seeds(0).generator("x"))
    weight, _, _ = refit(features, (features[:, 0] > 0).long(), 1e-4, 2)
    assert weight.abs().max() == 0


def test_a_constant_feature_does_no_harm() -> None:
    features = torch.cat([torch.randn(100, 1, generator=Seeds(0).generator("x")), torch.full((100, 1), 3.0)], dim=1)
    weight, bias, _ = refit(features, (features[:, 0] > 0).long(), 1.0, 2)
    assert torch.isfinite(weight).all()
    assert torch.isfinite(bias).all()


def test_the_refitted_head_ignores_the_spurious_feature() -> None:
    # features are the two inputs themselves; balanced, the optimum is (w, 0): Phi(1) = 84.1 % in every group
    given = cheat()
    fitted = fit("dfr", given, DATA, compute=Compute("cpu"))
    head = fitted.model.head
    assert isinstance(head, nn.Linear)
    slope = (head.weight[1] - head.weight[0]).detach()
    assert abs(float(slope[1] / slope[0])) < 0.05
    assert fitted.record.metrics["worst_group"] == pytest.approx(0.841, abs=0.025)


def test_the_penalty_is_the_one_that_serves_the_worst_group_best() -> None:
    given = cheat()
    # under 1e-6 every weight is 0 and one class is never predicted
    fitted = fit("dfr", given, DATA, compute=Compute("cpu"), strengths=(1e-6, 1.0), refits=2)
    assert fitted.record.metrics["worst_group"] == pytest.approx(0.841, abs=0.03)


def test_groups_are_balanced_even_where_validation_is_as_biased_as_training() -> None:
    biased = Splits(DATA.train, DATA.train, DATA.test)
    given = cheat()
    fitted = fit("dfr", given, biased, compute=Compute("cpu"))
    assert fitted.record.metrics["worst_group"] == pytest.approx(0.841, abs=0.06)  # about 100 in the smallest group


@pytest.mark.parametrize("classes", [2, 3])
def test_the_weighted_head_is_that_of_scikit_learn_with_these_weights(classes: int) -> None:
    generator = Seeds(0).generator("x")
    features = torch.randn(300, 5, generator=generator) * torch.tensor([1.0, 10.0, 0.1, 3.0, 1.0]) + 2.0
    y = torch.randint(classes, (300,), generator=generator)
    sample = torch.where(features[:, 1] > 8, 10.0, 0.5).double()  # other means and deviations than without weights
    weight, bias, converged = refit(features, y, 0.05, classes, sample)
    scaled = StandardScaler().fit_transform(features.double().numpy(), sample_weight=sample.numpy())
    theirs = LogisticRegression(C=0.05).fit(scaled, y.numpy(), sample_weight=sample.numpy())
    ours = (features @ weight.T + bias).softmax(dim=1).double()
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(scaled)), atol=1e-3, rtol=0)
    assert converged


def test_a_weight_of_two_is_an_example_twice() -> None:
    generator = Seeds(0).generator("x")
    features, y = torch.randn(60, 3, generator=generator) + 1, torch.arange(60) % 2
    features[:, 0] += y
    twice = torch.cat([torch.arange(60), torch.arange(20)])
    sample = torch.where(torch.arange(60) < 20, 2.0, 1.0).double()
    one = refit(features, y, 0.3, 2, sample)
    other = refit(features[twice], y[twice], 0.3, 2, torch.ones(80).double())
    torch.testing.assert_close(one.weight, other.weight, atol=1e-3, rtol=0)
    torch.testing.assert_close(one.bias, other.bias, atol=1e-3, rtol=0)


def test_a_constant_feature_does_no_harm_to_a_weighted_head() -> None:
    # the weighted deviation of 3.3 is 4e-16 by rounding
    features = torch.cat([torch.randn(100, 1, generator=Seeds(0).generator("x")), torch.full((100, 1), 3.3)], dim=1)
    sample = group_weights((torch.arange(100) % 7 == 0).long())
    weight, bias, _ = refit(features, (features[:, 0] > 0).long(), 1.0, 2, sample)
    assert float(weight[:, 1].abs().max()) < 1e-6
    assert float(bias.abs().max()) < 10


def test_weights_give_every_group_the_same_total() -> None:
    g = torch.tensor([0] * 5 + [1] * 20 + [3] * 75)
    weights = group_weights(g)
    assert float(weights.mean()) == pytest.approx(1.0)
    totals = torch.zeros(4, dtype=torch.double).index_add(0, g, weights)
    assert totals.tolist() == pytest.approx([100 / 3, 100 / 3, 0, 100 / 3])


def test_folds_are_even_in_every_group_and_overall() -> None:
    cells = torch.tensor([0] * 3 + [1] * 22 + [2] * 2 + [4] * 30)[torch.randperm(57, generator=Seeds(0).generator("x"))]
    folds = stratified_folds(cells, 5, Seeds(1))
    assert sorted(folds.bincount().tolist()) == [11, 11, 11, 12, 12]
    for cell, most in ((0, 1), (1, 5), (2, 1), (4, 6)):
        counts = folds[cells == cell].bincount(minlength=5)
        assert (int(counts.max()), int(counts.max() - counts.min()) <= 1) == (most, True)
    assert torch.equal(folds, stratified_folds(cells, 5, Seeds(1)))
    assert not torch.equal(folds, stratified_folds(cells, 5, Seeds(2)))


def biased_validation(n: int = 2000) -> Splits:
    return Splits(DATA.train, DATA.train.select(torch.arange(n)), DATA.test)


def test_the_weighted_head_ignores_the_spurious_feature_of_validation_as_biased_as_training() -> None:
    data = biased_validation()
    assert int(data.val.counts.min()) < 60
    fitted = fit("dfr", cheat(), data, compute=Compute("cpu"), balance="weight")
    head = fitted.model.head
    assert isinstance(head, nn.Linear)
    slope = (head.weight[1] - head.weight[0]).detach()
    assert abs(float(slope[1] / slope[0])) < 0.25
    assert fitted.record.metrics["worst_group"] == pytest.approx(0.841, abs=0.06)
    assert fitted.record.config["balance"] == "weight"


def equal_totals(g: torch.Tensor) -> Any:
    counts = g.bincount().numpy()
    weight = 1 / counts[g.numpy()]
    return weight / weight.mean()


def test_the_strength_is_that_of_the_best_worst_group_out_of_fold() -> None:
    data, seeds = biased_validation(400), Seeds(0).child("dfr")
    val = data.val
    strengths = (1e-4, 0.3, 10.0)
    fitted = fit("dfr", cheat(), data, compute=Compute("cpu"), balance="weight", strengths=strengths, folds=3)
    folds = stratified_folds(val.g, 3, seeds)
    assert isinstance(val.x, torch.Tensor)
    x = val.x.double().numpy()
    scores, averages = {}, {}
    for strength in strengths:
        pred = torch.zeros_like(val.y)
        for fold in range(3):
            out = folds != fold
            sample = equal_totals(val.g[out])
            scaler = StandardScaler().fit(x[out], sample_weight=sample)
            model = LogisticRegression(C=strength).fit(scaler.transform(x[out]), val.y[out], sample_weight=sample)
            pred[~out] = torch.from_numpy(model.predict(scaler.transform(x[~out])))
        correct = (pred == val.y).double()
        groups = [float(correct[val.g == g].mean()) for g in range(4)]
        scores[strength] = (min(groups), sum(groups) / 4)
        averages[strength] = float(correct.mean())
    best = max(scores, key=lambda strength: scores[strength])
    assert [scores[strength][0] for strength in strengths] == pytest.approx([0.636, 0.727, 0.727], abs=1e-3)
    assert best == 10.0  # by the mean of the groups; of all examples, 1e-4 has the most correct
    assert max(averages, key=lambda strength: averages[strength]) == 1e-4
    sample = equal_totals(val.g)
    scaler = StandardScaler().fit(x, sample_weight=sample)
    theirs = LogisticRegression(C=best).fit(scaler.transform(x), val.y, sample_weight=sample)
    ours = fitted.model.head(val.x).softmax(dim=1).double()
    probabilities = torch.from_numpy(theirs.predict_proba(scaler.transform(x)))
    torch.testing.assert_close(ours.detach(), probabilities, atol=1e-3, rtol=0)


def test_of_strengths_that_are_as_good_the_stronger_penalty_is_taken() -> None:
    # far apart: every strength classifies all examples correctly
    y = torch.arange(80) % 2
    x = torch.stack([10.0 * (2 * y - 1), torch.randn(80, generator=Seeds(0).generator("x"))], dim=1)
    data = from_tensors(x, y, torch.arange(80) // 2 % 2, seed=0)
    for order in ((1.0, 0.01), (0.01, 1.0)):
        head = fit("dfr", cheat(), data, compute=Compute("cpu"), balance="weight", strengths=order).model.head
        alone = fit("dfr", cheat(), data, compute=Compute("cpu"), balance="weight", strengths=(0.01,)).model.head
        assert torch.equal(head.weight, alone.weight)  # type: ignore[arg-type]  # a parameter


def test_a_weighted_regression_that_is_cut_off_is_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spurless.methods.dfr.MAX_ITERATIONS", 1)
    with pytest.warns(SpurlessWarning, match=r"^The regression of DFR did not converge\.$"):
        fit("dfr", cheat(), biased_validation(), compute=Compute("cpu"), balance="weight", strengths=(1.0,))


def test_one_fold_is_refused() -> None:
    with pytest.raises(InputError, match=r"folds.* must be at least 2 \(got 1\)"):
        make_method("dfr", balance="weight", folds=1)


@pytest.mark.slow
def test_a_fresh_model_is_first_trained_by_erm_and_the_second_time_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPURLESS_CACHE", str(tmp_path))
    model = build("mlp", DATA, depth=2, width=8)
    first = fit("dfr", model, DATA, train={"epochs": 1}, compute=Compute("cpu"))
    assert [row["stage"] for row in first.record.history] == ["erm"]
    (cached,) = (tmp_path / "tensors").glob("*.safetensors")
    again = fit("dfr", model, DATA, train={"epochs": 1}, compute=Compute("cpu"))
    assert again.record.history == first.record.history  # that of the cached training
    assert again.record.metrics == first.record.metrics
    fit("dfr", model, DATA, train={"epochs": 1, "lr": 0.02}, compute=Compute("cpu"))
    assert len(list((tmp_path / "tensors").glob("*.safetensors"))) == 2  # other settings, another start
    assert cached.exists()


def test_an_untrained_model_that_claims_to_be_trained_is_a_warning() -> None:
    lying = build("linear", DATA)
    with torch.no_grad():
        for parameter in lying.parameters():
            parameter.zero_()
    lying.trained = True
    with pytest.warns(SpurlessWarning, match="needs a trained one: fit 'erm' first"):
        fit("dfr", lying, DATA, compute=Compute("cpu"), refits=1, strengths=(1.0,))


def test_a_group_of_one_is_refused() -> None:
    few = torch.cat([(DATA.val.g == g).nonzero().flatten()[: 1 if g == 1 else 20] for g in range(4)])
    data = Splits(DATA.train, DATA.val.select(few), DATA.test)
    with pytest.raises(
        InputError, match=r"two examples of every group in the validation split \(got 1 in the smallest\)"
    ):
        fit("dfr", build("linear", data), data, train={"epochs": 1}, compute=Compute("cpu"))


def test_a_head_that_is_not_linear_is_refused() -> None:
    model = Classifier(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"dfr tunes a linear head \(got Sequential\)"):
        fit("dfr", model, DATA, compute=Compute("cpu"))


@pytest.mark.parametrize("seen", [(0, 2), (0, 2, 3)])
def test_classes_that_are_not_there_keep_their_place_and_are_never_predicted(seen: tuple[int, ...]) -> None:
    generator = Seeds(0).generator("x")
    features = torch.randn(200, 4, generator=generator)
    y = torch.tensor(seen)[torch.randint(len(seen), (200,), generator=generator)]
    features[torch.arange(200), y] += 3
    weight, bias, _ = refit(features, y, 1.0, 4)
    scaled = StandardScaler().fit_transform(features.double().numpy())
    theirs = LogisticRegression(C=1.0, random_state=0, **_l1_settings(binary=len(seen) == 2)).fit(scaled, y.numpy())
    ours = (features @ weight.T + bias).softmax(dim=1).double()
    torch.testing.assert_close(ours[:, list(seen)], torch.from_numpy(theirs.predict_proba(scaled)), atol=1e-4, rtol=0)
    assert ours.sum(dim=0)[[label for label in range(4) if label not in seen]].max() == 0


def test_a_class_without_validation_examples_is_warned_of_and_one_class_alone_is_refused() -> None:
    x, y = torch.randn(120, 4, generator=Seeds(0).generator("x")), torch.tensor([0, 1, 3]).repeat(40)
    x[torch.arange(120), y] += 5
    with pytest.warns(SpurlessWarning, match="Train has no examples of the class 'never'"):
        data = from_tensors(x, y, torch.arange(120) // 3 % 2, labels=("a", "b", "never", "d"), attributes=("l", "r"))
    model = Classifier(nn.Identity(), nn.Linear(4, 4), trained=True)
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(4))  # type: ignore[operator]  # a parameter
    with pytest.warns(SpurlessWarning, match="without the class never"):
        fitted = fit("dfr", model, data, compute=Compute("cpu"), refits=2, strengths=(1.0,))
    average = fitted.record.metrics["average"]
    assert average is not None
    assert average > 0.9  # with a row per class that is there, "d" would be "never"
    one = Splits(data.train, data.val.select((data.val.y == 0).nonzero().flatten()), data.test)
    with pytest.raises(InputError, match="DFR needs examples of at least two classes"):
        fit("dfr", model, one, compute=Compute("cpu"), refits=1, strengths=(1.0,))


def test_the_grid_of_celeba_is_wider_than_that_of_waterbirds() -> None:
    assert DFR.presets["celeba"].strengths == (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    assert DFR.presets["waterbirds"].strengths == (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)
    assert DFR.presets["celeba"].refits == 20
