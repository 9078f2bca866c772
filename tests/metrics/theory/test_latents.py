"""Identification: the theory of AVP, measured on processes in which every latent is known."""

import math

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.theory.latents import (
    Process,
    affine_fit,
    assign_bins,
    biased_sample,
    bin_edges,
    conditional_entropy_of_noise,
    excess_noise_error,
    flip_rate,
    information,
    mean_correlation,
    spanned_dimensions,
    spurious_ratios,
)

N = 200_000
RULE = torch.tensor([2.0, 1.0, 0.0])
"""The first latent is the core, the second says a little, the third nothing."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64)


def binary_entropy(p: Tensor) -> Tensor:
    bits: Tensor = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / math.log(2)
    return bits


def test_the_process_labels_the_clean_latents_and_shows_the_perturbed_ones() -> None:
    process = Process.random(RULE, 0.3, generator())
    z, met, x, y = process.sample(500, generator(1))
    torch.testing.assert_close(process.invert(x), z + process.perturbations[met])  # g is injective: it can be undone
    assert torch.equal(y, (2 * z[:, 0] + z[:, 1] > 0).long())
    assert not torch.equal(y, process.label(process.invert(x)))
    torch.testing.assert_close(process.perturbations.norm(dim=1), torch.full((3,), 0.3, dtype=torch.float64))
    assert spanned_dimensions(process.perturbations) == 3
    assert affine_fit(z, process.observe(z)).r2 < 0.99  # and it bends: inputs are no affine function of latents


def best_extractors(process: Process, n: int = 2000) -> Tensor:
    """All linear f for which f(x~) - f(x) depends on the perturbation alone: the minimum of equation 3."""
    z = normal(n, process.bend.shape[0], seed=3)
    spread = torch.zeros(len(process.mixing), len(process.mixing), dtype=torch.float64)
    for delta in process.perturbations:
        spread += torch.cov((process.observe(z + delta) - process.observe(z)).T)
    values, vectors = torch.linalg.eigh(spread)
    null: Tensor = vectors[:, values < 1e-10 * values.max()]
    return null


def test_diverse_perturbations_identify_the_latents_up_to_an_affine_map() -> None:
    process = Process.random(RULE, 0.5, generator())
    f, z = best_extractors(process), normal(1000, 3)
    assert f.shape[1] == 3
    found = affine_fit(z, process.observe(z) @ f)
    assert found.r2 == pytest.approx(1.0, abs=1e-9)
    assert found.recovered == pytest.approx(1.0, abs=1e-9)
    assert found.rank == 3


def test_perturbations_that_are_not_diverse_do_not() -> None:
    # the second latent is never perturbed, so that its bent twin passes for a latent too
    base = Process.random(torch.tensor([1.0, 0.0]), 0.5, generator())
    process = Process(base.mixing, torch.eye(2).double(), base.rule, torch.tensor([[0.5, 0.0]]).double())
    assert spanned_dimensions(process.perturbations) == 1
    f, z = best_extractors(process), normal(1000, 2)
    assert f.shape[1] == 3
    assert affine_fit(z, process.observe(z) @ f).r2 < 0.99


def test_the_fitted_map_is_the_one_that_made_the_latents() -> None:
    z, matrix, offset = normal(300, 3), normal(4, 3, seed=1), normal(1, 4, seed=2)
    found = affine_fit(z, z @ matrix.T + offset)
    torch.testing.assert_close(found.matrix, matrix)
    torch.testing.assert_close(found.offset, offset[0])


def test_noise_and_lost_latents_lower_the_fit_as_they_must() -> None:
    z = normal(N, 2)
    noisy = affine_fit(z, z + 0.5 * normal(N, 2, seed=1))
    assert noisy.r2 == pytest.approx(1 / 1.25, abs=0.01)  # the share of the variance that is signal, both ways
    assert noisy.recovered == pytest.approx(1 / 1.25, abs=0.01)
    lost = affine_fit(z, torch.stack([z.sum(dim=1), -z.sum(dim=1)], dim=1))
    assert lost.r2 == pytest.approx(1.0)
    assert lost.rank == 1
    assert lost.recovered == pytest.approx(0.5, abs=0.01)
    constant = affine_fit(z, torch.ones(N, 1))
    assert (constant.r2, constant.rank) == (1.0, 0)  # the trivial solution, which the theorem has to rule out
    assert constant.recovered == pytest.approx(0.0, abs=1e-9)


def test_correlation_is_of_the_best_matching_and_a_rotation_lowers_it() -> None:
    z = normal(N, 3)
    assert mean_correlation(z, torch.stack([-z[:, 2], 5 * z[:, 0] + 1, z[:, 1]], dim=1)) == pytest.approx(1.0)
    turned = (z[:, :2] @ torch.tensor([[1.0, 1.0], [-1.0, 1.0]]).double()) / math.sqrt(2)
    assert affine_fit(z[:, :2], turned).recovered == pytest.approx(1.0)
    assert mean_correlation(z[:, :2], turned) == pytest.approx(1 / math.sqrt(2), abs=0.01)
    # greed would match the first with the first (0.9) and leave nothing for the second; the best has 0.8 and 0.44
    first, second = z[:, 0], z[:, 1]
    learnt = torch.stack([0.9 * first + math.sqrt(0.19) * second, 0.8 * first + 0.6 * z[:, 2]], dim=1)
    by_hand = max(0.9 + 0.0, 0.8 + math.sqrt(0.19)) / 2
    assert mean_correlation(z[:, :2], learnt) == pytest.approx(by_hand, abs=0.01)
    assert mean_correlation(z, z[:, :1]) == pytest.approx(1 / 3)  # latents without a partner
    assert mean_correlation(z[:, :2], torch.cat([z[:, :1], torch.ones(N, 1)], dim=1)) == pytest.approx(0.5)


def test_excess_noise_is_linear_in_small_perturbations() -> None:
    # f after g is z + 0.3 tanh(V z) here: the error of the linearisation falls with the size of the perturbations
    errors = []
    for size in (0.2, 0.1, 0.05):
        process = Process.random(RULE, size, generator())
        z = normal(1, 3, seed=4)
        slope = 1 - torch.tanh(z[0] @ process.bend.T).square()
        jacobian = torch.eye(3) + 0.3 * slope[:, None] * process.bend
        noise = _bent(process, z + process.perturbations) - _bent(process, z)
        errors.append(excess_noise_error(noise, process.perturbations, jacobian))
    assert 0 < errors[2] < errors[1] < errors[0] < 0.1
    assert errors[0] / errors[1] == pytest.approx(2, abs=0.3)
    assert errors[1] / errors[2] == pytest.approx(2, abs=0.3)


def _bent(process: Process, z: Tensor) -> Tensor:
    x = process.observe(z) @ process.mixing
    return x[:, :3] + 0.3 * x[:, 3:]


def test_information_of_a_latent_is_that_of_the_formula() -> None:
    # P(y = 1 | z_i) = Phi(r_i z_i / rest), with the rest of the rule as noise
    z = normal(N, 3)
    y, cells = (z @ RULE.double() > 0).long(), assign_bins(z, bin_edges(z, 64))
    u = torch.linspace(-8, 8, 20001, dtype=torch.float64)
    density = torch.exp(-(u**2) / 2) / torch.exp(-(u**2) / 2).sum()
    for i, (own, rest) in enumerate(((2.0, 1.0), (1.0, 2.0))):
        expected = 1 - float(density @ binary_entropy(torch.special.ndtr(own * u / rest)))
        assert information(y, cells[i]).mutual == pytest.approx(expected, abs=0.004)
    assert information(y, cells[2]).mutual == pytest.approx(0.0, abs=0.001)


def test_bins_have_equal_mass() -> None:
    z = normal(10_000, 2)
    for cells in assign_bins(z, bin_edges(z, 8)):
        assert torch.bincount(cells).tolist() == pytest.approx([1250] * 8, abs=1)


def test_the_gain_ratio_by_hand_and_at_its_ends() -> None:
    y = torch.tensor([0, 0, 0, 1, 1, 1, 0, 1])
    found = information(y, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    left = float(binary_entropy(torch.tensor(0.25)))
    assert found.ratio == pytest.approx((1 - left) / left, rel=1e-5)
    assert information(y, y + 5).ratio == math.inf
    assert information(y, torch.zeros(8)).ratio == 0.0
    assert information(torch.zeros(8), y).ratio == 0.0


def three_distributions(
    noise: float = 0.3,
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The whole process, a sample in which the second latent agrees with the label, and one with noisy labels."""
    process, z = Process.random(RULE, 0.1, generator()), normal(N, 3, seed=5)
    y = process.label(z)
    keep = biased_sample(y, z[:, 1], 0.9, generator(6))
    return (y, z), (y[keep], z[keep]), (process.label(z + noise * normal(N, 3, seed=7)), z)


