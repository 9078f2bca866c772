"""AFR: weights by hand, the optimum against scipy and scikit-learn, and what it does to a model that cheats."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Split, Splits
from spurless.fitting import Fitted, fit
from spurless.methods import _head, afr, make_method
from spurless.methods.afr import AFRConfig, afr_weights, tune_weighted_head
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.embed import embed_split
from spurless.train.evaluate import evaluate, logits
from spurless.train.run import Compute, Run, make_run

CPU = Compute("cpu")
TRAIN = {"epochs": 2, "lr": 0.01}  # short, so that the shortcut is what is learnt


def clear(seed: int = 0) -> Splits:
    """Data whose label can be read off almost always, so that mistakes are the minority's."""
    return planted(PlantedConfig(core=2.5, spurious=4.0, n_train=2000, n_val=1000, n_test=4000, seed=seed))


DATA = clear()


def test_the_weights_of_three_examples_by_hand() -> None:
    # p of the label: 3/4, 1/4, 1/2; two examples of class 0, one of class 1
    three = torch.tensor([[math.log(3.0), 0.0], [0.0, math.log(3.0)], [0.0, 0.0]])
    raw = [math.exp(-1.5) / 2, math.exp(-0.5) / 2, math.exp(-1.0)]
    assert afr_weights(three, torch.tensor([0, 0, 1]), 2.0).tolist() == pytest.approx([w / sum(raw) for w in raw])
    raw = [math.exp(-1.5), math.exp(-0.5), math.exp(-1.0)]
    plain = afr_weights(three, torch.tensor([0, 0, 1]), 2.0, class_balanced=False)
    assert plain.tolist() == pytest.approx([w / sum(raw) for w in raw])


def test_a_gamma_that_leaves_no_number_of_a_hit_weighs_the_worst_alone() -> None:
    # p of the label: 3/4, 1/2, 3/4, each times 2,000: e ** -1000 is 0 in float64
    three = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0], [math.log(3.0), 0.0]])
    assert afr_weights(three, torch.tensor([0, 0, 0]), 2000.0).tolist() == [0.0, 1.0, 0.0]
    assert afr_weights(three[:1], torch.tensor([0]), 2000.0).tolist() == [1.0]


def test_without_gamma_every_class_weighs_the_same() -> None:
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    weights = afr_weights(torch.randn(6, 3), y, 0.0)
    assert weights.tolist() == pytest.approx([1 / 9] * 3 + [1 / 3] + [1 / 6] * 2)


def problem(n: int = 60) -> tuple[Split, nn.Linear]:
    """Three classes that overlap, twice as many of the first, and a head that is not yet right."""
    generator = Seeds(0).generator("problem")
    y = torch.cat([torch.zeros(n // 2), torch.ones(n // 4), torch.full((n // 4,), 2.0)]).long()
    x = torch.randn(len(y), 2, generator=generator) + torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.5]])[y]
    head = nn.Linear(2, 3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    groups = Groups(labels=("a", "b", "c"), attributes=("left", "right"))
    return Split(x, y, torch.zeros(len(y)).long(), groups), head


def run_of() -> Run:
    return make_run(CPU, 0, TrainConfig(schedule="cosine", weight_decay=0.3))  # neither is the head's business


def flat(head: nn.Linear) -> Tensor:
    return torch.cat([head.weight.detach().flatten(), head.bias.detach()]).double()


@pytest.mark.parametrize(("gamma", "strength"), [(3.0, 0.02), (0.0, 0.3)])
def test_the_head_is_where_scipy_finds_the_minimum(gamma: float, strength: float) -> None:
    rows, head = problem()
    x, y, before = torch.as_tensor(rows.x), rows.y, flat(head).numpy()
    weights = afr_weights(head(x).detach(), y, gamma)
    config = AFRConfig(gamma=gamma, strength=strength, lr=0.5, steps=2000, every=100, clip=100.0)
    tune_weighted_head(head, rows, weights, config, run_of())

    def loss(w: np.ndarray) -> float:
        scores = x.double().numpy() @ w[:6].reshape(3, 2).T + w[6:]
        top = scores.max(axis=1)
        losses = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(len(y)), y.numpy()]
        return float(weights.double().numpy() @ losses + strength * ((w - before) ** 2).sum())

    best = minimize(loss, before, options={"gtol": 1e-8})
    torch.testing.assert_close(flat(head), torch.from_numpy(best.x), atol=2e-3, rtol=0)


