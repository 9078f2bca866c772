r"""Compressibility and sparsity of representations.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, section 3.2. Of a representation :math:`z \in R^d`,

.. math::
    1 - \frac{\lVert z - \mathrm{top}_k(z) \rVert_q}{\lVert z \rVert_q}, \quad k = \lceil \kappa d \rceil,
    \qquad
    PQ = 1 - d^{1/q - 1/p} \frac{\lVert z \rVert_p}{\lVert z \rVert_q}, \quad p < q,

are its :math:`(q, \kappa)`-compressibility and its PQ-index (Diao et al. 2023). Both are lowest if all absolute values
are equal (the index is 0 then), and the higher, the more a few values dominate. The paper's caption has p = 2 and
q = 1, which would make the index at most 0; we read it as p = 1, q = 2.

Both are undefined for a row of zeros, which is skipped in the mean; :func:`activation_sparsity` counts it.
"""

from __future__ import annotations

import math

from torch import Tensor

from spurless.core.errors import InputError
from spurless.metrics.separation import check_representations

ROUNDING_TOLERANCE = 1e-9  # tolerance when ``kappa * d`` is rounded up: 0.07 * 100 is slightly more than 7


def activation_sparsity(z: Tensor) -> float:
    """Return the fraction of exact zeros in representations ``(N, d)``.

    Example:
        >>> import torch
        >>> activation_sparsity(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        0.75
    """
    _check(z)
    return float((z == 0).double().mean())


def compressibility(z: Tensor, kappa: float = 0.1, q: float = 2.0) -> float:
    """Return how well the largest fraction ``kappa`` of values approximates a row, averaged over the rows.

    ``kappa * d`` is rounded up, and ``q`` is the norm of the rest. The result is from 0 to 1; NaN if every row is zero.

    Example:
        >>> import torch
        >>> round(compressibility(torch.tensor([[3.0, -4.0, 0.0, 0.0]]), kappa=0.25), 6)  # 4 is kept: 1 - 3 / 5
        0.4
    """
    _check(z)
    if not 0 < kappa <= 1:
        raise InputError("kappa must be a fraction", expected="above 0, at most 1", got=kappa)
    if not 0 < q < math.inf:
        raise InputError("q must be the order of a norm", expected="above 0, finite", got=q)
    d = z.shape[1]
    size = _relative(z).sort(dim=1).values
    rest = size[:, : d - math.ceil(kappa * d - ROUNDING_TOLERANCE)].norm(p=q, dim=1)
    return float((1 - rest / size.norm(p=q, dim=1)).nanmean())  # 0 / 0 of a row of zeros


def pq_index(z: Tensor, p: float = 1.0, q: float = 2.0) -> float:
    """Return the PQ-index of representations ``(N, d)``, averaged over the rows.

    It is from 0, if all absolute values are equal, to ``1 - d ** (1 / q - 1 / p)``, if only one is not zero; NaN if
    every row is zero.

    Example:
        >>> import torch
        >>> pq_index(torch.tensor([[0.0, 7.0, 0.0, 0.0]])), pq_index(torch.tensor([[2.0, 2.0, -2.0, 2.0]]))
        (0.5, 0.0)
    """
    _check(z)
    if not 0 < p < q < math.inf:
        raise InputError("p must be smaller than q", expected="0 < p < q < inf", got=f"p={p}, q={q}")
    size = _relative(z)
    index = 1 - z.shape[1] ** (1 / q - 1 / p) * size.norm(p=p, dim=1) / size.norm(p=q, dim=1)
    return float(index.clamp(min=0).nanmean())  # below 0 is rounding


def _relative(z: Tensor) -> Tensor:
    """Return absolute values divided by the largest of their row, which changes neither metric and avoids overflow."""
    size = z.double().abs()
    return size / size.amax(dim=1, keepdim=True)


def _check(z: Tensor) -> None:
    check_representations(z)
    if not bool(z.isfinite().all()):
        raise InputError("a representation is not finite", hint="Check whether the weights have diverged.")
