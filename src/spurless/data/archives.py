"""Archives: zip and tar files unpacked whole or not at all, and never outside their folder.

Names, links and sizes of all members are checked before the first byte is written. Then they are written into a
scratch folder: files first, links last, so that nothing is ever written through a link. Modes, owners and times
of the archive are not taken over.
"""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any
from uuid import uuid4

from spurless.core.errors import BadInput
from spurless.core.files import unwritable
from spurless.core.progress import teller

DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,  # a compression that zipfile does not know
)
ENCRYPTED = 1  # a flag of a zip member


@dataclass(frozen=True)
class _Member:
    """One entry of an archive; ``path`` is empty for the archive's own root."""

    path: PurePosixPath
    size: int = 0
    open: Callable[[], IO[bytes]] | None = None
    """Opens a file; None for a folder or a link."""
    link: PurePosixPath | None = None
    """Where a link points to, from where it lies."""
    same: PurePosixPath | None = None
    """The file in the archive that this one is the same as."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip, tar, tar.gz or tgz file into a folder; what lies there already is kept, and never overwritten.

    Raises:
        BadInput: the archive is damaged, a member is dangerous, there is no room, or a file is there already. Then
            nothing is written.
    """
    if not archive.is_file():
        raise BadInput("no such file", where=archive, expected="a zip or tar archive")
    with _reading(archive), ExitStack() as stack:
        members = _members(archive, stack)
        _check(archive, members, folder)
        try:
            _extract(members, folder)
        except gzip.BadGzipFile:
            raise
        except OSError as error:
            raise unwritable(folder, error) from None


def _extract(members: Sequence[_Member], folder: Path) -> None:
    there = folder.exists()
    scratch = folder / f".{uuid4().hex}.tmp"  # inside, since what is beside may be another disk
    try:
        scratch.mkdir(parents=True)
        tell = teller("unpack", len(members))
        for done, member in enumerate(sorted(members, key=_turn), start=1):
            _write(member, scratch)
            tell(done)
        _move(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if not there and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _turn(member: _Member) -> int:
    """Files and folders first, in the order of the archive; then what is the same as another; links last."""
    return 2 if member.link is not None else 1 if member.same is not None else 0


def _write(member: _Member, scratch: Path) -> None:
    place = scratch / member.path
    place.parent.mkdir(parents=True, exist_ok=True)
    if member.link is not None:
        place.symlink_to(member.link)
    elif member.same is not None:
        shutil.copyfile(scratch / member.same, place)
    elif member.open is None:
        place.mkdir(exist_ok=True)
    else:
        with member.open() as source, place.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)


def _move(source: Path, target: Path) -> None:
    """Move what is in one folder into another; folders that are in both are merged."""
    for child in source.iterdir():
        place = target / child.name
        if place.is_dir() and child.is_dir() and not child.is_symlink():
            _move(child, place)
        else:
            child.rename(place)


def _check(archive: Path, members: Sequence[_Member], folder: Path) -> None:
    links = {member.path for member in members if member.link is not None}
    files = {member.path for member in members if member.open is not None}
    for member in members:
        where = f"{archive}, member {str(member.path)!r}"
        if links.intersection(member.path.parents):
            raise BadInput("the member lies behind a link", where=where)
        if member.link is not None and not _stays(member.path.parent, member.link, links):
            raise BadInput(f"the link to {str(member.link)!r} may leave the folder", where=where)
        if member.same is not None and member.same not in files:
            raise BadInput(f"the member is the same as {str(member.same)!r}, which is no file there", where=where)
        place = folder / member.path
        if os.path.lexists(place) and not (place.is_dir() and _is_folder(member)):
            raise BadInput("the file is there already", where=place, do="Move it away, or delete it.")
    _check_room(archive, members, folder)


def _is_folder(member: _Member) -> bool:
    return member.open is None and member.link is None and member.same is None


def _stays(start: PurePosixPath, target: PurePosixPath, links: set[PurePosixPath]) -> bool:
    """Walk to the target of a link step by step; a step out of the folder or through another link is one too many."""
    here = start
    for part in target.parts:
        if here in links or (part == ".." and not here.parts) or part == "/":
            return False
        here = here.parent if part == ".." else here / part
    return True


def _check_room(archive: Path, members: Sequence[_Member], folder: Path) -> None:
    sizes = {member.path: member.size for member in members}
    total = sum(member.size if member.same is None else sizes[member.same] for member in members)
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if total > free:
        raise BadInput(
            "there is no room for what is in the archive",
            where=archive,
            expected=f"{total:,} bytes",
            got=f"{free:,} free",
        )


def _members(archive: Path, stack: ExitStack) -> list[_Member]:
    # tar first: a tar whose last member is a zip looks like that zip from behind
    if tarfile.is_tarfile(archive):
        tar = stack.enter_context(tarfile.TarFile.open(archive))
        members = [_tar_member(archive, tar, info) for info in tar]
        _check_end(tar)
        return members
    if zipfile.is_zipfile(archive):
        opened = stack.enter_context(zipfile.ZipFile(archive))
        return [_zip_member(archive, opened, info) for info in opened.infolist()]
    raise BadInput("this is no zip or tar archive, or it is cut off", where=archive, do="Download it again.")


def _zip_member(archive: Path, opened: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    path, mode = _inside(archive, info.filename), info.external_attr >> 16
    if info.flag_bits & ENCRYPTED:
        raise _refused(archive, info.filename, "is locked with a password")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _refused(archive, info.filename, "is a link or a device, which a zip of data does not need")
    return _Member(path) if info.is_dir() else _Member(path, info.file_size, lambda: opened.open(info))


def _tar_member(archive: Path, opened: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    path = _inside(archive, info.name)
    if info.isdir():
        return _Member(path)
    if info.issym():
        return _Member(path, link=PurePosixPath(info.linkname))
    if info.islnk():
        return _Member(path, same=_inside(archive, info.linkname))
    if not info.isreg():
        raise _refused(archive, info.name, "is a device or a pipe")
    return _Member(path, info.size, lambda: _open_tar(opened, info))


def _check_end(tar: tarfile.TarFile) -> None:
    """Refuse a tar without its end of zeros: tarfile takes a header that is cut off or broken for the end."""
    file: Any = tar.fileobj
    ended: bool = file.tell() >= tar.offset + tarfile.BLOCKSIZE
    if ended and isinstance(file, BufferedReader):  # what is compressed has a checksum, and is slow to turn back
        file.seek(tar.offset)
        ended = not file.read(tarfile.BLOCKSIZE).strip(b"\0")
    if not ended:
        raise tarfile.ReadError("its end is missing")


def _open_tar(opened: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = opened.extractfile(info)
    if file is None:
        raise tarfile.ReadError(f"{info.name} is no file")
    return file


def _inside(archive: Path, name: str) -> PurePosixPath:
    """Return the path of a member, which must not leave the folder, on any system."""
    windows = PureWindowsPath(name)
    if windows.drive or windows.root or ".." in windows.parts or "\0" in name:
        raise _refused(archive, name, "leaves its folder")
    return PurePosixPath(name)


def _refused(archive: Path, name: str, what: str) -> BadInput:
    return BadInput(f"the member {what}", where=f"{archive}, member {name!r}", do="Get it from a source you trust.")


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as error:
        raise BadInput(f"the archive is damaged or cut off: {error}", where=archive, do="Download it again.") from None
