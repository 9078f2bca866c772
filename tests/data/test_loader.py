"""Loaders: orders by their statistics, resident and streamed alike, shares that make the whole."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.loader import (
    PREFETCH_BATCHES,
    Loader,
    Order,
    balanced_order,
    prefetch,
    sequential_order,
    shuffled_order,
    subsampled_order,
    weighted_order,
)
from spurless.data.loaders.images import CachedImages
from spurless.data.split import Batch, Source, SourceSubset, Split

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

N = 23
X = torch.arange(N * 3, dtype=torch.uint8).view(N, 3)
Y = torch.arange(N) % 2


class Rows:
    """The same examples, read on demand."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Tensor:
        return X[i]

    def fingerprint(self) -> str:
        return "rows"


class Broken(Rows):
    """One example cannot be read."""

    def __getitem__(self, i: int) -> Tensor:
        if i == 5:
            raise InputError("the image is corrupt", where="five.png")
        return X[i]


class Many(Rows):
    """Whole batches at once, and a note of each and of the thread that read it."""

    def __init__(self, broken: int | None = None) -> None:
        self.asked: list[tuple[list[int], str]] = []
        self.broken = broken

    def __getitem__(self, i: int) -> Tensor:
        raise AssertionError("one example was read alone")

    def batch(self, index: Tensor) -> Tensor:
        self.asked.append((index.tolist(), threading.current_thread().name))
        if self.broken in index.tolist():
            raise InputError("the image is corrupt", where="five.png")
        return X[index]


def split(source: Source | None = None) -> Split:
    return Split(X if source is None else source, Y, torch.full((N,), -1), Groups(("a", "b")))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", [0, 2])
def test_resident_and_streamed_batches_are_the_same(workers: int, start: int) -> None:
    order = shuffled_order(N, Seeds(1))
    resident = Loader(split(), order, 5, training=True)
    streamed = Loader(split(Rows()), order, 5, training=True, workers=workers)
    for epoch in (0, 1):
        pairs = zip(resident.batches(epoch, start), streamed.batches(epoch, start), strict=True)
        for one, other in pairs:
            assert isinstance(one.x, Tensor)
            assert isinstance(other.x, Tensor)
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
            assert torch.equal(one.index, other.index)


@pytest.fixture
def mapped(tmp_path: Path) -> CachedImages:
    (tmp_path / "x.u8").write_bytes(X.numpy().tobytes())
    return CachedImages(tmp_path / "x.u8", tuple(X.shape), "key")


def same(one: Batch, other: Batch) -> bool:
    assert isinstance(one.x, Tensor)
    assert isinstance(other.x, Tensor)
    return torch.equal(one.x, other.x) and all(
        torch.equal(getattr(one, part), getattr(other, part)) for part in ("y", "a", "index")
    )


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead_")]


@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("picked", [0, 1, 2])
def test_batches_of_a_map_are_those_of_memory_and_of_workers(picked: int, start: int, mapped: CachedImages) -> None:
    splits = [split(), split(mapped), split(Rows())]
    for k in range(picked):  # a part of a part
        index = torch.randperm(N, generator=torch.Generator().manual_seed(k))[: N - 4 * (k + 1)] % (N - 4 * k)
        splits = [part.select(index) for part in splits]
    order = shuffled_order(len(splits[0]), Seeds(1))
    loaders = [Loader(part, order, 5, training=True, workers=2 * (k == 2)) for k, part in enumerate(splits)]
    for epoch in (0, 1):
        triples = list(zip(*(loader.batches(epoch, start) for loader in loaders), strict=True))
        assert len(triples) == loaders[0].steps(epoch) - start
        assert all(same(held, streamed) and same(held, worked) for held, streamed, worked in triples)


@gpu
@pytest.mark.gpu
def test_batches_of_a_map_reach_the_device_whole(mapped: CachedImages) -> None:
    device = torch.device("cuda")
    loaders = [Loader(split(x), shuffled_order(N, Seeds(1)), 5, device) for x in (None, mapped)]
    for held, streamed in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert isinstance(streamed.x, Tensor)
        assert streamed.x.device.type == "cuda"
        assert same(held, streamed)


