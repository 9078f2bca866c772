r"""Likeness: is validation so unlike train that what is chosen or learnt there may hold nowhere else?

Splits differ on purpose: validation may be balanced over groups or over labels where train is not, and shortcuts break
there. So only what nobody intends is said. Labels: with the shares :math:`p` in train, :math:`q` in validation and
:math:`u` where all labels of train count alike, that both :math:`\operatorname{TV}(p, q)` and
:math:`\operatorname{TV}(q, u)` are at least 0.4, and the first beyond chance (by McDiarmid's inequality in one of 1,000
at most): a few labels are nearly all of validation, and they are not those of train. Inputs: the mean of a channel of
images, or of a feature, lies more than five of train's standard deviations off, as where one split was normalised and
the other was not. Texts are compared by their labels alone.
"""

from __future__ import annotations

from math import log, sqrt

import torch
from torch import Tensor

from spurless.data.grouped import Grouped, Splits

APART = 0.4
"""Total variation from which on labels differ."""
FAR = 5.0
"""Standard deviations from which on inputs differ."""
LEAST = 20
"""Examples of validation: the mean of fewer may lie anywhere."""
SEEN = 500
"""Examples of each split whose inputs are looked at, about."""
STREAMED = 100
"""And of those that are read from disk."""
ROOM = 64  # examples that are prepared at once


def differences(data: Splits) -> tuple[str, ...]:
    """Return in which ways validation is unlike train, a sentence each; mostly none."""
    if len(data.val) < LEAST:
        return ()
    return tuple(said for said in (_labels(data), _inputs(data)) if said is not None)


def _labels(data: Splits) -> str | None:
    n, k = (split.class_counts.double().cpu() for split in (data.train, data.val))
    train, val = n / n.sum(), k / k.sum()
    alike = (n > 0).double() / (n > 0).sum()
    together = float(1 / (1 / n.sum() + 1 / k.sum()))
    chance = sqrt(len(n) / together) / 2 + sqrt(log(1000) / (2 * together))
    if _apart(train, val) < max(APART, chance) or _apart(val, alike) < APART:
        return None
    most = int((val - train).argmax())
    return (
        f"Validation differs from train: {100 * float(val[most]):.0f} % of its labels are "
        f"{data.groups.labels[most]!r}, and {100 * float(train[most]):.0f} % of those of train. What is chosen or "
        "learnt there may not hold elsewhere: see whether the splits were drawn alike."
    )


def _inputs(data: Splits) -> str | None:
    train, val = _moments(data.train), _moments(data.val)
    if train is None or val is None or len(train[0]) != len(val[0]):
        return None
    (mean, deviation), (other, spread) = train, val
    least = 1e-6 * mean.abs().clamp(min=1)
    scale = torch.maximum(deviation, 0.1 * spread).maximum(least)  # what train hardly shows has hardly a deviation
    off = (other - mean).abs() / scale
    worst = int(off.argmax())
    if float(off[worst]) <= FAR:
        return None
    return (
        f"Validation differs from train: its inputs have a mean of {float(other[worst]):.3g} in channel or feature "
        f"{worst}, and those of train of {float(mean[worst]):.3g}, {float(off[worst]):.0f} standard deviations apart. "
        "What is chosen or learnt there may not hold elsewhere: see whether both were prepared alike."
    )


def _apart(one: Tensor, two: Tensor) -> float:
    """Return the total variation of two distributions."""
    return float((one - two).abs().sum()) / 2


def _moments(split: Grouped) -> tuple[Tensor, Tensor] | None:
    """Return mean and standard deviation of every channel or feature, as a model gets them; None of texts."""
    if isinstance(split.x, dict):
        return None
    rows = torch.arange(0, len(split), max(1, len(split) // (STREAMED if split.streamed else SEEN)))
    total, sums, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for part in torch.split(rows, ROOM):
        x = split.select(part).example(len(part))
        if not isinstance(x, Tensor) or x.dim() < 2:
            return None
        x = x.double().cpu().transpose(0, 1).flatten(1)
        total, sums, squares = total + x.shape[1], sums + x.sum(dim=1), squares + (x**2).sum(dim=1)
    mean = sums / total
    return mean, (squares / total - mean**2).clamp(min=0).sqrt()