@pytest.mark.slow
def test_without_gamma_and_strength_it_is_class_balanced_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    rows, head = problem(400)
    x = torch.as_tensor(rows.x)
    weights = afr_weights(head(x).detach(), rows.y, 0.0)
    config = AFRConfig(gamma=0.0, lr=1.0, steps=3000, every=100, clip=100.0)
    tune_weighted_head(head, rows, weights, config, run_of())
    theirs = LogisticRegression(C=1e8, class_weight="balanced", tol=1e-8, max_iter=1000).fit(x.numpy(), rows.y.numpy())
    ours = head(x).softmax(dim=1).detach().double()
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(x.double().numpy())), atol=2e-3, rtol=0)


def test_one_step_by_hand_and_no_longer_than_the_clip_allows() -> None:
    rows, head = problem()
    x, before = torch.as_tensor(rows.x), flat(head)
    weights = afr_weights(head(x).detach(), rows.y, 4.0)
    error = weights[:, None] * (head(x).softmax(dim=1) - nn.functional.one_hot(rows.y)).detach()
    gradient = torch.cat([(error.T @ x).flatten(), error.sum(dim=0)]).double()
    tune_weighted_head(head, rows, weights, AFRConfig(lr=0.1, steps=1, clip=100.0), run_of())
    torch.testing.assert_close(flat(head), before - 0.1 * gradient, atol=1e-6, rtol=0)

    rows, head = problem()
    tune_weighted_head(head, rows, weights, AFRConfig(lr=0.1, steps=1, clip=float(gradient.norm()) / 4), run_of())
    torch.testing.assert_close(flat(head), before - 0.025 * gradient, atol=1e-6, rtol=0)


def test_steps_have_no_memory() -> None:
    rows, head = problem()
    weights = afr_weights(head(torch.as_tensor(rows.x)).detach(), rows.y, 4.0)
    tune_weighted_head(head, rows, weights, AFRConfig(lr=0.5, steps=2), run_of())
    again = problem()[1]
    for _ in range(2):
        tune_weighted_head(again, rows, weights, AFRConfig(lr=0.5, steps=1), run_of())
    torch.testing.assert_close(flat(head), flat(again))


