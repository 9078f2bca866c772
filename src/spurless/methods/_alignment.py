r"""Alignment loss: pull the features of a class towards those of its bias-conflicting examples.

Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247, equations 15
and 16, based on supervised contrastive learning (Khosla et al., NeurIPS 2020, arXiv:2004.11362). With features
:math:`z_i` of length 1, anchors :math:`V`, positives :math:`P_i` and contrasted examples :math:`A_i`,

.. math:: \ell = \frac{1}{|V|} \sum_{i \in V} \frac{-1}{|P_i|} \sum_{j \in P_i} \log
    \frac{\exp(z_i \cdot z_j / \tau)}{\sum_{a \in A_i} \exp(z_i \cdot z_a / \tau)}.

There are two readings. With :math:`C` the mined examples of a batch, and :math:`y_j = y_i`, :math:`j \ne i` for every
positive:

* ``authors``, the code: one term. Every example is an anchor, positives are in :math:`C`, contrasted with all others.
* ``paper``: the sum of two terms. Anchors in :math:`C`, positives anywhere, contrasted with the rest of :math:`C`; and
  anchors outside :math:`C`, positives in :math:`C`, contrasted with the others outside :math:`C`. A positive need not
  be among the contrasted examples, so the loss may be negative.

An anchor without positives or without contrasted examples is ignored; without any anchor the loss is 0.

Deviation:
    * Equation 15 sums over anchors. Both readings take the mean here, as the authors' code does; with the sum, the
      weight of the term relative to the cross-entropy, which is a mean, would grow with the batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Alignment = Literal["authors", "paper"]


def alignment(features: Tensor, y: Tensor, mined: Tensor, temperature: float, how: Alignment = "authors") -> Tensor:
    """Return the loss of a batch; a static tensor program, for CUDA graphs.

    Features, of shape ``(N, d)``, need not be normalised; ``mined`` marks the examples that were mined.

    Example:
        >>> features, y = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> mined = torch.tensor([True, False, False])
        >>> round(alignment(features, y, mined, 1.0).item(), 4)  # one anchor, the second: -log(e / (e + 1))
        0.3133
    """
    with torch.autocast(features.device.type, enabled=False):  # half precision divided by 0.07 is too coarse
        unit = normalize(features.float(), dim=1)
        scores = unit @ unit.T / temperature
    other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    same_class = (y[:, None] == y) & other
    if how == "authors":
        return _contrast(scores, same_class & mined, other)
    first = _contrast(scores, same_class & mined[:, None], other & mined & mined[:, None])
    second = _contrast(scores, same_class & mined & ~mined[:, None], other & ~mined & ~mined[:, None])
    return first + second


def _contrast(scores: Tensor, positive: Tensor, contrasted: Tensor) -> Tensor:
    """Return the mean over anchors (rows) that have positives and contrasted examples."""
    n_positive = positive.sum(dim=1)
    is_anchor = (n_positive > 0) & contrasted.any(dim=1)
    # not -inf: the gradient of a row of -inf is NaN
    total = scores.masked_fill(~contrasted, torch.finfo(scores.dtype).min).logsumexp(dim=1)
    attraction = (scores * positive).sum(dim=1) / n_positive.clamp(min=1)
    return torch.where(is_anchor, total - attraction, 0.0).sum() / is_anchor.sum().clamp(min=1)
