"""Files are replaced whole, and nothing but a file is replaced."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spurless.core.errors import BadInput
from spurless.core.files import alone, check_apart, check_writable, replace_file


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.txt"
    replace_file(path, lambda scratch: scratch.write_text("one"))
    replace_file(path, lambda scratch: scratch.write_text("two"))
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]  # no scratch file is left


def test_a_failed_write_leaves_the_old_content_and_no_scratch_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fail(scratch: Path) -> None:
        scratch.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(BadInput, match="cannot write here: No space left on device"):
        replace_file(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_a_device_or_a_folder_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(BadInput, match="this is no ordinary file"):
            replace_file(path, lambda scratch: scratch.write_text("x"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_is_read_is_not_written_under_any_of_its_names(tmp_path: Path) -> None:
    data, linked, hard, other = (tmp_path / name for name in ("d.csv", "l.csv", "h.csv", "o.csv"))
    data.write_text("a")
    other.write_text("b")
    linked.symlink_to(data)
    hard.hardlink_to(data)
    for place in (data, linked, hard, tmp_path / "." / "d.csv"):
        with pytest.raises(BadInput, match="this file is read, and would be written over"):
            check_apart([None, other, place], [None, "planted", str(data)])
    check_apart([other, tmp_path / "new", None], [data, tmp_path, "x" * 5000, None])
    check_apart([Path("/dev/null")], ["/dev/null"])


def test_a_folder_under_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadInput, match="cannot write here"):
        check_writable(tmp_path / "file" / "out")


def test_a_folder_that_can_be_written_is_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_one_process_at_a_time_and_a_dead_one_holds_nobody_up(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    code = (
        "import sys, time, os\n"
        "from pathlib import Path\n"
        "from spurless.core.files import alone\n"
        f"with alone(Path({str(lock)!r})), open({str(log)!r}, 'a', buffering=1) as log:\n"
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
    path, entered = tmp_path / "x.lock", threading.Event()

    def enter() -> None:
        with alone(path):
            entered.set()

    with path.open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        waiting = threading.Thread(target=enter)
        waiting.start()
        assert not entered.wait(0.1)  # it waits for the first
        path.unlink()
        second = path.open("w")
        fcntl.flock(second, fcntl.LOCK_EX)
    assert not entered.wait(0.1)  # the first is free, and worth nothing
    second.close()
    waiting.join(20)
    assert entered.is_set()
    assert not path.exists()
