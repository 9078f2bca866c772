"""One-sided prediction: the losses by hand, the walk to the saddle, and what it learns to refuse."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.split import Split, Splits
from spurless.fitting import fit
from spurless.methods.one_sided import OneSided, OneSidedConfig, log_complement, one_sided_losses, update_multipliers
from spurless.models import Classifier, build
from spurless.train.checkpoint import Checkpoints
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run
from spurless.train.selective import ABSTAIN, Abstainer, assess_selective

GROUPS = Groups(tuple("abcd"), ("clear", "noisy"))
TRAIN = {"epochs": 15, "lr": 0.01, "optimiser": "adam", "batch_size": 50, "weight_decay": 0.0, "schedule": "cosine"}


def plane(n: int, name: str) -> Split:
    """Four classes by the signs of two features; where the third is above 0.6, a fifth of all, the label is chance."""
    generator = Seeds(0).generator(name)
    x = 2 * torch.rand(n, 3, generator=generator) - 1
    noisy = x[:, 2] > 0.6
    y = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    return Split(x, torch.where(noisy, torch.randint(4, (n,), generator=generator), y), noisy.long(), GROUPS)


DATA = Splits(plane(2000, "train"), plane(2000, "val"), plane(2000, "test"))


def net() -> Classifier:
    return build("mlp", DATA, depth=2, width=32, bias=True)


def share_noisy(abstainer: Abstainer) -> float:
    """What share of the fifth that is refused lies where labels are chance."""
    refused = abstainer.calibrate(DATA.val, 0.8).predict_or_abstain(DATA.test) == ABSTAIN
    return float(DATA.test.a[refused].double().mean())


def naive(logits: Tensor, y: Tensor) -> tuple[list[float], list[float]]:
    """The two losses of every class, term by term."""
    f = logits.double().softmax(dim=1)
    missed, entered = [], []
    for k in range(logits.shape[1]):
        inside = [-f[i, k].log() for i in range(len(y)) if y[i] == k]
        outside = [-(1 - f[i, k]).log() for i in range(len(y)) if y[i] != k]
        missed.append(float(sum(inside)) / max(1, len(inside)))
        entered.append(float(sum(outside)) / max(1, len(outside)))
    return missed, entered


def test_the_losses_of_every_class_term_by_term() -> None:
    logits, y = torch.randn(12, 4), torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 0])  # no 2
    missed, entered = one_sided_losses(logits, y)
    by_hand = naive(logits, y)
    assert missed.tolist() == pytest.approx(by_hand[0], rel=1e-5)
    assert entered.tolist() == pytest.approx(by_hand[1], rel=1e-5)
    assert float(missed[2]) == 0.0


def test_what_is_left_of_a_sure_probability_is_not_rounded_away() -> None:
    logits = torch.tensor([[60.0, 0.0, -3.0], [0.0, 500.0, 1.0], [0.1, 0.2, 0.3]], requires_grad=True)
    rest = log_complement(logits.log_softmax(dim=1))
    rest.sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    rest = rest.detach()
    exact = torch.log(1 - logits[2].detach().double().softmax(dim=0))
    torch.testing.assert_close(rest[2].double(), exact, atol=1e-6, rtol=0)
    assert float(rest[0, 0]) == pytest.approx(-60 + torch.tensor([0.0, -3.0]).logsumexp(dim=0).item(), rel=1e-5)
    assert logits.grad is not None
    assert bool(rest.isfinite().all())
    assert bool(logits.grad.isfinite().all())
    assert float(logits.grad[1, 1]) == pytest.approx(-1.0, abs=1e-4)  # a sure mistake still has a slope


def test_one_step_of_the_walk_by_hand() -> None:
    config = OneSidedConfig(price=2.0, ascent=0.1, descent=0.5)
    multiplier, slack = torch.tensor([1.0, 0.01, 3.0]), torch.tensor([0.5, 1.0, 0.2])
    update_multipliers(multiplier, slack, torch.tensor([1.5, 0.2, 0.2]), config)
    # up by 0.1 (entered - slack), not below 0; down by 0.5 (2 - multiplier), not below 0
    torch.testing.assert_close(multiplier, torch.tensor([1.1, 0.0, 3.0]))
    torch.testing.assert_close(slack, torch.tensor([0.0, 0.005, 0.7]))


def test_the_walk_circles_the_saddle() -> None:
    config = OneSidedConfig(price=1.5, ascent=0.01, descent=0.01)
    multiplier, slack = torch.tensor([1.2]), torch.tensor([0.9])
    seen = []
    for _ in range(2 * 628):  # 2 pi / sqrt(ascent * descent) steps are once around
        update_multipliers(multiplier, slack, torch.tensor([1.0]), config)
        seen.append((float(multiplier), float(slack)))
    mean = torch.tensor(seen).mean(dim=0)
    assert mean.tolist() == pytest.approx([1.5, 1.0], abs=0.02)  # lambda = mu and varphi = Omega


def test_a_step_by_hand_weighs_what_enters_by_the_price() -> None:
    data = Splits(plane(60, "train"), plane(60, "val"), plane(60, "test"))
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=1, batch_size=60, lr=0.5, momentum=0.0, weight_decay=0.0))
    model = build("linear", data)
    assert isinstance(model.head, nn.Linear)
    assert isinstance(data.train.x, Tensor)
    weight, bias = (p.detach().clone().requires_grad_() for p in (model.head.weight, model.head.bias))
    missed, entered = one_sided_losses(data.train.x @ weight.T + bias, data.train.y)
    # the features are the inputs, so the auxiliary head has no say in the head
    slopes = torch.autograd.grad(0.9 * (missed + 1.67 * entered).sum() / 4, (weight, bias))
    fitted = OneSided(OneSided.presets["cifar10-strict"]).fit(model, data, run)
    assert isinstance(fitted.head, nn.Linear)
    torch.testing.assert_close(fitted.head.weight, weight - 0.5 * slopes[0])
    torch.testing.assert_close(fitted.head.bias, bias - 0.5 * slopes[1])


def test_multipliers_walk_while_the_network_learns() -> None:
    still, moving = (
        fit(OneSided(OneSidedConfig(ascent=ascent)), net(), DATA, train={**TRAIN, "epochs": 2}, compute=Compute("cpu"))
        for ascent in (0.0, 0.1)
    )
    assert not torch.equal(*(fitted.model.head.weight for fitted in (still, moving)))  # type: ignore[arg-type]


def test_it_refuses_what_is_noisy_and_errs_less_on_the_rest() -> None:
    fitted = fit(OneSided(), net(), DATA, train={**TRAIN, "epochs": 30}, compute=Compute("cpu"))
    abstainer = Abstainer.of(fitted.model)
    assert abstainer.score == "softmax"  # f_k >= t for some class: the largest f_k decides
    found = assess_selective(abstainer, DATA)
    assert found.at(1.0).error > 0.15  # three quarters of a fifth
    assert found.at(0.8).error < 0.07
    assert share_noisy(abstainer) > 0.65


@pytest.mark.parametrize("price", [0.49, 1.67, 20.0])
def test_the_optimum_is_the_probability_of_the_label_where_classes_are_as_frequent(price: float) -> None:
    # four places, in each of which one class has 5 of 8 examples and every other has 1
    place = torch.arange(4).repeat_interleave(8)
    y = torch.cat([torch.tensor([k] * 5 + [j for j in range(4) if j != k]) for k in range(4)])
    logits = torch.zeros(4, 4, requires_grad=True)
    optimiser = torch.optim.Adam([logits], lr=0.05)
    for _ in range(300):
        optimiser.zero_grad()
        missed, entered = one_sided_losses(logits[place], y)
        (missed + price * entered).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
        optimiser.step()
    torch.testing.assert_close(logits.detach().softmax(dim=1), torch.eye(4) / 2 + 1 / 8, atol=1e-3, rtol=0)


def test_of_two_classes_what_one_misses_enters_the_other() -> None:
    # so the program is cross-entropy with equal weights of the classes, whatever the price
    missed, entered = one_sided_losses(torch.randn(20, 2), torch.tensor([0] * 15 + [1] * 5))
    torch.testing.assert_close(entered, missed.flip(0))


def test_the_auxiliary_head_teaches_the_features_and_leaves() -> None:
    # of the loss next to nothing is one-sided here, so what moves the features is the auxiliary head
    settings = {"steps": 20, "lr": 0.1, "weight_decay": 0.0}
    fitted = fit(OneSided(OneSidedConfig(alpha=1e-9)), net(), DATA, train=settings, compute=Compute("cpu"))
    moved = [
        float((p - q).detach().abs().max()) for p, q in zip(fitted.model.parameters(), net().parameters(), strict=True)
    ]
    assert moved[0] > 1e-3 > 1e-6 > moved[-1]  # the first layer, and the head
    assert {name.split(".")[0] for name, _ in fitted.model.named_parameters()} == {"backbone", "head"}


class CutError(Exception):
    """Stands for a kill between two steps."""


class CutAt(Checkpoints):
    """Cuts the run after its fifth save."""

    left = 5

    def save(self, stage: str, state: dict[str, Any]) -> None:
        super().save(stage, state)
        self.left -= 1
        if self.left == 0:
            raise CutError


def test_a_run_that_was_cut_ends_with_the_same_weights(tmp_path: Path) -> None:
    method, config = OneSided(OneSidedConfig(ascent=0.1)), TrainConfig(epochs=1, batch_size=200)  # 10 steps
    whole = method.fit(net(), DATA, make_run(Compute("cpu"), 0, config))
    with pytest.raises(CutError):
        method.fit(net(), DATA, make_run(Compute("cpu"), 0, config, CutAt(tmp_path, "key", seconds=0.0)))
    again = method.fit(net(), DATA, make_run(Compute("cpu"), 0, config, Checkpoints(tmp_path, "key")))
    assert all(map(torch.equal, whole.parameters(), again.parameters()))


def test_settings_that_make_no_sense_are_refused() -> None:
    for name in ("price", "ascent", "descent", "slack"):
        with pytest.raises(InputError, match=rf"{name} must not be negative"):
            OneSidedConfig(**{name: -1.0})
    with pytest.raises(InputError, match=r"alpha.* must be a fraction"):
        OneSidedConfig(alpha=0.0)
