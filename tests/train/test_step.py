"""The captured step against the eager one; what cannot be captured is not."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Batch, Grouped
from spurless.data.loader import shuffled
from spurless.data.transforms import RandomFlip
from spurless.methods.erm import mean_loss
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Engine, start
from spurless.train.step import Objective, Stage, can_capture, make_optimiser

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def images(n: int = 500) -> Grouped:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return Grouped(x, torch.randint(2, (n,), generator=generator), torch.full((n,), -1), Groups(("a", "b")))


def trained(
    graph: bool, config: TrainConfig, objective: Objective = mean_loss, memory: dict[str, Tensor] | None = None
) -> nn.Module:
    with Seeds(0).borrowed("init"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    run = start(Engine("cuda", graph=graph), 0, config)
    split = images()
    stage = Stage("train", memory=memory or {}, static=True)
    minimise(model, run.loader(split, shuffled(len(split), Seeds(1))), objective, run, stage)
    return model.cpu()


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_the_captured_step_gives_the_weights_of_the_eager_one(kind: Optimiser) -> None:
    # 500 examples in batches of 64: 7 full ones and one of 52, which is never captured
    config = TrainConfig(epochs=8, batch_size=64, lr=0.01, optimiser=kind, schedule="cosine", clip=1.0, warmup_steps=5)
    eager, graphed = trained(False, config), trained(True, config)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(graphed.state_dict()[name], value, rtol=2e-2, atol=2e-3, msg=name)


@gpu
@pytest.mark.gpu
def test_the_captured_step_updates_the_objective_s_memory_and_follows_the_order() -> None:
    seen = torch.zeros(500, device="cuda")

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        seen.index_add_(0, batch.index, torch.ones(len(batch), device="cuda"))
        return mean_loss(model, batch)

    trained(True, TrainConfig(epochs=6, batch_size=64), objective, {"seen": seen})
    assert seen.tolist() == [6.0] * 500  # every example once an epoch, the short batch included


@gpu
@pytest.mark.gpu
def test_an_objective_that_looks_at_values_falls_back_to_eager_steps_with_a_warning() -> None:
    def objective(model: nn.Module, batch: Batch) -> Tensor:
        loss = mean_loss(model, batch)
        return loss if loss.item() < 1e9 else loss * 0

    with pytest.warns(SpurlessWarning, match="could not be captured"):
        model = trained(True, TrainConfig(epochs=8, batch_size=64), objective)
    assert torch.rand(3, device="cuda").isfinite().all()  # the generator is as good as before
    reference = trained(False, TrainConfig(epochs=8, batch_size=64), objective)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=2e-2, atol=2e-3, msg=name)


def test_nothing_is_captured_on_a_cpu() -> None:
    run = start(Engine("cpu"), 0, TrainConfig())
    assert not can_capture(run.loader(images(), shuffled(500, Seeds(0))), run, run.train)


@gpu
@pytest.mark.gpu
def test_what_draws_in_python_is_not_captured() -> None:
    run = start(Engine("cuda"), 0, TrainConfig())
    order = shuffled(500, Seeds(0))
    assert can_capture(run.loader(images(), order), run, run.train)
    assert can_capture(run.loader(replace(images(), augment=RandomFlip()), order), run, run.train)
    assert not can_capture(run.loader(replace(images(), augment=lambda x: x), order), run, run.train)
    assert not can_capture(run.loader(images(), order), run, TrainConfig(steps=10))


def test_the_optimiser_takes_only_what_is_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    optimiser = make_optimiser(model, TrainConfig(optimiser="adam", momentum=0.8, beta2=0.95), torch.device("cpu"))
    (group,) = optimiser.param_groups
    assert [tuple(p.shape) for p in group["params"]] == [(2, 3), (2,)]
    assert group["betas"] == (0.8, 0.95)
