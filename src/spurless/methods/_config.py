"""Training settings that several methods use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spurless.train.config import TrainConfig


def constant_lr_config(base: TrainConfig, **changes: Any) -> TrainConfig:
    """Return settings with a constant learning rate and without L1, ASAM or early stopping, then apply ``changes``."""
    plain: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "stop_accuracy": None, "stop_loss": None}
    return replace(base, **{**plain, "l1": 0.0, "asam": 0.0, **changes})
