"""Regions: what changes with the shortcut lies in its region, and what changes with the label in the other."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from spurless.data import load
from spurless.data.shortcut_regions import LOCATORS, shortcut_regions
from spurless.data.split import Split, Splits

TWINS = {"double-mnist": "double-digits", "mnist-cifar": "dominoes-digits", "biased-mnist": "patched-digits"}
"""Data that need files, and what is laid out as they are."""


def pixels(split: Split) -> Tensor:
    assert isinstance(split.x, Tensor)
    x = split.x.float()
    return x.mean(dim=1) if x.dim() == 4 else x


def told(split: Split, mask: Tensor, by: Tensor) -> float:
    """How much of the variance inside a region its means over ``by`` explain."""
    x = pixels(split)[:, mask]
    parts = [x[by == k] for k in torch.unique(by)]
    within = sum(len(part) * float(part.var(dim=0, unbiased=False).sum()) for part in parts) / len(x)
    return 1 - within / float(x.var(dim=0, unbiased=False).sum())


def test_side_by_side_and_one_above_the_other() -> None:
    for name in ("double-digits", "dominoes-digits"):
        data = load(name)
        found, test = shortcut_regions(data), data.test  # label and attribute say nothing of each other there
        assert bool((found["core"] ^ found["spurious"]).all())
        assert int(found["core"].sum()) == found["core"].numel() // 2
        assert told(test, found["spurious"], test.a) > 0.3
        assert told(test, found["core"], test.a) < 0.03
    data = load("double-digits")  # textures have no pixel that tells them on its own, digits have
    assert told(data.test, shortcut_regions(data)["core"], data.test.y) > 0.3


@pytest.mark.parametrize("squares", [1, 2])
def test_squares_are_where_marked_images_are_red_or_blue(squares: int) -> None:
    data = load("patched-digits", squares=squares, square=5)
    found, test = shortcut_regions(data), data.test
    assert isinstance(test.x, Tensor)
    red, blue = test.x[:, 0] > test.x[:, 1], test.x[:, 2] > test.x[:, 1]  # a digit is grey
    coloured = (red | blue).any(dim=0)
    assert torch.equal(coloured, found["spurious"])
    assert int(coloured.sum()) == 25 * squares
    assert torch.equal(found["core"], ~coloured)


def test_bits_are_where_their_products_are_label_and_attribute() -> None:
    data = load("parity", core=3, spurious=2, noise=4, n_train=50, n_val=50, n_test=50)
    found, x = shortcut_regions(data), pixels(data.test)
    assert torch.equal((x[:, found["core"]].prod(dim=1) > 0).long(), data.test.y)
    assert torch.equal((x[:, found["spurious"]].prod(dim=1) > 0).long(), data.test.a)
    assert int(found["noise"].sum()) == 4
    silent: dict[str, Any] = {"core": 3, "spurious": 2, "noise": 0, "n_train": 50, "n_val": 50, "n_test": 50}
    assert list(shortcut_regions(load("parity", **silent))) == ["core", "spurious"]


def test_real_data_are_laid_out_as_their_twins() -> None:
    for real, twin in TWINS.items():
        assert LOCATORS[real] is LOCATORS[twin]


def test_nothing_is_known_of_colours_and_of_own_data() -> None:
    assert shortcut_regions(load("colored-digits")) == {}
    data = load("double-digits")
    assert shortcut_regions(replace(data, name="own data")) == {}
    text = Split({"input_ids": torch.zeros(2, 3)}, torch.tensor([0, 1]), torch.tensor([0, 1]), data.groups)
    assert shortcut_regions(Splits(text, text, text, name="double-digits")) == {}
