"""Batches of a split, resident or streamed, in an order that depends on seed and epoch only."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from spurless.core.errors import InputError, SpurlessError
from spurless.core.limits import check_bytes
from spurless.core.modules import Input
from spurless.core.seeds import Seeds
from spurless.data.split import Batch, Source, Split, map_input

CPU = torch.device("cpu")
PREFETCH_BATCHES = 3  # batches that are read ahead

T = TypeVar("T")
R = TypeVar("R")

Order: TypeAlias = Callable[[int], Tensor]
"""A function from an epoch to the indices it visits; equal epochs give equal orders, so that runs can resume."""


def sequential_order(n: int) -> Order:
    """Visit every example once, in stored order."""
    return lambda _: torch.arange(n)


def shuffled_order(n: int, seeds: Seeds) -> Order:
    """Visit every example once, in a new order each epoch."""
    return lambda epoch: torch.randperm(n, generator=seeds.generator("order", epoch))


def weighted_order(weights: Tensor, seeds: Seeds, n: int | None = None) -> Order:
    """Draw ``n`` examples with replacement, with probabilities proportional to their weights."""
    weights = weights.double().cpu()
    if bool((weights < 0).any()) or not bool(weights.sum() > 0) or not bool(weights.isfinite().all()):
        raise InputError("sampling weights must be finite, non-negative and not all zero")
    total = weights.cumsum(0)
    length = len(weights) if n is None else n
    check_bytes(3 * 8 * length, "an epoch")  # of u, its bins and the result

    def order(epoch: int) -> Tensor:
        # by inverse transform: torch.multinomial supports at most 2**24 examples
        u = torch.rand(length, generator=seeds.generator("order", epoch), dtype=torch.double) * total[-1]
        return torch.searchsorted(total, u, right=True).clamp(max=len(total) - 1)

    return order


def balanced_order(cells: Tensor, seeds: Seeds, n: int | None = None) -> Order:
    """Draw with replacement so that every class or group that occurs is equally frequent."""
    return weighted_order(1.0 / torch.bincount(cells).clamp(min=1)[cells].double(), seeds, n)


def subsampled_order(cells: Tensor, seeds: Seeds) -> Order:
    """Visit equally many examples of every class or group, drawn again each epoch without replacement."""
    cells = cells.cpu()
    members = [(cells == cell).nonzero().flatten() for cell in torch.unique(cells)]
    smallest = min(len(m) for m in members)

    def order(epoch: int) -> Tensor:
        generator = seeds.generator("order", epoch)
        chosen = torch.cat([m[torch.randperm(len(m), generator=generator)[:smallest]] for m in members])
        return chosen[torch.randperm(len(chosen), generator=generator)]

    return order


@dataclass(frozen=True)
class Loader:
    """Batches of a split.

    A split in memory is moved to ``device``, and batches are selected there. A streamed split is read by ``workers``
    processes or, if its source has a method ``batch``, by one thread that reads a few batches ahead. All give the same
    batches. In distributed training, process ``rank`` of ``world`` gets its part of every batch.
    """

    split: Split
    order: Order
    batch_size: int
    device: torch.device = CPU
    training: bool = False
    workers: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError("the batch size must be at least 1", got=self.batch_size)
        if self.batch_size % self.world:
            what = "the batch size must be a multiple of the number of devices"
            raise InputError(what, got=f"{self.batch_size} over {self.world}")
        object.__setattr__(self, "split", self.split.to(self.device))  # once, not per epoch

    def table(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the indices of the full batches of an epoch as rows, and of the shorter last batch."""
        order = self.order(epoch)
        full = len(order) // self.batch_size * self.batch_size
        rows, rest = order[:full].view(-1, self.batch_size), order[full:]
        if self.training:
            rest = rest[: len(rest) // self.world * self.world]
            if len(rest) // self.world == 1 and len(rows):
                rest = rest[:0]  # batch norm needs two examples
        part = slice(self.rank, None, self.world)
        return rows[:, part], rest[part]

    def steps(self, epoch: int = 0) -> int:
        """Return the number of batches of an epoch."""
        rows, rest = self.table(epoch)
        return len(rows) + bool(len(rest))

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting at number ``start``."""
        rows, rest = self.table(epoch)
        indices = [*rows, *([rest] if len(rest) else [])][start:]
        if isinstance(self.split.x, Tensor | dict):
            return (self.gather(index.to(self.device)) for index in indices)
        read_batch = getattr(self.split.x, "batch", None)
        return self._stream(self.split.x, indices) if read_batch is None else self._read_ahead(read_batch, indices)

    def gather(self, index: Tensor) -> Batch:
        """Return the batch at ``index`` of a split in memory, without leaving its device."""
        if not isinstance(self.split.x, Tensor | dict):
            raise TypeError("a streamed split cannot be gathered")
        # on a CPU, index_select is 20 times as fast as x[index]
        return self._batch(map_input(lambda part: part.index_select(0, index), self.split.x), index)

    def _batch(self, x: Input, index: Tensor) -> Batch:
        if self.split.hidden is not None:
            x = self.split.hidden.apply(x, index)
        return Batch(self.split.prepare(x, self.training), self.split.y[index], self.split.a[index], index)

    def _read_ahead(self, read_batch: Callable[[Tensor], Tensor], indices: list[Tensor]) -> Iterator[Batch]:
        pinned = self.device.type == "cuda"

        def read(index: Tensor) -> Tensor:
            x = read_batch(index)
            return x.pin_memory() if pinned else x

        with closing(prefetch(read, indices, threads=1, depth=PREFETCH_BATCHES)) as inputs:
            for index, x in zip(indices, inputs, strict=True):
                yield self._batch(x.to(self.device, non_blocking=True), index.to(self.device))

    def _stream(self, source: Source, indices: list[Tensor]) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            _Items(source),
            batch_sampler=[index.tolist() for index in indices],
            num_workers=self.workers,
            generator=torch.Generator(),  # otherwise every epoch would advance the global generator
            pin_memory=self.device.type == "cuda",
            collate_fn=_stack,
            worker_init_fn=_ignore_interrupts,
        )
        for index, x in zip(indices, loader, strict=True):
            if isinstance(x, SpurlessError):
                raise x
            yield self._batch(x.to(self.device, non_blocking=True), index.to(self.device))


def prefetch(task: Callable[[T], R], items: Iterable[T], threads: int, depth: int) -> Generator[R]:
    """Yield the result of ``task`` for every item, in order; threads work up to ``depth`` items ahead.

    An error of the task is raised in place of its result. Closing the iterator ends the threads.
    """
    pending: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        for item in items:
            pending.append(pool.submit(task, item))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Items(torch.utils.data.Dataset["Tensor | SpurlessError"]):
    """A source as a torch Dataset.

    SpurlessErrors are returned as values: raised in a worker, they would arrive wrapped in a traceback.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, i: int) -> Tensor | SpurlessError:
        try:
            return self.source[i]
        except SpurlessError as error:
            return error

    def __len__(self) -> int:
        return len(self.source)


def _ignore_interrupts(_worker: int) -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # they reach the whole process group; the parent stops the workers
        signal.signal(number, signal.SIG_IGN)


def _stack(items: list[Tensor | SpurlessError]) -> Tensor | SpurlessError:
    for item in items:
        if isinstance(item, SpurlessError):
            return item
    return torch.stack([item for item in items if isinstance(item, Tensor)])
