"""Focal loss: its limit, the minimum of its formula on planted data, and what that changes."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from spurless.core.errors import InputError
from spurless.data.datasets.synthetic import PlantedConfig, planted, planted_accuracy
from spurless.data.split import Batch, Splits
from spurless.fitting import Fitted, fit
from spurless.methods import make_method
from spurless.methods.focal import Focal, FocalConfig
from spurless.models import build
from spurless.train.run import Compute

CONFIG = PlantedConfig(n_train=20000, n_test=20000)
TRAIN = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}


def test_the_loss_of_a_batch_by_hand() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [math.log(3.0)]]))
    batch = Batch(torch.tensor([[1.0], [0.0]]), torch.tensor([1, 0]), torch.tensor([-1, -1]), torch.tensor([0, 1]))
    loss = Focal(FocalConfig(gamma=2.0)).mean_loss(model, batch).detach()
    # p = 3/4 and 1/2: a sixteenth of log 4/3 and a quarter of log 2
    assert float(loss) == pytest.approx((math.log(4 / 3) / 16 + math.log(2) / 4) / 2)


def fitted(data: Splits, gamma: float) -> Fitted:
    return fit("focal", build("linear", data), data, train=TRAIN, compute=Compute("cpu"), gamma=gamma)


def test_without_gamma_it_is_erm_to_the_bit() -> None:
    data = planted(PlantedConfig(n_train=400, n_val=50, n_test=50))
    erm = fit("erm", build("linear", data), data, train=TRAIN, compute=Compute("cpu"))
    for ours, theirs in zip(fitted(data, 0.0).model.parameters(), erm.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def optimum(gamma: float) -> Tensor:
    """The weights that minimise the loss over the population of ``planted``, summed over a grid."""
    points = torch.linspace(-9, 9, 181, dtype=torch.double)
    density = torch.exp(-(points**2) / 2) / torch.exp(-(points**2) / 2).sum()
    noise, share = torch.cartesian_prod(points, points), torch.outer(density, density).flatten()
    w = torch.tensor([0.5, 0.3], dtype=torch.double, requires_grad=True)
    search = torch.optim.LBFGS([w], max_iter=200, tolerance_grad=1e-10, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        total = torch.zeros((), dtype=torch.double)
        for sign, weight in ((1.0, CONFIG.agreement), (-1.0, 1 - CONFIG.agreement)):
            margin = (noise + torch.tensor([CONFIG.core, sign * CONFIG.spurious])) @ w
            total = total + weight * (share * torch.sigmoid(-margin) ** gamma * softplus(-margin)).sum()
        search.zero_grad()
        torch.autograd.backward(total)
        return total

    search.step(loss)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return w.detach()


def test_a_linear_model_reaches_the_minimum_of_the_formula_and_serves_the_small_groups_better() -> None:
    data = planted(CONFIG)
    small = {}
    for gamma in (0.0, 5.0):
        found = fitted(data, gamma)
        head = found.model.head
        assert isinstance(head, nn.Linear)
        expected = optimum(gamma)  # (1.97, 1.30) and (0.36, 0.22): less margin, and less of the shortcut in it
        weight = head.weight.detach().double()
        torch.testing.assert_close(weight[1] - weight[0], expected, rtol=0.1, atol=0.0)
        small[gamma] = found.record.metrics["conflicting"] or 0.0
        assert small[gamma] == pytest.approx(float(planted_accuracy(expected, CONFIG)[1]), abs=0.02)
    assert small[5.0] - small[0.0] > 0.015  # the formula says 0.423 and 0.393


@pytest.mark.parametrize("gamma", [-1.0, math.nan, math.inf])
def test_a_gamma_that_makes_no_sense_is_refused(gamma: float) -> None:
    with pytest.raises(InputError, match=r"gamma.* must (not be negative|be a finite number) \(got"):
        make_method("focal", gamma=gamma)
