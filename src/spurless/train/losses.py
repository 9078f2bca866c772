"""Losses per example: generalised cross-entropy and focal loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def generalised_cross_entropy(logits: Tensor, y: Tensor, q: float = 0.7) -> Tensor:
    r"""Return :math:`q \, p_y^q \, \ell` per example, with a detached factor: its gradient is that of GCE.

    Zhang and Sabuncu, NeurIPS 2018, arXiv:1805.07836, define :math:`(1 - p_y^q) / q`, whose gradient is
    :math:`p_y^q \, \nabla \ell`; "Learning from Failure" (Nam et al., NeurIPS 2020, arXiv:2007.02561) and others after
    it train with this form, which has :math:`q` times that gradient. Examples with a confident correct prediction have
    the largest weight, so that the model learns mostly the easiest cue.

    Example:
        >>> import torch
        >>> logits = torch.log(torch.tensor([[0.9, 0.1], [0.1, 0.9]]))
        >>> generalised_cross_entropy(logits, torch.tensor([0, 0]))  # confident and correct, confident and incorrect
        tensor([0.0685, 0.3216])
    """
    losses = cross_entropy(logits, y, reduction="none")
    weights = (-losses).exp().detach() ** q
    return q * weights * losses


def focal_loss(logits: Tensor, y: Tensor, gamma: float = 2.0) -> Tensor:
    r"""Return :math:`(1 - p_y)^\gamma \, \ell` per example: confident correct predictions have the smallest weight.

    Lin, Goyal, Girshick, He and Dollar, "Focal Loss for Dense Object Detection", ICCV 2017, arXiv:1708.02002,
    equation 4. A gamma of 0 is the cross-entropy.

    Example:
        >>> import torch
        >>> logits = torch.log(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        >>> focal_loss(logits, torch.tensor([0, 0]))  # 1/16 of 0.288, and 9/16 of 1.386
        tensor([0.0180, 0.7798])
    """
    losses = cross_entropy(logits, y, reduction="none")
    doubt = -(-losses).expm1()  # 1 - p_y, without the rounding of p_y near 1
    # the clamp avoids the gradient of 0 ** gamma
    return doubt.clamp(min=torch.finfo(doubt.dtype).tiny) ** gamma * losses
