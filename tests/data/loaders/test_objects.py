"""Objects of Python as data: their kinds, and what is missing in them."""

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from spurless.core.errors import InputError
from spurless.data.loaders.objects import as_splits
from spurless.data.loaders.tensors import from_tensors

X, Y = torch.arange(40, dtype=torch.float32)[:, None].repeat(1, 2), torch.arange(40) % 2


@pytest.mark.parametrize(
    "data",
    [(X, Y), (X.numpy(), Y.tolist()), {"x": X, "y": Y}, TensorDataset(X, Y), [*zip(X, Y, strict=True)]],
    ids=["tensors", "arrays", "dict", "dataset", "list"],
)
@pytest.mark.parametrize("held_out", [True, False])
def test_all_examples_are_in_one_split_if_they_are_held_out(data: Any, held_out: bool) -> None:
    splits = as_splits(data, held_out=held_out)
    assert [len(split) for split in (splits.train, splits.val, splits.test)] == ([0, 0, 40] if held_out else [28, 6, 6])
    assert torch.equal(splits.parts[-1].y, splits.parts[-1].example(40)[:, 0].long() % 2)  # type: ignore[index]  # a tensor


def test_attributes_are_the_third_array() -> None:
    splits = as_splits((X, Y, 1 - Y), held_out=True)
    assert torch.equal(splits.test.a, 1 - splits.test.y)


def test_splits_are_returned_unchanged() -> None:
    splits = from_tensors(X, Y)
    assert as_splits(splits) is splits


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [0, 1]}, "no column of labels"),
        ({"text": ["a", "b"], "label": [0, 1]}, "no column of images"),
    ],
)
def test_a_column_that_is_missing_is_named(columns: dict[str, list[Any]], message: str) -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match=message):
        as_splits(datasets.Dataset.from_dict(columns))
