"""ASAM by hand, by its invariance, by what it escapes from, and by what its second pass must not touch."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from spurless.core.config import key_settings
from spurless.core.seeds import Seeds
from spurless.data import load
from spurless.data.datasets.synthetic import PlantedConfig, planted
from spurless.data.loader import shuffled_order
from spurless.data.split import Batch
from spurless.fitting import fit
from spurless.methods import make_method
from spurless.methods.erm import mean_loss
from spurless.models import build
from spurless.models.classifier import Classifier
from spurless.train import asam as sharpness
from spurless.train.asam import asam_gradient, asam_perturbation
from spurless.train.config import TrainConfig
from spurless.train.loop import minimise
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Objective, Stage

TRAIN = planted(PlantedConfig(n_train=200, n_val=10, n_test=10)).train


class Point(nn.Module):
    """A weight and a bias without a network around them."""

    def __init__(self, weight: list[float], bias: list[float]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.tensor(weight)), nn.Parameter(torch.tensor(bias))


def gradient_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def gradient() -> Tensor:
        model.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return value

    return gradient


def net(seed: int = 0) -> nn.Sequential:
    with Seeds(seed).seed_global_rng("init"):
        return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))


def trained(model: nn.Module, config: TrainConfig, objective: Objective = mean_loss, run: Run | None = None) -> Run:
    run = run or make_run(Compute("cpu"), 0, config)
    minimise(model, run.loader(TRAIN, shuffled_order(len(TRAIN), Seeds(1))), objective, run, Stage("train"))
    return run


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_one_step_on_a_quadratic_by_hand() -> None:
    model, centre = Point([2.99, -3.99], []), torch.tensor([1.99, -2.99])
    config = TrainConfig(steps=1, lr=0.1, momentum=0.0, weight_decay=0.0, asam=0.5)
    # g = (1, -1), T = (3, 4), |T g| = 5, eps = 0.5 * (9, -16) / 5 = (0.9, -1.6): the second g is (1.9, -2.6)
    run = trained(model, config, lambda *_: (model.weight - centre).square().sum() / 2)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([2.8, -3.73]))
    assert run.history[0]["loss"] == pytest.approx(1.0)  # where the weights are, not where they looked


def test_of_a_bias_the_size_does_not_count() -> None:
    model = Point([3.99], [7.0])
    asam_gradient(
        gradient_of(model, lambda: ((model.weight - 2.99) ** 2 + (model.bias - 4) ** 2).sum() / 2), model, 0.5
    )
    # g = (1, 3), T = (4, 1), |T g| = 5, eps = 0.5 * (16, 3) / 5 = (1.6, 0.3)
    assert model.weight.grad is not None
    assert model.bias.grad is not None
    torch.testing.assert_close(torch.cat([model.weight.grad, model.bias.grad]), torch.tensor([2.6, 3.3]))


def test_in_the_code_of_the_learning_rate_study_every_parameter_counts_by_its_size() -> None:
    model = Point([4.0], [7.0])
    objective = gradient_of(model, lambda: ((model.weight - 3) ** 2 + (model.bias - 4) ** 2).sum() / 2)
    asam_gradient(objective, model, 0.5, scale="all")
    # g = (1, 3), T = (4, 7), |T g| = |(4, 21)|, eps = 0.5 * (16, 147) / sqrt(457)
    assert model.weight.grad is not None
    assert model.bias.grad is not None
    expected = torch.tensor([1 + 8 / 457**0.5, 3 + 73.5 / 457**0.5])
    torch.testing.assert_close(torch.cat([model.weight.grad, model.bias.grad]), expected)


def test_the_setting_reaches_the_step_and_the_key_only_if_it_is_set() -> None:
    data, weights = load("planted", seed=0, n_train=100, n_val=20, n_test=20), []
    model = build("mlp", data, width=4, bias=True)
    for scale in ("kwon", "all"):
        config = TrainConfig(steps=3, batch_size=50, lr=0.1, asam=2.0, asam_scale=scale)
        weights.append(fit("erm", model, data, train=config).model.head.get_parameter("weight").detach())
    assert not torch.allclose(weights[0], weights[1])
    assert "asam_scale" not in key_settings(TrainConfig(asam=2.0))
    assert key_settings(config)["asam_scale"] == "all"
    assert set(key_settings(config)) == set(asdict(config))


def test_a_gradient_of_zero_climbs_nowhere() -> None:
    (move,) = asam_perturbation([torch.ones(2)], [torch.zeros(2)], [True], rho=3.0)
    assert move.tolist() == [0.0, 0.0]


def test_without_a_radius_it_is_the_gradient_itself_to_the_bit() -> None:
    model, x, y = net(), TRAIN.x[:50], TRAIN.y[:50]  # type: ignore[index]
    plain, asam = gradient_of(model, lambda: cross_entropy(model(x), y)), net()
    plain()
    asam_gradient(gradient_of(asam, lambda: cross_entropy(asam(x), y)), asam, 0.0)
    for one, other in zip(model.parameters(), asam.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_scaling_one_layer_up_and_the_next_down_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the paper is about, exact without eta; plain SAM would climb to another loss."""
    monkeypatch.setattr(sharpness, "ETA", 0.0)
    x, y = TRAIN.x[:50], TRAIN.y[:50]  # type: ignore[index]
    found = []
    for scale in (1.0, 5.0):
        with Seeds(0).seed_global_rng("init"):
            model = nn.Sequential(nn.Linear(2, 8, bias=False), nn.ReLU(), nn.Linear(8, 2, bias=False))
        with torch.no_grad():
            model[0].weight.mul_(scale)  # type: ignore[operator]
            model[2].weight.div_(scale)  # type: ignore[operator]
        losses: list[float] = []

        def loss(model: nn.Module = model, losses: list[float] = losses) -> Tensor:
            value = cross_entropy(model(x), y)
            losses.append(float(value.detach()))
            return value

        asam_gradient(gradient_of(model, loss), model, 0.5)
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0][1] > found[0][0] + 0.01  # and it did climb


