"""The theory of a linear shortcut, against linear models that are trained and pruned on its data."""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.datasets.synthetic import LinearBitsConfig, linear_bits, spurious_limit
from spurless.metrics.theory.shortcut import (
    GradientFlow,
    PrunedModel,
    debiasing_fraction,
    expected_similarity,
    invariant_bounds,
    mixture_bound,
    pruned_error,
    ratio_bound,
    ratio_bound_at_one,
    ratio_figure,
    train_bound,
    weight_ratio,
    weights_at,
)

D = 15
TIMES = [0.5, 1.0, 5.0, 20.0, 100.0]


def trained(p: float, rate: float, steps: int, seed: int = 0) -> Tensor:
    """Train from (0.1, ..., 0.1) by gradient descent on the logistic loss of a drawn split."""
    train = linear_bits(LinearBitsConfig(p=p, n_train=20_000, n_val=1, n_test=1, seed=seed)).train
    assert isinstance(train.x, Tensor)
    x = train.x.double() * (2.0 * train.y - 1)[:, None]
    w = torch.full((D + 1,), 0.1, dtype=torch.float64)
    for _ in range(steps):
        w = w + rate * (torch.sigmoid(-(x @ w)) @ x) / len(x)
    return w


def test_the_flow_is_what_gradient_descent_does() -> None:
    for p in (0.6, 0.8, 0.95):
        w = trained(p, rate=0.05, steps=400)
        (invariant, spurious) = weights_at(GradientFlow(p, D), [20.0], "logistic")[0].tolist()
        assert float(w[0]) == pytest.approx(invariant, rel=0.02)
        assert float(w[1:].mean()) == pytest.approx(spurious, rel=0.02)
        assert weight_ratio(w) == pytest.approx(spurious / invariant, rel=0.02)


def test_the_flow_under_the_exponential_loss_is_proposition_1() -> None:
    flow, h = GradientFlow(0.9, D), 1e-6
    for start in ((0.1, 0.1), (1.0, 0.5)):
        moved = weights_at(GradientFlow(0.9, D, *start), [h])[0]
        w, v = start
        b = 0.9 * exp(-v) + 0.1 * exp(v)
        by_hand = exp(-w) * b**D, exp(-w) * (0.9 * exp(-v) - 0.1 * exp(v)) * b ** (D - 1)
        assert ((moved - torch.tensor(start, dtype=torch.float64)) / h).tolist() == pytest.approx(by_hand, rel=1e-4)
    coarse, fine = (weights_at(flow, [20.0], step=step) for step in (0.05, 0.01))
    assert torch.allclose(coarse, fine, rtol=1e-6)


def test_the_flow_over_several_times_is_one_flow() -> None:
    path = weights_at(GradientFlow(), [0.0, *TIMES])
    assert path[0].tolist() == [0.1, 0.1]
    assert torch.allclose(path[3], weights_at(GradientFlow(), [5.0])[0], rtol=1e-8)
    assert bool((path[1:] > path[:-1]).all())  # both strictly rise


@pytest.mark.parametrize("p", [0.6, 0.8, 0.95, 0.99])
def test_the_bounds_of_proposition_1_hold_on_the_flow(p: float) -> None:
    flow = GradientFlow(p, D)
    for time, (invariant, spurious) in zip(TIMES, weights_at(flow, TIMES).tolist(), strict=True):
        low, high = invariant_bounds(flow, time)
        assert low < invariant < high
        assert spurious < flow.limit
        assert 0 < ratio_bound(flow, time, TIMES[-1]) < spurious / invariant
    assert ratio_bound(flow, 1e-9, 1.0) == pytest.approx(1.0)  # where it starts: 0.1 / 0.1


