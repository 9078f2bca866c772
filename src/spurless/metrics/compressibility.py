r"""Compressibility: how few of its numbers a representation needs.

Barsbey, Prieto, Zafeiriou and Birdal, "Large Learning Rates Simultaneously Achieve Robustness to Spurious Correlations
and Compressibility", 2025, section 3.2. Of a representation :math:`z \in R^d`,

.. math::
    1 - \frac{\lVert z - \mathrm{top}_k(z) \rVert_q}{\lVert z \rVert_q}, \quad k = \lceil \kappa d \rceil,
    \qquad
    PQ = 1 - d^{1/q - 1/p} \frac{\lVert z \rVert_p}{\lVert z \rVert_q}, \quad p < q,

are its :math:`(q, \kappa)`-compressibility and its PQ-index (Diao et al. 2023). Both are lowest where all
sizes are alike, the index then 0, and higher the more a few stand out. The paper's caption says p = 2 and q = 1, which
would make the index at most 0; it is read as p = 1, q = 2.

A row of zeros has neither and is left out of the mean; :func:`activation_sparsity` counts it.
"""

from __future__ import annotations

import math

from torch import Tensor

from spurless.core.errors import BadInput

ROUNDING = 1e-9
"""A share times a size that is meant to be whole may be off by this much: 0.07 * 100 is not 7."""


def activation_sparsity(z: Tensor) -> float:
    """Return the share of exact zeros in representations ``(N, d)``.

    Example:
        >>> import torch
        >>> activation_sparsity(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        0.75
    """
    _check(z)
    return float((z == 0).double().mean())


def compressibility(z: Tensor, kappa: float = 0.1, q: float = 2.0) -> float:
    """Return how well a share ``kappa`` of their numbers stands for representations, averaged over the rows.

    Args:
        z: representations, ``(N, d)``.
        kappa: the share that is kept of each row, its largest sizes; rounded up to whole numbers.
        q: the norm in which the rest is measured.

    Returns:
        A number from 0 to 1; NaN where every row is zero.

    Example:
        >>> import torch
        >>> round(compressibility(torch.tensor([[3.0, -4.0, 0.0, 0.0]]), kappa=0.25), 6)  # 4 is kept: 1 - 3 / 5
        0.4
    """
    _check(z)
    if not 0 < kappa <= 1:
        raise BadInput("kappa must be a share", expected="above 0, at most 1", got=kappa)
    if not 0 < q < math.inf:
        raise BadInput("q must be the order of a norm", expected="above 0, finite", got=q)
    d = z.shape[1]
    size = _relative(z).sort(dim=1).values
    rest = size[:, : d - math.ceil(kappa * d - ROUNDING)].norm(p=q, dim=1)
    return float((1 - rest / size.norm(p=q, dim=1)).nanmean())  # 0 / 0 of a row of zeros


def pq_index(z: Tensor, p: float = 1.0, q: float = 2.0) -> float:
    """Return the PQ-index of representations, averaged over the rows.

    Args:
        z: representations, ``(N, d)``.
        p: the smaller norm.
        q: the larger norm.

    Returns:
        A number from 0, where all sizes are alike, to ``1 - d ** (1 / q - 1 / p)``, where one alone is not zero; NaN
        where every row is zero.

    Example:
        >>> import torch
        >>> pq_index(torch.tensor([[0.0, 7.0, 0.0, 0.0]])), pq_index(torch.tensor([[2.0, 2.0, -2.0, 2.0]]))
        (0.5, 0.0)
    """
    _check(z)
    if not 0 < p < q < math.inf:
        raise BadInput(
            "the PQ-index needs two norms, the smaller first", expected="0 < p < q < inf", got=f"p={p}, q={q}"
        )
    size = _relative(z)
    index = 1 - z.shape[1] ** (1 / q - 1 / p) * size.norm(p=p, dim=1) / size.norm(p=q, dim=1)
    return float(index.clamp(min=0).nanmean())  # below 0 is rounding


def _relative(z: Tensor) -> Tensor:
    """Return sizes as shares of the largest of their row: both numbers are those of any multiple, and powers fit."""
    size = z.double().abs()
    return size / size.amax(dim=1, keepdim=True)


def _check(z: Tensor) -> None:
    if z.dim() != 2 or not z.numel() or not z.is_floating_point():
        raise BadInput(
            "representations must be numbers, one row per example",
            expected="float, (N, d)",
            got=f"{z.dtype} of shape {tuple(z.shape)}",
        )
    if not bool(z.isfinite().all()):
        raise BadInput("a representation is not finite", do="Look whether the weights have diverged.")
