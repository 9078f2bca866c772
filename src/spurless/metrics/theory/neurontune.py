r"""Theory of NeuronTune: closed forms of weights and neuron scores for its linear data model.

The tests compare NeuronTune's scores with them.

Zheng, Ye and Zhang, 2025, arXiv:2505.24048, section 4.1 and appendix A.2. With unit vectors :math:`\beta, \gamma`,

.. math:: y = \beta^T x_{core} + \varepsilon_{core}, \qquad x_{spu} = (2a - 1) \gamma y + \varepsilon_{spu}, \qquad
    a \sim \mathrm{Bern}(p),

and the model :math:`x_{core}^T u_{core} + x_{spu}^T u_{spu}` is trained by least squares. All weights are then
multiples of :math:`\beta` and :math:`\gamma`, and the functions below return these two coefficients.

Lemma 1 as printed is the limit in which the core component varies little, :math:`S = E(\beta^T x_{core})^2 \to 0`, or
the shortcut is always right, :math:`p = 1`: its proof drops two terms that are not both 0 otherwise.
:func:`least_squares` is the optimum for every :math:`S` and :math:`p`. In both, the weight of the shortcut grows with
:math:`p` and with the noise of the core component.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NeuronModel:
    """Parameters of the data model: probability of the shortcut, and variances of both components."""

    p: float = 0.95
    core: float = 1.0  # eta_core^2, a variance
    spurious: float = 0.01  # eta_spu^2, a variance
    signal: float = 1.0  # S, the second moment of beta^T x_core

    @property
    def correlation(self) -> float:
        """Correlation of shortcut and label, ``2p - 1``."""
        return 2 * self.p - 1


def lemma_1(model: NeuronModel) -> tuple[float, float]:
    """Return the weights along beta and gamma of the paper's lemma 1, equations 12 and 13.

    Example:
        >>> lemma_1(NeuronModel(p=1.0, core=3.0, spurious=1.0))
        (0.25, 0.75)
    """
    z = model.correlation * model.core / (model.core + model.spurious)
    return 1 - z, z


def least_squares(model: NeuronModel) -> tuple[float, float]:
    r"""Return the weights along beta and gamma that minimise the expected squared error.

    .. math:: z = \frac{q \eta_{core}^2}{S (1 - q^2) + \eta_{core}^2 + \eta_{spu}^2}, \quad u = 1 - q z, \quad q = 2p-1

    Example:
        >>> least_squares(NeuronModel(p=1.0, core=3.0, spurious=1.0)) == lemma_1(NeuronModel(1.0, 3.0, 1.0))
        True
    """
    q = model.correlation
    z = q * model.core / (model.signal * (1 - q * q) + model.core + model.spurious)
    return 1 - q * z, z


def theorem_4_2(mu: float, along_gamma: Tensor) -> Tensor:
    r"""Return the score of every neuron for the label :math:`\mu`: :math:`-2 \mu \gamma^T w_{spu,i}`.

    For the label :math:`-\mu` it has the opposite sign, so with signed activations every neuron is selected by one of
    the two labels, which is why NeuronTune uses absolute activations.
    """
    return -2 * mu * along_gamma


def absolute_score(mu: float, along_beta: Tensor, along_gamma: Tensor) -> Tensor:
    r"""Return the score of every neuron for absolute activations, the same for both labels.

    Activations are around :math:`\mu (b + g)` if the shortcut is right and :math:`\mu (b - g)` if it is wrong, with
    :math:`b = \beta^T w_{core,i}` and :math:`g = \gamma^T w_{spu,i}`: the score is positive if their signs differ.

    Example:
        >>> absolute_score(1.0, torch.tensor([1.0, 1.0]), torch.tensor([0.5, -0.25]))
        tensor([-1.0000,  0.5000])
    """
    return mu * ((along_beta - along_gamma).abs() - (along_beta + along_gamma).abs())


def lemma_2(model: NeuronModel, mu: float, spread: float) -> tuple[float, float]:
    r"""Return the fraction of correct predictions with a right shortcut, and of incorrect ones with a wrong shortcut.

    Equations 44 and 47 for the weights of :func:`lemma_1`, with ``spread`` the variance of :math:`\beta^T x_{core}`
    within a label. Both are above one half under the paper's conditions.
    """
    u, z = lemma_1(model)
    noise = (model.core + model.spurious) * z * z
    weight = torch.tensor([u + z, u - z], dtype=torch.float64)  # 1 and 1 - 2z
    accuracy = torch.special.ndtr(mu * weight / (weight**2 * spread + noise) ** 0.5)
    aligned_correct, conflicting_incorrect = model.p * accuracy, (1 - model.p) * (1 - accuracy)
    correct = aligned_correct[0] + (1 - model.p) * accuracy[1]
    incorrect = model.p * (1 - accuracy[0]) + conflicting_incorrect[1]
    return float(aligned_correct[0] / correct), float(conflicting_incorrect[1] / incorrect)
