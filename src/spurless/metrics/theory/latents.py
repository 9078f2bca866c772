r"""Theory of activation-variability pruning (AVP): identification of latents, and spurious ratios.

It measures whether a learned representation identifies the true latents, and how a biased sample or label noise changes
the information of each latent about the label. The claims on AVP's theory are tested with it.

Malik and Fern, "Frequency based pruning improves latent identification and generalization", sections 3 and 4, after
Ahuja, Hartford and Bengio, "Weakly supervised representation learning with sparse perturbations", NeurIPS 2022. Latents
:math:`z` generate inputs :math:`x = g(z)`, with g injective and analytic; inputs are perturbed, labels are not:

.. math:: \tilde x_i = g(z + \delta_i), \qquad y = h(z).

The optimal feature extractor under diverse perturbations is :math:`\hat z = A z + C` (theorem 3.6).

Our interpretation of the paper:
    * h maps to labels "bijectively"; here :math:`y = [\, r \cdot z > 0 \,]`, which has no inverse.
    * Identification is measured in both directions. The theorem states that :math:`\hat z` is affine in z, which a
      constant satisfies; identification requires that z is affine in :math:`\hat z`, so A must have full rank.
    * :math:`E_{z \sim D}[J(y, z_i)]` in definition 3.10 is J under the distribution D: information and entropy are
      already expectations. Latents are binned into bins of equal mass under D, the same for both distributions.
    * :math:`\mathcal I(y \mid z)` in proposition 4.4 is :math:`\mathcal I(y, z) = H(y) - H(y \mid z)`, as in its proof.
    * The noise of definition 4.2 is normal, and "m" is the fraction of labels that it changes.

Result: proposition 4.4 is not an equality. Labels of a biased sample are still a function of z, so :math:`H(y \mid z) =
0`, but under label noise it is not: the two sides differ by :math:`H_{miss}(y \mid z)`, which goes to 0 with the noise.
Corollary 4.5 does not follow and does not hold: a biased sample changes the information of the spurious latent, label
noise that of the core latent. The tests measure both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import acos, log, pi, sqrt

import torch
from torch import Tensor

from spurless.core.errors import InputError

ROUNDING_TOLERANCE = 1e-12  # bits; entropies that differ by less are equal


@dataclass(frozen=True, eq=False)
class Process:
    r"""The data-generating process, assumption 3.1, with an injective analytic g that can be inverted.

    .. math:: g(z) = W \, (z, \tanh V z), \qquad W^T W = I, \qquad g^{-1}(x) = (W^T x)_{1 \dots d}.
    """

    mixing: Tensor  # W, (inputs, 2 d)
    bend: Tensor  # V, (d, d)
    rule: Tensor  # r, (d,): the label is the sign of r z
    perturbations: Tensor  # delta, (m, d)

    @classmethod
    def random(cls, rule: Tensor, size: float, generator: torch.Generator) -> Process:
        """Sample g, and as many perturbations of norm ``size`` as there are latents, which makes them diverse."""
        d = len(rule)
        mixing, _ = torch.linalg.qr(_normal((2 * d, 2 * d), generator))
        delta = _normal((d, d), generator)
        return cls(mixing, _normal((d, d), generator), rule.double(), size * delta / delta.norm(dim=1, keepdim=True))

    def observe(self, z: Tensor) -> Tensor:
        """Return the inputs g(z)."""
        return torch.cat([z, torch.tanh(z @ self.bend.T)], dim=1) @ self.mixing.T

    def invert(self, x: Tensor) -> Tensor:
        """Return the latents of inputs."""
        return (x @ self.mixing)[:, : len(self.rule)]

    def label(self, z: Tensor) -> Tensor:
        """Return the labels h(z), 0 or 1."""
        return (z @ self.rule > 0).long()

    def sample(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Sample normal latents; return them, the index of their perturbation, the perturbed inputs and the labels."""
        z = _normal((n, len(self.rule)), generator)
        index = torch.randint(len(self.perturbations), (n,), generator=generator)
        return z, index, self.observe(z + self.perturbations[index]), self.label(z)


def spanned_dimensions(perturbations: Tensor) -> int:
    """Return how many dimensions perturbations span; they are diverse (assumption 3.3) if it is that of the latents.

    Example:
        >>> spanned_dimensions(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
        1
    """
    return int(torch.linalg.matrix_rank(perturbations.double()))


@dataclass(frozen=True, eq=False)
class Affine:
    """The least-squares affine map from true to learned latents, theorem 3.6."""

    matrix: Tensor  # A, (learned, true)
    offset: Tensor  # C
    r2: float  # R squared of the learned latents as an affine function of the true ones; 1 by the theorem
    recovered: float  # R squared of the true latents as an affine function of the learned ones; 1 is identification

    @property
    def rank(self) -> int:
        """The rank of A; equation 6 warns of a rank below the number of latents."""
        return int(torch.linalg.matrix_rank(self.matrix, rtol=1e-6))


