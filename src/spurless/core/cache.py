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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, compress, pairwise
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from spurless.core.errors import InputError, SpurlessWarning
from spurless.core.files import cache_folder, delete_abandoned, replace_file
from spurless.core.hashing import content_hash, is_content_hash
from spurless.core.locks import file_lock

SCHEMA = 2  # version of the file format

FAST_SECONDS = 1.0  # a pass that takes less and is small is cheaper to repeat than to store
SMALL_BYTES = 2**25  # larger results are always stored; 32 MB take 0.1 s to write and sync
COMMIT_SECONDS = 2.0  # the work that a killed process loses at most
BLOCK_BYTES = 2**22  # of rows with a checksum of their own, which are computed again if they are damaged
MAX_AGE_SECONDS = 7 * 24 * 3600  # incomplete files that are older are deleted

CACHE_FILES = {
    "features": (".json", ".rows", ".lock"),
    "images": (".json", ".rows", ".lock", ".key"),
    "tensors": (".safetensors", ".lock"),
}
"""Suffixes of the files in each folder of the cache."""

RowsFrom: TypeAlias = Callable[[int], Generator[Tensor]]
"""A function from a start row to batches of rows from there on; equal calls must yield equal rows."""


class CacheWriteError(Exception):
    """The cache cannot be written."""


class DiskFullError(CacheWriteError):
    """The disk has too little free space."""


def cached_tensors(key: str, make: Callable[[], Mapping[str, Tensor]], *, write: bool = True) -> dict[str, Tensor]:
    """Return the tensors stored under ``key``, or compute and store them.

    ``key`` is a content hash of the inputs, of every option, and of a number that changes with the code. A damaged file
    is computed again. If the cache cannot be written, warn.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = cache_folder() / "tensors" / f"{key}.safetensors"
    stored = _load_stored(path, key)
    if stored is not None:
        return stored
    tensors = {name: tensor.contiguous() for name, tensor in make().items()}
    if not write:
        return tensors
    metadata = {"hash": _hash_tensors(key, tensors)}
    try:
        with _disk_errors():
            replace_file(path, lambda scratch: save_file(tensors, scratch, metadata))
    except (CacheWriteError, SafetensorError) as error:
        what = f"Could not write to the cache, so the result will be computed again next time: {error}"
        warnings.warn(f"{what} Set $SPURLESS_CACHE to a writable folder.", SpurlessWarning, stacklevel=2)
    return tensors


def _load_stored(path: Path, key: str) -> dict[str, Tensor] | None:
    """Return the tensors of a file; None if it is missing, damaged or that of another key."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (OSError, SafetensorError):
        return None
    return tensors if metadata.get("hash") == _hash_tensors(key, tensors) else None


def _hash_tensors(key: str, tensors: Mapping[str, Tensor]) -> str:
    return content_hash(key, *(part for item in sorted(tensors.items()) for part in item))


