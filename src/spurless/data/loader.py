"""Loader: batches of a split in an order that depends on seed and epoch alone, resident or streamed."""

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

from spurless.core.errors import BadInput, SpurlessError
from spurless.core.seeds import Seeds
from spurless.data.grouped import Batch, Grouped, Input, Source

CPU = torch.device("cpu")
AHEAD = 3  # batches that are read while one is trained on

T = TypeVar("T")
R = TypeVar("R")

Order: TypeAlias = Callable[[int], Tensor]
"""From the number of an epoch to the examples it visits. Same number, same order: that is how a killed run resumes."""


def in_order(n: int) -> Order:
    """Visit every example once, as stored."""
    return lambda _: torch.arange(n)


def shuffled(n: int, seeds: Seeds) -> Order:
    """Visit every example once, in another order each epoch."""
    return lambda epoch: torch.randperm(n, generator=seeds.generator("order", epoch))


def weighted(weights: Tensor, seeds: Seeds, n: int | None = None) -> Order:
    """Draw ``n`` examples with replacement, each as often as its weight says."""
    weights = weights.double().cpu()
    if bool((weights < 0).any()) or not bool(weights.sum() > 0) or not bool(weights.isfinite().all()):
        raise BadInput("sampling weights must be finite, none negative and not all zero")
    total = weights.cumsum(0)
    length = len(weights) if n is None else n

    def order(epoch: int) -> Tensor:
        # by inverse transform: torch.multinomial refuses more than 2**24 examples
        u = torch.rand(length, generator=seeds.generator("order", epoch), dtype=torch.double) * total[-1]
        return torch.searchsorted(total, u, right=True).clamp(max=len(total) - 1)

    return order


def balanced(cells: Tensor, seeds: Seeds, n: int | None = None) -> Order:
    """Draw with replacement so that every cell (class or group) that is there comes equally often."""
    return weighted(1.0 / torch.bincount(cells).clamp(min=1)[cells].double(), seeds, n)


def subsampled(cells: Tensor, seeds: Seeds) -> Order:
    """Visit as many examples of every cell as the smallest one has, drawn anew each epoch, without replacement."""
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

    A split in memory lives on ``device`` and its batches are index selects there. A streamed one is read by
    ``workers`` processes, or, where its source reads a whole batch at once, by one thread that keeps a few
    batches ahead. All give the same batches. With several processes training together, process ``rank`` of
    ``world`` takes its share of every batch.
    """

    split: Grouped
    order: Order
    batch_size: int
    device: torch.device = CPU
    training: bool = False
    workers: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise BadInput("the batch size must be at least 1", got=self.batch_size)
        if self.batch_size % self.world:
            raise BadInput(
                "the batch size must be a multiple of the number of devices",
                got=f"{self.batch_size} over {self.world}",
            )
        object.__setattr__(self, "split", self.split.to(self.device))  # once, not per epoch

    def table(self, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the full batches of an epoch as rows of indices, and the last shorter one (possibly empty)."""
        order = self.order(epoch)
        full = len(order) // self.batch_size * self.batch_size
        rows, rest = order[:full].view(-1, self.batch_size), order[full:]
        if self.training:
            rest = rest[: len(rest) // self.world * self.world]
            if len(rest) // self.world == 1 and len(rows):
                rest = rest[:0]  # batch norm cannot learn from one example
        share = slice(self.rank, None, self.world)
        return rows[:, share], rest[share]

    def steps(self, epoch: int = 0) -> int:
        """Return the number of batches of an epoch."""
        rows, rest = self.table(epoch)
        return len(rows) + bool(len(rest))

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from number ``start`` on."""
        rows, rest = self.table(epoch)
        indices = [*rows, *([rest] if len(rest) else [])][start:]
        if isinstance(self.split.x, Tensor | dict):
            return (self.gather(index.to(self.device)) for index in indices)
        at_once = getattr(self.split.x, "batch", None)
        return self._stream(self.split.x, indices) if at_once is None else self._read_ahead(at_once, indices)

    def gather(self, index: Tensor) -> Batch:
        """Return the batch at ``index`` of a split in memory; every operation stays on the device."""
        x = self.split.x
        if isinstance(x, Tensor):
            return self._batch(x.index_select(0, index), index)  # on a CPU 20 times as fast as x[index]
        if isinstance(x, dict):
            return self._batch({key: value.index_select(0, index) for key, value in x.items()}, index)
        raise TypeError("a streamed split has no batch to gather")

    def _batch(self, x: Input, index: Tensor) -> Batch:
        if self.split.hidden is not None:
            x = self.split.hidden.apply(x, index)
        return Batch(self.split.prepare(x, self.training), self.split.y[index], self.split.a[index], index)

    def _read_ahead(self, at_once: Callable[[Tensor], Tensor], indices: list[Tensor]) -> Iterator[Batch]:
        pinned = self.device.type == "cuda"

        def read(index: Tensor) -> Tensor:
            x = at_once(index)
            return x.pin_memory() if pinned else x

        with closing(ahead(read, indices, threads=1, depth=AHEAD)) as inputs:
            for index, x in zip(indices, inputs, strict=True):
                yield self._batch(x.to(self.device, non_blocking=True), index.to(self.device))

    def _stream(self, source: Source, indices: list[Tensor]) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            _Items(source),
            batch_sampler=[index.tolist() for index in indices],
            num_workers=self.workers,
            generator=torch.Generator(),  # else every epoch would move the global generator
            pin_memory=self.device.type == "cuda",
            collate_fn=_stack,
            worker_init_fn=_leave_interrupts,
        )
        for index, x in zip(indices, loader, strict=True):
            if isinstance(x, SpurlessError):
                raise x
            yield self._batch(x.to(self.device, non_blocking=True), index.to(self.device))


def ahead(task: Callable[[T], R], items: Iterable[T], threads: int, depth: int) -> Generator[R]:
    """Yield what ``task`` makes of every item, in order; threads work up to ``depth`` items ahead.

    An error of the task is raised as it is, when its turn comes. Closing the iterator ends the threads.
    """
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="ahead")
    try:
        for item in items:
            waiting.append(pool.submit(task, item))
            if len(waiting) > depth:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Items(torch.utils.data.Dataset["Tensor | SpurlessError"]):
    """A source in the form that DataLoader workers take.

    An error of ours travels as a value: raised in a worker, it would arrive wrapped in a traceback.
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


def _leave_interrupts(_worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides, and ends them


def _stack(items: list[Tensor | SpurlessError]) -> Tensor | SpurlessError:
    for item in items:
        if isinstance(item, SpurlessError):
            return item
    return torch.stack([item for item in items if isinstance(item, Tensor)])
