"""Archives: what is in them comes out whole, and a bad member, a lie or a cut leaves nothing behind."""

import gzip
import io
import shutil
import stat
import tarfile
import zipfile
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from spurless.core.errors import InputError
from spurless.core.progress import progress_reporter, progress_to
from spurless.data import prepare as archives
from spurless.data.prepare import merge_folder, unpack

TREE = {"set/readme.txt": b"hello", "set/Möwe/птица 1.jpg": b"bird", "set/empty": b"", "loose.bin": bytes(range(256))}
SUFFIXES = ("zip", "tar", "tar.gz", "tgz")


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("set/hollow/", b"")
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def make_tar(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        hollow = tarfile.TarInfo("./set/hollow")
        hollow.type, hollow.mode = tarfile.DIRTYPE, 0o000
        archive.addfile(hollow)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o000
            archive.addfile(info, io.BytesIO(data))
        for info in more:
            archive.addfile(info)
    return path


def make(path: Path, files: dict[str, bytes]) -> Path:
    return make_zip(path, files) if path.suffix == ".zip" else make_tar(path, files)


def entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def untouched(tmp_path: Path, archive: Path) -> bool:
    return [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_everything_comes_out(suffix: str, tmp_path: Path) -> None:
    archive = make(tmp_path / f"a.{suffix}", TREE)
    unpack(archive, tmp_path / "new" / "folder")
    assert tree(tmp_path / "new" / "folder") == dict(sorted(TREE.items()))
    assert (tmp_path / "new" / "folder" / "set" / "hollow").is_dir()
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == ["loose.bin", "set"]


def test_the_content_says_what_it_is_not_the_name(tmp_path: Path) -> None:
    inner = make_zip(tmp_path / "inner.zip", {"inner.txt": b"inner"}).read_bytes()
    archive = make_tar(tmp_path / "a.zip", {"data.zip": inner})  # from behind, this looks like a zip
    unpack(archive, tmp_path / "out")
    assert tree(tmp_path / "out") == {"data.zip": inner}


def test_an_existing_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="out: cannot write here: File exists"):
        unpack(make_zip(tmp_path / "a.zip", TREE), tmp_path / "out")
    assert tree(tmp_path / "out") == {"mine.txt": b"mine"}


def test_folders_are_merged_and_existing_files_are_kept(tmp_path: Path) -> None:
    for name, text in {"old/set/a.txt": "a", "new/set/a.txt": "b", "new/set/deep/c": "c", "new/d": "d"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("old")  # the target itself may be a link
    merge_folder(tmp_path / "new", tmp_path / "link")
    assert tree(tmp_path / "old") == {"set/a.txt": b"a", "set/deep/c": b"c", "d": b"d"}
    merge_folder(tmp_path / "new", tmp_path / "fresh" / "folder")
    assert tree(tmp_path / "fresh") == {"folder/set/a.txt": b"b"}  # the others were moved above


@pytest.mark.parametrize("kind", ["folder", "file", "broken"])
def test_links_below_the_target_are_not_followed(kind: str, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_text("mine")
    (tmp_path / "new" / "set").mkdir(parents=True)
    (tmp_path / "new" / "set" / "x").write_text("other")
    (tmp_path / "new" / "a").write_text("a")
    (tmp_path / "old").mkdir()
    if kind == "folder":
        (tmp_path / "old" / "set").symlink_to(tmp_path / "outside")
        with pytest.raises(InputError, match="old/set: the folder is a link"):
            merge_folder(tmp_path / "new", tmp_path / "old")
        assert tree(tmp_path / "new") == {"a": b"a", "set/x": b"other"}  # nothing was moved
    else:
        (tmp_path / "old" / "set").mkdir()
        (tmp_path / "old" / "set" / "x").symlink_to(tmp_path / "outside" / ("x" if kind == "file" else "y"))
        merge_folder(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old" / "set" / "x").is_symlink()
    assert tree(tmp_path / "outside") == {"x": b"mine"}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "set/../../evil",
        "/etc/evil",
        "//etc/evil",
        "///etc/evil",
        "set/..",
        "C:/evil",
        "C:evil",
        "..\\evil",
        "set\\..\\..\\evil",
        "\\\\a\\b\\c",
    ],
)
def test_a_name_that_leaves_the_folder_is_refused(name: str, suffix: str, tmp_path: Path) -> None:
    archive = make(tmp_path / f"a.{suffix}", {**TREE, name: b"evil"})
    with pytest.raises(InputError, match=rf"a.{suffix}, member '.*': the member leaves its folder"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


@pytest.mark.parametrize(
    "member",
    [
        *(
            entry("l", kind, target)
            for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE)
            for target in ("/etc/passwd", "//etc/passwd", "..", "../../x", "set/readme.txt", "nowhere", ".")
        ),
        entry("d", tarfile.CHRTYPE),
        entry("d", tarfile.BLKTYPE),
        entry("d", tarfile.FIFOTYPE),
    ],
    ids=lambda member: f"{member.type.decode()} {member.linkname}",
)
def test_a_link_or_device_in_a_tar_is_an_error(member: tarfile.TarInfo, tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", TREE, member)
    for _ in range(2):
        with pytest.raises(InputError, match=r"a.tar, member '[ld]': the member is a (link|device or a pipe)"):
            unpack(archive, tmp_path / "out")
        assert untouched(tmp_path, archive)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_a_link_or_device_in_a_zip_is_refused(kind: int, tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        info = zipfile.ZipInfo("l")
        info.external_attr = (kind | 0o777) << 16
        opened.writestr("fine", b"")
        opened.writestr(info, "/etc/passwd")
    with pytest.raises(InputError, match=r"a.zip, member 'l': the member is a link or a device"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


def test_a_locked_zip_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"x": b"secret"})
    data = bytearray(archive.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 8] |= 1  # the flag in the list of members
    archive.write_bytes(data)
    with pytest.raises(InputError, match=r"member 'x': the member is encrypted"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_does_not_fit_is_refused(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    archive = make(tmp_path / f"a.{suffix}", {"a": b"x" * 600, "b": b"x" * 600})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2000, 801, 1199))
    with pytest.raises(
        InputError, match=r"too little disk space to unpack the archive \(expected 1,200 bytes, got 1,199 free\)"
    ):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2000, 800, 1200))
    unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_cut_archive_is_refused(suffix: str, share: float, tmp_path: Path) -> None:
    noise = {f"{i}.bin": bytes((i * j * j + j // 7) % 251 for j in range(3000)) for i in range(1, 9)}
    archive = make(tmp_path / f"a.{suffix}", noise)
    whole = archive.read_bytes()
    archive.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InputError, match=rf"a.{suffix}: .*cut off"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_a_tar_that_ends_between_two_members_is_refused(suffix: str, tmp_path: Path) -> None:
    whole = make_tar(tmp_path / "whole.tar", {"first": b"1", "second": b"2"}).read_bytes()
    (tmp_path / "whole.tar").unlink()
    cut = whole[: whole.index(b"second")]
    archive = tmp_path / f"a.{suffix}"
    archive.write_bytes(cut if suffix == "tar" else gzip.compress(cut))
    with pytest.raises(InputError, match=r"the archive is damaged or cut off: its end is missing"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


def test_a_broken_header_in_a_tar_is_not_taken_for_its_end(tmp_path: Path) -> None:
    archive = make_tar(tmp_path / "a.tar", {"first": b"1", "second": b"2"})
    data = bytearray(archive.read_bytes())
    data[data.index(b"second")] ^= 1  # its checksum is wrong now
    archive.write_bytes(data)
    with pytest.raises(InputError, match=r"a.tar: the archive is damaged or cut off: its end is missing"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


def test_a_member_with_a_wrong_checksum_leaves_nothing_behind(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a", b"fine")
        opened.writestr("b", b"hay needle hay")
    data = bytearray(archive.read_bytes())
    data[data.index(b"needle")] ^= 1
    archive.write_bytes(data)
    with pytest.raises(InputError, match=r"a.zip: the archive is damaged or cut off: Bad CRC-32 for file 'b'"):
        unpack(archive, tmp_path / "out")
    assert untouched(tmp_path, archive)


@pytest.mark.parametrize("content", [b"", b"plain text"])
def test_what_is_no_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(InputError, match=r"a.zip: not a zip or tar archive"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    with pytest.raises(InputError, match=r"b.tar: no such file"):
        unpack(tmp_path / "b.tar", tmp_path / "out")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"out/deeper: cannot write here: Not a directory"):
        unpack(make_zip(tmp_path / "a.zip", {"x": b"x"}), tmp_path / "out" / "deeper")


def test_it_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[Any, ...]] = []
    monkeypatch.setattr(archives, "progress_reporter", lambda stage, total: progress_reporter(stage, total, patience=0))
    with progress_to(lambda *told: heard.append(told)):
        unpack(make_zip(tmp_path / "a.zip", TREE), tmp_path / "out")
    assert heard[0] == ("unpack", 1, 5, "")
