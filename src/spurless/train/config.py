"""TrainConfig: settings of the training loop, and its learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from spurless.core.config import (
    ADDED_LATER,
    CheckedConfig,
    Count,
    CountOrZero,
    Finite,
    FractionBelowOne,
    NotNegative,
    Positive,
    PositiveFraction,
)

Optimiser = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine", "linear", "one-cycle", "warmup-stable-decay"]


AsamScale = Literal["kwon", "all"]


@dataclass(frozen=True)
class TrainConfig(CheckedConfig):
    """Settings of the training loop. Every schedule can start with a linear warm-up."""

    epochs: Count = 20
    steps: Count | None = None
    """Number of steps; overrides ``epochs``."""
    batch_size: Count = 128
    optimiser: Optimiser = "sgd"
    lr: Positive = 0.01
    momentum: FractionBelowOne = 0.9
    beta2: FractionBelowOne = 0.999
    """Second decay of Adam and AdamW; ``momentum`` is the first."""
    weight_decay: NotNegative = 1e-4
    l1: NotNegative = 0.0
    """Factor of an L1 penalty on all trained parameters, biases included. Like weight decay, it is not part of the loss
    that is reported and compared with ``stop_loss``."""
    asam: NotNegative = 0.0
    """Size of the perturbation of ASAM (rho, see ``train.asam``); 0 is off. A step with ASAM takes twice as long."""
    asam_scale: AsamScale = field(default="kwon", metadata=ADDED_LATER)
    """Which parameters ASAM perturbs in proportion to their size: weights (``kwon``, as its authors) or ``all``, as the
    code of "Large Learning Rates" does."""
    schedule: Schedule = "constant"
    """Schedule of the learning rate. Those of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748) are
    ``constant`` (its default), ``step`` with ``decay_at=(1000,)`` (its annealing: a tenth of the rate after iteration
    1,000), ``cosine``, and ``warmup-stable-decay`` (WSD, whose lengths the paper does not state)."""
    decay_epochs: Count = 30
    """``step`` multiplies the rate by ``decay_factor`` every ``decay_epochs`` epochs."""
    decay_at: tuple[Count, ...] = ()
    """If given, ``step`` multiplies the rate after each of these numbers of steps instead."""
    decay_factor: NotNegative = 0.1
    decay_fraction: PositiveFraction = 0.2
    """Fraction of the steps, at the end, over which ``warmup-stable-decay`` falls linearly to 0."""
    warmup_steps: CountOrZero = 0
    clip: Positive | None = None
    """Maximum norm of the gradient, including that of ``l1``."""
    stop_accuracy: PositiveFraction | None = None
    """Stop after the first epoch with this accuracy on the train split."""
    stop_loss: Finite | None = None
    """Stop after the first epoch with a mean loss below this."""


def learning_rate(config: TrainConfig, step: int, total: int, per_epoch: int) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``total``.

    Example:
        >>> config = TrainConfig(lr=1.0, schedule="cosine", warmup_steps=2)
        >>> [round(learning_rate(config, step, 6, 2), 3) for step in range(6)]
        [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.schedule == "step":
        return config.lr * config.decay_factor ** _count_decays(config, step, per_epoch)
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - progress)
    if config.schedule == "one-cycle":
        return config.lr * _one_cycle(step / max(1, total - 1))
    if config.schedule == "warmup-stable-decay":
        n_decay = min(round(config.decay_fraction * total), total - config.warmup_steps)
        return config.lr * min(1.0, (total - step) / max(1, n_decay))
    return config.lr


def _count_decays(config: TrainConfig, step: int, per_epoch: int) -> int:
    """Return the number of decays before step ``step``."""
    if config.decay_at:
        return sum(step >= after for after in config.decay_at)
    return step // (per_epoch * config.decay_epochs)


def _one_cycle(progress: float) -> float:
    """Rise along a cosine from 1/25 to 1 over the first 30 %, then fall to 1/250,000 (Smith and Topin 2018)."""
    start, peak, end = 1 / 25, 1.0, 1 / 25e4
    if progress < 0.3:
        return start + (peak - start) * (1 - math.cos(math.pi * progress / 0.3)) / 2
    return end + (peak - end) * (1 + math.cos(math.pi * (progress - 0.3) / 0.7)) / 2
