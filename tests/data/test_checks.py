"""Checks: each thing that cannot be trained on has its sentence."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.core.groups import Groups
from spurless.data.checks import check_split, check_splits
from spurless.data.loaders.tensors import from_tensors
from spurless.data.split import Split, Splits

GROUPS = Groups(("no", "yes"), ("left", "right"))


def split(x: Tensor | None = None) -> Split:
    x = torch.arange(8, dtype=torch.float32).view(4, 2) if x is None else x
    return Split(x, torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1]), GROUPS)


def splits(train: Split | None = None, test: Split | None = None) -> Splits:
    return Splits(train or split(), split(), test or split(), "toy")


def test_what_is_fine_comes_back_as_it_was() -> None:
    data = splits()
    assert check_splits(data) is data


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (Split(torch.zeros(0, 2), torch.zeros(0).long(), torch.zeros(0).long(), GROUPS), "the split is empty"),
        (replace(split(), y=torch.tensor([0, 0, 1])), r"differ in number \(got 4, 3 and 4\)"),
        (replace(split(), y=torch.tensor([0.0, 0, 1, 1])), "labels must be integers"),
        (
            replace(split(), y=torch.tensor([0, 0, 1, 2])),
            r"label of example 3 is out of range \(expected 0 to 1, got 2\)",
        ),
        (
            replace(split(), y=torch.tensor([0, -1, 1, 1])),
            r"label of example 1 is out of range.*got -1\)\. Labels start at 0",
        ),
        (replace(split(), a=torch.tensor([0, 0, 2, 1])), r"attribute of example 2 is out of range \(got \[2\]\)"),
        (replace(split(), a=torch.zeros(4, 2).long()), r"wrong number of columns \(expected 1, got 2\)"),
        (split(torch.tensor([[0.0], [1], [torch.nan], [1]])), "1 examples contain NaN or infinite.*example 2"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_sentence(broken: Split, sentence: str) -> None:
    with pytest.raises(InputError, match=rf"^toy, train split: .*{sentence}"):
        check_split(broken, "toy, train split")


def test_one_class_only_is_refused() -> None:
    lone = replace(split(), y=torch.zeros(4).long())
    with pytest.raises(InputError, match=r"toy, train split: the data have only one class.*expected at least two"):
        check_splits(splits(train=lone))


def test_splits_of_different_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="the splits differ in the shape of an example"):
        check_splits(splits(test=split(torch.zeros(4, 3))))


def test_one_number_per_example_is_no_row() -> None:
    y = torch.arange(120) % 2
    with pytest.raises(
        InputError, match=r"the inputs have no features \(expected a row.*shape \(\d+,\)\)\. Add a dimension"
    ):
        from_tensors(torch.rand(120), y, y)
    assert from_tensors(torch.rand(120)[:, None], y, y).train.x[0].shape == (1,)  # type: ignore[index]
