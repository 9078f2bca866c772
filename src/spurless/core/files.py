"""Folders of datasets and of the cache, atomic replacement of files, and checks of paths before writing."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from uuid import uuid4

from spurless.core.errors import InputError

SCRATCH_NAME = re.compile(r"\..{0,40}\.[0-9a-f]{32}\.tmp", re.DOTALL)
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def cache_folder() -> Path:
    """Return ``$SPURLESS_CACHE``, or a folder in the user's cache folder; its content can be deleted at any time."""
    return Path(os.environ.get("SPURLESS_CACHE") or user_cache_folder())


def user_cache_folder() -> Path:
    """Return the folder of this package in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spurless"


def data_folder(root: str | Path | None = None) -> Path:
    """Return the folder of datasets: ``root``, else ``$SPURLESS_DATA``, else ``data``."""
    return expand_home(root or os.environ.get("SPURLESS_DATA") or "data")


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Replace ``path`` atomically: ``write`` fills a temporary file, which is then renamed.

    The file gets the mode that the user's umask gives to new files.
    """
    check_file(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(path.parent, path.name) as folder:
            scratch = folder / path.name
            write(scratch)
            scratch.chmod(folder.stat().st_mode & 0o666)  # some writers create private files
            _sync(scratch)
            scratch.replace(path)
    except OSError as error:
        raise unwritable_error(path, error) from None
    with suppress(OSError):  # some file systems cannot sync a folder
        _sync(path.parent)


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder for unfinished files, and delete it afterwards; the folders of killed processes go first.

    The folder is locked while it is in use, and the lock ends with the process, so that what a killed process left
    differs from what another one is writing.
    """
    delete_abandoned(parent)
    folder, descriptor = _create_locked(parent, name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def delete_abandoned(parent: Path) -> None:
    """Delete the scratch folders of killed processes in a folder; file systems without locks keep them."""
    try:
        folders = [Path(entry) for entry in os.scandir(parent) if SCRATCH_NAME.fullmatch(entry.name)]
    except OSError:
        return
    for folder in folders:
        with suppress(OSError):
            descriptor = os.open(folder, FOLDER_FLAGS)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def _create_locked(parent: Path, name: str) -> tuple[Path, int]:
    while True:
        folder = parent / f".{name[:40]}.{uuid4().hex}.tmp"
        folder.mkdir()
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, FOLDER_FLAGS)
            with suppress(OSError):  # some file systems have no locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.is_dir():
                return folder, descriptor
            os.close(descriptor)  # another process has deleted it before it was locked


def replace_text(path: Path | str, text: str, errors: str = "replace") -> Path:
    """Replace a text file atomically and return its path; ``errors`` is for characters that UTF-8 cannot encode."""
    path, data = Path(path), text.encode("utf-8", errors)
    replace_file(path, lambda scratch: scratch.write_bytes(data))
    return path


def check_file(path: Path) -> None:
    """Raise if the path exists and is not a regular file, or is a link that leads to itself."""
    resolve_path(path)
    try:
        is_other = path.exists() and not path.is_file()
    except OSError as error:  # a name that no file can have
        raise unwritable_error(path, error) from None
    if is_other:
        raise InputError("cannot write here: not a regular file", where=path, hint="Choose another path.")


def expand_home(path: Path | str) -> Path:
    """Return the path with ``~`` replaced by the home folder; raise if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(
            "the home folder of this user is not known", where=path, hint="Write the whole path."
        ) from None


def resolve_path(path: Path) -> Path:
    """Return the path that links lead to; raise if they lead in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError):  # a circle is a RuntimeError before Python 3.13, NUL a ValueError
        raise InputError(
            "not a valid path, or its links lead in a circle", where=path, hint="Choose another path."
        ) from None


def check_not_pipe(path: Path | str) -> None:
    """Raise if an input file is a named pipe: reading one that nothing writes to would wait forever."""
    try:
        is_pipe = Path(path).is_fifo()
    except OSError:  # a name that no file can have
        is_pipe = False
    if is_pipe:
        raise InputError("this is a pipe", where=path, expected="a regular file", hint="Write its content to a file.")


def check_no_overwrite(outputs: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Raise if an output is also an input file, also through a link; None and names of datasets are ignored."""
    sources = [Path(source) for source in inputs if source is not None]
    for output in outputs:
        # only files: folders are checked elsewhere, and a terminal may be both
        if output is not None and output.is_file() and any(_is_file(one) and output.samefile(one) for one in sources):
            raise InputError("this input file would be overwritten", where=output, hint="Choose another output path.")


def check_writable(folder: Path) -> None:
    """Raise if an output folder cannot be written; to be called before long work."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder) as probe:
            probe.write(b"x")
    except OSError as error:
        raise unwritable_error(folder, error) from None


def unwritable_error(path: Path, error: OSError) -> InputError:
    """Return the error for a path that cannot be written."""
    hint = "Choose another path with --out, or free some space."
    return InputError(f"cannot write here: {error.strerror or error}", where=path, hint=hint)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # not a valid file name
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
