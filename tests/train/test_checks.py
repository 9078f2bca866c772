"""Refusing: a sentence for what cannot be trained, and nothing but that is hidden behind it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split
from spurless.methods.erm import mean_loss
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, make_run
from spurless.train.step import Objective, Stage


class Beside(nn.Module):
    """A net with a branch that runs in training only, and is too deep for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.deep, self.head = nn.Conv2d(1, 1, 5), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.deep(max_pool2d(x, 2))
        out: Tensor = self.head(x.flatten(1))
        return out


def train(model: nn.Module, objective: Objective = mean_loss) -> None:
    split = Split(torch.rand(8, 1, 4, 4), torch.arange(8) % 2, torch.full((8,), -1), Groups(("a", "b")))
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=1, batch_size=4))
    minimise(model, run.loader(split, shuffled_order(8, Seeds(1))), objective, run, Stage())


def test_a_model_that_fails_in_training_only_is_a_sentence() -> None:
    model = Beside()
    model.eval()(torch.rand(2, 1, 4, 4))  # it can be evaluated
    said = r"the model 'Beside' does not accept examples of shape \(1, 4, 4\) in training: .*[Kk]ernel size"
    with pytest.raises(InputError, match=said):
        train(model)


def plain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("error", [RuntimeError("mine"), torch.OutOfMemoryError("full"), ValueError("mine")])
def test_errors_of_an_objective_and_of_the_device_stay_as_they_are(error: Exception) -> None:
    def objective(_model: nn.Module, _batch: Batch) -> Tensor:
        raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        train(plain(), objective)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("full"),
        RuntimeError("CUDA error: an illegal access"),
        RuntimeError("DefaultCPUAllocator: cannot allocate memory"),
    ],
)
def test_errors_of_the_device_stay_where_the_model_meets_them(error: Exception) -> None:
    class Full(nn.Linear):
        def forward(self, _: Tensor) -> Tensor:
            raise error

    with pytest.raises(type(error), match=f"^{error}$"):
        train(nn.Sequential(nn.Flatten(), Full(16, 2)))


def test_a_model_that_has_made_a_step_is_not_blamed_for_what_comes_later() -> None:
    class Later(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 1:
                raise RuntimeError("later")
            return super().forward(x)

    with pytest.raises(RuntimeError, match=r"^later$"):
        train(nn.Sequential(nn.Flatten(), Later(16, 2)))


def test_a_loss_that_reaches_no_weight_is_a_sentence() -> None:
    def objective(model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            return cross_entropy(model(batch.x), batch.y)

    with pytest.raises(InputError, match=r"the loss does not depend on a parameter that requires a gradient"):
        train(plain(), objective)
