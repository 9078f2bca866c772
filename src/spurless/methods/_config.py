"""Checks of configuration fields, and training settings that several methods use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spurless.core.errors import InputError
from spurless.train.config import TrainConfig


def check_counts(config: object, method: str, *names: str) -> None:
    """Raise if one of these fields is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise InputError(f"{method}'s {name} must be at least 1", got=getattr(config, name))


def check_positive(config: object, method: str, *names: str) -> None:
    """Raise if one of these fields is not above 0."""
    for name in names:
        if not getattr(config, name) > 0:
            raise InputError(f"{method}'s {name} must be above 0", got=getattr(config, name))


def check_not_negative(config: object, method: str, *names: str) -> None:
    """Raise if one of these fields is negative, infinite or NaN."""
    for name in names:
        if not 0 <= getattr(config, name) < float("inf"):
            raise InputError(f"{method}'s {name} must not be negative", got=getattr(config, name))


def check_fraction(what: str, value: float, *, zero: bool = False) -> None:
    """Raise if a value is not above 0 (with ``zero``: at least 0) and at most 1."""
    if not (0 <= value <= 1 and (zero or value > 0)):
        raise InputError(
            f"{what} must be a fraction", expected="0 to 1" if zero else "above 0 and at most 1", got=value
        )


def constant_lr_config(base: TrainConfig, **changes: Any) -> TrainConfig:
    """Return settings with a constant learning rate and without L1, ASAM or early stopping, then apply ``changes``."""
    plain: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "stop_accuracy": None, "stop_loss": None}
    return replace(base, **{**plain, "l1": 0.0, "asam": 0.0, **changes})
