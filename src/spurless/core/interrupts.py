"""Interrupts: a Ctrl-C is held back until the work can be left without loss, and saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


class Left(Exception):
    """Work was left, and saved, because a Ctrl-C is held back; :func:`held_back` turns it into that."""


@dataclass
class _State:
    """Whether a Ctrl-C came that is held back."""

    asked: bool = False
    answer: bool | None = None
    """What is said of it meanwhile."""


_state = _State()


def asked_to_stop() -> bool:
    """Return whether a Ctrl-C is held back: whoever can save does so now, and raises :class:`Left`."""
    return _state.asked if _state.answer is None else _state.answer


@contextmanager
def one_answer() -> Iterator[None]:
    """Let :func:`asked_to_stop` answer all alike within the block: those who advance together also stop together."""
    _state.answer = _state.asked
    try:
        yield
    finally:
        _state.answer = None


@contextmanager
def held_back(where: bool = True) -> Iterator[None]:
    """Hold a Ctrl-C back until the block is left, however it is; a second one comes through at once.

    Outside the main thread, where someone else listens to the signal, and within another such block this does nothing.
    """
    if not (where and _is_free()):
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    except Exception:
        if not _state.asked:
            raise
        raise KeyboardInterrupt from None  # what else went wrong is seen when the work goes on
    else:
        if _state.asked:
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _state.asked = False


def _is_free() -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _note(number: int, frame: Any) -> None:
    if _state.asked:
        signal.default_int_handler(number, frame)
    _state.asked = True
