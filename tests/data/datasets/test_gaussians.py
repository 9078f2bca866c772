"""Gaussians: whose labels are wrong, and by which rule."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from spurless.core.errors import InputError
from spurless.data import load
from spurless.data.datasets.gaussians import MEANS, GaussiansConfig, derangement, gaussians
from spurless.data.split import Split


def origin(split: Split, means: str = "circle") -> Tensor:
    """Return the class whose mean is nearest; with a tiny std that is the class drawn from."""
    assert isinstance(split.x, Tensor)
    return torch.cdist(split.x, MEANS[means]).argmin(dim=1)


def test_the_counts_are_those_asked_for() -> None:
    data = gaussians()
    assert data.train.counts.tolist() == [100, 5] * 5  # biased: every label gets five wrong ones
    assert data.val.counts.tolist() == data.test.counts.tolist() == [100, 0] * 5


def test_biased_labels_are_wrong_by_a_derangement() -> None:
    train = gaussians(GaussiansConfig(std=0.01, mislabelled=20)).train
    wrong = train.a == 1
    drawn_from, labels = origin(train)[wrong], train.y[wrong]
    rule = [torch.unique(drawn_from[labels == label]).tolist() for label in range(5)]
    assert all(len(sources) == 1 for sources in rule)
    assert sorted(source for (source,) in rule) == [0, 1, 2, 3, 4]
    assert all(source != label for label, (source,) in enumerate(rule))


def test_unbiased_labels_are_wrong_in_every_way_alike() -> None:
    train = gaussians(GaussiansConfig(biased=False, std=0.01, mislabelled=4000)).train
    wrong = train.a == 1
    drawn_from, labels = origin(train)[wrong], train.y[wrong]
    table = torch.bincount(drawn_from * 5 + labels, minlength=25).view(5, 5)
    assert table.sum(dim=1).tolist() == [4000] * 5
    assert table.diagonal().tolist() == [0] * 5
    error = (4000 * 0.25 * 0.75) ** 0.5
    assert (table[~torch.eye(5, dtype=torch.bool)] - 1000).abs().max() < 4 * error


@pytest.mark.parametrize("biased", [True, False])
def test_clean_labels_are_right(biased: bool) -> None:
    data = gaussians(GaussiansConfig(biased=biased, std=0.01))
    clean = data.train.a == 0
    assert torch.equal(origin(data.train)[clean], data.train.y[clean])
    assert torch.equal(origin(data.test), data.test.y)


@pytest.mark.parametrize(("means", "radius"), [("circle", 1.0), ("square", 2**0.5)])
def test_the_means_lie_on_their_circle_a_quarter_turn_apart(means: Literal["circle", "square"], radius: float) -> None:
    centre, *around = MEANS[means]
    assert centre.tolist() == [0.0, 0.0]
    torch.testing.assert_close(torch.stack(around).norm(dim=1), torch.full((4,), radius))
    assert torch.stack(around).sum(dim=0).tolist() == [0.0, 0.0]
    test = gaussians(GaussiansConfig(means=means, test_per_class=10_000)).test
    assert isinstance(test.x, Tensor)
    for label in range(5):
        points = test.x[test.y == label]
        assert (points.mean(dim=0) - MEANS[means][label]).abs().max() < 4 * 0.2 / 100
        assert (points.std(dim=0) - 0.2).abs().max() < 4 * 0.2 / 20_000**0.5


def test_a_derangement_leaves_nothing_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        order = derangement(5, generator)
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
        assert not (order == torch.arange(5)).any()


def test_one_thing_cannot_be_deranged() -> None:
    with pytest.raises(InputError, match=r"a derangement needs at least two elements \(got 1\)"):
        derangement(1, torch.Generator())


def test_nobody_need_be_mislabelled() -> None:
    assert gaussians(GaussiansConfig(mislabelled=0)).train.counts.tolist() == [100, 0] * 5


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("std", 0.0),
        ("per_class", 0),
        ("mislabelled", -1),
        ("means", "ring"),
    ],
)
def test_bad_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"option '{option}'.*{value}\b"):
        load("gaussians", **{option: value})
