"""Report the progress of long functions that have no progress argument."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int, str], None]
"""Called with stage, step, number of steps and a message; at most ten times per second."""

_RECEIVER: ContextVar[Progress | None] = ContextVar("receiver", default=None)


@contextmanager
def progress_to(receiver: Progress | None) -> Iterator[None]:
    """Send progress reported inside the block to ``receiver``; None discards it."""
    token = _RECEIVER.set(receiver or (lambda *_: None))
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def progress_reporter(stage: str, total: int, patience: float = 1.0) -> Callable[[int], None]:
    """Return a function to call with the number of completed steps.

    It reports nothing in the first ``patience`` seconds, so that short work stays quiet. The receiver is chosen now,
    since threads do not inherit it; without one, progress is printed on one line if stderr is a terminal.

    Example:
        >>> reports = []
        >>> with progress_to(lambda *report: reports.append(report)):
        ...     report = progress_reporter("decode", 2, patience=0)
        >>> report(2)
        >>> reports
        [('decode', 2, 2, '')]
    """
    receiver = _RECEIVER.get() or (_print_line if sys.stderr.isatty() else lambda *_: None)
    last = time.monotonic() + patience - 0.1

    def report(step: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= 0.1 or (step == total and now >= last):
            last = now
            receiver(stage, step, total, "")

    return report


def _print_line(stage: str, step: int, total: int, _: str) -> None:
    sys.stderr.write(f"\r{stage} {step:,} of {total:,}" + ("\n" if step == total else ""))
    sys.stderr.flush()
