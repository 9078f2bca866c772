"""Reserve: what a living process holds is refused to others, and a dead one holds nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spurless.core.errors import BadInput
from spurless.core.reserve import reserved

HOLDER = """
import os, sys, time
from pathlib import Path
from spurless.core.reserve import reserved
with reserved(Path(sys.argv[1]), sys.argv[2:]):
    if os.fork() == 0:
        time.sleep(60)  # what it left behind, such as a loader's worker, holds nothing
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files that stand for others in the test's own folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@contextmanager
def holder(out: Path, *runs: str) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold runs, in a session of its own, so that its child can be ended with it."""
    command = [sys.executable, "-c", HOLDER, str(out), *runs]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_what_another_holds_is_refused_and_all_else_is_free(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    with holder(out, "a", "b"):
        with pytest.raises(BadInput, match="another process is at 1 of these 2 runs") as refused, reserved(out, "bc"):
            pass
        assert str(out) in str(refused.value)
        with reserved(out, "cd"), reserved(tmp_path / "other.jsonl", "ab"), reserved(None, "ab"):
            pass
        assert not out.exists()


def test_the_same_file_by_another_path_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with holder(tmp_path / "records.jsonl", "a"):
        for out in (Path("records.jsonl"), tmp_path / "link" / "records.jsonl"):
            with pytest.raises(BadInput, match="another process"), reserved(out, "a"):
                pass


def test_a_killed_process_holds_nothing_although_its_child_lives(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    with holder(out, "a") as process:
        process.kill()
        process.wait()
        with reserved(out, "a"):
            pass


def test_what_was_held_is_free_again(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    for _ in range(2):
        with reserved(out, "ab"):
            pass
    with pytest.raises(ZeroDivisionError), reserved(out, "ab"):
        raise ZeroDivisionError
    with holder(out, "a", "b"):
        pass


def test_without_a_place_for_locks_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    done = []
    with reserved(tmp_path / "records.jsonl", "a"):
        done.append("a")
    assert done == ["a"]