def test_a_biased_sample_agrees_as_often_as_it_shall() -> None:
    (y, z), (kept, latents), _ = three_distributions()
    assert float(((latents[:, 1] > 0).long() == kept).double().mean()) == pytest.approx(0.9, abs=0.005)
    with pytest.raises(InputError, match=r"must be at least that of the data"):
        biased_sample(y, z[:, 0], 0.6, generator())


def test_spurious_ratios_find_the_latent_that_was_made_spurious() -> None:
    full, biased, _ = three_distributions()
    ratios = spurious_ratios(biased, full)
    assert ratios.argmax() != 0
    assert ratios[1] > 3 * ratios[0]
    assert spurious_ratios(full, full).tolist() == [0.0, 0.0, 0.0]


def test_label_noise_changes_as_many_labels_as_the_formula_says() -> None:
    (y, _), _, _ = three_distributions()
    for noise in (0.1, 0.3, 1.0):
        _, _, (noisy, _) = three_distributions(noise)
        assert float((noisy != y).double().mean()) == pytest.approx(flip_rate(noise), abs=0.004)


def test_proposition_4_4_is_off_by_what_noise_leaves_open_and_holds_as_it_goes_to_0() -> None:
    gaps = []
    for noise in (1.0, 0.3, 0.1, 0.03):
        _, (kept, latents), (noisy, z) = three_distributions(noise)
        sides = []
        for y, points in ((kept, latents), (noisy, z)):
            score = (points @ RULE.double())[:, None]  # y depends on z through this alone, so it carries all of I(y, z)
            edges = torch.cat([bin_edges(score, 200), torch.zeros(1, 1, dtype=torch.float64)], dim=1).sort().values
            sides.append(information(y, assign_bins(score, edges)[0]))
        assert sides[0].conditional_entropy == pytest.approx(
            0.0, abs=1e-9
        )  # labels of a biased sample are a function of z
        assert sides[1].conditional_entropy == pytest.approx(conditional_entropy_of_noise(noise), abs=0.01)
        gaps.append(sides[0].mutual - sides[1].mutual)
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.7  # bits of 1
    assert gaps[-1] < 0.05