@pytest.mark.parametrize("class_balanced", [True, False])
def test_the_weights_are_those_of_the_given_model_and_settings(
    class_balanced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(afr, "tune_weighted_head", lambda *given: seen.append(given[2]))
    few = torch.cat([(DATA.val.y == 0).nonzero().flatten(), (DATA.val.y == 1).nonzero().flatten()[:50]])
    data = replace(DATA, val=DATA.val.select(few))
    fitted = tuned(build("linear", DATA), data, class_balanced=class_balanced)
    assert fitted.start is not None
    before = logits(fitted.start, data.val)
    assert torch.allclose(seen[0], afr_weights(before, data.val.y, 2.0, class_balanced=class_balanced))


def test_a_strong_tie_keeps_the_head() -> None:
    moved = {}
    for strength, lr in ((0.0, 0.01), (100.0, 0.001)):
        rows, head = problem()
        before = flat(head)
        weights = afr_weights(head(torch.as_tensor(rows.x)).detach(), rows.y, 4.0)
        tune_weighted_head(head, rows, weights, AFRConfig(strength=strength, lr=lr), run_of())
        moved[strength] = float((flat(head) - before).norm())
    assert moved[100.0] < 0.01 < 0.2 < moved[0.0]


def head_of(fitted: Fitted) -> Tensor:
    assert isinstance(fitted.model.head, nn.Linear)
    return flat(fitted.model.head)


def tuned(model: nn.Module, data: Splits = DATA, seed: int = 0, **options: Any) -> Fitted:
    return fit("afr", model, data, seed=seed, train=TRAIN, compute=CPU, **{"gamma": 2.0, "lr": 0.02, **options})


@pytest.mark.slow
def test_it_raises_the_worst_group_on_balanced_validation_data() -> None:
    for seed in range(3):
        data = clear(seed)
        before = fit("erm", build("linear", data, seed=seed), data, seed=seed, train=TRAIN, compute=CPU).model
        after = tuned(before, data, seed)
        assert evaluate(after.model, data.test).worst[0] > evaluate(before, data.test).worst[0] + 0.3
        assert after.record.supervision == {"train_attributes": False, "val_labels": True, "val_attributes": False}


@pytest.mark.slow
def test_gamma_is_what_raises_it_where_the_data_are_biased() -> None:
    for seed in range(3):
        data, worst = clear(seed), {}
        for gamma in (0.0, 4.0):
            fitted = tuned(build("linear", data, seed=seed), data, seed, on="train", gamma=gamma)
            worst[gamma] = fitted.record.metrics["worst_group"] or 0.0
            assert not any(fitted.record.supervision.values())
        assert worst[4.0] > worst[0.0] + 0.03
        assert worst[4.0] > 0.95  # Phi(2.5) = 0.994 is the best there is


def test_held_out_is_weighed_by_a_model_that_was_trained_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: dict[str, Split] = {}

    def train(name: str, data: Splits, *rest: Any) -> Classifier:
        parts["kept"] = data.train
        return _head.train_again(name, data, *rest)

    def embed(model: Classifier, split: Split, run: Run) -> Split:
        parts["rest"] = split
        return embed_split(model, split, run)

    monkeypatch.setattr(afr, "train_again", train)
    monkeypatch.setattr(afr, "embed_split", embed)
    fitted = tuned(build("linear", DATA), on="held-out", gamma=4.0)
    assert (len(parts["kept"]), len(parts["rest"])) == (1600, 400)
    together = torch.cat([torch.as_tensor(parts["kept"].x), torch.as_tensor(parts["rest"].x)])
    assert torch.equal(together.sort(dim=0).values, torch.as_tensor(DATA.train.x).sort(dim=0).values)
    assert not any(fitted.record.supervision.values())
    assert {"erm", "erm without the held out", "tune"} <= set(fitted.record.seconds)
    assert fitted.start is not None
    assert evaluate(fitted.model, DATA.test).worst[0] > evaluate(fitted.start, DATA.test).worst[0] + 0.1


def test_held_out_needs_an_untrained_model() -> None:
    trained = fit("erm", build("linear", DATA), DATA, train=TRAIN, compute=CPU).model
    with pytest.raises(InputError, match=r"trained model was passed\. Pass an untrained model, or use on='val'"):
        tuned(trained, on="held-out")


def test_the_criterion_looks_every_few_steps_and_keeps_the_best() -> None:
    trained = fit("erm", build("linear", DATA), DATA, train=TRAIN, compute=CPU).model
    fitted = tuned(trained, gamma=10.0, lr=0.5, steps=95, every=10, select="val-worst-group")
    looks = [row for row in fitted.record.history if row["stage"] == "tune"]
    assert [row["step"] for row in looks] == [*range(10, 91, 10), 95]
    scores = [row["score"] for row in looks]
    best = looks[scores.index(max(scores))]["step"]
    assert best < 95  # too sharp: the other groups fall in the end
    once = tuned(trained, gamma=10.0, lr=0.5, steps=best)
    assert torch.equal(*(head_of(each) for each in (fitted, once)))
    assert evaluate(fitted.model, DATA.val).worst[0] == pytest.approx(max(scores))


@pytest.mark.filterwarnings("ignore:Validation differs from train")
def test_what_cannot_be_is_refused() -> None:
    trained = Classifier(nn.Linear(2, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 2)), trained=True)
    with pytest.raises(InputError, match=r"AFR tunes a linear head \(got Sequential\)"):
        tuned(trained)
    one = replace(DATA, val=DATA.val.select(DATA.val.y == 1))
    with pytest.raises(InputError, match="AFR needs examples of at least two classes"):
        tuned(build("linear", DATA), one)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gamma": -1.0}, r"gamma.* must not be negative \(got -1\.0\)"),
        ({"gamma": math.nan}, "'gamma'"),
        ({"strength": -0.1}, "strength.* must not be negative"),
        ({"held_out": 1.0}, "held_out.* must be a fraction"),
        ({"steps": 0}, "steps.* must be at least 1"),
        ({"every": 0}, "every.* must be at least 1"),
        ({"on": "test"}, "held-out"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_method("afr", **options)
