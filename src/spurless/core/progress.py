"""Progress: how long work that has no callback of its own says how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int, str], None]
"""Called with stage, step, total steps and a short word on how it goes; never more than ten times a second."""

_LISTENER: ContextVar[Progress | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Progress | None) -> Iterator[None]:
    """Send what is told inside the block to ``listener``; None sends it nowhere."""
    token = _LISTENER.set(listener or _nowhere)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def teller(stage: str, total: int, patience: float = 1.0) -> Callable[[int], None]:
    """Return a function that is called with the number of steps done.

    It says nothing in the first second, so that quick work stays quiet. Who listens is decided now, since
    threads do not inherit it; where nobody does, a terminal gets one line and a log gets none.

    Example:
        >>> heard = []
        >>> with listening(lambda *told: heard.append(told)):
        ...     done = teller("decode", 2, patience=0)
        >>> done(2)
        >>> heard
        [('decode', 2, 2, '')]
    """
    listener = _LISTENER.get() or (_line if sys.stderr.isatty() else _nowhere)
    spoke = time.monotonic() + patience - 0.1

    def done(step: int) -> None:
        nonlocal spoke
        now = time.monotonic()
        if now - spoke >= 0.1 or (step == total and now >= spoke):
            spoke = now
            listener(stage, step, total, "")

    return done


def _nowhere(stage: str, step: int, total: int, word: str) -> None:
    pass


def _line(stage: str, step: int, total: int, _: str) -> None:
    sys.stderr.write(f"\r{stage} {step:,} of {total:,}" + ("\n" if step == total else ""))
    sys.stderr.flush()
