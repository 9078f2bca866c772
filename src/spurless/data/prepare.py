"""Prepare datasets: find, unpack safely or download their files, check checksums, and load them once."""

from __future__ import annotations

import gzip
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from struct import error as StructError  # noqa: N812 - a class with the name of a variable
from typing import Any, TypeVar

from spurless.core.errors import InputError, SpurlessError
from spurless.core.files import data_folder, scratch_folder, unwritable_error
from spurless.core.limits import check_bytes, max_unpacked
from spurless.core.progress import progress_reporter
from spurless.data.checks import check_splits
from spurless.data.dataset import ROOT_HINT, Dataset, Layout, find_folder
from spurless.data.split import Splits

SUMS_FILE = "SHA256SUMS"  # name of a list of checksums
MIB = 2**20
DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    # of unknown compression, and of names, numbers and offsets that are not valid
    RuntimeError,
    ValueError,
    OverflowError,
    LookupError,
    StructError,
)
ENCRYPTED = 1  # flag bit of a zip member

Member = TypeVar("Member", tarfile.TarInfo, zipfile.ZipInfo)


@dataclass(frozen=True)
class Files:
    """Files of a dataset on disk."""

    folder: Path
    present: tuple[str, ...]
    """Paths of required files, relative to the folder; a glob with wildcards stands for all its files."""
    missing: tuple[str, ...]  # required files that are missing


@dataclass(frozen=True)
class ChecksumCounts:
    """Result of a comparison with lists of checksums."""

    correct: int
    absent: int  # listed files that do not exist, which is not an error: a list may cover more than one dataset


@dataclass(frozen=True)
class Prepared:
    """A dataset that was prepared, and what was done."""

    splits: Splits
    files: Files | None = None  # None if the dataset needs no files, or finds them by its own rules
    unpacked: tuple[Path, ...] = ()
    downloaded: bool = False
    checksums: ChecksumCounts | None = None  # None if there is no list of checksums


def prepare_dataset(dataset: Dataset, config: Any, download: bool = False) -> Prepared:
    """Prepare a dataset: find its files, else unpack or download them, then load it once.

    Published archives in the data folder are unpacked, and missing files downloaded if ``download`` is set and the
    dataset supports it. Files that a ``SHA256SUMS`` lists are compared with it. Existing files are never replaced.
    """
    layout, name = dataset.layout, dataset.card.name
    if layout is None:
        return Prepared(_load(dataset, config))
    data = data_folder(config.root)
    if _find_or_none(name, layout, data) is None:
        with suppress(SpurlessError):  # some datasets also find their files by other rules
            return Prepared(_load(dataset, config))
    unpacked = () if _is_complete(name, layout, data) else _unpack_archives(name, layout, data)
    downloaded = download and layout.download is not None and not _is_complete(name, layout, data)
    if downloaded:
        _download(name, layout, data)
    if _find_or_none(name, layout, data) is None:
        raise _missing_error(name, layout, data, download)
    files = find_files(name, layout, data)
    checksums = check_checksums(layout, data, files.folder)
    return Prepared(_load(dataset, config), files, unpacked, downloaded, checksums)


def find_files(name: str, layout: Layout, root: str | Path | None = None) -> Files:
    """Return which of the required files exist; raise if the folder of the dataset does not exist."""
    folder = find_folder(name, layout, root)
    matches = [next(filter(None, (_match(folder, glob) for glob in globs)), None) for globs in layout.globs]
    present = tuple(dict.fromkeys(match for match in matches if match is not None))
    missing = tuple(name for name, match in zip(layout.file_names, matches, strict=True) if match is None)
    return Files(folder, present, missing)


