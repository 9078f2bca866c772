"""Tests of the cut: every group in both halves, nothing in both, the same each time, and none where it is too small."""

from dataclasses import replace

import pytest
import torch

import spurless as sp
from spurless.core.errors import BadInput
from spurless.fixing.holding import LEAST, hold_out
from spurless.methods import METHODS


@pytest.fixture(scope="module")
def data() -> sp.Splits:
    return sp.load("planted", n_train=200, n_val=400, n_test=100)


def rows(split: sp.Grouped) -> set[tuple[float, ...]]:
    return {tuple(row) for row in torch.as_tensor(split.x).tolist()}


def test_the_halves_share_nothing_and_have_the_same_share_of_every_group(data: sp.Splits) -> None:
    held = hold_out(data, 0)
    assert held.cut
    assert rows(held.data.val).isdisjoint(rows(held.judge))
    assert rows(held.data.val) | rows(held.judge) == rows(data.val)
    assert int((held.data.val.counts - held.judge.counts).abs().max()) <= 1
    assert held.data.train is data.train
    assert held.whole is data
    assert f"{len(held.judge)} to judge by" in held.said


def test_without_attributes_the_cut_is_by_label(data: sp.Splits) -> None:
    blind = replace(data, val=data.val.hide_attributes())
    held = hold_out(blind, 0)
    assert int((held.data.val.class_counts - held.judge.class_counts).abs().max()) <= 1


def test_the_same_seed_cuts_alike_and_another_does_not(data: sp.Splits) -> None:
    assert rows(hold_out(data, 3).judge) == rows(hold_out(data, 3).judge)
    assert rows(hold_out(data, 3).judge) != rows(hold_out(data, 4).judge)


def test_a_class_with_too_few_examples_leaves_validation_whole_and_says_so(data: sp.Splits) -> None:
    places = [(data.val.y == y).nonzero().flatten() for y in (0, 1)]
    for few, cut in ((LEAST, True), (LEAST - 1, False)):
        small = replace(data, val=data.val.select(torch.cat([places[0], places[1][:few]])))
        held = hold_out(small, 0)
        assert held.cut is cut
    assert held.judge is small.val
    assert held.data is small
    assert "too small to be cut" in held.said
    assert "learn from train alone" in held.said
    with pytest.raises(BadInput, match=r"dfr learns from validation, which is too small .* got 19\)\. Pass more"):
        held.check_apart("dfr", METHODS["dfr"].info)
    held.check_apart("erm", METHODS["erm"].info)
    hold_out(data, 0).check_apart("dfr", METHODS["dfr"].info)


def test_a_class_that_validation_does_not_have_does_not_stand_in_the_way(data: sp.Splits) -> None:
    one = replace(data, val=data.val.select(data.val.y == 0))
    assert hold_out(one, 0).cut
