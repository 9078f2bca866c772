"""ERM against the closed form of its optimum."""

import math

import pytest
import torch
from torch import nn

from spurless.data.datasets.synthetic import PlantedConfig, erm_optimum, planted, planted_accuracy
from spurless.data.split import Batch
from spurless.fitting import fit
from spurless.methods.erm import mean_loss
from spurless.models import build
from spurless.train.run import Compute


def test_the_loss_is_the_mean_cross_entropy() -> None:
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [math.log(3.0)]]))
    batch = Batch(torch.tensor([[1.0], [0.0]]), torch.tensor([1, 0]), torch.tensor([-1, -1]), torch.tensor([0, 1]))
    # p(1 | x = 1) = 3/4, p(0 | x = 0) = 1/2
    assert float(mean_loss(model, batch).detach()) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2)


def test_group_accuracies_on_planted_match_the_formula() -> None:
    config = PlantedConfig(n_train=20000, n_test=20000)
    data = planted(config)
    train = {"epochs": 10, "lr": 0.1, "batch_size": 200, "weight_decay": 0.0, "schedule": "cosine"}
    fitted = fit("erm", build("linear", data), data, train=train, compute=Compute("cpu"))
    expected = planted_accuracy(erm_optimum(config), config).tolist()  # .974, .393, .393, .974
    for row, value in zip(fitted.record.groups, expected, strict=True):
        assert row.accuracy == pytest.approx(
            value, abs=0.025
        )  # three standard errors of 5,000 and a finite train split