def test_the_second_pass_leaves_nothing_but_its_gradient() -> None:
    """Statistics, the objective's memory and the weights are as after one pass, and both passes start alike."""
    model, x, y = net(), TRAIN.x[:50], TRAIN.y[:50]  # type: ignore[index]
    before, memory, seen = flat(model).clone(), torch.tensor(3.0), []

    def loss() -> Tensor:
        value = cross_entropy(model(x), y)
        seen.append((float(memory), int(model.get_buffer("1.num_batches_tracked"))))
        memory.mul_(1 + value.detach())
        return value

    value = asam_gradient(gradient_of(model, loss), model, 2.0, [memory])
    once = net()
    expected = cross_entropy(once(x), y).detach()
    assert torch.equal(value.detach(), expected)
    assert torch.equal(flat(model), before)
    assert torch.equal(memory, 3.0 * (1 + expected))
    assert seen == [(3.0, 1), (3.0, 1)]
    for name, buffer in once.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer), name


def test_the_loop_hands_over_the_memory_of_the_stage() -> None:
    count, config = torch.zeros(()), TrainConfig(epochs=2, batch_size=50, asam=0.5)
    run = make_run(Compute("cpu"), 0, config)

    def objective(model: nn.Module, batch: Batch) -> Tensor:
        count.add_(1)
        return mean_loss(model, batch)

    loader = run.loader(TRAIN, shuffled_order(len(TRAIN), Seeds(0)))
    minimise(net(), loader, objective, run, Stage("train", memory={"count": count}))
    assert float(count) == 8  # 4 steps an epoch, of two passes each


