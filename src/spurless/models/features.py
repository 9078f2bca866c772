"""Features: what the head reads, for every example, in one pass over the data, which is kept in a file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from spurless.core.errors import BadInput, SpurlessWarning
from spurless.core.files import alone, replace_file
from spurless.core.provenance import digest
from spurless.models.asking import asking
from spurless.models.classifier import Classifier, Input, evaluating

SCHEMA = 1
"""To be raised when the same weights and inputs make other features, or the files look different."""
DTYPES = {"float32": torch.float32, "float16": torch.float16}

QUICK = 1.0  # seconds: a pass that is over by then is as soon made again, and leaves no file
SMALL = 2**25  # bytes: what is larger goes to a file however quick; 32 MB take 0.1 s to write and sync
COMMIT = 2.0  # seconds of work that a kill may cost; a sync takes milliseconds beside the writing
SAMPLE = 64  # rows that are hashed, so that the rows of another file are not taken for these
WEEK = 7 * 24 * 3600

RowsFrom: TypeAlias = Callable[[int], Generator[Tensor]]
"""From the number of an example to the features from there on, a batch at a time; equal calls give equal rows."""


class HasInput(Protocol):
    """Anything with inputs, such as a batch."""

    @property
    def x(self) -> Input:
        """The inputs, as the model takes them."""


def collect(model: Classifier, batches: Iterable[HasInput], device: torch.device | str | None = None) -> Tensor:
    """Return the features of every example, in order: eval mode, no gradient, float32 on the CPU.

    Args:
        model: where the features come from; every part of it is left in the mode it was in.
        batches: anything with ``.x``.
        device: where the inputs go; by default to the weights of the model.

    Raises:
        BadInput: there are no batches, or the features are not one finite row per example.
    """
    with evaluating(model):
        parts = list(rows(model, batches, device))
    if not parts:
        raise BadInput("there are no batches to take features of", do="Pass a split with at least one example.")
    return torch.cat(parts)


def rows(
    model: Classifier,
    batches: Iterable[HasInput],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
    start: int = 0,
) -> Iterator[Tensor]:
    """Yield the features of one batch after another, on the CPU; the model is run in the mode it is in.

    ``start`` is the number of the first example, for what is said of one whose features are not finite.
    """
    place = _device(model) if device is None else torch.device(device)
    for batch in batches:
        n = len(next(iter(batch.x.values())) if isinstance(batch.x, dict) else batch.x)
        # not around the loop: it would hold for whoever reads the rows
        with torch.no_grad(), asking(model, batch.x):
            features = model.features(_moved(batch.x, place)).float()
        if features.dim() != 2 or len(features) != n:
            raise BadInput(
                f"the features of {model.name} have the wrong shape", expected="(N, d)", got=tuple(features.shape)
            )
        part = features.to(dtype).cpu()
        check_finite(part, start)
        start += len(part)
        yield part


def check_finite(part: Tensor, start: int = 0) -> None:
    """Refuse features that are not numbers; ``start`` is the number of the first example."""
    fine = part.isfinite().all(dim=1)
    if bool(fine.all()):
        return
    bad = int((~fine).nonzero()[0])
    half = "; float16 ends at 65,504, float32 does not" if part.dtype == torch.float16 else ""
    raise BadInput(
        f"the features of example {start + bad} are not finite",
        got=float(part[bad][~part[bad].isfinite()][0]),
        do=f"Look at example {start + bad}: its inputs may not be finite; or the weights have diverged{half}.",
    )


def logits_of_features(model: Classifier, features: Tensor) -> Tensor:
    """Return the logits of collected features, float32 on the CPU."""
    anchor = next(model.head.parameters(), features)
    with evaluating(model), torch.no_grad():
        logits: Tensor = model.head(features.to(anchor.device, anchor.dtype))
    return logits.float().cpu()


class NotKept(Exception):
    """The disk does not take the features."""


@dataclass(frozen=True)
class Store:
    """The features of one pass: ``<key>.rows``, raw and in order, and ``<key>.json``, which says what is done.

    The file has its full size from the start. A pass that was killed goes on after the last rows that the header
    counts. Of two processes that make the same one, the second waits for the first.
    """

    folder: Path
    key: str
    n: int
    dtype: torch.dtype = torch.float32

    def path(self, suffix: str) -> Path:
        """Return the place of one of its files."""
        return self.folder / f"{self.key}.{suffix}"

    def rows(self) -> Tensor | None:
        """Return the rows that are done, mapped into memory: all ``n`` where the pass was finished.

        Writing to them changes neither the file nor what others see. Files that are damaged are removed.
        """
        if not self.path("json").exists():
            return None
        with suppress(OSError, ValueError, LookupError, TypeError):  # whatever a foreign file may lead to
            header = json.loads(self.path("json").read_text())
            width, done = header["shape"][1], header["done"]
            sized = self.path("rows").stat().st_size == self._bytes(width) and 0 <= done <= self.n
            if sized and header == self._header(width, done):
                return self._mapped(width)[:done]
        self.forget("The stored features are damaged")
        return None

    def forget(self, why: str = "") -> None:
        """Remove the files; where there is something to say of it, say it."""
        if why:
            warnings.warn(f"{why} and are made again: {self.path('rows')}", SpurlessWarning, stacklevel=3)
        with suppress(OSError):
            for suffix in ("json", "rows"):  # rows without a header are nobody's; a header without rows is damage
                self.path(suffix).unlink(missing_ok=True)

    def make(self, rows_from: RowsFrom) -> Tensor:
        """Make the pass, or the rest of it. One that is quick and small stays in memory.

        Raises:
            NotKept: the folder cannot be written, or has no room.
        """
        begin, early = time.monotonic(), list[Tensor]()
        with closing(rows_from(0)) as parts:
            if not self.path("json").exists():
                for part in parts:
                    early.append(part)
                    if part.numel() and (time.monotonic() - begin > QUICK or self._bytes(part.shape[1]) > SMALL):
                        break
                else:
                    return torch.cat(early)
            with ExitStack() as locked:
                with _disk():  # not around the writing: what the model and the data raise is not the disk's
                    self.folder.mkdir(parents=True, exist_ok=True)
                    locked.enter_context(alone(self.path("lock")))
                self._write(early, parts, rows_from)
        found = self.rows()
        if found is None or len(found) < self.n:
            raise NotKept(f"{self.path('rows')} is not what was written there")
        return found

    def _write(self, early: list[Tensor], parts: Iterator[Tensor], rows_from: RowsFrom) -> None:
        found = self.rows()
        done = 0 if found is None else len(found)
        if done == self.n:
            return  # another process made it meanwhile
        try:
            if done > sum(map(len, early)):
                with closing(rows_from(done)) as rest:
                    self._append(rest, done)
            else:
                self._append(chain(early, parts), 0)
        except (BadInput, NotKept):  # else a full disk would stay full, and half a pass lie there for ever
            self.forget()
            raise

    def _append(self, parts: Iterator[Tensor], done: int) -> None:
        first = next(parts)
        width, committed = first.shape[1], time.monotonic()
        with _disk():
            if not done:
                self._allot(width)
            file = self.path("rows").open("r+b")
        with closing(file):
            for part in chain([first], parts):
                with _disk():  # not around the loop: what the model and the data raise is not the disk's
                    file.seek(done * width * self.dtype.itemsize)
                    file.write(part.contiguous().numpy().data)  # through a map, a full disk would be a bus error
                    done += len(part)
                    if time.monotonic() - committed >= COMMIT or done == self.n:
                        file.flush()
                        os.fsync(file.fileno())  # only then are they done, whatever happens to the machine
                        self._commit(width, done)
                        committed = time.monotonic()

    def _allot(self, width: int) -> None:
        self.forget()  # not cut to size: another process may have mapped it
        _sweep(self.folder)
        free, needed = shutil.disk_usage(self.folder).free, self._bytes(width)
        if free < needed:
            raise NotKept(f"{self.folder} has room for {free:,} bytes, and they take {needed:,}")
        with self.path("rows").open("xb") as file:
            file.truncate(needed)
        self._commit(width, 0)

    def _commit(self, width: int, done: int) -> None:
        header = json.dumps(self._header(width, done))
        replace_file(self.path("json"), lambda scratch: scratch.write_text(header))

    def _header(self, width: int, done: int) -> dict[str, Any]:
        complete = done == self.n
        some = torch.arange(0, self.n, -(-self.n // SAMPLE))
        return {
            "schema": SCHEMA,
            "key": self.key,
            "shape": [self.n, width],
            "dtype": f"{self.dtype}, {sys.byteorder} endian",
            "done": done,
            "complete": complete,
            "sample": digest(self._mapped(width).index_select(0, some)) if complete else None,
        }

    def _mapped(self, width: int) -> Tensor:
        # private: pages come from the file when they are read, and one that is written to becomes a copy
        flat = torch.from_file(str(self.path("rows")), shared=False, size=self.n * width, dtype=self.dtype)
        return flat.view(self.n, width)

    def _bytes(self, width: int) -> int:
        return self.n * width * self.dtype.itemsize


@contextmanager
def _disk() -> Iterator[None]:
    """Tell what the disk refuses from what the model and the data do wrong."""
    try:
        yield
    except (OSError, BadInput) as error:
        raise NotKept(str(error)) from None


def _sweep(folder: Path) -> None:
    """Remove what was begun and not gone on with for a week."""
    for path in folder.glob("*.rows"):
        header = path.with_suffix(".json")
        with suppress(OSError, ValueError, LookupError, TypeError):
            old = time.time() - path.stat().st_mtime > WEEK
            if old and not (header.exists() and json.loads(header.read_text())["complete"]):
                header.unlink(missing_ok=True)
                path.unlink()


def _device(model: Classifier) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _moved(x: Input, device: torch.device) -> Input:
    if isinstance(x, dict):
        return {key: value.to(device, non_blocking=True) for key, value in x.items()}
    return x.to(device, non_blocking=True)
