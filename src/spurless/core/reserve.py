"""Reserve: runs that one process is at are not begun by another that records in the same file."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from tempfile import gettempdir

from spurless.core.errors import BadInput


@contextmanager
def reserved(out: Path | None, runs: Collection[str]) -> Iterator[None]:
    """Hold runs, by any words that tell them apart, that will be recorded in ``out``; without a file, do nothing.

    It holds among the processes of one user on one machine, and ends with the process, however that ends.

    Raises:
        BadInput: another process holds one of them.
    """
    descriptor = None if out is None else _opened()
    if out is None or descriptor is None:
        yield
        return
    file = out.resolve()
    try:
        busy = [run for run in runs if not _locked(descriptor, f"{file}\0{run}")]
        if busy:
            raise BadInput(
                "another process is at this run, and records it in the same file"
                if len(runs) == 1
                else f"another process is at {len(busy)} of these {len(runs)} runs, and records them in the same file",
                where=out,
                do="Wait until it has ended, and run again: what it recorded is not repeated. Or name another file.",
            )
        yield
    finally:
        os.close(descriptor)


def _opened() -> int | None:
    """Open the file whose bytes stand for the runs of this user; without a place for it nothing is held.

    It is not that of the records: a process gives up its locks of a file wherever it closes that file.
    """
    try:
        return os.open(Path(gettempdir()) / f"spurless-{os.getuid()}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return None


def _locked(descriptor: int, words: str) -> bool:
    """Lock the byte that words stand for; such a lock goes with a killed process, and no child inherits it."""
    place = int.from_bytes(blake2b(words.encode(errors="surrogateescape"), digest_size=6).digest())
    with suppress(BlockingIOError, PermissionError):  # which of the two depends on the system
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        return True
    return False
