r"""Detect large differences between validation and train that are probably unintended.

Splits may differ on purpose: validation may be balanced over groups or labels, so that the shortcut fails there. Only
differences that are unlikely to be intended are reported. Labels: with the label fractions :math:`p` in train,
:math:`q` in validation and :math:`u` uniform over the labels of train, both :math:`\operatorname{TV}(p, q)` and
:math:`\operatorname{TV}(q, u)` are at least 0.4, and the first is significant (at 0.001, by McDiarmid's inequality): a
few labels dominate validation, and they are not those of train. Inputs: the mean of an image channel or of a feature
differs by more than five standard deviations of train, for example because only one split was normalized. Texts are
compared by their labels only.
"""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor

from spurless.data.split import Split, Splits

MAX_LABEL_DISTANCE = 0.4  # total variation from which on labels differ
MAX_DEVIATIONS = 5.0  # standard deviations from which on inputs differ
MIN_EXAMPLES = 20  # validation examples that are needed for a comparison
MAX_EXAMPLES = 500  # approximate number of examples of each split whose inputs are compared
MAX_STREAMED = 100  # the same if inputs are read from disk
RISK = "Results selected on validation may not generalize."
CHUNK = 64  # examples that are prepared together


def val_differences(data: Splits) -> tuple[str, ...]:
    """Return a sentence for each way in which validation differs from train."""
    if len(data.val) < MIN_EXAMPLES:
        return ()
    return tuple(text for text in (_compare_labels(data), _compare_inputs(data)) if text is not None)


def _compare_labels(data: Splits) -> str | None:
    n, k = (split.class_counts.double().cpu() for split in (data.train, data.val))
    train, val = n / n.sum(), k / k.sum()
    uniform = (n > 0).double() / (n > 0).sum()
    size = float(1 / (1 / n.sum() + 1 / k.sum()))
    critical = sqrt(len(n) / size) / 2 + sqrt(log(1000) / (2 * size))
    is_close = _total_variation(train, val) < max(MAX_LABEL_DISTANCE, critical)
    if is_close or _total_variation(val, uniform) < MAX_LABEL_DISTANCE:
        return None
    label = int((val - train).argmax())
    name, percent, train_percent = data.groups.labels[label], 100 * float(val[label]), 100 * float(train[label])
    difference = f"{percent:.0f} % of its labels are {name!r}, but {train_percent:.0f} % of those of train"
    return f"Validation differs from train: {difference}. {RISK} Check how the splits were drawn."


def _compare_inputs(data: Splits) -> str | None:
    train, val = _moments(data.train), _moments(data.val)
    if train is None or val is None or len(train[0]) != len(val[0]):
        return None
    (mean, deviation), (val_mean, val_deviation) = train, val
    min_scale = 1e-6 * mean.abs().clamp(min=1)
    scale = torch.maximum(deviation, 0.1 * val_deviation).maximum(min_scale)  # a rare feature has almost no deviation
    distance = (val_mean - mean).abs() / scale
    worst = int(distance.argmax())
    if float(distance[worst]) <= MAX_DEVIATIONS:
        return None
    values = f"{float(val_mean[worst]):.3g}, {float(distance[worst]):.0f} standard deviations from the"
    difference = f"the mean of channel or feature {worst} is {values} {float(mean[worst]):.3g} of train"
    return (
        f"Validation differs from train: {difference}. {RISK} Check that both splits were preprocessed in the same way."
    )


def _total_variation(one: Tensor, two: Tensor) -> float:
    return float((one - two).abs().sum()) / 2


def _moments(split: Split) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation of every channel or feature of the model input; None for texts."""
    if isinstance(split.x, dict):
        return None
    rows = torch.arange(0, len(split), max(1, len(split) // (MAX_STREAMED if split.streamed else MAX_EXAMPLES)))
    total, sums, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for part in torch.split(rows, CHUNK):
        x = split.select(part).example(len(part))
        if not isinstance(x, Tensor) or x.dim() < 2:
            return None
        x = x.double().cpu().transpose(0, 1).flatten(1)
        total, sums, squares = total + x.shape[1], sums + x.sum(dim=1), squares + (x**2).sum(dim=1)
    mean = sums / total
    return mean, (squares / total - mean**2).clamp(min=0).sqrt()
