r"""NeuronTune theory: the closed forms behind it, for data in which every weight and every score can be computed.

Zheng, Ye and Zhang, 2025, arXiv:2505.24048, section 4.1 and appendix A.2. With unit vectors :math:`\beta, \gamma`,

.. math:: y = \beta^T x_{core} + \varepsilon_{core}, \qquad x_{spu} = (2a - 1) \gamma y + \varepsilon_{spu}, \qquad
    a \sim \mathrm{Bern}(p),

and the model :math:`x_{core}^T u_{core} + x_{spu}^T u_{spu}` is trained by least squares. All weights then lie along
:math:`\beta` and :math:`\gamma`, and the functions below return these two coefficients.

Lemma 1 as printed is the limit in which the core component varies little, :math:`S = E(\beta^T x_{core})^2 \to 0`, or
the shortcut always holds, :math:`p = 1`: its proof drops two terms that cannot both be 0 elsewhere.
:func:`least_squares` is the optimum for every :math:`S` and :math:`p`. In both, the weight of the shortcut grows with
:math:`p` and with the noise of the core component.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NeuronModel:
    """How often the shortcut holds, and how noisy both components are."""

    p: float = 0.95
    core: float = 1.0  # eta_core^2, a variance
    spurious: float = 0.01  # eta_spu^2, a variance
    signal: float = 1.0  # S, the second moment of beta^T x_core

    @property
    def held(self) -> float:
        """How much more often the shortcut holds than not, ``2p - 1``."""
        return 2 * self.p - 1


def lemma_1(model: NeuronModel) -> tuple[float, float]:
    """Return the weights along beta and gamma as the paper has them, equations 12 and 13.

    Example:
        >>> lemma_1(NeuronModel(p=1.0, core=3.0, spurious=1.0))
        (0.25, 0.75)
    """
    z = model.held * model.core / (model.core + model.spurious)
    return 1 - z, z


def least_squares(model: NeuronModel) -> tuple[float, float]:
    r"""Return the weights along beta and gamma that minimise the expected squared error.

    .. math:: z = \frac{q \eta_{core}^2}{S (1 - q^2) + \eta_{core}^2 + \eta_{spu}^2}, \quad u = 1 - q z, \quad q = 2p-1

    Example:
        >>> least_squares(NeuronModel(p=1.0, core=3.0, spurious=1.0)) == lemma_1(NeuronModel(1.0, 3.0, 1.0))
        True
    """
    q = model.held
    z = q * model.core / (model.signal * (1 - q * q) + model.core + model.spurious)
    return 1 - q * z, z


def theorem_4_2(mu: float, along_gamma: Tensor) -> Tensor:
    r"""Return the score of every neuron for the label :math:`\mu`: :math:`-2 \mu \gamma^T w_{spu,i}`.

    For the label :math:`-\mu` it has the other sign, so that of signed activations one of the two labels selects
    every neuron: the reason why their size is taken.
    """
    return -2 * mu * along_gamma


def absolute_score(mu: float, along_beta: Tensor, along_gamma: Tensor) -> Tensor:
    r"""Return the score of every neuron where the size of its activation counts, for either label.

    Around :math:`\mu (b + g)` where the shortcut holds and :math:`\mu (b - g)` where it does not, with
    :math:`b = \beta^T w_{core,i}` and :math:`g = \gamma^T w_{spu,i}`: above 0 where the two have different signs.

    Example:
        >>> absolute_score(1.0, torch.tensor([1.0, 1.0]), torch.tensor([0.5, -0.25]))
        tensor([-1.0000,  0.5000])
    """
    return mu * ((along_beta - along_gamma).abs() - (along_beta + along_gamma).abs())


def lemma_2(model: NeuronModel, mu: float, spread: float) -> tuple[float, float]:
    r"""Return the share of hits for which the shortcut holds, and the share of mistakes for which it does not.

    Equations 44 and 47 for the weights of :func:`lemma_1`, with ``spread`` the variance of :math:`\beta^T x_{core}`
    within a label. The paper's conditions make both more than a half.
    """
    u, z = lemma_1(model)
    noise = (model.core + model.spurious) * z * z
    right = torch.special.ndtr(
        torch.tensor(
            [
                mu * (u + z) / ((u + z) ** 2 * spread + noise) ** 0.5,  # u + z = 1
                mu * (u - z) / ((u - z) ** 2 * spread + noise) ** 0.5,  # u - z = 1 - 2z
            ],
            dtype=torch.float64,
        )
    )
    holds, fails = model.p * right, (1 - model.p) * (1 - right)
    hits = holds[0] + (1 - model.p) * right[1]
    mistakes = model.p * (1 - right[0]) + fails[1]
    return float(holds[0] / hits), float(fails[1] / mistakes)
