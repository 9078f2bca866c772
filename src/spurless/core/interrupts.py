"""Defer Ctrl-C, SIGTERM and SIGHUP until the current work is saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_TERMINATIONS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class InterruptedAfterSave(Exception):  # noqa: N818  # control flow, like KeyboardInterrupt
    """Raised by work that was saved because of a signal, which :func:`defer_interrupt` then sends again."""


@dataclass
class _State:
    requested: int | None = None  # number of the signal that is deferred
    raised: int = signal.SIGINT  # number of the signal that last raised KeyboardInterrupt
    handlers: dict[int, Any] = field(default_factory=dict)  # handlers of the signals outside the block
    frozen: bool | None = None  # the value that :func:`stop_requested` returns inside :func:`freeze_stop_flag`


_state = _State()


def stop_requested() -> bool:
    """Return whether a signal is deferred: save the work now, and raise :class:`InterruptedAfterSave`."""
    return _state.requested is not None if _state.frozen is None else _state.frozen


def interrupting_signal() -> int:
    """Return the number of the signal that raised KeyboardInterrupt inside :func:`raise_on_termination`."""
    return _state.raised


@contextmanager
def freeze_stop_flag() -> Iterator[None]:
    """Keep the value of :func:`stop_requested` constant, so that jobs that advance together stop together."""
    _state.frozen = _state.requested is not None
    try:
        yield
    finally:
        _state.frozen = None


@contextmanager
def defer_interrupt(enabled: bool = True) -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP to the end of the block, where they are sent again; a second one acts at once.

    Has no effect outside the main thread or inside another such block, nor on a signal that the program handles itself.
    """
    handlers = _default_handlers() if enabled else {}
    if not handlers:
        yield
        return
    _state.handlers = handlers
    for number in handlers:
        signal.signal(number, _defer)
    try:
        yield
    except Exception:
        if _state.requested is None:
            raise  # any error after a signal shows up again when the work is resumed
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        requested, _state.requested = _state.requested, None
    if requested is not None:
        signal.raise_signal(requested)


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP in the block, unless they are handled or ignored already."""
    _state.raised = signal.SIGINT
    handlers = {number: handler for number, handler in _default_handlers().items() if number in _TERMINATIONS}
    for number in handlers:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _default_handlers() -> dict[int, Any]:
    """Return the signals that end the program as usual, with their handlers; none outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_TERMINATIONS)}
    usual = (signal.default_int_handler, signal.SIG_DFL, _terminate)
    return {number: handler for number, handler in handlers.items() if handler in usual}


def _defer(number: int, _frame: Any) -> None:
    if _state.requested is None:
        _state.requested = number
        return
    signal.signal(number, _state.handlers[number])
    signal.raise_signal(number)


def _terminate(number: int, _frame: Any) -> None:
    _state.raised = number  # not an attribute of the error, which extension modules replace by one of their own
    raise KeyboardInterrupt
