r"""Calibration: whether predictions with confidence 80 % are correct 80 % of the time, overall and per group.

Expected calibration error, Naeini et al. 2015 as used by Guo et al. 2017 (eq. 3): with the confidence of an
example the largest of its probabilities, and :math:`B` equal bins :math:`(i / B, (i + 1) / B]` of confidence,

.. math:: ECE = \sum_b \frac{n_b}{n} \lvert acc_b - conf_b \rvert.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spurless.core.arguments import check_arguments
from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.metrics.groupwise import check_labels_and_attributes

MAX_BINS = 10**6


def expected_calibration_error(probabilities: Tensor, y: Tensor, bins: int = 15) -> float:
    """Return the calibration error of the predicted labels; NaN if there are no examples.

    The error grows with ``bins`` and shrinks with the number of examples, even for a perfect model: compare only splits
    of similar size.

    Example:
        >>> sure = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
        >>> expected_calibration_error(sure, torch.tensor([0, 0, 0, 1]))  # confidence 1, accuracy 3/4
        0.25
    """
    check_arguments(expected_calibration_error, locals())
    confidence, correct = _confidence(probabilities, y, bins)
    return _error(confidence, correct, bins)


def calibration_by_group(probabilities: Tensor, y: Tensor, a: Tensor, groups: Groups, bins: int = 15) -> Tensor:
    """Return the calibration error of every group, in group order; NaN for an empty group."""
    check_arguments(calibration_by_group, locals())
    check_labels_and_attributes(y, a, groups)
    confidence, correct = _confidence(probabilities, y, bins)
    member = groups.membership(y, a.to(y.device)).to(confidence.device)
    errors = [_error(confidence[inside], correct[inside], bins) for inside in member.unbind(dim=1)]
    return torch.tensor(errors, dtype=torch.float64)


def _confidence(probabilities: Tensor, y: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    if not 1 <= bins <= MAX_BINS:
        raise InputError("the number of bins is out of range", expected=f"1 to {MAX_BINS:,}", got=bins)
    if probabilities.dim() != 2 or y.dim() != 1 or len(probabilities) != len(y):
        expected, got = "shapes (N, classes) and (N,)", f"{tuple(probabilities.shape)} and {tuple(y.shape)}"
        raise InputError("probabilities and labels must have the same length", expected=expected, got=got)
    p = probabilities.detach()
    p = p if p.dtype == torch.float64 else p.float()
    # written so that NaN fails too; 0.01 allows for half precision
    if not bool(((p >= 0).all(dim=1) & ((p.sum(dim=1) - 1).abs() < 0.01)).all()):
        hint = "Pass logits.softmax(dim=1)."
        raise InputError("the rows are not probabilities", expected="rows that sum to 1", hint=hint)
    if bool(((y < 0) | (y >= p.shape[1])).any()):
        raise InputError("a label is out of range", expected=f"0 to {p.shape[1] - 1}")
    if not len(p):
        return p.new_zeros(0), torch.zeros(0, dtype=torch.bool, device=p.device)
    confidence, pred = p.max(dim=1)
    return confidence, pred == y.to(p.device)


def _error(confidence: Tensor, correct: Tensor, bins: int) -> float:
    n = len(confidence)
    if n == 0:
        return math.nan
    # edges in the dtype of the confidence, so that 0.8 is on the edge 0.8 in single precision too
    edges = (torch.arange(1, bins, dtype=torch.float64, device=confidence.device) / bins).to(confidence.dtype)
    b = torch.bucketize(confidence, edges)
    # n_b / n * |acc_b - conf_b| is the difference of two sums, and an empty bin adds nothing
    difference = torch.bincount(b, weights=correct.double() - confidence.double(), minlength=bins)
    return float(difference.abs().sum() / n)
