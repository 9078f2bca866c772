"""CVaR DRO: the worst share by hand, its dual, ERM as a special case, and where it helps."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.split import Splits
from spurless.fitting import Fitted, fit
from spurless.methods import cvar_dro
from spurless.methods.cvar_dro import CVaRDROConfig, dual, dual_slope, worst_weights
from spurless.models import build
from spurless.train.run import Compute, Run

TRAIN = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}


def cvar(losses: Tensor, alpha: float) -> Tensor:
    return (worst_weights(losses.detach(), alpha) * losses).mean()


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [(0.2, 9.0), (0.4, 7.0), (0.5, (9 + 5 + 0.5 * 4) / 2.5), (1.0, 21 / 5), (0.1, 9.0)],
)
def test_by_hand_on_a_batch(alpha: float, expected: float) -> None:
    assert float(cvar(torch.tensor([1.0, 9.0, 2.0, 5.0, 4.0]), alpha)) == pytest.approx(expected)


def test_the_gradient_reaches_the_worst_and_nothing_else() -> None:
    losses = torch.tensor([1.0, 9.0, 2.0, 5.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(cvar(losses, 0.5), losses)
    assert gradient.tolist() == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("alpha", [0.07, 0.3, 0.8])
def test_the_dual_touches_the_cvar_at_the_quantile_and_is_above_it_elsewhere(alpha: float) -> None:
    losses = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    primal, quantile = cvar(losses, alpha), losses.sort(descending=True).values[round(100 * alpha)]
    torch.testing.assert_close(dual(losses, quantile, alpha), primal)
    for eta in torch.linspace(0, 1, 21, dtype=torch.float64):
        assert dual(losses, eta, alpha) >= primal - 1e-12


def test_descent_on_the_threshold_finds_the_quantile() -> None:
    losses = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    eta = torch.tensor(0.0)
    for _ in range(2000):
        eta -= 0.01 * dual_slope(losses, eta, 0.25)
    assert float((losses > eta).float().mean()) == pytest.approx(0.25, abs=0.03)


def test_a_batch_says_less_than_all_the_data_and_one_example_says_the_mean() -> None:
    losses = torch.rand(10000, generator=torch.Generator().manual_seed(0))
    by_size = [float(torch.stack([cvar(part, 0.1) for part in losses.view(-1, m)]).mean()) for m in (1, 10, 100, 10000)]
    assert by_size[0] == pytest.approx(float(losses.mean()), abs=1e-3)
    assert by_size[1] == pytest.approx(10 / 11, abs=0.01)  # the largest of ten
    assert by_size == sorted(by_size)
    assert by_size[3] == pytest.approx(0.95, abs=0.01)


def trained(name: str, data: Splits, seed: int = 0, **options: Any) -> Fitted:
    settings = {"train": TRAIN, "compute": Compute("cpu"), **options}
    return fit(name, build("linear", data, seed=seed), data, seed=seed, **settings)


def weights(fitted: Fitted) -> Tensor:
    return torch.cat([p.detach().flatten() for p in fitted.model.parameters()])


def worst_group(fitted: Fitted) -> float:
    value = fitted.record.metrics["worst_group"]
    assert value is not None
    return value


@pytest.mark.parametrize("form", ["batch", "dual"])
def test_all_of_the_data_as_the_worst_case_is_erm(form: str) -> None:
    data = planted(PlantedConfig(n_train=410, n_val=50, n_test=50))
    erm = weights(trained("erm", data))
    torch.testing.assert_close(weights(trained("cvar-dro", data, alpha=1.0, form=form)), erm, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(weights(trained("cvar-dro", data, alpha=0.3, form=form)), erm, atol=1e-2)


def test_serves_the_worst_group_sooner_without_knowing_it() -> None:
    errors = {"erm": 0.0, "cvar-dro": 0.0}
    for seed in range(5):
        data = planted(PlantedConfig(core=3.0, spurious=3.0, n_train=4000, n_val=100, n_test=20000, seed=seed))
        for name in errors:
            options = {"preset": "planted"} if name == "cvar-dro" else {}
            fitted = trained(name, data, seed, train={**TRAIN, "epochs": 2, "schedule": "constant"}, **options)
            errors[name] += (1 - worst_group(fitted)) / 5
            assert not any(fitted.record.supervision.values())
    assert errors["cvar-dro"] < errors["erm"] / 2  # 0.010 against 0.051


def test_reaches_the_optimum_of_the_population_which_is_no_better_than_that_of_erm() -> None:
    # both by minimising over the population of planted on its grid: CVaR at 0.2 and 0.5, and erm_optimum
    data = planted(PlantedConfig(n_train=20000, n_val=100, n_test=20000))
    found = [worst_group(trained("cvar-dro", data, alpha=alpha)) for alpha in (0.2, 0.5)]
    assert found == pytest.approx([0.352, 0.387], abs=0.025)
    assert found[0] < worst_group(trained("erm", data)) == pytest.approx(0.394, abs=0.025)


@pytest.mark.parametrize("rank", [0, 1])
def test_several_processes_share_one_worst_case(rank: int) -> None:
    parts = torch.tensor([[1.0, 9.0], [5.0, 2.0]])

    def add_up(table: Tensor) -> Tensor:
        other = torch.zeros_like(table)
        other[1 - rank] = parts[1 - rank]
        return table + other

    run = cast(Run, SimpleNamespace(world=2, fabric=SimpleNamespace(global_rank=rank), sum=add_up))
    whole = cvar_dro._gather(parts[rank], run)
    assert whole.tolist() == [1.0, 9.0, 5.0, 2.0]
    assert cvar_dro._local_part(worst_weights(whole, 0.5), run).tolist() == [[0.0, 2.0], [2.0, 0.0]][rank]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"alpha.* must be a fraction"):
        CVaRDROConfig(alpha=0.0)
    with pytest.raises(InputError, match=r"form cannot be"):
        CVaRDROConfig(form="primal")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"eta_lr must be above 0"):
        CVaRDROConfig(eta_lr=0.0)


@pytest.mark.parametrize("alpha", [0.1, 0.37, 1.0])
def test_no_allowed_distribution_over_examples_is_worse(alpha: float) -> None:
    from scipy.optimize import linprog

    losses = torch.rand(13, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    cap = 1 / (alpha * len(losses))
    worst = linprog(-losses.numpy(), A_eq=[[1.0] * len(losses)], b_eq=[1.0], bounds=[(0.0, cap)] * len(losses))
    assert float(cvar(losses, alpha)) == pytest.approx(-worst.fun, abs=1e-9)
