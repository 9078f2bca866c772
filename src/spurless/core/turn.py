"""Turn: of processes that work together and fail alike, the first says why, and the others stay silent."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

TURN = "SPURLESS_TURN"
"""Where the processes of one job find the file that stands for their turn: whoever removes it may speak."""


def offer_turn() -> None:
    """Give this process, and all that it starts from now on, one turn between them; one that has a turn keeps it."""
    if TURN in os.environ:
        return
    with suppress(OSError):  # without a place for it everybody speaks, which is better than nobody
        descriptor, place = mkstemp(prefix="spurless-turn-")
        os.close(descriptor)
        os.environ[TURN] = place
        atexit.register(Path(place).unlink, missing_ok=True)


def take_turn() -> bool:
    """Return whether this process may speak: nobody works beside it, or it is the first of them to ask."""
    place = os.environ.get(TURN)
    if place is None:
        return True
    try:
        Path(place).unlink()
    except FileNotFoundError:
        return False
    return True
