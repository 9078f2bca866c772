"""ReBias: the estimator by brute force and by theory, a network that sees single pixels, and who follows whom."""

from copy import deepcopy
from itertools import permutations
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from spurless.core.errors import InputError
from spurless.data.datasets.colored import ColoredDigitsConfig, colored_digits
from spurless.data.loader import Loader
from spurless.data.loaders.tensors import from_tensors
from spurless.fitting import fit
from spurless.methods.lff import Pair
from spurless.methods.rebias import ReBias, ReBiasConfig, hsic, make_biased_network, rbf
from spurless.models import Classifier, build
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, Run, make_run
from spurless.train.step import Objective, Stage

DATA = colored_digits(ColoredDigitsConfig(conflicting=0.02, size=8))
SMALL = (8, 16)


def test_the_kernel_by_hand() -> None:
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    torch.testing.assert_close(rbf(x, 5.0), torch.tensor([[1.0, (-torch.tensor(0.5)).exp()], [0.60653066, 1.0]]))


def test_the_estimate_is_the_mean_over_all_quadruples() -> None:
    # Song et al. 2012: the U-statistic of k(1,2) l(1,2) + k(1,2) l(3,4) - 2 k(1,2) l(1,3) over distinct examples
    x, y = torch.randn(6, 3), torch.randn(6, 2)
    k, other = rbf(x, 1.0), rbf(y, 1.0)
    terms = [
        k[i, j] * other[i, j] + k[i, j] * other[q, r] - 2 * k[i, j] * other[i, q]
        for i, j, q, r in permutations(range(6), 4)
    ]
    torch.testing.assert_close(hsic(x, y), torch.stack(terms).mean())


def test_the_authors_diagonal_makes_no_difference() -> None:
    x, y = torch.randn(30, 3), torch.randn(30, 2)
    k, other = (rbf(z, 1.0) - torch.diag(rbf(z, 1.0)) for z in (x, y))  # the row of ones from every row
    theirs = torch.trace(k @ other) + k.sum() * other.sum() / (29 * 28) - 2 * k.sum(0) @ other.sum(0) / 28
    torch.testing.assert_close(hsic(x, y), theirs / (30 * 27), rtol=1e-3, atol=1e-6)


def test_zero_in_the_mean_for_independent_features_and_positive_for_dependent_ones() -> None:
    free = torch.stack([hsic(torch.randn(20, 1), torch.randn(20, 1)) for _ in range(400)])
    assert abs(float(free.mean())) < 3 * float(free.std()) / 20  # unbiased: three standard errors
    x = torch.randn(200, 1)
    assert float(hsic(x, x)) > 0.05
    assert float(hsic(x, x**2)) > 0.01  # uncorrelated, and dependent
    assert float(hsic(x, x)) > float(hsic(x, x + torch.randn(200, 1))) > float(hsic(x, torch.randn(200, 1)))


def test_the_biased_network_sees_single_pixels_only() -> None:
    network = make_biased_network(DATA.train.example(), 10, SMALL).eval()
    x = torch.rand(2, 3, 8, 8)
    scattered = x.flatten(2)[:, :, torch.randperm(64)].view_as(x)  # the same pixels at other places
    torch.testing.assert_close(network(x), network(scattered))
    assert not torch.allclose(network(x), network(x.flip(1)))  # other colours


def test_of_rows_it_is_linear_and_of_texts_there_is_none() -> None:
    network = make_biased_network(torch.zeros(1, 5), 3, SMALL)
    x, y = torch.randn(1, 5), torch.randn(1, 5)
    zero = network(torch.zeros(1, 5))
    torch.testing.assert_close(network(x + y) - zero, network(x) + network(y) - 2 * zero)
    with pytest.raises(InputError, match=r"ReBias has no biased network for text"):
        make_biased_network({"input_ids": torch.zeros(1, 5)}, 3, SMALL)


