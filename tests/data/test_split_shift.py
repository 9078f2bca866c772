"""Likeness: validation of another kind is spoken of, validation that is only balanced is not, nor any data of ours."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import spurless as sp
from spurless.core.groups import Groups
from spurless.data import DATASETS
from spurless.data.split import Split, Splits
from spurless.data.split_shift import MIN_EXAMPLES, val_differences

OFFLINE = [name for name, dataset in DATASETS.items() if not dataset.layout]


def split(shares: list[float], n: int = 400, shape: tuple[int, ...] = (3,), seed: int = 0) -> Split:
    """Examples with so many of each label, in no order, and inputs that are noise."""
    y = torch.repeat_interleave(torch.arange(len(shares)), torch.tensor([round(n * share) for share in shares]))
    x = torch.randn(len(y), *shape, generator=torch.Generator().manual_seed(seed))
    return Split(x, y, torch.full_like(y, -1), Groups(tuple("abcdefghij"[: len(shares)])))


def splits(train: list[float], val: list[float], n: int = 400) -> Splits:
    return Splits(split(train), split(val, n, seed=1), split(train, seed=2))


def moved(data: Splits, by: float | Tensor) -> Splits:
    assert isinstance(data.val.x, Tensor)
    return replace(data, val=replace(data.val, x=data.val.x.double() + by))


@pytest.mark.parametrize("name", OFFLINE)
def test_no_data_of_ours_are_spoken_of(name: str) -> None:
    assert val_differences(sp.load(name)) == ()


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ([0.5, 0.5], [0.02, 0.98]),
        ([0.9, 0.1], [0.1, 0.9]),
        ([0.1] * 10, [0.98, 0.02, *[0.0] * 8]),
    ],
)
def test_labels_that_are_nearly_all_of_another_class_are_spoken_of(train: list[float], val: list[float]) -> None:
    (said,) = val_differences(splits(train, val))
    assert said.startswith("Validation differs from train: 9")
    assert "Check how the splits were drawn" in said


@pytest.mark.parametrize(
    ("train", "val", "n"),
    [
        ([0.95, 0.05], [0.5, 0.5], 400),  # balanced on purpose
        ([0.77, 0.23], [0.5, 0.5], 400),  # as Waterbirds, with every group alike
        ([0.98, 0.02], [0.98, 0.02], 400),  # as rare there as here
        ([0.5, 0.5], [0.7, 0.3], 400),
        ([0.1] * 10, [0.5, 0.5, *[0.0] * 8], 16),  # so few that nobody can tell
    ],
)
def test_labels_that_differ_on_purpose_or_by_chance_are_not(train: list[float], val: list[float], n: int) -> None:
    assert val_differences(splits(train, val, n)) == ()


def test_inputs_on_another_scale_are_spoken_of_by_channel_and_by_feature() -> None:
    data = splits([0.5, 0.5], [0.5, 0.5])
    (said,) = val_differences(moved(data, torch.tensor([0.0, 50.0, 0.0])))
    assert "the mean of channel or feature 1 is" in said
    assert "preprocessed in the same way" in said
    assert val_differences(moved(data, 2.0)) == ()
    (said,) = val_differences(moved(sp.load("patched-digits"), 50.0))
    assert said.startswith("Validation differs from train: the mean of channel or feature ")


def test_a_feature_that_train_hardly_shows_is_no_difference() -> None:
    data = splits([0.5, 0.5], [0.5, 0.5])
    assert isinstance(data.train.x, Tensor)
    assert isinstance(data.val.x, Tensor)
    data.train.x[:, 0], data.val.x[:, 0] = 0.0, 0.0
    data.val.x[::50, 0] = 1.0
    assert val_differences(data) == ()


def test_inputs_are_compared_as_a_model_gets_them_and_read_where_they_are_streamed() -> None:
    data = splits([0.5, 0.5], [0.5, 0.5])
    other = replace(data, val=replace(data.val, transform=lambda x: x.float() + 50))
    assert len(val_differences(other)) == 1
    streamed = replace(other, val=replace(other.val, x=_Disk(other.val.x)))  # type: ignore[arg-type]  # it is a tensor
    assert len(val_differences(streamed)) == 1


def test_a_handful_of_examples_is_not_compared() -> None:
    data = moved(splits([0.5, 0.5], [0.5, 0.5], MIN_EXAMPLES), 50.0)
    assert len(val_differences(data)) == 1
    assert val_differences(replace(data, val=data.val.select(torch.arange(MIN_EXAMPLES - 1)))) == ()


class _Disk:
    """Reads one example at a time."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]

    def fingerprint(self) -> str:
        return "disk"