def test_corollary_4_5_does_not_hold() -> None:
    # a biased sample makes the second latent say more, noisy labels make the first say less, at any level of noise
    for noise in (0.3, 0.1):
        full, biased, noisy = three_distributions(noise)
        spur, miss = spurious_ratios(biased, full), spurious_ratios(noisy, full)
        assert spur[1] > 1
        assert miss[1] < 0.2
        assert spur[1] / spur[0] > 3 > miss[1] / miss[0]


def test_tables_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"true and learned latents must be of the same examples"):
        affine_fit(normal(5, 2), normal(4, 2))
    with pytest.raises(InputError, match=r"learned latents must be a table of at least 2 rows"):
        mean_correlation(normal(5, 2), torch.ones(5))


def test_a_latent_that_says_nothing_has_an_infinite_ratio_after_rounding_too() -> None:
    for n in (3, 5, 7, 11):
        z = torch.tensor([[0.0], [1.0]]).repeat(n, 1)
        independent = torch.arange(n).repeat_interleave(2) % 2
        assert spurious_ratios((z[:, 0].long(), z), (independent, z), bins=2).tolist() == [math.inf]


def test_a_latent_that_gives_the_label_away_has_an_infinite_ratio_after_rounding_too() -> None:
    for n in range(10, 40):
        cells = torch.arange(n) % 6  # summed in another order, the same entropy differs by 1e-16 bits
        found = information(cells % 3, cells)
        assert (found.conditional_entropy, found.ratio) == (0.0, math.inf)


@pytest.mark.parametrize("n", range(3, 12))
def test_a_constant_is_one_whatever_its_mean_rounds_to(n: int) -> None:
    few, many = torch.full((n, 1), 0.1, dtype=torch.float64), torch.full((n, 1), 0.7, dtype=torch.float64)
    assert mean_correlation(few, many) == 0.0
    assert affine_fit(normal(n, 2), few).r2 == 1.0


def test_little_noise_leaves_little_open() -> None:
    # for small s the density is flat where the entropy is not 0, so that halving the noise halves the bits
    assert conditional_entropy_of_noise(1e-5) == pytest.approx(conditional_entropy_of_noise(1e-3) / 100, rel=1e-5)
    assert conditional_entropy_of_noise(1e6) == pytest.approx(1.0)


def test_data_that_all_agree_hold_no_biased_sample() -> None:
    z = torch.ones(4)
    with pytest.raises(InputError, match="must be at least that of the data"):
        biased_sample(torch.ones(4, dtype=torch.long), z, 0.9, torch.Generator())