def affine_fit(true: Tensor, learned: Tensor) -> Affine:
    r"""Fit :math:`\hat z = A z + C`, and z as an affine function of :math:`\hat z`.

    Both have one row per example. R squared is over all coordinates together; it is 1 for constants.

    Example:
        >>> z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> fit = affine_fit(z, z[:, :1] * 3 + 2)  # the second latent is lost
        >>> fit.r2, fit.recovered, fit.rank
        (1.0, 0.5, 1)
    """
    true, learned = _matrix(true, "true"), _matrix(learned, "learned")
    if len(true) != len(learned):
        raise InputError("true and learned latents must be of the same examples", got=f"{len(true)} and {len(learned)}")
    matrix, r2 = _least_squares(true, learned)
    _, recovered = _least_squares(learned, true)
    return Affine(matrix, learned.mean(dim=0) - matrix @ true.mean(dim=0), r2, recovered)


def mean_correlation(true: Tensor, learned: Tensor) -> float:
    r"""Return the MCC: the mean absolute correlation of true and learned latents under the best matching.

    .. math:: \max_\pi \frac1d \sum_i |\mathrm{corr}(z_i, \hat z_{\pi(i)})|

    It is 1 if every latent is identified up to order, sign and scale, which is stronger than up to an affine map. A
    true latent without a partner, and a constant, count as 0.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, -1.0], [4.0, 0.5]])
        >>> round(mean_correlation(z, -2 * z.flip(1) + 7), 6)
        1.0
    """
    from scipy.optimize import linear_sum_assignment

    # the differences from the first row make constants exactly 0
    true, learned = (z - z[0] for z in (_matrix(true, "true"), _matrix(learned, "learned")))
    table = torch.corrcoef(torch.cat([true, learned], dim=1).T)[: true.shape[1], true.shape[1] :].abs().nan_to_num(0.0)
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return float(table[rows, columns].sum()) / true.shape[1]


def excess_noise_error(noise: Tensor, perturbations: Tensor, matrix: Tensor) -> float:
    r"""Return the relative distance of the excess noise from :math:`\Upsilon = A \Delta`, proposition 3.8.

    The rows of ``noise`` are :math:`v_i = f(\tilde x_i) - f(x_i)`. The distance is 0 if f after g is affine, and of the
    order of the perturbations if it is smooth.

    Example:
        >>> delta, swap = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 3.0], [1.0, 0.0]])
        >>> excess_noise_error(delta @ swap.T, delta, swap)
        0.0
    """
    expected = perturbations.double() @ matrix.double().T
    return float((noise.double() - expected).norm() / noise.double().norm())


@dataclass(frozen=True)
class Information:
    """The information of a discrete variable about the label, in bits."""

    label_entropy: float  # H(y)
    conditional_entropy: float  # H(y | z)

    @property
    def mutual(self) -> float:
        """I(y, z)."""
        mutual = self.label_entropy - self.conditional_entropy
        return mutual if mutual > ROUNDING_TOLERANCE else 0.0

    @property
    def ratio(self) -> float:
        """J = I(y, z) / H(y | z), the information gain ratio of definition 3.10; infinite if z determines y."""
        if self.conditional_entropy > 0:
            return self.mutual / self.conditional_entropy
        return float("inf") if self.mutual > 0 else 0.0


def information(y: Tensor, cells: Tensor) -> Information:
    """Estimate the information of cells about labels by counting; it is too high with few examples per cell.

    Example:
        >>> result = information(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
        >>> round(result.label_entropy, 3), round(result.conditional_entropy, 3), round(result.mutual, 3)
        (1.0, 0.689, 0.311)
    """
    _, y = torch.unique(y, return_inverse=True)
    _, cells = torch.unique(cells, return_inverse=True)
    rows, columns = int(y.max()) + 1, int(cells.max()) + 1
    joint = torch.bincount(y * columns + cells, minlength=rows * columns).double().view(rows, columns) / len(y)
    conditional = _entropy(joint.flatten()) - _entropy(joint.sum(dim=0))
    return Information(_entropy(joint.sum(dim=1)), conditional if conditional > ROUNDING_TOLERANCE else 0.0)


def bin_edges(z: Tensor, bins: int) -> Tensor:
    """Return the inner edges of bins of equal mass for every latent, shape ``(d, bins - 1)``."""
    rank = torch.linspace(0, len(z) - 1, bins + 1, dtype=torch.float64)[1:-1]
    ordered = z.double().sort(dim=0).values
    return torch.lerp(ordered[rank.floor().long()], ordered[rank.ceil().long()], rank.frac()[:, None]).T.contiguous()


