r"""Identification: are the latents found, and what do wrong data do to what each latent says about the label?

Malik and Fern, "Frequency based pruning improves latent identification and generalization", sections 3 and 4, after
Ahuja, Hartford and Bengio, "Weakly supervised representation learning with sparse perturbations", NeurIPS 2022. Latents
:math:`z` make inputs :math:`x = g(z)`, with g injective and analytic; inputs are seen perturbed, labels are not:

.. math:: \tilde x_i = g(z + \delta_i), \qquad y = h(z).

A feature extractor that is best under diverse perturbations finds :math:`\hat z = A z + C` (theorem 3.6).

What was read into the paper:
    * h maps to labels "bijectively"; here :math:`y = [\, r \cdot z > 0 \,]`, for which there is no inverse.
    * "Identified" is measured in both directions. That :math:`\hat z` is affine in z is what the theorem says, and a
      constant fulfils it; that z is affine in :math:`\hat z` is what identification is for, and needs A of full rank.
    * :math:`E_{z \sim D}[J(y, z_i)]` in definition 3.10 is J under the distribution D: information and entropy are
      expectations already. Latents are cut into bins of equal mass under D, the same for both distributions.
    * :math:`\mathcal I(y \mid z)` in proposition 4.4 is :math:`\mathcal I(y, z) = H(y) - H(y \mid z)`, as in its proof.
    * The noise of definition 4.2 is normal, and "m" is taken as a share: of the labels that it changes.

What holds: proposition 4.4 is no equality. Labels of a biased sample are still a function of z, so :math:`H(y \mid z) =
0` there, and under label noise it is not: the two sides differ by :math:`H_{miss}(y \mid z)`, which goes to 0 with the
noise. Corollary 4.5 does not follow and does not hold: a biased sample changes what the spurious latent says, label
noise what the core latent says. The tests measure both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import acos, log, pi, sqrt

import torch
from torch import Tensor

from spurless.core.errors import BadInput

ROUNDING = 1e-12  # bits that are none: entropies that are equal differ by this much


@dataclass(frozen=True, eq=False)
class Process:
    r"""The data-generating process, assumption 3.1, with an injective analytic g that can be undone.

    .. math:: g(z) = W \, (z, \tanh V z), \qquad W^T W = I, \qquad g^{-1}(x) = (W^T x)_{1 \dots d}.
    """

    mixing: Tensor  # W, (inputs, 2 d)
    bend: Tensor  # V, (d, d)
    rule: Tensor  # r, (d,): the label is the sign of r z
    perturbations: Tensor  # delta, (m, d)

    @classmethod
    def drawn(cls, rule: Tensor, size: float, generator: torch.Generator) -> Process:
        """Draw g, and as many perturbations of norm ``size`` as there are latents, which makes them diverse."""
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

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw normal latents; return them, which perturbation each met, the perturbed inputs and the labels."""
        z = _normal((n, len(self.rule)), generator)
        met = torch.randint(len(self.perturbations), (n,), generator=generator)
        return z, met, self.observe(z + self.perturbations[met]), self.label(z)


def span(perturbations: Tensor) -> int:
    """Return how many dimensions perturbations span; diverse (assumption 3.3) is as many as there are latents.

    Example:
        >>> span(torch.tensor([[1.0, 0.0], [2.0, 0.0]]))
        1
    """
    return int(torch.linalg.matrix_rank(perturbations.double()))


@dataclass(frozen=True, eq=False)
class Affine:
    """The affine map between true and learnt latents that fits best by least squares, theorem 3.6."""

    matrix: Tensor  # A, (learnt, true)
    offset: Tensor  # C
    r2: float
    """how much of the learnt latents is an affine function of the true ones; what the theorem says"""
    recovered: float
    """how much of the true latents is an affine function of the learnt ones; 1 is identification"""

    @property
    def rank(self) -> int:
        """The rank of A; less than the latents is what equation 6 warns of."""
        return int(torch.linalg.matrix_rank(self.matrix, rtol=1e-6))


