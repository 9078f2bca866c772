"""Progress: told to who listens, quiet where the work is quick."""

import io
import sys
from threading import Thread

import pytest

from spurless.core.progress import progress_reporter, progress_to

Told = tuple[str, int, int, str]


def test_quick_work_stays_quiet() -> None:
    heard: list[Told] = []
    with progress_to(lambda *told: heard.append(told)):
        done = progress_reporter("decode", 3)
        for step in (1, 2, 3):
            done(step)
    assert heard == []


def test_the_end_is_told_and_a_flood_is_not() -> None:
    heard: list[Told] = []
    with progress_to(lambda *told: heard.append(told)):
        done = progress_reporter("decode", 10_000, patience=0)
        for step in range(1, 10_001):
            done(step)
    assert heard[0] == ("decode", 1, 10_000, "")
    assert heard[-1] == ("decode", 10_000, 10_000, "")
    assert len(heard) < 1000


def test_a_thread_tells_who_listened_when_the_work_began() -> None:
    heard: list[Told] = []
    with progress_to(lambda *told: heard.append(told)):
        done = progress_reporter("decode", 1, patience=0)
        thread = Thread(target=done, args=(1,))
        thread.start()
        thread.join()
    assert heard == [("decode", 1, 1, "")]


def test_none_listens_to_nothing_and_the_old_listener_comes_back() -> None:
    heard: list[Told] = []
    with progress_to(lambda *told: heard.append(told)):
        with progress_to(None):
            progress_reporter("inner", 1, patience=0)(1)
        progress_reporter("outer", 1, patience=0)(1)
    assert [told[0] for told in heard] == ["outer"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "said"), [(Terminal(), "\rdecode 1,000 of 1,000\n"), (io.StringIO(), "")])
def test_a_terminal_gets_a_line_and_a_log_gets_none(
    stream: io.StringIO, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    progress_reporter("decode", 1000, patience=0)(1000)
    assert stream.getvalue() == said
