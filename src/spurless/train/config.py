"""TrainConfig: how long, how fast and until when the loop walks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from spurless.core.errors import BadInput

Optimiser = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "step", "cosine", "linear", "one-cycle"]


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
    schedule: Schedule = "constant"
    decay_epochs: int = 30
    """``step`` multiplies the rate by ``decay_factor`` every so many epochs."""
    decay_factor: float = 0.1
    warmup_steps: int = 0
    clip: float | None = None
    """Largest norm of the gradient."""
    stop_accuracy: float | None = None
    """Stop after an epoch that ends with this accuracy on the train split."""
    stop_loss: float | None = None
    """Stop after an epoch whose mean loss is under this."""

    def __post_init__(self) -> None:
        for name, (fine, words) in _RULES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and fine(value)):
                raise BadInput(f"{name} must {words}", got=value)


_RULES: dict[str, tuple[Callable[[float], bool], str]] = {
    **dict.fromkeys(("epochs", "steps", "batch_size", "decay_epochs"), (lambda n: n >= 1, "be at least 1")),
    **dict.fromkeys(("lr", "clip"), (lambda x: x > 0, "be a positive number")),
    **dict.fromkeys(("momentum", "beta2"), (lambda x: 0 <= x < 1, "be at least 0 and under 1")),
    **dict.fromkeys(("weight_decay", "decay_factor", "warmup_steps"), (lambda x: x >= 0, "not be negative")),
    "stop_accuracy": (lambda x: 0 < x <= 1, "lie between 0 and 1"),
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
        return config.lr * config.decay_factor ** (step // (per_epoch * config.decay_epochs))
    if config.schedule == "cosine":
        return config.lr * (1 + math.cos(math.pi * walked)) / 2
    if config.schedule == "linear":
        return config.lr * (1 - walked)
    if config.schedule == "one-cycle":
        return config.lr * _one_cycle(step / max(1, total - 1))
    return config.lr


def _one_cycle(walked: float) -> float:
    """Rise along a cosine from 1/25 to 1 over the first 30 %, then fall to 1/250,000 (Smith and Topin 2018)."""
    start, peak, end = 1 / 25, 1.0, 1 / 25e4
    if walked < 0.3:
        return start + (peak - start) * (1 - math.cos(math.pi * walked / 0.3)) / 2
    return end + (peak - end) * (1 + math.cos(math.pi * (walked - 0.3) / 0.7)) / 2
