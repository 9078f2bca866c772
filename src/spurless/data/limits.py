"""Limits: an option of a dataset that is out of range is refused by its name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spurless.core.errors import BadInput
from spurless.data.card import Card


def check_shares(card: Card, config: Any, *options: str) -> None:
    """Refuse options that are no share; None is none to check."""
    for option in options:
        share = getattr(config, option)
        if share is not None and not 0 <= share <= 1:
            raise BadInput(f"option {option!r} must be a share", where=card.name, expected="0 to 1", got=share)


def check_least(card: Card, config: Any, **least: int) -> None:
    """Refuse options that are smaller than they may be."""
    for option, limit in least.items():
        if getattr(config, option) < limit:
            raise BadInput(f"option {option!r} must be at least {limit}", where=card.name, got=getattr(config, option))


def check_choice(card: Card, config: Any, option: str, choices: Sequence[str]) -> None:
    """Refuse an option that is none of the words it may be."""
    if getattr(config, option) not in choices:
        raise BadInput(
            f"option {option!r} is unknown", where=card.name, expected=", ".join(choices), got=getattr(config, option)
        )
