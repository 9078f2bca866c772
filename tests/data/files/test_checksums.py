"""Checksums: a list as sha256sum writes it is read, and a file that differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from spurless.core.errors import InputError
from spurless.data.prepare import ChecksumCounts, read_checksums, verify_checksums

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", FIPS 180-2
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_files_are_compared_with_the_published_digests(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    (tmp_path / "empty").write_bytes(b"")
    expected = {tmp_path / "abc": ABC, tmp_path / "empty": EMPTY, tmp_path / "gone": ABC}
    assert verify_checksums(expected) == ChecksumCounts(correct=2, absent=1)
    with pytest.raises(InputError, match=r"empty: the file differs .*\(expected ba7816bf8f01\.\.\., got e3b0c442"):
        verify_checksums({**expected, tmp_path / "empty": ABC})


def test_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" * 1_000_000 + b"b" * 2_000_000)
    with pytest.raises(InputError, match=r"got ca83d44c29f6"):
        verify_checksums({tmp_path / "a": "0" * 64})


def test_a_list_names_files_under_its_folder_only(tmp_path: Path) -> None:
    lines = [f"{ABC}  a b.txt", "", "# a remark", f"{EMPTY.upper()} *in/c", f"{ABC}  ../up", f"{ABC}  /etc/passwd"]
    (tmp_path / "SHA256SUMS").write_text("\n".join(lines))
    assert list(read_checksums(tmp_path / "SHA256SUMS")) == [
        (tmp_path / "a b.txt", ABC),
        (tmp_path / "in" / "c", EMPTY),
    ]


@pytest.mark.parametrize("line", ["hello", f"{ABC[:-1]}  a", f"{ABC} a"])
def test_a_line_that_is_no_checksum_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{ABC}  a\n{line}\n")
    with pytest.raises(InputError, match=r"SHA256SUMS, line 2: the line is not a checksum"):
        list(read_checksums(tmp_path / "SHA256SUMS"))
