"""Files: written beside their place and moved there whole, so that a kill leaves the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from spurless.core.errors import BadInput


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a scratch file in the same folder, then move it to ``path`` in one step.

    Raises:
        BadInput: the place cannot be written, or is not a file (a device or a folder is never replaced).
    """
    check_file(path)
    scratch = path.with_name(f".{path.name[:40]}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(scratch)
        scratch.chmod(0o644)  # some writers make private files
        _sync(scratch)
        scratch.replace(path)
    except OSError as error:
        raise unwritable(path, error) from None
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    with suppress(OSError):  # some file systems cannot sync a folder; the file itself is safe
        _sync(path.parent)


def check_file(path: Path) -> None:
    """Refuse a place where something else than a file is: a folder or a device is never replaced."""
    if path.exists() and not path.is_file():
        raise BadInput("cannot write here: this is no ordinary file", where=path, do="Choose another place.")


def check_apart(places: Iterable[Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Refuse to write where a file lies that is read; what is None was not said, and a name is of no file."""
    sources = [Path(source) for source in inputs if source is not None]
    for place in places:
        # a folder is refused elsewhere, and a terminal is read and written; a link may have another name
        if place is not None and place.is_file() and any(_is_file(one) and place.samefile(one) for one in sources):
            raise BadInput(
                "this file is read, and would be written over",
                where=place,
                do="Choose another place for what is written.",
            )


def check_writable(folder: Path) -> None:
    """Refuse an output folder that cannot be written before the first hour, not after."""
    probe = folder / f".{uuid4().hex}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
        raise unwritable(folder, error) from None


def unwritable(path: Path, error: OSError) -> BadInput:
    """Return the error for a place that cannot be written."""
    return BadInput(
        f"cannot write here: {error.strerror or error}",
        where=path,
        do="Choose another place with --out, or free some space.",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # what no file can be called
        return False


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let one process in at a time, by a lock at ``path``.

    It goes with its process, so that a dead one holds nobody up.
    """
    while True:
        with path.open("w") as lock:
            with suppress(ImportError, OSError):  # Windows and some network drives know none: both write the same
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_nlink:  # else the one before removed it, and its successor counts
                try:
                    yield
                finally:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                return
