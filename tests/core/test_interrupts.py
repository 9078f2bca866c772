"""Interrupts: a Ctrl-C waits for the end of a block, the second one does not, and nothing else changes."""

import signal
import threading
from typing import Any

import pytest

from spurless.core.interrupts import InterruptedAfterSave, defer_interrupt, freeze_stop_flag, stop_requested


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not stop_requested()


def test_it_waits_for_the_end_of_the_block() -> None:
    done = list[str]()

    @defer_interrupt()
    def block() -> None:
        press()
        assert stop_requested()
        done.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["the rest"]


def test_the_second_comes_at_once() -> None:
    done = list[str]()

    @defer_interrupt()
    def block() -> None:
        press()
        done.append("between")
        press()
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["between"]


@pytest.mark.parametrize("error", [InterruptedAfterSave(), ValueError("a reader died of it too")])
def test_whatever_else_is_raised_then_is_the_interrupt(error: Exception) -> None:
    @defer_interrupt()
    def block() -> None:
        press()
        raise error

    with pytest.raises(KeyboardInterrupt):
        block()


def test_errors_without_it_are_their_own() -> None:
    with pytest.raises(ValueError, match="mine"), defer_interrupt():
        raise ValueError("mine")


def test_a_block_within_a_block_leaves_it_to_the_outer_one() -> None:
    done = list[str]()

    @defer_interrupt()
    def block() -> None:
        with defer_interrupt():
            press()
        done.append("within the outer one")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["within the outer one"]


def test_who_listens_already_is_left_alone() -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with defer_interrupt():
            press()
            assert not stop_requested()
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


def test_where_it_is_not_wanted_or_in_a_thread_it_does_nothing() -> None:
    seen = list[bool]()

    def look() -> None:
        with defer_interrupt():
            seen.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    with defer_interrupt(False):
        look_here = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert seen == [True]
    assert look_here


def test_those_who_advance_together_get_one_answer() -> None:
    answers = list[bool]()

    @defer_interrupt()
    def block() -> None:
        with freeze_stop_flag():
            answers.append(stop_requested())
            press()
            answers.append(stop_requested())
        answers.append(stop_requested())

    with pytest.raises(KeyboardInterrupt):
        block()
    assert answers == [False, False, True]
