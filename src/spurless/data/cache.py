"""Cache: images that were decoded once into a file of raw pixels, which later runs map into memory."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.files import alone
from spurless.core.places import cache_folder
from spurless.core.progress import teller
from spurless.core.provenance import digest
from spurless.data.images import Encoded, fill
from spurless.data.loader import ahead

SCHEMA = 1
"""Part of every key: to be raised when ``images.pixels`` makes other pixels of the same file."""

CHUNK = 256  # images that are decoded, written and called done together
CHUNK_BYTES = 2**23  # fewer where they are large: some chunks per thread are held in memory
WEEK = 7 * 24 * 3600


@dataclass(frozen=True)
class Mapped:
    """Decoded images in a file of raw uint8 pixels ``(N, C, H, W)``, mapped into memory when the first is read.

    To another process goes only the path: it maps the file anew.
    """

    path: Path
    shape: tuple[int, ...]
    key: str

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, i: int) -> Tensor:
        return torch.from_numpy(self._pixels[i].copy())  # a copy: nobody writes into the map

    def __reduce__(self) -> tuple[Any, ...]:
        return Mapped, (self.path, self.shape, self.key)

    @property
    def nbytes(self) -> int:
        """The size of all images in memory."""
        return math.prod(self.shape)

    def batch(self, index: Tensor) -> Tensor:
        """Read many examples in one go."""
        return torch.from_numpy(self._pixels.take(index.cpu().numpy(), axis=0))

    def tensor(self) -> Tensor:
        """Read all examples into memory."""
        return torch.from_numpy(self._pixels.copy())

    def fingerprint(self) -> str:
        """Return the hash of the encoded images, their size and their channels."""
        return self.key

    @cached_property
    def _pixels(self) -> Any:  # a numpy array, which is not imported before it is needed
        import numpy as np

        return np.asarray(np.memmap(self.path, np.uint8, mode="r", shape=self.shape))


def decoded(source: Encoded, folder: Path | None = None, threads: int | None = None) -> Mapped:
    """Return the images of a source as a file of pixels; they are decoded now if no earlier run did so.

    The file is found by content: images that were moved, copied or touched are not decoded again, and where one
    was changed, all are. A build that was killed goes on where it stopped. Of two processes that want the same
    file, one builds it and the other waits.

    Args:
        source: the images; all have the same size once they are decoded.
        folder: where the file lies or will lie; by default ``images`` in the cache folder.
        threads: that decode; by default one per core, 8 at most.

    Raises:
        BadInput: an image cannot be read.
        NoRoom: the disk is too full for the file.
        OSError: the folder cannot be written.
    """
    folder = cache_folder() / "images" if folder is None else folder
    threads = threads or min(8, os.cpu_count() or 1)
    folder.mkdir(parents=True, exist_ok=True)
    stamp = source.stamp()
    alias = folder / f"{digest(SCHEMA, source.size, source.channels, stamp)}.key"
    key = _known(alias)
    if key is None:
        key = content_key(source, threads)
        _check_at_rest(source, stamp)
        with suppress(OSError):  # a cache that may only be read is a cache all the same
            alias.write_text(key)
    build = _Build(source, folder, key)
    found = build.result()
    if found is not None:
        return found
    with alone(build.path("lock")):
        # another process may have built it while this one waited
        return build.result() or build.run(threads, stamp)


def content_key(source: Encoded, threads: int) -> str:
    """Return a hash of the bytes of every image, in order, and of what they are decoded to."""
    n, hashes = len(source), bytearray()
    tell = teller("hash", n)

    def hashed(start: int) -> bytes:
        images = (source.encoded(i) for i in range(start, min(start + CHUNK, n)))
        return b"".join(blake2b(image, digest_size=16).digest() for image in images)

    with closing(ahead(hashed, range(0, n, CHUNK), threads, 2 * threads)) as parts:
        for part in parts:
            hashes += part
            tell(len(hashes) // 16)
    return digest("decoded images", SCHEMA, source.size, source.channels, bytes(hashes))


class NoRoom(BadInput):
    """The disk is too full for the decoded images."""


class _Changed(BadInput):
    """What was decoded is not what was hashed."""


@dataclass(frozen=True)
class _Build:
    """One file of pixels, ``<key>.u8`` with its header ``<key>.json``, and how it comes about.

    It grows as ``<key>.part``. The journal ``<key>.done`` starts with the plan and gets a line per finished chunk.
    """

    source: Encoded
    folder: Path
    key: str

    def path(self, suffix: str) -> Path:
        return self.folder / f"{self.key}.{suffix}"

    def result(self) -> Mapped | None:
        """Return the finished file; None if it is not there, or not what its header and the source say."""
        size, pixels = self.source.size, self.path("u8")
        try:
            header = json.loads(self.path("json").read_text())
            shape = tuple(header["shape"])
            expected = (len(self.source), self.source.channels, *(shape[2:] if size is None else (size, size)))
            sound = header == self.header(expected) and pixels.stat().st_size == math.prod(expected)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return Mapped(pixels, shape, self.key) if sound else None

    def header(self, shape: tuple[int, ...]) -> dict[str, Any]:
        return {"schema": SCHEMA, "dtype": "uint8", "shape": list(shape), "count": len(self.source)}

    def run(self, threads: int, stamp: str) -> Mapped:
        """Decode what is missing, and give the file its name when it is whole."""
        self.remove("u8", "json")  # if there is any, it is not sound
        self.sweep()
        size, channels = self.source.size, self.source.channels
        shape = (len(self.source), *(self.source[0].shape if size is None else (channels, size, size)))
        try:
            self.decode(shape, threads)
            _check_at_rest(self.source, stamp)
            # the header first: a file of pixels without one is not trusted, nor is a header without its file
            with self.path("json").open("w") as file:
                json.dump(self.header(shape), file)
                _sync(file)
            self.path("part").replace(self.path("u8"))
        except (OSError, _Changed):
            self.remove("part", "done")  # else a full disk would stay full, and wrong pixels be taken for right
            raise
        self.remove("done")
        return Mapped(self.path("u8"), shape, self.key)

    def decode(self, shape: tuple[int, ...], threads: int) -> None:
        n, each = shape[0], math.prod(shape[1:])
        step = max(1, min(CHUNK, CHUNK_BYTES // each))
        plan = json.dumps({**self.header(shape), "chunk": step})
        done = self.finished(plan, n * each)
        todo = [start for start in range(0, n, step) if start not in done]
        count = n - sum(min(step, n - start) for start in todo)
        _check_room(self.folder, (n - count) * each)
        if not done:
            self.remove("done")  # at no moment does a journal stand beside a part it does not speak of
            with self.path("part").open("wb") as blank:
                blank.truncate(n * each)
            self.path("done").write_text(plan)
        tell = teller("decode", n)

        def chunk_at(start: int) -> Tensor:
            return fill(torch.empty(min(step, n - start), *shape[1:], dtype=torch.uint8), self.source, start)

        chunks = ahead(chunk_at, todo, threads, 2 * threads)
        with closing(chunks), self.path("part").open("r+b") as part, self.path("done").open("a") as journal:
            for start, chunk in zip(todo, chunks, strict=True):
                part.seek(start * each)
                part.write(chunk.numpy().data)
                _sync(part)  # only then is it done, whatever happens to the machine
                journal.write(f"\n{start} done")
                journal.flush()
                count += len(chunk)
                tell(count)

    def finished(self, plan: str, total: int) -> set[int]:
        """Return the chunks that an earlier build of the same plan finished, by their first image."""
        try:
            head, *lines = self.path("done").read_text().splitlines()
            sound = head == plan and self.path("part").stat().st_size == total
        except (OSError, ValueError):
            return set()
        # a kill may have cut a line off; the next begins anew
        return {int(line.split()[0]) for line in lines if re.fullmatch(r"\d+ done", line)} if sound else set()

    def remove(self, *suffixes: str) -> None:
        for suffix in suffixes:
            self.path(suffix).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what other builds left that nobody went on with for a week."""
        for path in self.folder.iterdir():
            if path.suffix in (".part", ".done", ".lock") and path.stem != self.key:
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > WEEK:
                        path.unlink()


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoRoom(
            "there is no room for the decoded images",
            where=folder,
            expected=f"{needed:,} bytes",
            got=f"{free:,} free",
            do="Name another folder with $SPURLESS_CACHE, make the images smaller with size=, or pass cache=False.",
        )


def _known(alias: Path) -> str | None:
    """Return the key that belongs to a stamp; a file that was cut off says nothing."""
    try:
        key = alias.read_text()
    except (OSError, ValueError):
        return None
    return key if re.fullmatch(r"[0-9a-f]{24}", key) else None


def _check_at_rest(source: Encoded, stamp: str) -> None:
    if source.stamp() != stamp:
        raise _Changed("image files changed while they were read", do="Start again when they are complete.")


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())
