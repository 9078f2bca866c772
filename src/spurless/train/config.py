"""TrainConfig: how long, how fast and until when the loop walks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spurless.core.errors import BadInput

Optimiser = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine", "linear", "one-cycle", "warmup-stable-decay"]


@dataclass(frozen=True)
class TrainConfig:
    """How the loop walks. Any schedule may start with a linear warm-up."""

    epochs: int = 20
    steps: int | None = None
    """Stop after so many steps, whatever ``epochs`` says."""
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    beta2: float = 0.999
    """Second decay of Adam and AdamW; ``momentum`` is the first."""
    weight_decay: float = 1e-4
    l1: float = 0.0
    """Adds so much times the sum of the sizes of all trained parameters, biases too, to what is minimised. Like
    weight decay it is not in the loss that is reported and that ``stop_loss`` is compared with."""
    asam: float = 0.0
    """How far to climb before the gradient is taken (rho of ASAM, see ``train.sharpness``); 0 is off. A step then
    takes twice as long."""
    schedule: Schedule = "constant"
    """Those of "Large Learning Rates" (Barsbey et al. 2025, arXiv:2507.17748): its usual one is ``constant``; its
    annealing, a tenth of the rate after iteration 1,000, is ``step`` with ``decay_at=(1000,)``; its cosine annealing
    is ``cosine``; its WSD is ``warmup-stable-decay``, of which it does not say the lengths."""
    decay_epochs: int = 30
    """``step`` multiplies the rate by ``decay_factor`` every so many epochs."""
    decay_at: tuple[int, ...] = ()
    """``step`` multiplies the rate after each of these numbers of steps instead."""
    decay_factor: float = 0.1
    decay_share: float = 0.2
    """``warmup-stable-decay`` falls linearly to 0 over this last share of the steps."""
    warmup_steps: int = 0
    clip: float | None = None
    """Largest norm of the gradient, that of ``l1`` included."""
    stop_accuracy: float | None = None
    """Stop after an epoch that ends with this accuracy on the train split."""
    stop_loss: float | None = None
    """Stop after an epoch whose mean loss is under this."""

    def __post_init__(self) -> None:
        for name, (fine, words) in _RULES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and fine(value)):
                raise BadInput(f"{name} must {words}", got=value)
        if any(step < 1 for step in self.decay_at):
            raise BadInput("decay_at must hold numbers of steps, each at least 1", got=self.decay_at)


_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("epochs", "steps", "batch_size", "decay_epochs"), (lambda n: n >= 1, "be at least 1")),
    **dict.fromkeys(("lr", "clip"), (lambda x: x > 0, "be a positive number")),
    **dict.fromkeys(("momentum", "beta2"), (lambda x: 0 <= x < 1, "be at least 0 and under 1")),
    **dict.fromkeys(
        ("weight_decay", "l1", "asam", "decay_factor", "warmup_steps"), (lambda x: x >= 0, "not be negative")
    ),
    **dict.fromkeys(("stop_accuracy", "decay_share"), (lambda x: 0 < x <= 1, "lie between 0 and 1")),
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
    walked = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    if config.schedule == "step":
        return config.lr * config.decay_factor ** _decays(config, step, per_epoch)
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * walked)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - walked)
    if config.schedule == "one-cycle":
        return config.lr * _one_cycle(step / max(1, total - 1))
    if config.schedule == "warmup-stable-decay":
        falling = min(round(config.decay_share * total), total - config.warmup_steps)
        return config.lr * min(1.0, (total - step) / max(1, falling))
    return config.lr


def _decays(config: TrainConfig, step: int, per_epoch: int) -> int:
    """Return how often the rate was decayed before step ``step``."""
    if config.decay_at:
        return sum(step >= after for after in config.decay_at)
    return step // (per_epoch * config.decay_epochs)


def _one_cycle(walked: float) -> float:
    """Rise along a cosine from 1/25 to 1 over the first 30 %, then fall to 1/250,000 (Smith and Topin 2018)."""
    start, peak, end = 1 / 25, 1.0, 1 / 25e4
    if walked < 0.3:
        return start + (peak - start) * (1 - math.cos(math.pi * walked / 0.3)) / 2
    return end + (peak - end) * (1 + math.cos(math.pi * (walked - 0.3) / 0.7)) / 2
