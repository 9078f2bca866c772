"""Caches of computed results: resumable files of rows, and files of tensors."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.files import cache_folder, replace_file
from spurless.core.hashing import content_hash
from spurless.core.locks import file_lock

SCHEMA = 1  # version of the file format

FAST_SECONDS = 1.0  # a pass that takes less and is small is cheaper to repeat than to store
SMALL_BYTES = 2**25  # larger results are always stored; 32 MB take 0.1 s to write and sync
COMMIT_SECONDS = 2.0  # the work that a killed process loses at most
SAMPLE_ROWS = 64  # rows that are hashed to detect a damaged file
MAX_AGE_SECONDS = 7 * 24 * 3600  # incomplete files that are older are deleted

RowsFrom: TypeAlias = Callable[[int], Generator[Tensor]]
"""A function from a start row to batches of rows from there on; equal calls must yield equal rows."""


class CacheWriteError(Exception):
    """The cache cannot be written."""


class DiskFullError(CacheWriteError):
    """The disk has too little free space."""


def cached_tensors(key: str, make: Callable[[], Mapping[str, Tensor]], *, write: bool = True) -> dict[str, Tensor]:
    """Return the tensors stored under ``key``, or compute and store them.

    ``key`` is a content hash of the inputs, of every option, and of a number that changes with the code. A truncated
    file is computed again. If the cache cannot be written, warn.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    path = cache_folder() / "tensors" / f"{key}.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        tensors = {name: tensor.contiguous() for name, tensor in make().items()}
    if not write:
        return tensors
    try:
        with _disk_errors():
            replace_file(path, lambda scratch: save_file(tensors, scratch))
    except (CacheWriteError, SafetensorError) as error:
        what = f"Could not write to the cache, so the result will be computed again next time: {error}"
        warnings.warn(f"{what} Set $SPURLESS_CACHE to a writable folder.", SpurlessWarning, stacklevel=2)
    return tensors