@dataclass(frozen=True)
class RowStore:
    """A resumable file of ``n`` rows of equal shape: ``<key>.rows`` (raw) and ``<key>.json`` (header).

    The file has its full size from the start, and the header counts the finished rows and has a checksum of each block
    of them. A pass that was killed continues after them, and damaged blocks are computed again. Of several processes
    that need the same rows, one computes them and the others wait.
    """

    folder: Path
    key: str
    n: int
    dtype: torch.dtype = torch.float32

    def path(self, suffix: str) -> Path:
        """Return the path of one of the files."""
        return self.folder / f"{self.key}.{suffix}"

    def shape(self) -> tuple[int, ...] | None:
        """Return the shape of the finished rows, ``(n, ...)`` if complete; None without a valid header."""
        header = self._read_header()
        return None if header is None else (header["done"], *header["shape"][1:])

    def rows(self) -> Tensor | None:
        """Return the finished rows, mapped into memory (copy on write); None if missing or damaged."""
        shape = self.shape()
        if shape is None or self.damaged_blocks():
            return None
        size = self.n * math.prod(shape[1:])
        # private: pages are read from the file on demand, and a page that is written to becomes a copy
        flat = torch.from_file(str(self.path("rows")), shared=False, size=size, dtype=self.dtype)
        return flat.view(self.n, *shape[1:])[: shape[0]]

    def damaged_blocks(self) -> list[range]:
        """Return the rows of the blocks whose checksum differs from that in the header."""
        header = self._read_header()
        if header is None:
            return []
        row_bytes = self._n_bytes(tuple(header["shape"][1:])) // self.n

        def is_damaged(rows: range, expected: int) -> bool:
            with self.path("rows").open("rb") as file:
                file.seek(rows.start * row_bytes)
                return crc32(file.read(len(rows) * row_bytes)) != expected

        stops, checksums = ([block[i] for block in header["blocks"]] for i in (0, 1))
        blocks = [range(*ends) for ends in pairwise([0, *stops])]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # reading and checksums release the GIL
            is_bad = list(pool.map(is_damaged, blocks, checksums))
        return list(compress(blocks, is_bad))

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
        try:
            for rows in self.damaged_blocks():
                self._repair(rows, rows_from)
            if n_done == self.n:
                return  # another process has finished them meanwhile
            if n_done > sum(map(len, first_parts)):
                with closing(rows_from(n_done)) as rest:
                    self._append(rest, n_done)
            else:
                self._append(chain(first_parts, parts), 0)
        except (InputError, CacheWriteError):  # else a full disk would stay full, and half a file would stay
            self.delete()
            raise

    def _repair(self, rows: range, rows_from: RowsFrom) -> None:
        """Compute the rows of a damaged block again, in place: another process may have mapped them."""
        what = f"Cached rows are damaged and will be computed again: {self.path('rows')}, {rows.start} to {rows.stop}"
        warnings.warn(what, SpurlessWarning, stacklevel=4)
        done, value = rows.start, 0
        with closing(rows_from(rows.start)) as parts, _disk_errors(), self.path("rows").open("r+b") as file:
            for part in parts:
                data = _bytes_of(part)
                file.seek(done * len(data) // len(part))
                file.write(data)
                done, value = done + len(part), crc32(data, value)
                if done >= rows.stop:
                    break
            file.flush()
            os.fsync(file.fileno())
        header = self._read_header()
        if header is not None:
            blocks = [[stop, value if stop == rows.stop else other] for stop, other in header["blocks"]]
            self._commit(tuple(header["shape"][1:]), blocks)

    def _append(self, parts: Iterator[Tensor], n_done: int) -> None:
        first = next(parts)
        row_shape, committed = first.shape[1:], time.monotonic()
        header = self._read_header() if n_done else None
        blocks = [] if header is None else header["blocks"]
        row_bytes = self._n_bytes(row_shape) // self.n
        with _disk_errors():
            if not n_done:
                self._allocate(row_shape)
            file = self.path("rows").open("r+b")
        with closing(file):
            for part in chain([first], parts):
                data = _bytes_of(part)
                with _disk_errors():
                    file.seek(n_done * row_bytes)
                    file.write(data)  # through a map, a full disk would be a bus error
                    start = blocks[-2][0] if len(blocks) > 1 else 0
                    if blocks and (n_done - start) * row_bytes < BLOCK_BYTES:
                        blocks[-1] = [n_done + len(part), crc32(data, blocks[-1][1])]
                    else:  # blocks consist of whole parts, since a pass can only start where a part does
                        blocks.append([n_done + len(part), crc32(data)])
                    n_done += len(part)
                    if time.monotonic() - committed >= COMMIT_SECONDS or n_done == self.n:
                        file.flush()
                        os.fsync(file.fileno())  # before the header counts them, so that a power cut is harmless
                        self._commit(row_shape, blocks)
                        committed = time.monotonic()

    def _allocate(self, row_shape: tuple[int, ...]) -> None:
        self.delete()  # not truncated: another process may have mapped it
        _delete_old(self.folder, self.path("lock"))
        free, needed = shutil.disk_usage(self.folder).free, self._n_bytes(row_shape)
        if free < needed:
            raise DiskFullError(f"{self.folder} has {free:,} bytes free, {needed:,} are needed")
        with self.path("rows").open("xb") as file:
            file.truncate(needed)
        self._commit(row_shape, [])

    def _commit(self, row_shape: tuple[int, ...], blocks: list[list[int]]) -> None:
        header = json.dumps(self._header(row_shape, blocks))
        replace_file(self.path("json"), lambda scratch: scratch.write_text(header))

    def _header(self, row_shape: tuple[int, ...], blocks: list[list[int]]) -> dict[str, Any]:
        done = blocks[-1][0] if blocks else 0
        header = {
            "schema": SCHEMA,
            "key": self.key,
            "shape": [self.n, *row_shape],
            "dtype": f"{self.dtype}, {sys.byteorder} endian",
            "done": done,
            "complete": done == self.n,
            "blocks": blocks,  # where each ends, and its checksum
        }
        return {**header, "hash": content_hash(header)}

    def _read_header(self) -> dict[str, Any] | None:
        """Return the header; None if it is missing or does not fit the file."""
        with suppress(
            OSError, ValueError, LookupError, TypeError, RecursionError
        ):  # a foreign file may contain anything
            header: dict[str, Any] = json.loads(self.path("json").read_text())
            row_shape, stops = tuple(header["shape"][1:]), [stop for stop, _ in header["blocks"]]
            has_size = self.path("rows").stat().st_size == self._n_bytes(row_shape)
            is_sorted = all(first < second for first, second in pairwise([0, *stops, self.n + 1]))
            if has_size and is_sorted and header == self._header(row_shape, header["blocks"]):
                return header
        return None

    def _n_bytes(self, row_shape: tuple[int, ...]) -> int:
        return self.n * math.prod(row_shape) * self.dtype.itemsize


def _bytes_of(rows: Tensor) -> bytes:
    return bytes(rows.contiguous().view(-1).view(torch.uint8).numpy().data) if rows.numel() else b""


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Raise errors of the disk as CacheWriteError."""
    try:
        yield
    except OSError as error:
        raise CacheWriteError(str(error)) from None
    except InputError as error:
        raise CacheWriteError(f"{error.where}: {error.what}.") from None


def list_cache_files() -> list[Path]:
    """Return the files in the cache folder that this module has written, by their names, which are keys.

    Files with other names are of the user: $SPURLESS_CACHE may be any folder. Nothing is searched below links.
    """
    paths = []
    for part, suffixes in CACHE_FILES.items():
        folder = cache_folder() / part
        if folder.is_dir() and not folder.is_symlink():
            keyed = [path for path in folder.iterdir() if path.suffix in suffixes and is_content_hash(path.stem)]
            paths += [path for path in keyed if path.is_file() or path.is_symlink()]
    return sorted(paths)


def clear_cache() -> tuple[int, int]:
    """Delete the files of :func:`list_cache_files`; return how many, and their size in bytes.

    Files that another process is computing are kept. A process that reads a file keeps what it has mapped.
    """
    n_files = n_bytes = 0
    for path in sorted(list_cache_files(), key=lambda path: path.suffix == ".lock"):
        with suppress(OSError, Timeout):
            size = path.lstat().st_size
            with FileLock(path.with_suffix(".lock"), timeout=0):
                path.unlink()
                path.with_suffix(".lock").unlink(missing_ok=True)
            n_files, n_bytes = n_files + 1, n_bytes + size
    for part in CACHE_FILES:
        delete_abandoned(cache_folder() / part)
    return n_files, n_bytes


def _delete_old(folder: Path, used: Path) -> None:
    """Delete old incomplete files; only names that are a key, since $SPURLESS_CACHE may be any folder of the user."""
    for path in [*folder.glob("*.rows"), *folder.glob("*.lock")]:
        header = path.with_suffix(".json")
        with suppress(OSError, ValueError, LookupError, TypeError):
            is_old = time.time() - path.lstat().st_mtime > MAX_AGE_SECONDS
            if not is_old or path == used or not is_content_hash(path.stem):
                continue
            if path.suffix == ".lock":
                path.unlink()
            elif not (header.exists() and json.loads(header.read_text())["complete"]):
                header.unlink(missing_ok=True)
                path.unlink()