def test_a_part_reads_batches_only_where_the_whole_does(mapped: CachedImages) -> None:
    index = torch.tensor([4, 1, 7])
    assert not hasattr(SourceSubset(Rows(), index), "batch")
    assert torch.equal(SourceSubset(mapped, index).batch(torch.tensor([2, 2, 0])), X[[7, 7, 4]])


def test_one_thread_reads_a_few_batches_ahead_and_no_more() -> None:
    source = Many()
    batches = Loader(split(source), sequential_order(N), 2, workers=5).batches()
    assert source.asked == []  # nothing before it is asked for
    for taken in range(1, 4):
        next(batches)
        until(lambda: len(source.asked) == taken + PREFETCH_BATCHES)  # noqa: B023 - called at once
    assert len({name for _, name in source.asked}) == 1 == len(readers())
    assert sum(1 for _ in batches) == 9  # 12 batches, 3 were taken
    assert [index for index, _ in source.asked] == [list(range(i, min(i + 2, N))) for i in range(0, N, 2)]
    assert readers() == []


def until(condition: object) -> None:
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:  # type: ignore[operator]
        time.sleep(0.001)
    time.sleep(0.02)  # time to go too far
    assert condition()  # type: ignore[operator]


def test_an_error_of_the_reading_thread_arrives_as_it_is_and_in_its_turn() -> None:
    seen: list[Batch] = []
    with pytest.raises(InputError, match=r"^five\.png: the image is corrupt\.$"):
        seen.extend(Loader(split(Many(broken=9)), sequential_order(N), 4).batches())
    assert readers() == []
    taken = Loader(split(Many(broken=9)), sequential_order(N), 4).batches()
    assert [len(next(taken)), len(next(taken))] == [4, 4]  # 0 to 7 were read before the broken one
    with pytest.raises(InputError, match="five"):
        next(taken)
    assert readers() == []


def test_leaving_early_ends_the_thread() -> None:
    source = Many()

    def leave(batches: Iterator[Batch]) -> None:
        for _ in batches:
            return

    def fail(batches: Iterator[Batch]) -> None:
        for batch in batches:
            raise ZeroDivisionError(len(batch))

    leave(Loader(split(source), sequential_order(N), 2).batches())
    assert readers() == []
    with closing(Loader(split(source), sequential_order(N), 2).batches()) as batches:  # type: ignore[type-var]
        next(batches)
        assert len(readers()) == 1
    assert readers() == []
    with pytest.raises(ZeroDivisionError):
        fail(Loader(split(source), sequential_order(N), 2).batches())
    assert readers() == []
    assert len(source.asked) <= 3 * (PREFETCH_BATCHES + 1)


def test_working_ahead_keeps_the_order_and_the_bound() -> None:
    begun: list[int] = []

    def task(i: int) -> int:
        begun.append(i)
        time.sleep(0.003 * (i % 3 == 0))
        return i * i

    results = prefetch(task, range(30), threads=3, depth=4)
    assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
    until(lambda: sorted(begun) == list(range(9)))  # five were taken and four are ahead
    assert list(results) == [i * i for i in range(5, 30)]
    assert list(prefetch(task, [], threads=1, depth=1)) == []


def test_streaming_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    list(Loader(split(Rows()), shuffled_order(N, Seeds(1)), 5, workers=2).batches())
    assert torch.equal(before, torch.get_rng_state())


class Handlers(Rows):
    """Tells, as an input, whether whoever reads it leaves Ctrl-C alone."""

    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor([float(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)])


def test_workers_leave_ctrl_c_to_the_process_that_started_them() -> None:
    (batch, *_) = Loader(split(Handlers()), sequential_order(N), 4, workers=1).batches()
    assert isinstance(batch.x, Tensor)
    assert batch.x.all()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_worker_arrives_as_the_sentence_it_was(workers: int) -> None:
    loader = Loader(split(Broken()), sequential_order(N), 4, workers=workers)
    with pytest.raises(InputError, match=r"^five\.png: the image is corrupt\.$"):
        list(loader.batches())


