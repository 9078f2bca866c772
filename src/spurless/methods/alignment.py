r"""Alignment: pull features of one class to those of its members that break the shortcut.

Park et al., "Training Debiased Subnetworks with Contrastive Weight Pruning", CVPR 2023, arXiv:2210.05247, equations 15
and 16; supervised contrastive learning is of Khosla et al., NeurIPS 2020, arXiv:2004.11362. With features :math:`z_i`
of length 1, anchors :math:`V`, positives :math:`P_i` and what these are set against, :math:`A_i`,

.. math:: \ell = \frac{1}{|V|} \sum_{i \in V} \frac{-1}{|P_i|} \sum_{j \in P_i} \log
    \frac{\exp(z_i \cdot z_j / \tau)}{\sum_{a \in A_i} \exp(z_i \cdot z_a / \tau)}.

There are two readings. With :math:`C` the examples of a batch that were mined, and :math:`y_j = y_i`, :math:`j \ne i`
for every positive:

* ``authors``, the code: one term; every example is an anchor, positives are in :math:`C`, against all others.
* ``paper``: two terms are added. Anchors in :math:`C`, positives anywhere, against the rest of :math:`C`; and anchors
  outside :math:`C`, positives in :math:`C`, against the others outside :math:`C`. A positive need not be among what it
  is set against, so the loss may be below 0.

An anchor without a positive, or with nothing to set against, does not count; without any anchor the loss is 0.

Deviation:
    * Equation 15 sums over anchors; we take the mean, in both readings, as the authors' code does. By the sum, the
      weight of the term against the cross-entropy, which is a mean, would grow with the batch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Alignment = Literal["authors", "paper"]


def alignment(features: Tensor, y: Tensor, mined: Tensor, temperature: float, how: Alignment = "authors") -> Tensor:
    """Return the loss of a batch; tensor operations alone, whatever is in it.

    Args:
        features: of shape ``(N, d)``, of any length.
        y: labels.
        mined: which examples are taken to break the shortcut.
        temperature: of the softmax; the authors have 0.07.
        how: which reading.

    Example:
        >>> features, y = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0, 1])
        >>> mined = torch.tensor([True, False, False])
        >>> round(alignment(features, y, mined, 1.0).item(), 4)  # one anchor, the second: -log(e / (e + 1))
        0.3133
    """
    with torch.autocast(features.device.type, enabled=False):  # half a digit less, divided by 0.07, is too few
        unit = normalize(features.float(), dim=1)
        scores = unit @ unit.T / temperature
    other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
    alike = (y[:, None] == y) & other
    if how == "authors":
        return _contrast(scores, alike & mined, other)
    first = _contrast(scores, alike & mined[:, None], other & mined & mined[:, None])
    second = _contrast(scores, alike & mined & ~mined[:, None], other & ~mined & ~mined[:, None])
    return first + second


def _contrast(scores: Tensor, positive: Tensor, against: Tensor) -> Tensor:
    """Return the mean over the anchors that have both; rows are anchors."""
    count = positive.sum(dim=1)
    counts = (count > 0) & against.any(dim=1)
    # not -inf: a row of it has no gradient that is a number
    total = scores.masked_fill(~against, torch.finfo(scores.dtype).min).logsumexp(dim=1)
    pulled = (scores * positive).sum(dim=1) / count.clamp(min=1)
    return torch.where(counts, total - pulled, 0.0).sum() / counts.sum().clamp(min=1)
