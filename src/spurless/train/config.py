"""TrainConfig: settings of the training loop, and its learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from spurless.core.config import ADDED_LATER
from spurless.core.errors import InputError

Optimiser = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine", "linear", "one-cycle", "warmup-stable-decay"]


AsamScale = Literal["kwon", "all"]


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the training loop. Every schedule can start with a linear warm-up."""

    epochs: int = 20
    steps: int | None = None
    """Number of steps; overrides ``epochs``."""
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    beta2: float = 0.999
    """Second decay of Adam and AdamW; ``momentum`` is the first."""
    weight_decay: float = 1e-4
    l1: float = 0.0
    """Factor of an L1 penalty on all trained parameters, biases included. Like weight decay, it is not part of the loss
    that is reported and compared with ``stop_loss``."""
    asam: float = 0.0
    """Size of the perturbation of ASAM (rho, see ``train.asam``); 0 is off. A step with ASAM takes twice as long."""
    asam_scale: AsamScale = field(default="kwon", metadata=ADDED_LATER)
    """Which parameters ASAM perturbs in proportion to their size: weights (``kwon``, as its authors) or ``all``, as the
    code of "Large Learning Rates" does."""
    schedule: Schedule = "constant"
    """Schedule of the learning rate. Those of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748) are
    ``constant`` (its default), ``step`` with ``decay_at=(1000,)`` (its annealing: a tenth of the rate after iteration
    1,000), ``cosine``, and ``warmup-stable-decay`` (WSD, whose lengths the paper does not state)."""
    decay_epochs: int = 30
    """``step`` multiplies the rate by ``decay_factor`` every ``decay_epochs`` epochs."""
    decay_at: tuple[int, ...] = ()
    """If given, ``step`` multiplies the rate after each of these numbers of steps instead."""
    decay_factor: float = 0.1
    decay_fraction: float = 0.2
    """Fraction of the steps, at the end, over which ``warmup-stable-decay`` falls linearly to 0."""
    warmup_steps: int = 0
    clip: float | None = None
    """Maximum norm of the gradient, including that of ``l1``."""
    stop_accuracy: float | None = None
    """Stop after the first epoch with this accuracy on the train split."""
    stop_loss: float | None = None
    """Stop after the first epoch with a mean loss below this."""

    def __post_init__(self) -> None:
        for name, (is_valid, rule) in _RULES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and is_valid(value)):
                raise InputError(f"{name} must {rule}", got=value)
        if any(step < 1 for step in self.decay_at):
            raise InputError("decay_at must contain numbers of steps, each at least 1", got=self.decay_at)


_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("epochs", "steps", "batch_size", "decay_epochs"), (lambda n: n >= 1, "be at least 1")),
    **dict.fromkeys(("lr", "clip"), (lambda x: x > 0, "be a positive number")),
    **dict.fromkeys(("momentum", "beta2"), (lambda x: 0 <= x < 1, "be at least 0 and below 1")),
    **dict.fromkeys(
        ("weight_decay", "l1", "asam", "decay_factor", "warmup_steps"), (lambda x: x >= 0, "not be negative")
    ),
    **dict.fromkeys(("stop_accuracy", "decay_fraction"), (lambda x: 0 < x <= 1, "lie between 0 and 1")),
    "stop_loss": (lambda _: True, "be a number"),
}


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
