"""Greedy DRO: weights by hand, the maximum they solve, and what it does to the worst group."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods.greedy_dro import GreedyDROConfig, WorstGroups, greedy_weights
from spurless.models import build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

LOSSES, SHARES = torch.tensor([0.2, 0.9, 0.5, 0.1]), torch.tensor([0.4, 0.1, 0.2, 0.3])
TRAIN = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}
CPU = Compute("cpu")


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.1, [0.0, 10.0, 0.0, 0.0]),  # the worst group and no more
        (0.05, [0.0, 10.0, 0.0, 0.0]),  # half of it: 20 for half its examples is 10 for all
        (0.3, [0.0, 10 / 3, 10 / 3, 0.0]),
        (0.5, [1.0, 2.0, 2.0, 0.0]),  # 0.2 of the mass is left for a group of 0.4
        (1.0, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_weights_by_hand(alpha: float, expected: list[float]) -> None:
    torch.testing.assert_close(greedy_weights(LOSSES, SHARES, alpha), torch.tensor(expected))


def test_the_floor_is_for_the_groups_that_are_not_among_the_worst() -> None:
    torch.testing.assert_close(greedy_weights(LOSSES, SHARES, 0.5, 0.1), torch.tensor([1.0, 2.0, 2.0, 0.1]))
    thin = greedy_weights(LOSSES, SHARES, 0.31, 0.1)  # the mass ends in the first group, with 0.01 / 0.31 / 0.4
    torch.testing.assert_close(thin, torch.tensor([0.1, 1 / 0.31, 1 / 0.31, 0.1]))


def test_the_mean_weight_is_one_without_a_floor_and_counts_the_rest_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    for alpha in (0.05, 0.2, 0.5, 0.9, 1.0):
        losses, shares = torch.rand(7, generator=generator), torch.rand(7, generator=generator).softmax(0)
        plain = greedy_weights(losses, shares, alpha)
        torch.testing.assert_close((shares * plain).sum(), torch.tensor(1.0))
        floored, beyond = greedy_weights(losses, shares, alpha, 0.01), shares[plain == 0].sum()
        torch.testing.assert_close((shares * floored).sum(), 1 + 0.01 * beyond, rtol=1e-3, atol=1e-3)


def test_no_allowed_distribution_over_groups_is_worse() -> None:
    # the maximum of a linear programme: no corner found by chance may be above it
    best = (SHARES * greedy_weights(LOSSES, SHARES, 0.35)) @ LOSSES
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        order = torch.randperm(4, generator=generator).float()
        q = SHARES * greedy_weights(order, SHARES, 0.35)  # fills the caps in another order
        assert q @ LOSSES <= best + 1e-6


def test_a_group_without_examples_is_never_the_worst_and_breaks_nothing() -> None:
    weights = greedy_weights(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 0.5, 0.5]), 0.5, 0.1)
    torch.testing.assert_close(weights, torch.tensor([0.1, 2.0, 0.1]))


def worst_groups(config: GreedyDROConfig) -> WorstGroups:
    data = planted(PlantedConfig(n_train=100, n_val=10, n_test=10))
    return WorstGroups.of(data.train, config, make_run(CPU, 0, TrainConfig(batch_size=4)))


def test_the_running_averages_by_hand() -> None:
    worst = worst_groups(GreedyDROConfig(alpha=0.5, ema=0.25, count_ema=0.5, floor=0.1))
    torch.testing.assert_close(worst.counts.sum(), torch.tensor(4.0))  # what a batch of 4 lets expect
    worst.counts.copy_(torch.tensor([1.0, 1.0, 1.0, 1.0]))
    losses = torch.tensor([1.0, 3.0, 8.0, 8.0], requires_grad=True)
    value = worst.weighted_mean(losses, torch.tensor([0, 0, 3, 3]))
    assert worst.losses.tolist() == [0.5, 0.0, 0.0, 2.0]  # a quarter of the group means 2 and 8; absent groups stay
    assert worst.counts.tolist() == [1.5, 0.5, 0.5, 1.5]
    # shares 3/8, 1/8, 1/8, 3/8: the last group gets 2, the first what is left: (1 - 3/4) / (3/8)
    first = (1 - 0.75) / 0.375
    torch.testing.assert_close(value, torch.tensor((4 * first + 16 * 2.0) / 4))
    (gradient,) = torch.autograd.grad(value, losses)
    torch.testing.assert_close(gradient, torch.tensor([first, first, 2.0, 2.0]) / 4)
    worst.weighted_mean(torch.tensor([4.0, 4.0]), torch.tensor([1, 1]))
    assert worst.losses.tolist() == [0.5, 1.0, 0.0, 2.0]  # who is not in the batch is not forgotten


def test_without_a_pace_the_counts_stay_those_of_the_training_data() -> None:
    worst = worst_groups(GreedyDROConfig(count_ema=0.0))
    before = worst.counts.clone()
    worst.weighted_mean(torch.ones(4), torch.zeros(4, dtype=torch.long))
    assert torch.equal(worst.counts, before)


def trained(name: str, data: Splits, seed: int = 0, **options: Any) -> Fitted:
    options = {"preset": "planted", **options} if name != "erm" else options
    return fit(name, build("linear", data, seed=seed), data, seed=seed, train=TRAIN, compute=CPU, **options)


def worst_group(fitted: Fitted) -> float:
    value = fitted.record.metrics["worst_group"]
    assert value is not None
    return value


def weights(fitted: Fitted) -> Tensor:
    return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_brings_the_worst_group_near_the_minimax_of_the_formula(seed: int) -> None:
    data = planted(PlantedConfig(n_train=4000, n_val=100, n_test=20000, seed=seed))
    erm, greedy = trained("erm", data, seed), trained("greedy-dro", data, seed)
    assert worst_group(erm) < 0.45
    assert 0.74 < worst_group(greedy) < 0.86  # Phi(1) = 0.841 at the robust optimum
    assert greedy.record.supervision["train_attributes"]


def test_with_all_the_data_as_the_worst_case_or_in_one_domain_it_is_erm() -> None:
    data = planted(PlantedConfig(n_train=400, n_val=50, n_test=50))
    erm = weights(trained("erm", data))
    whole = weights(trained("greedy-dro", data, alpha=1.0))
    torch.testing.assert_close(whole, erm, rtol=1e-4, atol=1e-5)
    one = replace(data.train, domain=torch.zeros_like(data.train.y), domains=("all",))
    torch.testing.assert_close(weights(trained("greedy-dro", replace(data, train=one))), erm, rtol=1e-4, atol=1e-5)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"alpha.* must be a fraction \(expected above 0 and at most 1, got 0\.0\)"):
        GreedyDROConfig(alpha=0.0)
    for name in ("ema", "count_ema", "floor"):
        with pytest.raises(InputError, match=f"{name} must be a fraction"):
            GreedyDROConfig(**{name: 1.1})
