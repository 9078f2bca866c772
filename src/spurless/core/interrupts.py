"""Defer Ctrl-C until the current work is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class InterruptedAfterSave(Exception):  # noqa: N818  # control flow, like KeyboardInterrupt
    """Raised by work that was saved because of Ctrl-C; :func:`defer_interrupt` turns it into KeyboardInterrupt."""


@dataclass
class _State:
    requested: bool = False  # whether Ctrl-C was pressed and is deferred
    frozen: bool | None = None  # the value that :func:`stop_requested` returns inside :func:`freeze_stop_flag`


_state = _State()


def stop_requested() -> bool:
    """Return whether Ctrl-C is deferred: save the work now, and raise :class:`InterruptedAfterSave`."""
    return _state.requested if _state.frozen is None else _state.frozen


@contextmanager
def freeze_stop_flag() -> Iterator[None]:
    """Keep the value of :func:`stop_requested` constant, so that jobs that advance together stop together."""
    _state.frozen = _state.requested
    try:
        yield
    finally:
        _state.frozen = None


@contextmanager
def defer_interrupt(enabled: bool = True) -> Iterator[None]:
    """Defer Ctrl-C to the end of the block; a second Ctrl-C is raised at once.

    Has no effect outside the main thread, inside another such block, or if another handler is installed.
    """
    if not (enabled and _is_default_handler()):
        yield
        return
    signal.signal(signal.SIGINT, _defer)
    try:
        yield
    except Exception:
        if not _state.requested:
            raise
        raise KeyboardInterrupt from None  # any other error shows up again when the work is resumed
    else:
        if _state.requested:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _state.requested = False


def _is_default_handler() -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _defer(number: int, frame: Any) -> None:
    if _state.requested:
        signal.default_int_handler(number, frame)
    _state.requested = True
