"""Locks: what a living process has locked is refused to others, and a dead one has locked nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.core.locks import file_lock, lock_runs

HOLDER = """
import os, sys, time
from pathlib import Path
from spurless.core.locks import lock_runs
with lock_runs(Path(sys.argv[1]), sys.argv[2:]):
    if os.fork() == 0:
        time.sleep(60)  # what it left behind, such as a loader's worker, holds nothing
        os._exit(0)
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the files that stand for others in the test's own folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


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
        with (
            pytest.raises(InputError, match="another process is working on 1 of these 2 runs") as refused,
            lock_runs(out, "bc"),
        ):
            pass
        assert str(out) in str(refused.value)
        with lock_runs(out, "cd"), lock_runs(tmp_path / "other.jsonl", "ab"), lock_runs(None, "ab"):
            pass
        assert not out.exists()


def test_the_same_file_by_another_path_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with holder(tmp_path / "records.jsonl", "a"):
        for out in (Path("records.jsonl"), tmp_path / "link" / "records.jsonl"):
            with pytest.raises(InputError, match="another process"), lock_runs(out, "a"):
                pass


def test_a_killed_process_holds_nothing_although_its_child_lives(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    with holder(out, "a") as process:
        process.kill()
        process.wait()
        with lock_runs(out, "a"):
            pass


def test_what_was_held_is_free_again(tmp_path: Path) -> None:
    out = tmp_path / "records.jsonl"
    for _ in range(2):
        with lock_runs(out, "ab"):
            pass
    with pytest.raises(ZeroDivisionError), lock_runs(out, "ab"):
        raise ZeroDivisionError
    with holder(out, "a", "b"):
        pass


def test_without_a_place_for_locks_work_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done = []
    with lock_runs(tmp_path / "records.jsonl", "a"):
        done.append("a")
    assert done == ["a"]


def test_locks_are_in_a_private_folder_of_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "runtime" / "spurless"
    folder.mkdir(parents=True, mode=0o755)
    with lock_runs(tmp_path / "records.jsonl", "a"):
        assert [path.name for path in folder.iterdir()] == ["runs.lock"]
        assert (folder.stat().st_mode & 0o777, (folder / "runs.lock").stat().st_mode & 0o777) == (0o700, 0o600)


@pytest.mark.parametrize("link", ["folder", "file"])
def test_a_lock_is_not_opened_through_a_link(link: str, tmp_path: Path) -> None:
    folder, outside = tmp_path / "runtime" / "spurless", tmp_path / "outside"
    outside.mkdir()
    if link == "folder":
        folder.parent.mkdir()
        folder.symlink_to(outside)
    else:
        folder.mkdir(parents=True)
        (folder / "runs.lock").symlink_to(outside / "new")
    out = tmp_path / "records.jsonl"
    with holder(out, "a"), pytest.raises(InputError, match="another process"), lock_runs(out, "a"):
        pass
    assert list(outside.iterdir()) == []
    assert (tmp_path / "home" / "spurless" / "locks" / "runs.lock").is_file()  # the next folder is used


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    (tmp_path / "runtime" / "spurless").mkdir(parents=True, mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with lock_runs(tmp_path / "records.jsonl", "a"):
        assert not list((tmp_path / "runtime" / "spurless").iterdir())
    assert (tmp_path / "runtime" / "spurless").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_the_lock_of_a_cache_is_not_opened_through_a_link(target: str, tmp_path: Path) -> None:
    if target == "file":
        (tmp_path / target).write_text("mine")
    (tmp_path / "x.lock").symlink_to(tmp_path / target)
    with pytest.raises(OSError, match=r"x\.lock"), file_lock(tmp_path / "x.lock"):
        pass
    assert not (tmp_path / "nothing").exists()
    assert target == "nothing" or (tmp_path / target).read_text() == "mine"


def test_one_process_at_a_time_and_a_dead_one_holds_nobody_up(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    code = (
        "import sys, time, os\n"
        "from pathlib import Path\n"
        "from spurless.core.locks import file_lock\n"
        f"with file_lock(Path({str(lock)!r})), open({str(log)!r}, 'a', buffering=1) as log:\n"
        "    log.write('in\\n'); time.sleep(0.05)\n"
        "    if sys.argv[1] == 'dies': os._exit(1)\n"
        "    log.write('out\\n')\n"
    )
    first = subprocess.run([sys.executable, "-c", code, "dies"], check=False, timeout=60)
    assert first.returncode == 1
    assert lock.exists()  # and nobody holds it
    others = [subprocess.Popen([sys.executable, "-c", code, "lives"]) for _ in range(3)]
    assert [other.wait(timeout=60) for other in others] == [0, 0, 0]
    assert log.read_text().split() == ["in", *["in", "out"] * 3]  # never two inside at once
    assert not lock.exists()


def test_a_lock_that_was_removed_lets_nobody_in_beside_its_successor(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    path, successor, entered = tmp_path / "x.lock", tmp_path / "successor", threading.Event()

    def enter() -> None:
        with file_lock(path):
            entered.set()

    waiting = threading.Thread(target=enter)
    with successor.open("w") as second:
        fcntl.flock(second, fcntl.LOCK_EX)
        with path.open("w") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            waiting.start()
            assert not entered.wait(0.1)  # it waits for the first
            successor.replace(path)  # in one step: between an unlink and an open the waiter could create the file
        assert not entered.wait(0.2)  # the lock of the removed file is free, and does not count
    waiting.join(20)
    assert entered.is_set()
    assert not path.exists()
