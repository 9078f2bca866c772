"""Locks between processes: one per file for caches, and one per run for runs that write to the same records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from filelock import FileLock

from spurless.core.errors import InputError
from spurless.core.files import FOLDER_FLAGS, resolve_path, user_cache_folder


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock at ``path``, and wait for it if another process has it.

    The lock ends with the process, even a killed one. The file is removed when the lock is released.
    """
    with FileLock(path):
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)  # before the release; FileLock does not accept the lock of a removed file


@contextmanager
def lock_runs(out: Path | None, runs: Collection[str]) -> Iterator[None]:
    """Lock runs that will be recorded in ``out``, or raise if another process has; None locks nothing.

    Runs are named by their keys. Locks hold between processes of one user on one machine. They end with the process,
    even a killed one, and child processes do not inherit them.
    """
    descriptor = None if out is None else _open_lock_file()
    if out is None or descriptor is None:
        yield
        return
    file = resolve_path(out)
    try:
        busy = [run for run in runs if not _try_lock(descriptor, f"{file}\0{run}")]
        if busy:
            what = f"another process is working on {len(busy)} of these {len(runs)} runs, for the same records file"
            if len(runs) == 1:
                what = "another process is working on this run and will record it in the same file"
            hint = "Wait until it has finished and start again (recorded runs are skipped), or choose another file."
            raise InputError(what, where=out, hint=hint)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file() -> int | None:
    """Open the file whose bytes stand for the runs of this user; None if it cannot be created.

    One byte per run instead of one ``FileLock``: a sweep may have more runs than a process may have open files, and
    record locks are not inherited by worker processes. It is not the records file, because a process loses its record
    locks on a file as soon as it closes any descriptor of that file.

    The file is in a folder that only this user can write to, so that others cannot put a link in its path.
    """
    for folder in _private_folders():
        with suppress(OSError):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder, FOLDER_FLAGS)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    os.fchmod(descriptor, 0o700)
                    return os.open("runs.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=descriptor)
            finally:
                os.close(descriptor)
    return None


def _private_folders() -> Iterator[Path]:
    """Yield folders for the locks of this user; the first that belongs to the user is used.

    They do not depend on ``$SPURLESS_CACHE``: processes with different caches may write to the same records.
    """
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "spurless"
    elif (session := Path(f"/run/user/{os.geteuid()}")).is_dir():  # what the variable is set to at login
        yield session / "spurless"
    with suppress(RuntimeError):  # no home folder
        yield user_cache_folder() / "locks"


def _try_lock(descriptor: int, name: str) -> bool:
    """Lock the byte at the hash of a name; return False if another process has it."""
    offset = int.from_bytes(blake2b(name.encode(errors="surrogateescape"), digest_size=6).digest())
    with suppress(BlockingIOError, PermissionError):  # which of the two depends on the system
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        return True
    return False