def affine_fit(true: Tensor, learnt: Tensor) -> Affine:
    r"""Fit :math:`\hat z = A z + C`, and z by :math:`\hat z`.

    Both have one row per example. R2 is over all coordinates together; constants are explained by any map, and have 1.

    Example:
        >>> z = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
        >>> fit = affine_fit(z, z[:, :1] * 3 + 2)  # the second latent is lost
        >>> fit.r2, fit.recovered, fit.rank
        (1.0, 0.5, 1)
    """
    true, learnt = _matrix(true, "true"), _matrix(learnt, "learnt")
    if len(true) != len(learnt):
        raise BadInput("true and learnt latents must be of the same examples", got=f"{len(true)} and {len(learnt)}")
    matrix, r2 = _least_squares(true, learnt)
    _, recovered = _least_squares(learnt, true)
    return Affine(matrix, learnt.mean(dim=0) - matrix @ true.mean(dim=0), r2, recovered)


def mean_correlation(true: Tensor, learnt: Tensor) -> float:
    r"""Return the MCC: the mean absolute correlation of true and learnt latents under the best matching.

    .. math:: \max_\pi \frac1d \sum_i |\mathrm{corr}(z_i, \hat z_{\pi(i)})|

    1 where every latent is found up to order, sign and scale, which is more than up to an affine map. A true latent
    without a partner, and a constant, count as 0.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, -1.0], [4.0, 0.5]])
        >>> round(mean_correlation(z, -2 * z.flip(1) + 7), 6)
        1.0
    """
    from scipy.optimize import linear_sum_assignment

    true, learnt = (z - z[0] for z in (_matrix(true, "true"), _matrix(learnt, "learnt")))  # constants: exactly 0
    table = torch.corrcoef(torch.cat([true, learnt], dim=1).T)[: true.shape[1], true.shape[1] :].abs().nan_to_num(0.0)
    rows, columns = linear_sum_assignment(table.numpy(), maximize=True)
    return float(table[rows, columns].sum()) / true.shape[1]


def excess_noise_error(noise: Tensor, perturbations: Tensor, matrix: Tensor) -> float:
    r"""Return how far the excess noise is from :math:`\Upsilon = A \Delta`, proposition 3.8, as a share of its size.

    The rows of ``noise`` are :math:`v_i = f(\tilde x_i) - f(x_i)`. 0 where f after g is affine, and of the order of the
    perturbations where it is smooth.

    Example:
        >>> delta, swap = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 3.0], [1.0, 0.0]])
        >>> excess_noise_error(delta @ swap.T, delta, swap)
        0.0
    """
    expected = perturbations.double() @ matrix.double().T
    return float((noise.double() - expected).norm() / noise.double().norm())


@dataclass(frozen=True)
class Information:
    """What a discrete variable says about the label, in bits."""

    label: float  # H(y)
    left: float  # H(y | z)

    @property
    def mutual(self) -> float:
        """I(y, z)."""
        return found if (found := self.label - self.left) > ROUNDING else 0.0

    @property
    def ratio(self) -> float:
        """J = I(y, z) / H(y | z), the information gain ratio of definition 3.10; infinite where z gives y away."""
        return self.mutual / self.left if self.left > 0 else float("inf") if self.mutual > 0 else 0.0


def information(y: Tensor, cells: Tensor) -> Information:
    """Return what the cell of an example says about its label, by counting; with few examples per cell, too much.

    Example:
        >>> found = information(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
        >>> round(found.label, 3), round(found.left, 3), round(found.mutual, 3)
        (1.0, 0.689, 0.311)
    """
    _, y = torch.unique(y, return_inverse=True)
    _, cells = torch.unique(cells, return_inverse=True)
    rows, columns = int(y.max()) + 1, int(cells.max()) + 1
    joint = torch.bincount(y * columns + cells, minlength=rows * columns).double().view(rows, columns) / len(y)
    left = _entropy(joint.flatten()) - _entropy(joint.sum(dim=0))
    return Information(_entropy(joint.sum(dim=1)), left if left > ROUNDING else 0.0)


def edges_of(z: Tensor, bins: int) -> Tensor:
    """Return the inner edges of bins of equal mass for every latent, shape ``(d, bins - 1)``."""
    place = torch.linspace(0, len(z) - 1, bins + 1, dtype=torch.float64)[1:-1]
    ordered = z.double().sort(dim=0).values
    return torch.lerp(ordered[place.floor().long()], ordered[place.ceil().long()], place.frac()[:, None]).T.contiguous()


