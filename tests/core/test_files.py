"""Files are replaced whole, and nothing but a file is replaced."""

import os
import stat
from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.core.files import check_no_overwrite, check_writable, data_folder, replace_file


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