@dataclass(frozen=True)
class RowStore:
    """A resumable file of ``n`` rows of equal shape: ``<key>.rows`` (raw) and ``<key>.json`` (header).

    The file has its full size from the start, and the header counts the finished rows. A pass that was killed
    continues after them. Of several processes that need the same rows, one computes them and the others wait.
    """

    folder: Path
    key: str
    n: int
    dtype: torch.dtype = torch.float32

    def path(self, suffix: str) -> Path:
        """Return the path of one of the files."""
        return self.folder / f"{self.key}.{suffix}"

    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of the finished rows, ``(n, ...)`` if complete; None if missing or damaged."""
        with suppress(
            OSError, ValueError, LookupError, TypeError, RecursionError
        ):  # a foreign file may contain anything
            header = json.loads(self.path("json").read_text())
            row_shape, done = tuple(header["shape"][1:]), header["done"]
            has_size = self.path("rows").stat().st_size == self._n_bytes(row_shape) and 0 <= done <= self.n
            if has_size and header == self._header(row_shape, done):
                return (done, *row_shape)
        return None

    def rows(self) -> Tensor | None:
        """Return the finished rows, mapped into memory (copy on write); None if missing or damaged."""
        shape = self.shape()
        if shape is None:
            return None
        size = self.n * math.prod(shape[1:])
        # private: pages are read from the file on demand, and a page that is written to becomes a copy
        flat = torch.from_file(str(self.path("rows")), shared=False, size=size, dtype=self.dtype)
        return flat.view(self.n, *shape[1:])[: shape[0]]

    def delete(self, reason: str = "") -> None:
        """Delete the files, with a warning if a reason is given."""
        if reason:
            warnings.warn(f"{reason} and will be computed again: {self.path('rows')}", SpurlessWarning, stacklevel=3)
        with suppress(OSError):
            for suffix in ("json", "rows"):  # in this order: rows without a header are ignored
                self.path(suffix).unlink(missing_ok=True)

    def compute(self, rows_from: RowsFrom, *, always_write: bool = False) -> Tensor:
        """Return all rows, computing those that are missing; a fast and small pass is not stored by default.

        Raises:
            CacheWriteError: the folder cannot be written, or the disk is full.
        """
        start, first_parts = time.monotonic(), list[Tensor]()
        with closing(rows_from(0)) as parts:
            if not always_write and not self.path("json").exists():
                for part in parts:
                    first_parts.append(part)
                    slow = time.monotonic() - start > FAST_SECONDS
                    if part.numel() and (slow or self._n_bytes(part.shape[1:]) > SMALL_BYTES):
                        break
                else:
                    return torch.cat(first_parts)
            with ExitStack() as stack:
                with _disk_errors():  # not around _write: errors of the model and the data are not disk errors
                    self.folder.mkdir(parents=True, exist_ok=True)
                    stack.enter_context(file_lock(self.path("lock")))
                self._write(first_parts, parts, rows_from)
        rows = self.rows()
        if rows is None or len(rows) < self.n:
            raise CacheWriteError(f"{self.path('rows')} was changed by another program")
        return rows

    def _write(self, first_parts: list[Tensor], parts: Iterator[Tensor], rows_from: RowsFrom) -> None:
        shape = self.shape()
        if shape is None and self.path("json").exists():
            self.delete("Cached rows are damaged")
        n_done = 0 if shape is None else shape[0]
        if n_done == self.n:
            return  # another process has finished them meanwhile
        try:
            if n_done > sum(map(len, first_parts)):
                with closing(rows_from(n_done)) as rest:
                    self._append(rest, n_done)
            else:
                self._append(chain(first_parts, parts), 0)
        except (InputError, CacheWriteError):  # else a full disk would stay full, and half a file would stay
            self.delete()
            raise

    def _append(self, parts: Iterator[Tensor], n_done: int) -> None:
        first = next(parts)
        row_shape, committed = first.shape[1:], time.monotonic()
        with _disk_errors():
            if not n_done:
                self._allocate(row_shape)
            file = self.path("rows").open("r+b")
        with closing(file):
            for part in chain([first], parts):
                with _disk_errors():
                    file.seek(n_done * math.prod(row_shape) * self.dtype.itemsize)
                    file.write(part.contiguous().numpy().data)  # through a map, a full disk would be a bus error
                    n_done += len(part)
                    if time.monotonic() - committed >= COMMIT_SECONDS or n_done == self.n:
                        file.flush()
                        os.fsync(file.fileno())  # before the header counts them, so that a power cut is harmless
                        self._commit(row_shape, n_done)
                        committed = time.monotonic()

    def _allocate(self, row_shape: tuple[int, ...]) -> None:
        self.delete()  # not truncated: another process may have mapped it
        _delete_old(self.folder, self.path("lock"))
        free, needed = shutil.disk_usage(self.folder).free, self._n_bytes(row_shape)
        if free < needed:
            raise DiskFullError(f"{self.folder} has {free:,} bytes free, {needed:,} are needed")
        with self.path("rows").open("xb") as file:
            file.truncate(needed)
        self._commit(row_shape, 0)

    def _commit(self, row_shape: tuple[int, ...], n_done: int) -> None:
        header = json.dumps(self._header(row_shape, n_done))
        replace_file(self.path("json"), lambda scratch: scratch.write_text(header))

    def _header(self, row_shape: tuple[int, ...], n_done: int) -> dict[str, Any]:
        complete = n_done == self.n
        return {
            "schema": SCHEMA,
            "key": self.key,
            "shape": [self.n, *row_shape],
            "dtype": f"{self.dtype}, {sys.byteorder} endian",
            "done": n_done,
            "complete": complete,
            "sample": self._sample_hash(row_shape) if complete else None,
        }

    def _sample_hash(self, row_shape: tuple[int, ...]) -> str:
        import numpy as np

        dtype = torch.empty(0, dtype=self.dtype).numpy().dtype
        rows = np.memmap(self.path("rows"), dtype, mode="r", shape=(self.n, *row_shape))
        return content_hash(torch.from_numpy(np.asarray(rows)[:: -(-self.n // SAMPLE_ROWS)].copy()))

    def _n_bytes(self, row_shape: tuple[int, ...]) -> int:
        return self.n * math.prod(row_shape) * self.dtype.itemsize


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise errors of the disk as CacheWriteError."""
    try:
        yield
    except OSError as error:
        raise CacheWriteError(str(error)) from None
    except InputError as error:
        raise CacheWriteError(f"{error.where}: {error.what}.") from None


def _delete_old(folder: Path, used: Path) -> None:
    for path in [*folder.glob("*.rows"), *folder.glob("*.lock")]:
        header = path.with_suffix(".json")
        with suppress(OSError, ValueError, LookupError, TypeError):
            is_old = time.time() - path.stat().st_mtime > MAX_AGE_SECONDS
            if not is_old or path == used:
                continue
            if path.suffix == ".lock":
                path.unlink()
            elif not (header.exists() and json.loads(header.read_text())["complete"]):
                header.unlink(missing_ok=True)
                path.unlink()