def binned(z: Tensor, edges: Tensor) -> Tensor:
    """Return the bin of every latent of every example, one row per latent."""
    return torch.stack([torch.bucketize(own, cut) for own, cut in zip(z.double().T.contiguous(), edges, strict=True)])


def spurious_ratios(observed: tuple[Tensor, Tensor], full: tuple[Tensor, Tensor], bins: int = 16) -> Tensor:
    r"""Return the spurious ratio of every latent, definition 3.10, equation 8.

    .. math:: \beta_i = \frac{|J_{\tilde D}(y, z_i) - J_D(y, z_i)|}{J_D(y, z_i)}, \qquad
        J(y, z_i) = \frac{\mathcal I(y, z_i)}{H(y \mid z_i)}

    With predictions in the place of labels these are the learnt ratios, equation 9. A latent that says nothing under D
    has an infinite ratio as soon as it says anything under the observed distribution. Where a latent gives the label
    away under D, J is infinite and the ratio is not a number, unless it does so in both.

    Args:
        observed: labels ``(N,)`` and latents ``(N, d)`` drawn from the observed distribution.
        full: labels and latents drawn from the whole process.
        bins: per latent, of equal mass under the whole process.

    Example:
        >>> z = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
        >>> whole = torch.tensor([0, 1, 0, 1]), z
        >>> spurious_ratios((torch.tensor([0, 0, 1, 1]), z), whole, bins=2)
        tensor([inf], dtype=torch.float64)
    """
    edges = edges_of(full[1], bins)
    seen, true = (
        torch.tensor([information(y, cells).ratio for cells in binned(z, edges)], dtype=torch.float64)
        for y, z in (observed, full)
    )
    return torch.where(seen == true, 0.0, (seen - true).abs() / true)


def biased_sample(y: Tensor, spurious: Tensor, agreement: float, generator: torch.Generator) -> Tensor:
    r"""Return which examples a biased sample keeps, definition 4.1: all with :math:`[z_j > 0] = y`, few of the others.

    The others are kept with the probability that makes the share ``agreement`` agree. Labels stay as they are.
    """
    agree = (spurious > 0).long() == y
    share = float(agree.double().mean())
    if share > agreement or share == 1:
        raise BadInput(
            "the data agree more than a biased sample shall", expected=f"at least {share:.3g}", got=agreement
        )
    return agree | (torch.rand(len(y), generator=generator) < share * (1 - agreement) / (agreement * (1 - share)))


def flip_rate(noise: float) -> float:
    r"""Return the share of labels that the noise of definition 4.2 changes: :math:`\arccos(1 / \sqrt{1 + s^2}) / \pi`.

    For :math:`y = h(z + \eta)` with standard normal z and :math:`\eta \sim N(0, s^2 I)`, whatever the rule.

    Example:
        >>> round(flip_rate(1.0), 6)
        0.25
    """
    return acos(1 / sqrt(1 + noise**2)) / pi


def left_by_noise(noise: float) -> float:
    r"""Return :math:`H_{miss}(y \mid z)` in bits, by which the two sides of proposition 4.4 differ.

    .. math:: E \, H_2(\Phi(u / s)), \qquad u = r \cdot z / \lVert r \rVert \sim N(0, 1),

    by a sum over a fine grid of :math:`u / s`. 0 without noise, where the proposition is an equality.

    Example:
        >>> [round(left_by_noise(noise), 3) for noise in (0.0, 0.1, 1.0)]
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
    centred, wanted = (z - z[0] - (z - z[0]).mean(dim=0) for z in (source, target))  # the mean of many 0.1 is not 0.1
    solution = torch.linalg.lstsq(centred, wanted, driver="gelsd").solution  # of least norm where ranks lack
    total = float(wanted.square().sum())
    r2 = 1.0 if total == 0 else 1 - float((wanted - centred @ solution).square().sum()) / total
    return solution.T, r2


def _entropy(p: Tensor) -> float:
    return float(-torch.special.xlogy(p, p).sum()) / log(2)


def _matrix(z: Tensor, name: str) -> Tensor:
    if z.dim() != 2 or len(z) < 2:
        raise BadInput(f"{name} latents must be a table of at least 2 rows", got=tuple(z.shape))
    return z.detach().double().cpu()


def _normal(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
