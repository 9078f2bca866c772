"""The captured step against the eager one; what cannot be captured is not."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch, Split
from spurless.data.transforms import RandomFlip
from spurless.methods.erm import mean_loss
from spurless.train.config import Optimiser, TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, make_run
from spurless.train.step import Objective, Stage, can_capture, make_optimiser, set_train_mode

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def images(n: int = 500) -> Split:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (n, 3, 12, 12), generator=generator, dtype=torch.uint8)
    return Split(x, torch.randint(2, (n,), generator=generator), torch.full((n,), -1), Groups(("a", "b")))


def trained(
    graph: bool, config: TrainConfig, objective: Objective = mean_loss, memory: dict[str, Tensor] | None = None
) -> nn.Module:
    with Seeds(0).seed_global_rng("init"):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    run = make_run(Compute("cuda", graph=graph), 0, config)
    split = images()
    stage = Stage("train", memory=memory or {}, static=True)
    minimise(model, run.loader(split, shuffled_order(len(split), Seeds(1))), objective, run, stage)
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
@pytest.mark.parametrize("extra", [{"asam": 0.5}, {"l1": 1e-3}, {"asam": 0.5, "l1": 1e-3, "clip": 1.0}])
def test_sharpness_and_penalty_are_captured_with_the_step(extra: dict[str, float]) -> None:
    config = TrainConfig(epochs=8, batch_size=64, schedule="warmup-stable-decay", **extra)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpurlessWarning)  # that it could not be captured
        eager, graphed = trained(False, config), trained(True, config)
    plain = trained(False, replace(config, asam=0.0, l1=0.0))
    apart = max(float((value - plain.state_dict()[name]).abs().max()) for name, value in eager.state_dict().items())
    assert apart > 4e-3  # what is compared below is there to be seen
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(graphed.state_dict()[name], value, rtol=2e-2, atol=2e-3, msg=name)


@gpu
@pytest.mark.gpu
def test_a_captured_climb_leaves_the_objective_s_memory_to_the_first_pass() -> None:
    count = torch.zeros((), device="cuda")

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        count.add_(1)
        return mean_loss(model, batch)

    model = trained(True, TrainConfig(epochs=6, batch_size=64, asam=0.5), objective, {"count": count})
    assert float(count) == 48  # 8 steps an epoch, of two passes each
    assert int(model.get_buffer("1.num_batches_tracked")) == 48


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


def test_batch_normalisation_of_one_example_is_a_sentence_and_other_errors_stay_as_they_are() -> None:
    split = images(4)

    def train(objective: Objective) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(432, 2), nn.BatchNorm1d(2))
        run = make_run(Compute("cpu"), 0, TrainConfig(epochs=1, batch_size=1))
        minimise(model, run.loader(split, shuffled_order(4, Seeds(1))), objective, run, Stage())

    with pytest.raises(
        InputError, match=r"cannot be trained on a batch of one example\. Use a batch size of 2 or more\."
    ):
        train(mean_loss)

    def own(_model: nn.Module, _batch: Batch) -> Tensor:
        raise ValueError("a mistake of mine")

    with pytest.raises(ValueError, match=r"^a mistake of mine$"):
        train(own)


def test_nothing_is_captured_on_a_cpu() -> None:
    run = make_run(Compute("cpu"), 0, TrainConfig())
    assert not can_capture(run.loader(images(), shuffled_order(500, Seeds(0))), run, run.train)


@gpu
@pytest.mark.gpu
def test_what_draws_in_python_is_not_captured() -> None:
    run = make_run(Compute("cuda"), 0, TrainConfig())
    order = shuffled_order(500, Seeds(0))
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


def test_a_model_of_which_nothing_would_be_trained_is_refused() -> None:
    frozen = nn.Linear(2, 3).requires_grad_(False)
    with pytest.raises(InputError, match=r"no parameter requires a gradient\. Call requires_grad_\(True\)"):
        make_optimiser(frozen, TrainConfig(), torch.device("cpu"))


def walked(weights: list[float], slopes: list[float], steps: int = 1, **settings: float) -> tuple[list[float], float]:
    """Weights, the last of them a bias, after steps of plain SGD down a straight slope; and the last loss."""
    model = nn.Linear(len(weights) - 1, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([weights[:-1]]))
        model.bias.copy_(torch.tensor(weights[-1:]))

    def objective(model: nn.Module, _: Batch) -> Tensor:
        flat = torch.cat([p.flatten() for p in model.parameters()])
        return flat @ torch.tensor(slopes)

    config = TrainConfig(epochs=steps, steps=steps, lr=0.1, momentum=0.0, weight_decay=0.0, **settings)  # type: ignore[arg-type]
    run, split = make_run(Compute("cpu"), 0, config), images(64)
    minimise(model, run.loader(split, shuffled_order(64, Seeds(0))), objective, run, Stage("train"))
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist(), run.history[-1]["loss"]


def test_the_penalty_pulls_every_parameter_towards_zero_by_hand() -> None:
    found, loss = walked([2.0, -3.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], l1=0.5)
    # g + l1 sign(w) = 1.5, 0.5, 1 (no pull at 0), and 0.5 of the bias
    assert found == pytest.approx([1.85, -3.05, -0.1, 0.95])
    assert loss == pytest.approx(-1.0)  # 2 - 3 + 0: the penalty is not in it


def test_the_penalty_is_clipped_with_the_gradient() -> None:
    # the whole gradient is (3.5 - 0.5, 3.5 + 0.5, 0) = (3, 4, 0) of norm 5
    found, _ = walked([-1.0, 1.0, 0.0], [3.5, 3.5, 0.0], l1=0.5, clip=1.0)
    assert found == pytest.approx([-1.06, 0.92, 0.0])


def test_the_penalty_is_taken_where_the_weights_are_not_where_asam_looked() -> None:
    plain, _ = walked([0.1, 0.0], [-1.0, 0.0], l1=0.5)
    uphill, _ = walked([0.1, 0.0], [-1.0, 0.0], l1=0.5, asam=10.0)  # looks from -1, where the slope is the same
    assert plain == uphill == pytest.approx([0.15, 0.0])


def test_the_penalty_ends_at_the_soft_threshold() -> None:
    """The minimum of (w - c)^2 / 2 + l1 |w| is c less l1 in size, or 0 where c is smaller than l1."""
    model, centre = nn.Linear(3, 1, bias=False), torch.tensor([[2.0, -1.0, 0.3]])
    config = TrainConfig(epochs=2000, steps=2000, lr=0.01, momentum=0.0, weight_decay=0.0, l1=0.5)
    run, split = make_run(Compute("cpu"), 0, config), images(64)
    order = shuffled_order(64, Seeds(0))
    minimise(
        model, run.loader(split, order), lambda *_: (model.weight - centre).square().sum() / 2, run, Stage("train")
    )
    expected = torch.tensor([[1.5, -0.5, 0.0]])
    torch.testing.assert_close(model.weight.detach(), expected, rtol=0, atol=0.01 * 0.5 + 1e-4)  # one step to and fro


def test_parameters_that_the_loss_does_not_reach_are_not_pulled() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False))
    used, unused = model.parameters()
    before = used.detach().clone(), unused.detach().clone()
    config = TrainConfig(steps=3, l1=0.5, asam=0.5)
    run, split = make_run(Compute("cpu"), 0, config), images(64)
    stage = Stage("train")
    minimise(model, run.loader(split, shuffled_order(64, Seeds(0))), lambda *_: used.square().sum(), run, stage)
    assert not torch.equal(used.detach(), before[0])
    assert torch.equal(unused.detach(), before[1])


def test_a_frozen_norm_keeps_its_statistics() -> None:
    def net(freeze: bool) -> nn.Sequential:
        with Seeds(0).seed_global_rng("init"):
            made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2))
        made[1].eval().requires_grad_(not freeze)
        return made

    split, moved = images(40), {}
    for freeze in (True, False):
        model = net(freeze)
        run = make_run(Compute("cpu"), 0, TrainConfig(steps=3, batch_size=20))
        minimise(model, run.loader(split, shuffled_order(len(split), Seeds(1))), mean_loss, run, Stage())
        norm, fresh = model[1], net(freeze)[1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert isinstance(fresh, nn.BatchNorm2d)
        assert norm.training == (not freeze)
        assert model[0].training
        moved[freeze] = not torch.equal(norm.running_mean, fresh.running_mean)  # type: ignore[arg-type]  # it has one
    assert moved == {True: False, False: True}


def test_a_model_that_came_in_eval_mode_trains_whole() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False), nn.Linear(3, 2)).eval()
    set_train_mode(model)
    assert all(part.training for part in model.modules())
