r"""Planted: two Gaussian features, one causal and one spurious, with every group accuracy known.

With signs :math:`s_y, s_a \in \{-1, +1\}` of the label and of the attribute,

.. math:: x = (s_y \mu_{core}, s_a \mu_{spur}) + \varepsilon, \qquad \varepsilon \sim N(0, I_2),

and :math:`P(a = y) = \rho` on the train split, :math:`1/2` elsewhere. A linear rule
:math:`\mathrm{sign}(w \cdot x)` is then right in group :math:`(y, a)` with probability

.. math:: \Phi\big( (w_{core} \mu_{core} + s_y s_a w_{spur} \mu_{spur}) / \lVert w \rVert \big).

Tests compare the package against this line, not against yesterday's output.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.card import Card, Dataset
from spurless.data.grouped import Grouped, Splits
from spurless.data.limits import check_least, check_shares

GROUPS = Groups(labels=("minus", "plus"), attributes=("left", "right"))
CARD = Card(
    name="planted",
    summary="Two Gaussian features, one causal and one spurious; every group accuracy of a linear rule is known.",
    input="2 numbers: core, spurious",
    label="the sign of the core feature's mean",
    attribute="the sign of the spurious feature's mean; right goes with plus",
    splits="train 2,000 (agreement 0.95), val and test 2,000 (agreement 0.5)",
    source="drawn by formula",
    licence="Apache-2.0, with this package",
    citation="none: made for this package",
)


@dataclass(frozen=True)
class PlantedConfig:
    """How strong each feature is and how often the attribute agrees with the label; all values are ours."""

    core: float = 1.0  # mu_core
    spurious: float = 2.0  # mu_spur
    agreement: float = 0.95  # rho, of the train split
    n_train: int = 2000
    n_val: int = 2000
    n_test: int = 2000
    seed: int = 0


DEFAULT = PlantedConfig()


def planted(config: PlantedConfig = DEFAULT) -> Splits:
    """Draw the three splits."""
    _check(config)
    seeds = Seeds(config.seed)
    return Splits(
        _draw(config, config.n_train, config.agreement, seeds.generator("train")),
        _draw(config, config.n_val, 0.5, seeds.generator("val")),
        _draw(config, config.n_test, 0.5, seeds.generator("test")),
        name=CARD.name,
        options=asdict(config),
    )


def planted_accuracy(w: Tensor, config: PlantedConfig = DEFAULT) -> Tensor:
    """Return the exact accuracy of ``sign(w @ x)`` in each group.

    Example:
        >>> planted_accuracy(torch.tensor([1.0, 0.0]))  # Phi(1), whatever the attribute
        tensor([0.8413, 0.8413, 0.8413, 0.8413])
    """
    y, a = GROUPS.decode(torch.arange(len(GROUPS)))
    agree = (2 * y - 1) * (2 * a - 1)
    margin = (w[0] * config.core + agree * w[1] * config.spurious) / w.norm()
    accuracy: Tensor = torch.special.ndtr(margin)
    return accuracy


def erm_optimum(config: PlantedConfig = DEFAULT) -> Tensor:
    r"""Return the weights ``(w_core, w_spur)`` that minimise the logistic loss over the train population.

    The label's sign can be taken out of the features: with :math:`z = s_y x`,

    .. math:: \min_w E \log(1 + e^{-w \cdot z}), \qquad z = (\mu_{core}, s \mu_{spur}) + \varepsilon,

    where :math:`s = s_y s_a` is +1 with probability :math:`\rho`. An intercept would be 0: the two labels
    are equally frequent and their features mirror each other. The loss is strictly convex, and Newton's
    method finds its minimum, with the expectation over :math:`\varepsilon` as a sum over a grid. At
    :math:`\rho = 1` the result is :math:`2 (\mu_{core}, \mu_{spur})`, at :math:`1/2` it is :func:`robust_optimum`.
    Tested up to strength 8; far beyond, no error is left on the grid to balance the loss.
    """
    _check(config)
    z, weight = _population(config)
    w = torch.zeros(2, dtype=torch.double)
    for _ in range(100):  # from 0 full steps converge; about 10 are enough, 64 at strength 8
        miss = torch.sigmoid(-z @ w)
        gradient = -(weight * miss) @ z
        curvature = (z.T * (weight * miss * (1 - miss))) @ z
        step = torch.linalg.solve(curvature, gradient)
        w = w - step
        if step.abs().max() < 1e-12:
            break
    return w


def robust_optimum(config: PlantedConfig = DEFAULT) -> Tensor:
    r"""Return the weights that minimise the logistic loss of the worst group: :math:`(2 \mu_{core}, 0)`.

    Proof. The groups have two losses only, that of agreement :math:`L_+(w)` and that of disagreement
    :math:`L_-(w)`, with :math:`s = \pm 1` in :func:`erm_optimum`. As :math:`\varepsilon` is symmetric,
    :math:`L_+(w_{core}, w_{spur}) = L_-(w_{core}, -w_{spur})`, so :math:`F = \max(L_+, L_-)` is even in
    :math:`w_{spur}`. It is also strictly convex, whence

    .. math:: F(w_{core}, 0) < \tfrac12 F(w_{core}, w_{spur}) + \tfrac12 F(w_{core}, -w_{spur})
              = F(w_{core}, w_{spur}), \qquad w_{spur} \ne 0.

    So the minimum ignores the spurious feature. What is left is to tell :math:`N(\mu_{core}, 1)` from
    :math:`N(-\mu_{core}, 1)`, whose log odds are :math:`2 \mu_{core} x`: a linear model that holds the
    true odds minimises the logistic loss. Every group accuracy is then :math:`\Phi(\mu_{core})`.
    """
    _check(config)
    return torch.tensor([2 * config.core, 0.0], dtype=torch.double)


def _draw(config: PlantedConfig, n: int, agreement: float, generator: torch.Generator) -> Grouped:
    y = torch.randint(2, (n,), generator=generator)
    a = torch.where(torch.rand(n, generator=generator) < agreement, y, 1 - y)
    mean = torch.stack([(2 * y - 1) * config.core, (2 * a - 1) * config.spurious], dim=1)
    return Grouped(mean + torch.randn(n, 2, generator=generator), y, a, GROUPS)


def _population(config: PlantedConfig) -> tuple[Tensor, Tensor]:
    """Return points ``z`` and their weights, which stand for the signed population."""
    # On a smooth integrand with Gaussian tails an even grid is exact to many digits. 100 Gauss-Hermite nodes are
    # not: they miss the optimum by 3e-4 at strength 3, where the logistic loss bends sharply between them.
    points = torch.linspace(-12, 12, 321, dtype=torch.double)
    density = torch.exp(-(points**2) / 2)
    noise = torch.cartesian_prod(points, points)
    share = torch.outer(density, density).flatten() / density.sum() ** 2
    agree = noise + torch.tensor([config.core, config.spurious])
    disagree = noise + torch.tensor([config.core, -config.spurious])
    return torch.cat([agree, disagree]), torch.cat([config.agreement * share, (1 - config.agreement) * share])


def _check(config: PlantedConfig) -> None:
    check_shares(CARD, config, "agreement")
    if not config.core > 0 or not config.spurious >= 0:
        raise BadInput(
            "option 'core' must be above 0 and option 'spurious' not below it",
            where=CARD.name,
            got=f"{config.core} and {config.spurious}",
        )
    check_least(CARD, config, n_train=1, n_val=1, n_test=1)


DATASET = Dataset(card=CARD, config=PlantedConfig, make=planted)