def check_checksums(layout: Layout, data: Path, folder: Path) -> ChecksumCounts | None:
    """Compare the files of a dataset with the ``SHA256SUMS`` of the data folder and of its own folder.

    A list may cover several datasets: in a shared folder, only files that match the layout are compared.
    """
    lists = [path / SUMS_FILE for path in dict.fromkeys((data, folder)) if (path / SUMS_FILE).is_file()]
    if not lists:
        return None
    expected = dict(line for file in lists for line in read_checksums(file))
    return verify_checksums({path: value for path, value in expected.items() if _belongs(path, layout, data, folder)})


def _load(dataset: Dataset, config: Any) -> Splits:
    return check_splits(dataset.make(config))


def _find_or_none(name: str, layout: Layout, data: Path) -> Path | None:
    try:
        return find_folder(name, layout, data)
    except InputError:
        return None


def _is_complete(name: str, layout: Layout, data: Path) -> bool:
    return _find_or_none(name, layout, data) is not None and not find_files(name, layout, data).missing


def _unpack_archives(name: str, layout: Layout, data: Path) -> tuple[Path, ...]:
    """Unpack every published archive in the data folder or in the dataset's folder, to nowhere but the data folder."""
    folders = (data, *(data / part for part in layout.folders))
    archives = tuple(path for folder in folders for word in layout.archives if (path := folder / word).is_file())
    for archive in archives:
        _check_within(archive.parent, data)
        with _scratch_folder(archive.parent) as scratch:
            unpack(archive, scratch)
            source = _find_unpacked(scratch, layout)
            if source is None:
                what = f"the archive contains no file of {name}"
                hint = f"If it contains other archives, unpack it by hand. {layout.obtain}"
                raise InputError(what, where=archive, expected=", ".join(layout.file_names), hint=hint)
            target = _find_or_none(name, layout, data) or (archive.parent if archive.parent != data else None)
            if target is None and layout.folders and source.relative_to(scratch).as_posix() not in layout.folders:
                target = data / layout.folders[0]
            _check_within(target or data, data)
            merge_folder(scratch if target is None else source, target or data)
    return archives


def _check_within(folder: Path, data: Path) -> None:
    if not Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(data)):
        hint = "Replace the link by a folder, or pass the folder that it leads to as root."
        raise InputError("the folder is a link that leads out of the data folder", where=folder, hint=hint)


@contextmanager
def _scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield the path of a folder that can be created, and delete it afterwards."""
    try:
        with scratch_folder(parent, "unpacking") as folder:
            yield folder / "content"
    except OSError as error:
        raise unwritable_error(parent, error) from None


def _find_unpacked(scratch: Path, layout: Layout) -> Path | None:
    """Return the unpacked folder that contains files of the dataset, at most two levels down."""
    globs = [glob for globs in layout.globs for glob in globs]
    for folder in (scratch, *sorted(scratch.glob("*/")), *sorted(scratch.glob("*/*/"))):
        if any((folder / marker).exists() for marker in layout.markers) or any(any(folder.glob(g)) for g in globs):
            return folder
    return None


def _download(name: str, layout: Layout, data: Path) -> None:
    if layout.download is None:
        return
    is_new = not data.exists()
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable_error(data, error) from None
    try:
        layout.download(data)
    except SpurlessError:
        raise
    except Exception as error:  # downloaders raise anything: no network, a wrong checksum, a full disk
        what = f"{name} could not be downloaded: {error}"
        raise InputError(what, where=data, hint=f"Try again, or download it by hand. {layout.obtain}") from error
    finally:
        if is_new:
            with suppress(OSError):  # not empty: the next attempt continues with these files
                data.rmdir()


def _missing_error(name: str, layout: Layout, data: Path, download: bool) -> InputError:
    if layout.download is None:
        hint = f"They cannot be downloaded automatically. {layout.obtain}" if download else layout.obtain
    elif download:
        hint = f"The download does not contain the expected files. {layout.obtain}"
    else:
        hint = f"Download them: spurless data prepare {name} --download. Or by hand: {layout.obtain}"
    folders = " or ".join(f"{part}/" for part in layout.folders)
    what = f"the files of {name} are missing"
    expected = f"{', '.join(layout.file_names)}{f' in {folders}' if folders else ''}"
    got = None if data.is_dir() else "no such folder"
    return InputError(what, where=data, expected=expected, got=got, hint=f"{hint} {ROOT_HINT}")


def _belongs(path: Path, layout: Layout, data: Path, folder: Path) -> bool:
    """Return whether a listed file belongs to the dataset."""
    if not path.is_relative_to(folder):
        return False
    name = path.relative_to(folder).as_posix()
    globs = [glob for globs in layout.globs for glob in globs]
    return folder != data or any(fnmatchcase(name, glob) or name.startswith(f"{glob}/") for glob in globs)


def _match(folder: Path, glob: str) -> str | None:
    """Return the first match of a glob, plain or gzipped, in a folder or one level down; None if there is none."""
    for form in ("{}", "{}.gz", "*/{}", "*/{}.gz"):
        path = next(folder.glob(form.format(glob)), None)
        if path is not None:
            return glob if "*" in glob else path.relative_to(folder).as_posix()
    return None


def read_checksums(path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a list and their checksums, or raise; files outside its folder are skipped."""
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](.+)", line)
        if match is None:
            what = "the line is not a checksum"
            raise InputError(what, where=f"{path}, line {number}", expected="64 hex digits and a path")
        listed = PurePosixPath(match[2])
        if not listed.is_absolute() and ".." not in listed.parts:
            yield path.parent / listed, match[1].lower()


