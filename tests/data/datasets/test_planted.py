"""Planted: the theorem against the draw, and the two optima against closed forms."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.synthetic import PlantedConfig, erm_optimum, planted, planted_accuracy, robust_optimum
from spurless.data.split import Split


def inputs(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    return split.x.double()


def signed(split: Split) -> Tensor:
    return (2.0 * split.y - 1)[:, None] * inputs(split)


def worst_group_loss(w: Tensor, config: PlantedConfig, n: int = 4001) -> float:
    # w @ z is Gaussian in each group, so its loss is an integral over one number; by the trapezium rule
    u = torch.linspace(-10, 10, n, dtype=torch.double)
    density = torch.exp(-(u**2) / 2)
    losses = []
    for s in (1, -1):
        mean = w[0] * config.core + s * w[1] * config.spurious
        loss = torch.nn.functional.softplus(-(mean + w.norm() * u))
        losses.append(float((loss * density).sum() / density.sum()))
    return max(losses)


@pytest.mark.parametrize("w", [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, -0.5)])
def test_a_fixed_rule_scores_in_each_group_what_the_theorem_says(w: tuple[float, float]) -> None:
    n = 200_000
    split = planted(PlantedConfig(n_test=n)).test
    rule = torch.tensor(w, dtype=torch.double)
    right = (inputs(split) @ rule > 0) == (split.y == 1)
    for g, exact in enumerate(planted_accuracy(rule).tolist()):
        members = right[split.g == g].double()
        error = (exact * (1 - exact) / len(members)) ** 0.5
        assert abs(float(members.mean()) - exact) < 4 * error


def test_accuracy_by_hand() -> None:
    # core alone: Phi(1) = 0.8413; spurious alone: Phi(2) = 0.9772 where it agrees, Phi(-2) = 0.0228 where not
    torch.testing.assert_close(planted_accuracy(torch.tensor([3.0, 0.0])), torch.full((4,), 0.84134475))
    expected = torch.tensor([0.97724987, 0.02275013, 0.02275013, 0.97724987])
    torch.testing.assert_close(planted_accuracy(torch.tensor([0.0, 1.0])), expected)


def test_the_attribute_agrees_as_often_as_asked() -> None:
    data = planted(PlantedConfig(agreement=0.9, n_train=100_000, n_val=100_000))
    for split, share in ((data.train, 0.9), (data.val, 0.5)):
        error = (share * (1 - share) / 100_000) ** 0.5
        assert abs(float((split.a == split.y).double().mean()) - share) < 4 * error


def test_the_features_have_unit_variance_around_their_means() -> None:
    split = planted(PlantedConfig(agreement=1.0, n_train=100_000)).train
    z = signed(split)
    torch.testing.assert_close(z.mean(dim=0), torch.tensor([1.0, 2.0]).double(), atol=4 / 100_000**0.5, rtol=0)
    torch.testing.assert_close(z.var(dim=0), torch.ones(2).double(), atol=4 * (2 / 100_000) ** 0.5, rtol=0)


def test_the_erm_optimum_has_no_gradient_on_a_big_sample() -> None:
    n = 400_000
    z = signed(planted(PlantedConfig(n_train=n)).train)
    gradient = torch.sigmoid(-z @ erm_optimum())[:, None] * z
    error = gradient.std(dim=0) / n**0.5
    assert (gradient.mean(dim=0).abs() < 4 * error).all()


@pytest.mark.parametrize(("core", "spurious"), [(1.0, 2.0), (0.5, 3.0), (3.0, 3.0)])
def test_the_erm_optimum_at_both_ends_of_agreement(core: float, spurious: float) -> None:
    def optimum(agreement: float) -> Tensor:
        return erm_optimum(PlantedConfig(core=core, spurious=spurious, agreement=agreement))

    # always agreeing, both features are causal for the loss: the log odds of two unit Gaussians
    full = torch.tensor([2 * core, 2 * spurious], dtype=torch.double)
    torch.testing.assert_close(optimum(1.0), full, atol=1e-8, rtol=0)
    torch.testing.assert_close(optimum(0.0), full * torch.tensor([1, -1]), atol=1e-8, rtol=0)
    torch.testing.assert_close(optimum(0.5), torch.tensor([2 * core, 0.0]).double(), atol=1e-8, rtol=0)


def test_newton_arrives_where_features_are_strong() -> None:
    w = erm_optimum(PlantedConfig(core=6.0, spurious=8.0, agreement=1.0))
    torch.testing.assert_close(w, torch.tensor([12.0, 16.0]).double(), atol=1e-6, rtol=0)


def test_the_robust_optimum_is_the_lowest_worst_group_loss_around() -> None:
    config = PlantedConfig()
    best = robust_optimum(config)
    assert best.tolist() == [2.0, 0.0]
    lowest = worst_group_loss(best, config)
    for angle in torch.arange(0, 2 * torch.pi, torch.pi / 8, dtype=torch.double):
        for step in (0.01, 0.3):
            nearby = best + step * torch.stack([angle.cos(), angle.sin()])
            assert worst_group_loss(nearby, config) > lowest


def test_the_robust_optimum_serves_every_group_alike_and_erm_does_not() -> None:
    config = PlantedConfig()
    torch.testing.assert_close(planted_accuracy(robust_optimum(config), config), torch.full((4,), 0.84134475).double())
    worst = planted_accuracy(erm_optimum(config), config).min()
    # erm is (1.966, 1.302): Phi((1.966 - 2 * 1.302) / 2.358) = Phi(-0.270) = 0.393
    assert float(worst) == pytest.approx(0.393, abs=1e-3)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("agreement", 1.1),
        ("core", 0.0),
        ("spurious", -1.0),
        ("n_train", 0),
        ("n_test", -3),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*got '?{value}"):
        load("planted", **{option: value})
