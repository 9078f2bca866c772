"""Tests of inferred groups: the class of which the corner is typical is the attribute, learned from train alone."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import spurless as sp
from spurless.core.errors import InputError
from spurless.core.seeds import Seeds
from spurless.data.transplants import get_transplants
from spurless.fixing.typical_groups import compute_property_values, group_by_properties

SEEDS = Seeds(0)


@cache
def digits() -> sp.Splits:
    return sp.load("patched-digits", seed=1000, conflicting=0.02, val_conflicting=0.3)


def infer(data: sp.Splits, *names: str) -> sp.Splits:
    return group_by_properties(data, get_transplants(data.val, names), SEEDS)


def test_the_inferred_attribute_is_the_true_one() -> None:
    data = digits()
    blind = replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())
    grouped = infer(blind, "the top left corner")
    assert grouped.groups.attributes == tuple(f"typical of {label}" for label in data.groups.labels)
    assert len(grouped.groups) == 4
    # in train, the marked corner belongs to the label with the number of the attribute
    assert float((grouped.val.a == data.val.a).double().mean()) > 0.97
    assert not grouped.train.has_attributes
    assert not grouped.test.has_attributes
    assert torch.equal(grouped.val.y, data.val.y)


def test_a_property_that_does_not_predict_the_label_gives_no_groups() -> None:
    train = digits().train
    shuffled = train.y[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))]
    with pytest.raises(InputError, match="do not predict the labels of train"):
        infer(replace(digits(), train=replace(train, y=shuffled)), "the top left corner")


def test_values_depend_on_the_property_only() -> None:
    data = digits()
    (corner,) = get_transplants(data.val, ["the top left corner"])
    x = torch.as_tensor(data.val.x)
    receiver = x.float().mean(dim=0)
    values = compute_property_values(data.val, torch.tensor([3, 5]), [corner], receiver)
    changed = x.clone()
    changed[..., x.shape[-2] // 2 :, :] = 0  # the lower half
    other = compute_property_values(replace(data.val, x=changed), torch.tensor([3, 5]), [corner], receiver)
    assert torch.equal(values, other)


def test_tables_and_rare_classes_are_refused() -> None:
    table = sp.load("planted", n_train=100, n_val=50, n_test=50)
    with pytest.raises(InputError, match="images only"):
        infer(table, "feature 1")
    data = digits()
    rows = torch.cat([(data.train.y == 0).nonzero().flatten(), (data.train.y == 1).nonzero().flatten()[:3]])
    with pytest.raises(InputError, match="at least 5 training examples of two classes"):
        infer(replace(data, train=data.train.select(rows)), "the top left corner")