def test_along_a_valley_it_goes_where_the_walls_are_flattest_and_gradient_descent_stays() -> None:
    """(1 + u^2) v^2 / 2 is 0 wherever v is; a distance rho away from there it is lowest at u = 0."""

    def valley(model: nn.Module, _: Batch) -> Tensor:
        assert isinstance(model, Point)
        return ((1 + model.weight**2) * model.bias**2).sum() / 2

    ends = {}
    for rho in (0.0, 0.5):
        model = Point([1.0], [0.1])
        trained(model, TrainConfig(epochs=100, steps=200, lr=0.1, momentum=0.0, weight_decay=0.0, asam=rho), valley)
        ends[rho] = float(model.weight.detach())
    assert ends[0.0] > 0.99
    assert abs(ends[0.5]) < 0.05


def test_bf16_climbs_as_float32_does() -> None:
    ends = {}
    for precision in ("32-true", "bf16-mixed"):
        for rho in (0.0, 2.0):
            config, model = TrainConfig(epochs=3, batch_size=50, lr=0.05, clip=1.0, asam=rho), net()
            trained(model, config, run=make_run(Compute("cpu", precision=precision), 0, config))
            ends[precision, rho] = flat(model)
    rounding = (ends["bf16-mixed", 2.0] - ends["32-true", 2.0]).norm()
    assert float(rounding) < 0.1 * float((ends["32-true", 2.0] - ends["32-true", 0.0]).norm())


def scaled(config: TrainConfig, scale: float) -> Run:
    """A run whose losses are scaled for float16, here on the CPU."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    return Run(config, Seeds(0), fabric, precision="16-mixed")


def test_a_scaled_loss_gives_the_steps_of_a_plain_one() -> None:
    config = TrainConfig(epochs=3, batch_size=50, lr=0.05, clip=1.0, asam=2.0, l1=0.01)
    plain, half = net(), net()
    trained(plain, config)
    trained(half, config, run=scaled(config, 1024.0))
    torch.testing.assert_close(flat(half), flat(plain), rtol=0, atol=5e-3)


def test_a_scaled_loss_that_overflows_makes_no_step_and_leaves_the_weights_where_they_were() -> None:
    config, model = TrainConfig(steps=1, batch_size=50, lr=0.05, asam=2.0, l1=0.01), net()
    before = flat(model)
    run = trained(model, config, run=scaled(config, 1e30))
    assert torch.equal(flat(model), before)
    assert run.history[0]["loss"] == pytest.approx(float(cross_entropy_of_the_first_batch()), abs=1e-2)


def cross_entropy_of_the_first_batch() -> Tensor:
    first = shuffled_order(len(TRAIN), Seeds(1))(0)[:50]
    return cross_entropy(net()(TRAIN.x[first]), TRAIN.y[first]).detach()  # type: ignore[index]


TOGETHER = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_asam import dro

torch.set_num_threads(1)
model = dro(2)
if model is not None:
    torch.save(model.state_dict(), sys.argv[2])
"""


def dro(devices: int) -> nn.Module | None:
    """A model trained by an objective with a memory; None in a process that is not the main one."""
    data = planted(PlantedConfig(n_train=204, n_val=50, n_test=50))
    with Seeds(0).seed_global_rng("init"):
        model = Classifier(nn.Sequential(nn.Linear(2, 8), nn.Tanh()), nn.Linear(8, 2))
    config = TrainConfig(epochs=4, batch_size=20, lr=0.05, asam=1.0, l1=0.01)
    run = make_run(Compute("cpu", devices, "ddp" if devices > 1 else "auto"), 0, config)
    make_method("group-dro", "planted").fit(model, data, run)
    return model if run.is_main else None


@pytest.mark.slow
def test_two_processes_reach_the_weights_of_one(tmp_path: Path) -> None:
    (tmp_path / "together.py").write_text(TOGETHER)
    command = [sys.executable, *map(str, (tmp_path / "together.py", Path(__file__).parent, tmp_path / "two.pt"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    one, two = dro(1), torch.load(tmp_path / "two.pt", weights_only=True)
    assert one is not None
    for key, value in one.state_dict().items():
        torch.testing.assert_close(two[key], value, rtol=1e-4, atol=1e-5, msg=key)
