"""Interrupts: a Ctrl-C waits for the end of a block, the second one does not, and nothing else changes."""

import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from spurless.core.interrupts import (
    InterruptedAfterSave,
    defer_interrupt,
    freeze_stop_flag,
    interrupting_signal,
    raise_on_termination,
    stop_requested,
)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before() -> Any:
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert {signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)} == {signal.SIG_DFL}
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_is_deferred_and_then_raised_like_the_key(number: int) -> None:
    done = list[str]()

    @defer_interrupt()
    def block() -> None:
        signal.raise_signal(number)
        assert stop_requested()
        done.append("the rest")
        raise InterruptedAfterSave

    with pytest.raises(KeyboardInterrupt), raise_on_termination():
        block()
    assert done == ["the rest"]
    assert interrupting_signal() == number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_second_termination_comes_at_once(number: int) -> None:
    done = list[str]()

    @defer_interrupt()
    def block() -> None:
        press()
        signal.raise_signal(number)
        done.append("after")

    with pytest.raises(KeyboardInterrupt), raise_on_termination():
        block()
    assert (done, interrupting_signal()) == ([], number)


def test_a_signal_that_is_ignored_or_handled_stays_so() -> None:
    received = list[int]()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with raise_on_termination(), defer_interrupt():
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            assert not stop_requested()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert received == [signal.SIGTERM]


def test_a_program_without_the_command_line_ends_by_the_signal_after_the_block() -> None:
    program = """
import signal
from spurless.core.interrupts import defer_interrupt
with defer_interrupt():
    signal.raise_signal(signal.SIGTERM)
    print("saved", flush=True)
print("not reached")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGTERM, "saved\n", "")