def assign_bins(z: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of every latent of every example, one row per latent."""
    columns = zip(z.double().T.contiguous(), edges, strict=True)
    return torch.stack([torch.bucketize(values, inner) for values, inner in columns])


def spurious_ratios(observed: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor], bins: int = 16) -> Tensor:
    r"""Return the spurious ratio of every latent, definition 3.10, equation 8.

    .. math:: \beta_i = \frac{|J_{\tilde D}(y, z_i) - J_D(y, z_i)|}{J_D(y, z_i)}, \qquad
        J(y, z_i) = \frac{\mathcal I(y, z_i)}{H(y \mid z_i)}

    With predictions instead of labels these are the learned ratios, equation 9. A latent without information under D
    has an infinite ratio if it has any under the observed distribution. If a latent determines the label under D, J is
    infinite and the ratio NaN, unless it does so in both.

    Both samples are labels ``(N,)`` and latents ``(N, d)``, of the observed distribution and of the full process D.

    Example:
        >>> z = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> whole = torch.tensor([0, 1, 0, 1]), z
        >>> spurious_ratios((torch.tensor([0, 0, 1, 1]), z), whole, bins=2)
        tensor([inf], dtype=torch.float64)
    """
    edges = bin_edges(full[1], bins)
    ratio, full_ratio = (
        torch.tensor([information(y, cells).ratio for cells in assign_bins(z, edges)], dtype=torch.float64)
        for y, z in (observed, full)
    )
    return torch.where(ratio == full_ratio, 0.0, (ratio - full_ratio).abs() / full_ratio)


def biased_sample(y: Tensor, spurious: Tensor, agreement: float, generator: torch.Generator) -> Tensor:
    r"""Return the mask of a biased sample, definition 4.1: all examples with :math:`[z_j > 0] = y`, few of the others.

    The others are included with the probability that makes a fraction ``agreement`` of the sample agree.
    """
    agree = (spurious > 0).long() == y
    fraction = float(agree.double().mean())
    if fraction > agreement or fraction == 1:
        expected = f"at least {fraction:.3g}"
        raise InputError("the agreement must be at least that of the data", expected=expected, got=agreement)
    probability = fraction * (1 - agreement) / (agreement * (1 - fraction))
    return agree | (torch.rand(len(y), generator=generator) < probability)


def flip_rate(noise: float) -> float:
    r"""Return the fraction of labels that label noise changes: :math:`\arccos(1 / \sqrt{1 + s^2}) / \pi`.

    Definition 4.2: :math:`y = h(z + \eta)` with standard normal z and :math:`\eta \sim N(0, s^2 I)`, for any rule.

    Example:
        >>> round(flip_rate(1.0), 6)
        0.25
    """
    return acos(1 / sqrt(1 + noise**2)) / pi


def conditional_entropy_of_noise(noise: float) -> float:
    r"""Return :math:`H_{miss}(y \mid z)` in bits, by which the two sides of proposition 4.4 differ.

    .. math:: E \, H_2(\Phi(u / s)), \qquad u = r \cdot z / \lVert r \rVert \sim N(0, 1),

    integrated over a fine grid of :math:`u / s`. It is 0 without noise, when the proposition is an equality.

    Example:
        >>> [round(conditional_entropy_of_noise(noise), 3) for noise in (0.0, 0.1, 1.0)]
        [0.0, 0.103, 0.721]
    """
    if noise == 0:
        return 0.0
    v = torch.linspace(-1, 1, 40001, dtype=torch.float64) * min(8 / noise, 10)
    density = noise * torch.exp(-((noise * v) ** 2) / 2) / sqrt(2 * pi)
    p = torch.special.ndtr(v)
    bits = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p)) / log(2)
    return float(torch.trapezoid(density * bits, v))


def _least_squares(source: Tensor, target: Tensor) -> tuple[Tensor, float]:
    x, y = (z - z[0] - (z - z[0]).mean(dim=0) for z in (source, target))  # the mean of many 0.1 is not exactly 0.1
    solution = torch.linalg.lstsq(x, y, driver="gelsd").solution  # of least norm if the rank is deficient
    total = float(y.square().sum())
    r2 = 1.0 if total == 0 else 1 - float((y - x @ solution).square().sum()) / total
    return solution.T, r2


def _entropy(p: Tensor) -> float:
    return float(-torch.special.xlogy(p, p).sum()) / log(2)


def _matrix(z: Tensor, name: str) -> Tensor:
    if z.dim() != 2 or len(z) < 2:
        raise InputError(f"{name} latents must be a table of at least 2 rows", got=tuple(z.shape))
    return z.detach().double().cpu()


def _normal(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
