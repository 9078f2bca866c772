"""Files are replaced whole, and nothing but a file is replaced."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.core.files import (
    check_no_overwrite,
    check_writable,
    data_folder,
    delete_abandoned,
    replace_file,
    scratch_folder,
)


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

    with pytest.raises(InputError, match="cannot write here: No space left on device"):
        replace_file(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_a_device_or_a_folder_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match="not a regular file"):
            replace_file(path, lambda scratch: scratch.write_text("x"))
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_file_that_is_read_is_not_written_under_any_of_its_names(tmp_path: Path) -> None:
    data, linked, hard, other = (tmp_path / name for name in ("d.csv", "l.csv", "h.csv", "o.csv"))
    data.write_text("a")
    other.write_text("b")
    linked.symlink_to(data)
    hard.hardlink_to(data)
    for place in (data, linked, hard, tmp_path / "." / "d.csv"):
        with pytest.raises(InputError, match="this input file would be overwritten"):
            check_no_overwrite([None, other, place], [None, "planted", str(data)])
    check_no_overwrite([other, tmp_path / "new", None], [data, tmp_path, "x" * 5000, None])
    check_no_overwrite([Path("/dev/null")], ["/dev/null"])


def test_a_folder_under_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot write here"):
        check_writable(tmp_path / "file" / "out")


def test_a_folder_that_can_be_written_is_left_empty(tmp_path: Path) -> None:
    check_writable(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o027, 0o077], indirect=True, ids=oct)
@pytest.mark.parametrize("writer_mode", [0o600, 0o666])
def test_a_file_has_the_mode_of_the_users_umask(umask: int, writer_mode: int, tmp_path: Path) -> None:
    def write(scratch: Path) -> None:
        scratch.touch(writer_mode)

    for _ in range(2):
        replace_file(tmp_path / "new" / "file", write)
        assert stat.S_IMODE((tmp_path / "new" / "file").stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o777 & ~umask


KILLED = """
import os, signal, sys
from pathlib import Path
from spurless.core.files import replace_file

def write(scratch):
    scratch.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

replace_file(Path(sys.argv[1]), write)
"""


def test_what_a_killed_process_left_is_deleted_by_the_next_write(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("old")
    for _ in range(2):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "file.txt")], check=False, timeout=120)
    (left,) = tmp_path.glob(".*.tmp")  # the second deleted that of the first
    assert (left / "file.txt").read_text() == "half"
    assert (tmp_path / "file.txt").read_text() == "old"
    with scratch_folder(tmp_path, "another") as used:
        assert [path for path in tmp_path.iterdir() if path.suffix == ".tmp"] == [used]
        (used / "x").touch()
        delete_abandoned(tmp_path)
        replace_file(tmp_path / "file.txt", lambda scratch: scratch.write_text("new"))
        assert (used / "x").exists()  # what a living process uses stays
    assert [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_only_scratch_folders_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "mine").touch()
    code = "0" * 32
    (tmp_path / f".file.{code}.tmp").touch()  # a file
    (tmp_path / f".link.{code}.tmp").symlink_to(tmp_path / "outside")
    (tmp_path / f"file.{code}.tmp").mkdir()
    (tmp_path / ".file.tmp").mkdir()
    before = sorted(tmp_path.rglob("*"))
    delete_abandoned(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    delete_abandoned(tmp_path / "missing")


def test_a_link_to_itself_is_not_a_path_to_write(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError) as caught:
        replace_file(tmp_path / "loop", lambda path: path.write_text("x"))
    assert caught.value.where == tmp_path / "loop"


def test_the_home_folder_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(InputError, match="the home folder of this user is not known"):
        data_folder("~no-such-user/data")


def test_a_path_with_nul_is_refused() -> None:
    with pytest.raises(InputError, match="not a valid path"):
        replace_file(Path("\x00"), lambda path: path.write_text("x"))