def test_the_ratio_goes_to_zero_and_slowly_where_the_shortcut_is_strong() -> None:
    early, late, last = weights_at(GradientFlow(0.8, 3), [10.0, 200.0, 4000.0], step=0.5)
    assert float(last[1]) == pytest.approx(GradientFlow(0.8, 3).limit, rel=0.01)
    ratios = [float(w[1] / w[0]) for w in (early, late, last)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 0.1
    limits = [ratio_bound_at_one(GradientFlow(), end) * log(end) for end in (1e4, 1e8, 1e16)]
    assert limits == pytest.approx([0.1, 0.1, 0.1], rel=0.25)  # c / log T with c = w_i(0)
    for p in (0.999, 0.999999):
        (invariant, spurious) = weights_at(GradientFlow(p, D), [50.0])[0].tolist()
        assert spurious / invariant > ratio_bound_at_one(GradientFlow(), 50.0)
    assert ratio_bound(GradientFlow(1 - 1e-12, D), 49.0, 50.0) == pytest.approx(
        ratio_bound_at_one(GradientFlow(), 49.0), rel=0.01
    )


def test_as_printed_equation_41_is_above_the_flow() -> None:
    # the parenthesis that closes too late: tanh of atanh of the sum is the sum itself
    flow, time = GradientFlow(0.6, 1, 0.1, 0.2), 3.0
    grown = exp(-invariant_bounds(flow, time)[1]) * sqrt(0.6 * 0.4) * time
    printed = log(sqrt(1.5) * (sqrt(0.4 / 0.6) * exp(0.2) + grown))
    (invariant, spurious) = weights_at(flow, [time])[0].tolist()
    assert printed > flow.limit > spurious  # no lower bound
    assert ratio_bound(flow, time, time) < spurious / invariant


def test_the_limit_is_that_of_the_dataset() -> None:
    for p in (0.6, 0.95, 1.0):
        assert GradientFlow(p).limit == spurious_limit(LinearBitsConfig(p=p))


@pytest.mark.parametrize("p", [0.5, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("keep", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("keep_invariant", [0.4, 1.0])
def test_the_pruned_error_is_under_the_bounds_of_theorem_1(p: float, keep: float, keep_invariant: float) -> None:
    generator = Seeds(0).generator("theory")
    for scale in (0.02, 0.1, 1.0):
        ratios = scale * (0.5 + torch.rand(D, generator=generator))
        pruning = PrunedModel(ratios, torch.full((D,), keep), keep_invariant)
        assert pruned_error(pruning, p, 20_000, generator) <= train_bound(pruning, p)


def test_a_trained_model_that_is_pruned_is_under_its_bounds() -> None:
    w = trained(0.95, rate=0.5, steps=200).float()
    generator = Seeds(0).generator("theory")
    for keep in (0.1, 0.5, 1.0):
        pruning = PrunedModel(w[1:] / w[0], torch.full((D,), keep))
        train, test = (pruned_error(pruning, p, 20_000, generator) for p in (0.95, 0.5))
        assert train <= train_bound(pruning, 0.95)
        assert test <= train_bound(pruning, 0.5)
        assert train < test  # the gap of theorem 1
    gone = PrunedModel(w[1:] / w[0], torch.zeros(D))
    assert pruned_error(gone, 0.5, 1000, generator) == 0.0  # what is left tells every label


def test_the_error_by_hand() -> None:
    generator = Seeds(0).generator("theory")
    # one spurious bit of ratio 2, always kept: wrong whenever it disagrees
    two = PrunedModel(torch.tensor([2.0]), torch.tensor([1.0]))
    assert pruned_error(two, 0.7, 100_000, generator) == pytest.approx(0.3, abs=0.006)
    # of ratio 1: a tie, which is half an error; never kept and no invariant: always a tie
    one = PrunedModel(torch.tensor([1.0]), torch.tensor([1.0]))
    assert pruned_error(one, 0.7, 100_000, generator) == pytest.approx(0.15, abs=0.004)
    assert pruned_error(PrunedModel(torch.tensor([1.0]), torch.zeros(1), 0.0), 0.7, 100, generator) == 0.5


def test_keeping_the_shortcut_lowers_the_training_bound_alone() -> None:
    ratios = torch.full((D,), 0.1)
    bounds = [train_bound(PrunedModel(ratios, torch.full((D,), keep)), 0.9) for keep in (0.0, 0.5, 1.0)]
    assert bounds == sorted(bounds, reverse=True)
    tests = {train_bound(PrunedModel(ratios, torch.full((D,), keep)), 0.5) for keep in (0.0, 0.5, 1.0)}
    assert len(tests) == 1


def test_theorem_2_goes_from_the_training_bound_to_the_test_bound() -> None:
    pruning = PrunedModel(torch.full((D,), 0.2), torch.full((D,), 0.7))
    most = debiasing_fraction(0.9)
    bounds = [mixture_bound(pruning, 0.9, phi) for phi in (0.0, 0.2, 0.4, most)]
    assert bounds[0] == train_bound(pruning, 0.9)
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(train_bound(pruning, 0.5))
    # a bit of the mixture agrees with probability (1 - phi) p, on its own
    generator = Seeds(0).generator("theory")
    for phi in (0.2, 0.4, most):
        assert pruned_error(pruning, (1 - phi) * 0.9, 20_000, generator) <= mixture_bound(pruning, 0.9, phi)
    with pytest.raises(InputError, match=r"phi is out of range.*0 to 0\.444, got 0\.5"):
        mixture_bound(pruning, 0.9, 0.5)
    with pytest.raises(InputError, match=r"p must be at least 0\.5"):
        debiasing_fraction(0.4)


def test_a_model_that_leans_the_other_way_has_no_bound() -> None:
    with pytest.raises(InputError, match="nonnegative mean output"):
        train_bound(PrunedModel(torch.full((D,), -1.0), torch.ones(D)), 0.9)


@pytest.mark.parametrize(
    "flow",
    [
        GradientFlow(0.5),
        GradientFlow(1.0),
        GradientFlow(0.6, D, 0.1, 0.3),
        GradientFlow(0.9, D, 0.0),
        GradientFlow(0.9, D, 0.1, 0.0),
    ],
)
def test_proposition_1_says_when_it_holds(flow: GradientFlow) -> None:
    for bound in (lambda: invariant_bounds(flow, 1.0), lambda: ratio_bound(flow, 1.0, 1.0)):
        with pytest.raises(InputError, match="requires positive initial weights"):
            bound()


@pytest.mark.parametrize(("p", "other"), [(0.95, 0.95), (0.95, 0.5), (0.7, 0.7), (0.9, 0.6)])
def test_lemma_1_on_random_embeddings(p: float, other: float) -> None:
    generator = Seeds(0).generator("theory")
    tall = torch.linalg.qr(torch.randn(32, D + 1, generator=generator)).Q
    bits = [2.0 * (torch.rand(40_000, D, generator=generator) < each) - 1 for each in (p, other)]
    h, k = (torch.cat([torch.ones(40_000, 1), each], dim=1) @ tall.T for each in bits)
    found = torch.cosine_similarity(h, k, dim=1).mean()
    assert float(found) == pytest.approx(expected_similarity(D, p, other), abs=0.006)


def test_lemma_1_s_two_equations() -> None:
    assert expected_similarity(D, 0.9, 0.5) == 1 / (D + 1)
    assert expected_similarity(D, 0.9) == pytest.approx((1 + D * 0.8**2) / (D + 1))


def test_the_figure_shows_every_seed_and_the_mean() -> None:
    figure = ratio_figure({0.99: [0.9, 1.0], 0.6: [0.1, 0.3]}, {0.99: 0.97, 0.6: 0.06})
    seeds, mean, flow = figure.spec["data"]
    assert (seeds["x"], seeds["y"]) == ([0.6, 0.6, 0.99, 0.99], [0.1, 0.3, 0.9, 1.0])
    assert (mean["x"], mean["y"]) == ([0.6, 0.99], pytest.approx([0.2, 0.95]))
    assert (flow["x"], flow["y"]) == ([0.6, 0.99], [0.06, 0.97])
    assert "0.20 at 0.6, 0.95 at 0.99" in figure.caption
    assert len(ratio_figure({0.6: [0.1]}).spec["data"]) == 2
    with pytest.raises(InputError, match="at least one ratio per p"):
        ratio_figure({0.6: []})


def test_the_simulation_s_loss_is_the_flow_s() -> None:
    # d/dw of softplus(-m) is -sigmoid(-m): one explicit step against autograd on all 2^3 inputs
    bits = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 3).double()
    chance = torch.where(bits > 0, 0.8, 0.2).prod(dim=1)
    w = torch.full((4,), 0.1, dtype=torch.float64, requires_grad=True)
    (chance * softplus(-(w[0] + bits @ w[1:]))).sum().backward()  # type: ignore[no-untyped-call]  # torch does not annotate it
    moved = (weights_at(GradientFlow(0.8, 3), [1e-6], "logistic")[0] - 0.1) / 1e-6
    assert w.grad is not None
    assert moved.tolist() == pytest.approx([-float(w.grad[0]), -float(w.grad[1])], rel=1e-4)


def test_steps_too_large_for_a_start_are_told() -> None:
    fast = GradientFlow(0.9, 15, 0.1, -1.0)
    with pytest.raises(InputError, match="the integration diverged"):
        weights_at(fast, [1.0])