def verify_checksums(expected: Mapping[Path, str]) -> ChecksumCounts:
    """Compare files with their checksums; raise if one differs."""
    present = {path: path.stat().st_size for path in expected if path.is_file()}
    done, n_read = progress_reporter("check sums", sum(present.values()) // MIB), 0
    for path in present:
        checksum = sha256()
        with path.open("rb") as file:
            while chunk := file.read(MIB):
                checksum.update(chunk)
                n_read += len(chunk)
                done(n_read // MIB)
        if checksum.hexdigest() != expected[path]:
            what = f"the file differs from its checksum in {SUMS_FILE}"
            got = f"{checksum.hexdigest()[:12]}..."
            hint = "It is truncated or was changed: get it again."
            raise InputError(what, where=path, expected=f"{expected[path][:12]}...", got=got, hint=hint)
    return ChecksumCounts(len(present), len(expected) - len(present))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive into a new folder, completely or not at all.

    All members are checked before anything is written: names that leave the folder or collide, links, devices and
    encrypted members are rejected. Files get the mode of the user's umask.

    Raises:
        InputError: the archive is missing, damaged or unsafe, the disk is full, or the folder exists.
    """
    if not archive.is_file():
        raise InputError("no such file", where=archive, expected="a zip or tar archive")
    with _damage_errors(archive):
        # tar first: a tar whose last member is a zip ends like that zip
        if tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                members = tar.getmembers()
                _check_members(archive, [(m.name, m.isdir(), _problem_in_tar(m)) for m in members])
                _check_end(tar)
                _check_space(archive, sum(member.size for member in members), folder)
                _extract(members, folder, lambda member: tar.extract(member, folder, filter=_filter))
        elif zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                infos = opened.infolist()
                _check_members(archive, [(info.filename, info.is_dir(), _problem_in_zip(info)) for info in infos])
                _check_space(archive, sum(info.file_size for info in infos), folder)
                _extract(infos, folder, lambda info: opened.extract(info, folder))
        else:
            raise InputError("not a zip or tar archive, or cut off", where=archive, hint="Download it again.")


def merge_folder(source: Path, target: Path) -> None:
    """Move the files of a folder into another; keep existing files, and do not follow links below ``target``.

    Raises:
        InputError: a folder below ``target`` is a link, or has the name of a file; nothing is moved.
    """
    target.mkdir(parents=True, exist_ok=True)
    root = target.resolve()
    destinations = {path: root / path.relative_to(source) for path in sorted(source.rglob("*"))}
    for path, destination in destinations.items():
        parent = destination.parent
        if path.is_symlink() or os.path.realpath(parent) != str(parent):
            raise InputError("the folder is a link", where=parent, hint="Replace the link by a folder.")
        if os.path.lexists(destination) and path.is_dir() != destination.is_dir():
            expected, got = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
            hint = "Rename it."
            raise InputError(
                "a name in the archive is in use", where=destination, expected=expected, got=got, hint=hint
            )
    for path, destination in destinations.items():
        if os.path.lexists(destination):
            continue
        if path.is_dir():
            destination.mkdir()
        else:
            shutil.move(path, destination)


def _extract(members: Sequence[Member], folder: Path, extract: Callable[[Member], object]) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise unwritable_error(folder, error) from None
    done = progress_reporter("unpack", len(members))
    try:
        for number, member in enumerate(members, start=1):
            extract(member)
            done(number)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
            raise unwritable_error(folder, error) from None
        raise


def _filter(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
    # without a mode, the umask decides
    return tarfile.data_filter(member, folder).replace(mode=None, deep=False)  # type: ignore[arg-type]  # as documented


def _check_members(archive: Path, members: Sequence[tuple[str, bool, str]]) -> None:
    """Raise if a member, given as name, whether it is a folder, and its problem, must not be unpacked."""
    files = {PurePosixPath(name) for name, is_folder, _ in members if not is_folder}
    for name, is_folder, problem in members:
        path, foreign = PurePosixPath(name), PureWindowsPath(name)  # which splits at both slashes, and knows drives
        if foreign.drive or foreign.root or ".." in foreign.parts or "\0" in name:
            problem = "leaves its folder"
        elif not problem and (not files.isdisjoint(path.parents) or (is_folder and path in files)):
            problem = "has a file in its path"
        if problem:
            what = f"the member {problem}"
            raise InputError(what, where=f"{archive}, member {name!r}", hint="Get it from a source you trust.")


def _problem_in_tar(member: tarfile.TarInfo) -> str:
    if member.issym() or member.islnk():
        return "is a link"
    return "" if member.isreg() or member.isdir() else "is a device or a pipe"


def _problem_in_zip(info: zipfile.ZipInfo) -> str:
    if info.flag_bits & ENCRYPTED:
        return "is encrypted"
    is_plain = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG, stat.S_IFDIR)
    return "" if is_plain else "is a link or a device"


def _check_space(archive: Path, needed: int, folder: Path) -> None:
    """Raise if an archive claims to contain far more than its size, or more than the disk has free."""
    check_bytes(needed, "the unpacked content", archive, max_unpacked(archive.stat().st_size, on_disk=True))
    existing = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        what = "too little disk space to unpack the archive"
        raise InputError(what, where=archive, expected=f"{needed:,} bytes", got=f"{free:,} free")


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise if the final block of zeros is missing: tarfile takes a truncated or damaged header for the end."""
    file: Any = tar.fileobj
    has_end: bool = file.tell() >= tar.offset + tarfile.BLOCKSIZE
    if has_end and isinstance(file, BufferedReader):  # compressed files have a checksum, and are slow to rewind
        file.seek(tar.offset)
        has_end = not file.read(tarfile.BLOCKSIZE).strip(b"\0")
    if not has_end:
        raise tarfile.ReadError("its end is missing")


@contextmanager
def _damage_errors(archive: Path) -> Iterator[None]:
    try:
        yield
    except SpurlessError:
        raise
    except DAMAGED as error:
        what = f"the archive is damaged or cut off: {error}"
        raise InputError(what, where=archive, hint="Download it again.") from None
    except OSError as error:
        raise InputError(f"the archive cannot be read: {error.strerror or error}", where=archive) from None
