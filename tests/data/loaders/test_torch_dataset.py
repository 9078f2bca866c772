"""Torch datasets: every shape an example may have, held or streamed, and what cannot be indexed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.loader import Loader, shuffled_order
from spurless.data.loaders.torch_dataset import from_dataset
from spurless.data.split import Split, Splits

X = torch.arange(40, dtype=torch.float32)[:, None].repeat(1, 2)
Y = torch.arange(40) % 2
A = torch.arange(40) // 2 % 2


def every(splits: Splits) -> list[Split]:
    return [splits.train, splits.val, splits.test]


def rows(split: Split) -> list[int]:
    assert isinstance(split.x, Tensor)
    return [int(v) for v in split.x.flatten(1)[:, 0]]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(X, Y, A),
        [(x.numpy(), int(y), np.int64(a)) for x, y, a in zip(X, Y, A, strict=True)],
        [{"x": x, "y": y, "a": a} for x, y, a in zip(X, Y, A, strict=True)],
        [{"attribute": a, "label": float(y), "image": x.tolist()} for x, y, a in zip(X, Y, A, strict=True)],
        Subset(TensorDataset(X, Y, A), range(40)),
    ],
    ids=["tensors", "arrays", "dicts", "other keys", "subset"],
)
def test_examples_of_any_form_are_the_same_examples(dataset: Any) -> None:
    data = from_dataset(dataset, attributes=("l", "r"))
    assert data.groups.attributes == ("l", "r")
    assert [split.counts.tolist() for split in every(data)] == [[7] * 4, [2] * 4, [1] * 4]
    for split in every(data):
        assert split.y.tolist() == Y[rows(split)].tolist()
        assert split.a.tolist() == A[rows(split)].tolist()


def test_given_splits_are_taken_as_they_are_and_the_missing_one_is_cut() -> None:
    parts = [TensorDataset(X[s], Y[s]) for s in (slice(0, 20), slice(20, 32), slice(32, 40))]
    data = from_dataset(parts[0], val=parts[1], test=parts[2], name="mine")
    assert [rows(split) for split in every(data)] == [list(range(20)), list(range(20, 32)), list(range(32, 40))]
    assert data.name == "mine"
    cut = from_dataset(parts[0], test=parts[2])
    assert rows(cut.test) == list(range(32, 40))
    assert sorted(rows(cut.train) + rows(cut.val)) == list(range(20))
    assert cut.name == "dataset TensorDataset"


def test_attributes_may_be_in_val_alone() -> None:
    data = from_dataset(TensorDataset(X, Y), val=TensorDataset(X, Y, A), test=TensorDataset(X, Y))
    assert [split.has_attributes for split in every(data)] == [False, True, False]
    assert data.val.a.tolist() == A.tolist()


def test_rows_of_attributes_are_crossed_or_overlap() -> None:
    dataset = TensorDataset(X, Y, torch.stack([A, 1 - A], dim=1))
    assert from_dataset(dataset).groups.sizes == (2, 2)
    overlapping = from_dataset(dataset, attributes=("m", "f"), overlapping=True)
    assert overlapping.train.counts.tolist() == [7, 7, 7, 7]


@dataclass
class Vision:
    """Looks like a dataset of torchvision, and counts how often it is read."""

    targets: Sequence[int]
    mode: str = "RGB"
    target_transform: Any = None
    classes: tuple[str, ...] = ("a cat", "a dög")
    reads: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, i: int) -> tuple[Image.Image, int]:
        self.reads.append(i)
        image = Image.fromarray(np.full((4, 6, 3), i, np.uint8)).convert(self.mode)
        return image, self.targets[i] if self.target_transform is None else self.target_transform(self.targets[i])


def test_pictures_keep_their_pixels_and_classes_their_names() -> None:
    data = from_dataset(Vision(Y.tolist()))
    assert data.groups.labels == ("a cat", "a dög")
    assert isinstance(data.train.x, Tensor)
    assert (data.train.x.dtype, data.train.x.shape) == (torch.uint8, (28, 3, 4, 6))
    assert data.train.y.tolist() == [i % 2 for i in rows(data.train)]
    assert from_dataset(Vision(Y.tolist()), labels=("x", "y")).groups.labels == ("x", "y")


def test_grey_pictures_have_one_channel_and_size_makes_squares() -> None:
    x = from_dataset(Vision(Y.tolist(), mode="L"), size=2).train.x
    assert isinstance(x, Tensor)
    assert x.shape == (28, 1, 2, 2)


def test_colours_are_not_dropped_because_the_first_picture_is_grey() -> None:
    coloured = Image.new("RGB", (4, 4), "red")
    with pytest.raises(InputError, match="example 1 is in color, but the first is gray"):
        from_dataset([(coloured.convert("L"), 0), (coloured, 1)] * 10)
    grey = from_dataset([(coloured.convert("L"), 0), (coloured.convert("LA"), 1)] * 10)
    assert isinstance(grey.train.x, Tensor)
    assert grey.train.x.shape[1:] == (1, 4, 4)


def test_listed_targets_spare_a_streamed_dataset_the_pass() -> None:
    dataset = Vision(Y.tolist())
    data = from_dataset(dataset, stream=True)
    assert set(dataset.reads) == {0}
    assert data.train.class_counts.tolist() == [14, 14]


class Stale(list[Any]):
    """Lists targets that its examples no longer have."""

    targets = Y.tolist()


def test_listed_targets_are_not_believed_where_examples_differ() -> None:
    # the first label survives this transform, so that only its presence gives it away
    merged = from_dataset(Vision([i % 4 for i in range(40)], target_transform=lambda y: y // 2), stream=True)
    assert merged.train.y.tolist() == [int(merged.train.x[i].flatten()[0]) % 4 // 2 for i in range(28)]  # type: ignore[index]
    turned = Vision(Y.tolist())
    dataset = [(image, 1 - y) for image, y in (turned[i] for i in range(40))]
    data = from_dataset(Stale(dataset), stream=True)
    assert data.train.y.tolist() == [1 - int(data.train.x[i].flatten()[0]) % 2 for i in range(28)]  # type: ignore[index]


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_and_resident_give_the_same_batches(workers: int) -> None:
    dataset = [(x.numpy(), int(y), int(a)) for x, y, a in zip(X, Y, A, strict=True)]
    held, streamed = from_dataset(dataset, stream=False), from_dataset(dataset, stream=True)
    assert (held.train.streamed, streamed.train.streamed) == (False, True)
    loaders = [
        Loader(d.train, shuffled_order(len(d.train), Seeds(0)), batch_size=8, workers=workers) for d in (held, streamed)
    ]
    for one, other in zip(loaders[0].batches(), loaders[1].batches(), strict=True):
        assert isinstance(one.x, Tensor)
        assert isinstance(other.x, Tensor)
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
        assert torch.equal(one.a, other.a)


def test_the_fingerprint_of_a_stream_follows_its_examples() -> None:
    first, again, other = (from_dataset(TensorDataset(x, Y), stream=True).fingerprint() for x in (X, X, X + 1))
    assert first == again != other


DICTS = [{"image": x, "label": y, "attribute": a} for x, y, a in zip(X, Y, A, strict=True)]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(X, Y, A))


@pytest.mark.parametrize(
    "dataset",
    [
        Stream(),
        iter(TensorDataset(X, Y, A)),
        DataLoader(TensorDataset(X, Y, A), batch_size=7),
        DataLoader(cast(Any, DICTS), batch_size=9),
    ],
    ids=["iterable", "iterator", "loader", "loader-of-dicts"],
)
def test_what_can_only_be_iterated_is_read_once(dataset: Any) -> None:
    splits = from_dataset(dataset)
    assert splits.train.has_attributes
    for split in every(splits):
        assert split.y.tolist() == [row % 2 for row in rows(split)]
    assert sorted(row for split in every(splits) for row in rows(split)) == list(range(40))


def test_a_loader_per_split_and_the_names_of_its_dataset_are_used() -> None:
    named = TensorDataset(X, Y)
    named.classes = ["cat", "dog"]  # type: ignore[attr-defined]
    train, val = DataLoader(Subset(named, range(30)), batch_size=8), DataLoader(Subset(named, range(30, 40)))
    splits = from_dataset(train, val=val, test=val)
    assert splits.groups.labels == ("cat", "dog")
    assert [len(split) for split in every(splits)] == [30, 10, 10]


@pytest.mark.parametrize(
    "dataset", [DataLoader(cast(Any, X)), DataLoader(cast(Any, [{"x": X[0]}]))], ids=["inputs", "dicts"]
)
def test_a_loader_without_labels_is_refused(dataset: Any) -> None:
    with pytest.raises(InputError, match="the batches have no labels"):
        from_dataset(dataset)


class Broken(list[Any]):
    def __getitem__(self, i: Any) -> Any:
        raise OSError("the disk is gone")


def test_an_example_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"example 0: the example cannot be read: the disk is gone"):
        from_dataset(Broken([1, 2]))
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "x.bmp")
    (tmp_path / "x.bmp").write_bytes((tmp_path / "x.bmp").read_bytes()[:900])
    with Image.open(tmp_path / "x.bmp") as broken, pytest.raises(InputError, match=r"example 1: .*truncated"):
        from_dataset([(Image.new("RGB", (64, 64)), 0), (broken, 1)])


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], r"the dataset is empty"),
        ([(X[0], 0), (None, 1)], r"example 1: the inputs must be numbers \(got object values\)"),
        ([X[0]], r"an example must be \(x, y\), \(x, y, a\) or a dict \(got Tensor\)"),
        ([{"x": X[0], "answer": 1}], r"an example has none of the keys y, label, .* \(got x, answer\)"),
        ([(X[0], 0.5)], r"the label of example 0 must be integers \(got 0.5\)"),
        ([(X[0], [0, 1])], r"the label of example 0 must be one number \(got shape \(2,\)\)"),
        ([(X[0], "cat")], r"the label of example 0 must be numbers"),
        ([(X[0], 0), (X[0, :1], 1)], r"example 1 differs from the first in shape or type .*Resize images with size="),
        ([(X[0], 0), (X[0].long(), 1)], r"example 1 differs from the first in shape or type"),
        ([(X[0], 0, 1), (X[0], 1, [1, 0])], r"example 1 differs from the others in the number of attributes"),
    ],
)
def test_a_bad_example_is_answered_with_a_sentence(dataset: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_dataset(dataset)


@pytest.mark.parametrize("dataset", [{"x": 1}, {0: (torch.zeros(2), 0), 2: (torch.zeros(2), 1)}])
def test_what_is_not_a_sequence_of_examples_is_refused(dataset: Any) -> None:
    with pytest.raises(InputError, match="the example cannot be read: KeyError"):
        from_dataset(dataset)