def test_every_example_comes_once_an_epoch_and_in_another_order_the_next() -> None:
    order = shuffled_order(N, Seeds(0))
    assert sorted(order(0).tolist()) == sorted(order(1).tolist()) == list(range(N))
    assert order(0).tolist() != order(1).tolist()
    assert order(0).tolist() == shuffled_order(N, Seeds(0))(0).tolist()


def test_weights_are_drawn_in_proportion() -> None:
    drawn = torch.bincount(weighted_order(torch.tensor([1.0, 0.0, 3.0]), Seeds(0), n=40000)(0), minlength=3)
    assert drawn[1] == 0
    assert float(drawn[2] / drawn[0]) == pytest.approx(3.0, rel=0.06)  # four standard errors


@pytest.mark.parametrize("bad", [[1.0, -1.0], [0.0, 0.0], [1.0, float("nan")]])
def test_weights_that_are_none_are_refused(bad: list[float]) -> None:
    with pytest.raises(InputError, match="sampling weights must be finite"):
        weighted_order(torch.tensor(bad), Seeds(0))


def test_balanced_cells_come_equally_often() -> None:
    cells = torch.tensor([0] * 90 + [2] * 10)  # cell 1 is empty
    drawn = torch.bincount(cells[balanced_order(cells, Seeds(0), n=20000)(0)], minlength=3)
    assert drawn[1] == 0
    assert float(drawn[2] / 20000) == pytest.approx(0.5, abs=0.015)  # four standard errors


def test_subsampled_cells_have_the_size_of_the_smallest_without_repeats() -> None:
    cells = torch.tensor([0] * 9 + [1] * 3 + [2] * 5)
    order = subsampled_order(cells, Seeds(0))
    first, second = order(0), order(1)
    assert torch.bincount(cells[first]).tolist() == [3, 3, 3]
    assert len(set(first.tolist())) == 9
    assert sorted(first.tolist()) != sorted(second.tolist())  # drawn anew


def test_a_training_batch_of_one_is_left_out_and_an_evaluation_keeps_it() -> None:
    sizes = [len(batch) for batch in Loader(split(), sequential_order(N), 11, training=True).batches()]
    assert sizes == [11, 11]  # 23 = 11 + 11 + 1: batch norm cannot learn from one
    assert [len(batch) for batch in Loader(split(), sequential_order(N), 11).batches()] == [11, 11, 1]
    assert Loader(split(), sequential_order(N), 11, training=True).steps() == 2
    assert Loader(split(), sequential_order(N), 50, training=True).steps() == 1  # a small split is one short batch


def test_the_shares_of_two_processes_make_the_batch_of_one() -> None:
    order: Order = shuffled_order(N, Seeds(3))
    whole = list(Loader(split(), order, 8, training=True).batches())
    shares = [list(Loader(split(), order, 8, training=True, rank=rank, world=2).batches()) for rank in (0, 1)]
    for batch, first, second in zip(whole[:2], shares[0][:2], shares[1][:2], strict=True):
        assert sorted(batch.index.tolist()) == sorted([*first.index.tolist(), *second.index.tolist()])
    # the last batch of 7 becomes two shares of 3
    assert [len(share[2]) for share in shares] == [3, 3]


def test_a_dict_of_tensors_is_batched_key_by_key() -> None:
    text = Split({"ids": X, "mask": X + 1}, Y, torch.full((N,), -1), Groups(("a", "b")))
    batch = next(Loader(text, sequential_order(N), 4).batches())
    assert isinstance(batch.x, dict)
    assert torch.equal(batch.x["mask"], X[:4] + 1)


def test_a_batch_size_under_one_is_refused() -> None:
    with pytest.raises(InputError, match="batch size must be at least 1"):
        Loader(split(), sequential_order(N), 0)
