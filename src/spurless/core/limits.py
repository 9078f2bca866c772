"""Limits on the sizes that files and options claim, checked before memory is allocated.

========================  ==============================================  ====================================
Environment variable      Limit                                           Default
========================  ==============================================  ====================================
``SPURLESS_MAX_BYTES``    bytes of one array, dataset or model            half of the memory
``SPURLESS_MAX_GROUPS``   classes, and groups (classes times attributes)  200,000
========================  ==============================================  ====================================

A compressed file may not grow to more than ``MAX_RATIO`` times its size, unless it stays below ``MIN_UNPACKED`` bytes
or ``SPURLESS_MAX_BYTES`` is set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from gzip import GzipFile
from pathlib import Path
from typing import IO

from spurless.core.errors import InputError

MAX_GROUPS = 200_000
MAX_RATIO = 200
MIN_UNPACKED = 1 << 30
MAX_BYTES_VARIABLE, MAX_GROUPS_VARIABLE = "SPURLESS_MAX_BYTES", "SPURLESS_MAX_GROUPS"
_CGROUP = Path("/sys/fs/cgroup/memory.max")  # the memory limit of a container


def check_bytes(n: int, what: str, where: object = None, limit: int | None = None) -> None:
    """Raise if something that will be created or read is larger than the limit on bytes.

    Example:
        >>> check_bytes(10**21, "the array 'x'")
        Traceback (most recent call last):
        spurless.core.errors.InputError: the array 'x' is too large (expected at most ...
    """
    limit = max_bytes() if limit is None else limit
    if n > limit:
        hint = f"If this is intended, set the environment variable {MAX_BYTES_VARIABLE} to a larger number of bytes."
        expected, got = f"at most {_describe_bytes(limit)}", _describe_bytes(n)
        raise InputError(f"{what} is too large", where=where, expected=expected, got=got, hint=hint)


def check_groups(sizes: Sequence[int], what: str, where: object = None) -> None:
    """Raise if there are more classes, or more combinations of classes and attributes, than the limit."""
    limit = _variable(MAX_GROUPS_VARIABLE) or MAX_GROUPS
    n = 1
    for size in sizes:
        n *= max(size, 1)
    if n > limit:
        hint = f"Number the values from 0 without gaps, or set the environment variable {MAX_GROUPS_VARIABLE}."
        raise InputError(f"there are too many {what}", where=where, expected=f"at most {limit:,}", got=n, hint=hint)


def max_bytes() -> int:
    """Return the limit on the bytes of one array, dataset or model."""
    return _variable(MAX_BYTES_VARIABLE) or _memory() // 2


def max_unpacked(packed: int, *, on_disk: bool = False) -> int:
    """Return the limit on the unpacked bytes of a compressed file of a given size; ``on_disk``: not kept in memory."""
    plausible = max(MIN_UNPACKED, MAX_RATIO * packed)
    return _variable(MAX_BYTES_VARIABLE) or (plausible if on_disk else min(_memory() // 2, plausible))


def open_gzip(path: Path, file: IO[bytes]) -> GzipFile:
    """Return a reader of an open gzip file that raises once the unpacked content exceeds the limit."""
    return _LimitedGzip(path, file, max_unpacked(os.fstat(file.fileno()).st_size))


class _LimitedGzip(GzipFile):
    def __init__(self, path: Path, file: IO[bytes], limit: int) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._path, self._limit, self._n = path, limit, 0

    def read(self, size: int | None = -1) -> bytes:
        """Read up to ``size`` bytes, or all."""
        return self._count(super().read(self._limit + 1 - self._n if size is None or size < 0 else size))

    def read1(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes with one call of the file."""
        return self._count(super().read1(size))

    def _count(self, part: bytes) -> bytes:
        self._n += len(part)
        check_bytes(self._n, "the unpacked content", self._path, self._limit)
        return part


def _variable(name: str) -> int | None:
    """Return the value of an environment variable, or None if it is not set."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise InputError(f"the environment variable {name} is not valid", expected="a number of 1 or more", got=text)
    return int(text)


def _memory() -> int:
    """Return the bytes of memory of the machine, or of the container."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or "max"
        memory = min(memory, int(_CGROUP.read_text()))
    return memory


def _describe_bytes(n: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if n >= size:
            return f"{n / size:,.1f} {unit}"
    return f"{n:,} bytes"