def gradients(config: ReBiasConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[Pair, list[Tensor]]:
    """Both networks before a step over 64 examples, and the gradient of that step."""
    begun: list[Pair] = []
    found: list[Tensor] = []

    def watch(model: nn.Module, loader: Loader, objective: Objective, _run: Run, _stage: Stage) -> None:
        model.train()
        begun.append(cast(Pair, deepcopy(model)))
        batch = next(loader.batches())
        found.extend(torch.autograd.grad(objective(model, batch), list(model.parameters())))

    monkeypatch.setattr("spurless.methods.rebias.minimise", watch)
    run = make_run(Compute("cpu"), 0, TrainConfig(batch_size=64))
    ReBias(config).fit(build("mlp", DATA, width=8), DATA, run)
    return begun[0], found


def test_f_walks_away_from_g_and_g_after_f(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, plain = gradients(ReBiasConfig(0.0, 0.0, channels=SMALL), monkeypatch)
    _, joint = gradients(ReBiasConfig(200.0, 300.0, channels=SMALL), monkeypatch)
    run = make_run(Compute("cpu"), 0, TrainConfig(batch_size=64))
    order = torch.randperm(1000, generator=run.seeds.child("train").generator("order", 0))[:64]
    x = cast(Tensor, DATA.train.x)[order].float() / 255
    value = hsic(pair.debiased.features(x), pair.biased.features(x))
    whole = torch.autograd.grad(value, list(pair.parameters()), allow_unused=True)
    n_f = len(list(pair.debiased.parameters()))
    for i, (before, after, slope) in enumerate(zip(plain, joint, whole, strict=True)):
        expected = torch.zeros_like(before) if slope is None else (200.0 if i < n_f else -300.0) * slope
        torch.testing.assert_close(after - before, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_raises_the_accuracy_where_the_colour_misleads_without_any_attribute() -> None:
    settings = {"epochs": 20, "lr": 0.01, "batch_size": 100, "optimiser": "adam", "weight_decay": 0.0}
    gains = []
    for seed in range(3):
        model = build("mlp", DATA, seed=seed, width=100)
        erm = fit("erm", model, DATA, seed=seed, train=settings, compute=Compute("cpu")).record
        rebias = fit("rebias", model, DATA, seed=seed, train=settings, compute=Compute("cpu"), channels=SMALL).record
        gains.append(rebias.metrics["conflicting"] - erm.metrics["conflicting"])  # type: ignore[operator]
        assert not any(rebias.supervision.values())
    assert sorted(gains)[1] > 0.05


def test_a_short_last_batch_has_no_such_term_and_does_no_harm() -> None:
    few = DATA.train.select(torch.arange(19))  # 8 + 8 + 3
    run = make_run(Compute("cpu"), 0, TrainConfig(epochs=2, batch_size=8))
    model = ReBias(ReBiasConfig(channels=SMALL)).fit(build("mlp", DATA), type(DATA)(few, DATA.val, DATA.test), run)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    with pytest.raises(InputError, match=r"ReBias needs a batch size of at least 4 per device \(got 3\)"):
        ReBias().fit(build("mlp", DATA), DATA, make_run(Compute("cpu"), 0, TrainConfig(batch_size=3)))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match=r"pursuit.* must not be negative"):
        ReBiasConfig(pursuit=-1.0)
    with pytest.raises(InputError, match=r"sigma.* must be above 0"):
        ReBiasConfig(sigma=0.0)
    with pytest.raises(InputError, match=r"ReBias's channels cannot be used"):
        ReBiasConfig(channels=())


def test_a_dict_of_no_text_and_whole_numbers_are_refused_by_what_they_are() -> None:
    with pytest.raises(InputError, match=r"no biased network for a dict of num and tab, without input_ids"):
        make_biased_network({"num": torch.rand(1, 3), "tab": torch.rand(1, 3)}, 2, SMALL)
    y = torch.arange(120) % 2
    model = Classifier(nn.Sequential(nn.Embedding(9, 4), nn.Flatten()), nn.Linear(20, 2))
    with pytest.raises(InputError, match=r"needs floating-point inputs.*got int64 of shape \(5,\)"):
        fit("rebias", model, from_tensors(torch.randint(9, (120, 5)), y, y), compute=Compute("cpu"))


@pytest.mark.filterwarnings("ignore::spurless.core.errors.SpurlessWarning")  # two steps teach nothing
def test_a_network_may_compute_in_another_precision() -> None:
    class Double(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 6).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x.double())  # type: ignore[no-any-return]  # a module returns Any

    x = torch.randn(60, 4)
    data, model = from_tensors(x, x[:, 0] > 0), Classifier(Double(), nn.Linear(6, 2).double())
    done = fit("rebias", model, data, train={"steps": 2, "batch_size": 16}, compute=Compute("cpu"))
    assert {p.dtype for p in done.model.parameters()} == {torch.float64}
