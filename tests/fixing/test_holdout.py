"""Tests of the cut: every group in both halves, nothing in both, the same each time, and none where it is too small."""

from dataclasses import replace

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.fixing.holdout import MIN_EXAMPLES, split_validation
from spurless.methods import METHODS


@pytest.fixture(scope="module")
def data() -> sp.Splits:
    return sp.load("planted", n_train=200, n_val=400, n_test=100)


def rows(split: sp.Split) -> set[tuple[float, ...]]:
    return {tuple(row) for row in torch.as_tensor(split.x).tolist()}


def test_the_halves_share_nothing_and_have_the_same_share_of_every_group(data: sp.Splits) -> None:
    held = split_validation(data, 0)
    assert held.is_split
    assert rows(held.data.val).isdisjoint(rows(held.scoring))
    assert rows(held.data.val) | rows(held.scoring) == rows(data.val)
    assert int((held.data.val.counts - held.scoring.counts).abs().max()) <= 1
    assert held.data.train is data.train
    assert held.whole is data
    assert f"{len(held.scoring)} held-out examples that decide" in held.description


def test_without_attributes_the_cut_is_by_label(data: sp.Splits) -> None:
    blind = replace(data, val=data.val.hide_attributes())
    held = split_validation(blind, 0)
    assert int((held.data.val.class_counts - held.scoring.class_counts).abs().max()) <= 1


def test_the_same_seed_cuts_alike_and_another_does_not(data: sp.Splits) -> None:
    assert rows(split_validation(data, 3).scoring) == rows(split_validation(data, 3).scoring)
    assert rows(split_validation(data, 3).scoring) != rows(split_validation(data, 4).scoring)


def test_a_class_with_too_few_examples_leaves_validation_whole_and_says_so(data: sp.Splits) -> None:
    places = [(data.val.y == y).nonzero().flatten() for y in (0, 1)]
    for few, cut in ((MIN_EXAMPLES, True), (MIN_EXAMPLES - 1, False)):
        small = replace(data, val=data.val.select(torch.cat([places[0], places[1][:few]])))
        held = split_validation(small, 0)
        assert held.is_split is cut
    assert held.scoring is small.val
    assert held.data is small
    assert "too small to be split" in held.description
    assert "use the training split only" in held.description
    with pytest.raises(InputError, match=r"dfr trains on validation, which is too small .* got 19\)\. Pass more"):
        held.check_method("dfr", METHODS["dfr"].info)
    held.check_method("erm", METHODS["erm"].info)
    split_validation(data, 0).check_method("dfr", METHODS["dfr"].info)


def test_a_class_that_validation_does_not_have_does_not_stand_in_the_way(data: sp.Splits) -> None:
    one = replace(data, val=data.val.select(data.val.y == 0))
    assert split_validation(one, 0).is_split
