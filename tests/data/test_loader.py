"""Loaders: orders by their statistics, resident and streamed alike, shares that make the whole."""

import pytest
import torch
from torch import Tensor

from spurless.core.errors import BadInput
from spurless.core.groups import Groups
from spurless.core.seeds import Seeds
from spurless.data.grouped import Grouped
from spurless.data.loader import Loader, Order, balanced, in_order, shuffled, subsampled, weighted

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
            raise BadInput("the image is corrupt", where="five.png")
        return X[i]


def split(source: Rows | None = None) -> Grouped:
    return Grouped(X if source is None else source, Y, torch.full((N,), -1), Groups(("a", "b")))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", [0, 2])
def test_resident_and_streamed_batches_are_the_same(workers: int, start: int) -> None:
    order = shuffled(N, Seeds(1))
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


def test_streaming_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    list(Loader(split(Rows()), shuffled(N, Seeds(1)), 5, workers=2).batches())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_worker_arrives_as_the_sentence_it_was(workers: int) -> None:
    loader = Loader(split(Broken()), in_order(N), 4, workers=workers)
    with pytest.raises(BadInput, match=r"^five\.png: the image is corrupt\.$"):
        list(loader.batches())


def test_every_example_comes_once_an_epoch_and_in_another_order_the_next() -> None:
    order = shuffled(N, Seeds(0))
    assert sorted(order(0).tolist()) == sorted(order(1).tolist()) == list(range(N))
    assert order(0).tolist() != order(1).tolist()
    assert order(0).tolist() == shuffled(N, Seeds(0))(0).tolist()


def test_weights_are_drawn_in_proportion() -> None:
    drawn = torch.bincount(weighted(torch.tensor([1.0, 0.0, 3.0]), Seeds(0), n=40000)(0), minlength=3)
    assert drawn[1] == 0
    assert float(drawn[2] / drawn[0]) == pytest.approx(3.0, rel=0.06)  # four standard errors


@pytest.mark.parametrize("bad", [[1.0, -1.0], [0.0, 0.0], [1.0, float("nan")]])
def test_weights_that_are_none_are_refused(bad: list[float]) -> None:
    with pytest.raises(BadInput, match="sampling weights must be finite"):
        weighted(torch.tensor(bad), Seeds(0))


def test_balanced_cells_come_equally_often() -> None:
    cells = torch.tensor([0] * 90 + [2] * 10)  # cell 1 is empty
    drawn = torch.bincount(cells[balanced(cells, Seeds(0), n=20000)(0)], minlength=3)
    assert drawn[1] == 0
    assert float(drawn[2] / 20000) == pytest.approx(0.5, abs=0.015)  # four standard errors


def test_subsampled_cells_have_the_size_of_the_smallest_without_repeats() -> None:
    cells = torch.tensor([0] * 9 + [1] * 3 + [2] * 5)
    order = subsampled(cells, Seeds(0))
    first, second = order(0), order(1)
    assert torch.bincount(cells[first]).tolist() == [3, 3, 3]
    assert len(set(first.tolist())) == 9
    assert sorted(first.tolist()) != sorted(second.tolist())  # drawn anew


def test_a_training_batch_of_one_is_left_out_and_an_evaluation_keeps_it() -> None:
    sizes = [len(batch) for batch in Loader(split(), in_order(N), 11, training=True).batches()]
    assert sizes == [11, 11]  # 23 = 11 + 11 + 1: batch norm cannot learn from one
    assert [len(batch) for batch in Loader(split(), in_order(N), 11).batches()] == [11, 11, 1]
    assert Loader(split(), in_order(N), 11, training=True).steps() == 2
    assert Loader(split(), in_order(N), 50, training=True).steps() == 1  # a small split is one short batch


def test_the_shares_of_two_processes_make_the_batch_of_one() -> None:
    order: Order = shuffled(N, Seeds(3))
    whole = list(Loader(split(), order, 8, training=True).batches())
    shares = [list(Loader(split(), order, 8, training=True, rank=rank, world=2).batches()) for rank in (0, 1)]
    for batch, first, second in zip(whole[:2], shares[0][:2], shares[1][:2], strict=True):
        assert sorted(batch.index.tolist()) == sorted([*first.index.tolist(), *second.index.tolist()])
    # the last batch of 7 becomes two shares of 3
    assert [len(share[2]) for share in shares] == [3, 3]


def test_a_dict_of_tensors_is_batched_key_by_key() -> None:
    text = Grouped({"ids": X, "mask": X + 1}, Y, torch.full((N,), -1), Groups(("a", "b")))
    batch = next(Loader(text, in_order(N), 4).batches())
    assert isinstance(batch.x, dict)
    assert torch.equal(batch.x["mask"], X[:4] + 1)


def test_a_batch_size_under_one_is_refused() -> None:
    with pytest.raises(BadInput, match="batch size must be at least 1"):
        Loader(split(), in_order(N), 0)
