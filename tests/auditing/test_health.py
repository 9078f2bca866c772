"""Tests of the general health of a model: numbers that can be checked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import spurless as sp
from spurless.auditing import audit
from spurless.auditing._context import AuditContext
from spurless.auditing.health import MAX_POINTS, assess_health
from spurless.core.groups import Groups
from spurless.data.split import Split


def context(y: list[int], predicted: list[int], a: list[int] | None = None) -> AuditContext:
    """Return examples whose confidence is 0.8, with these labels and predictions; their content is their number."""
    logits = torch.full((len(y), 3), 0.1).log()
    logits[torch.arange(len(y)), torch.tensor(predicted)] = torch.tensor(0.8).log()
    groups = Groups(("cow", "camel", "goat"), ("grass", "sand") if a else ())
    attributes = torch.tensor(a) if a else torch.full((len(y),), -1)
    x = torch.arange(len(y), dtype=torch.float32)[:, None].repeat(1, 2)
    split = Split(x, torch.tensor(y), attributes, groups)
    model = sp.wrap(nn.Sequential(nn.Identity(), nn.Linear(2, 3)))
    return AuditContext(model, split, x, logits)


def test_classes_and_confusions_by_hand() -> None:
    health = assess_health(context([0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 0]), torch.zeros(6, dtype=torch.bool))
    assert health["confusion"] == [[2, 1, 0], [1, 2, 0], [0, 0, 0]]
    cow, _, goat = health["classes"]
    assert (cow["precision"], cow["recall"], cow["f1"]) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (goat["count"], goat["precision"], goat["recall"], goat["f1"]) == (0, None, None, None)
    assert health["confused"][0] == {"label": "cow", "predicted": "camel", "count": 1}
    assert health["accuracy"]["value"] == pytest.approx(4 / 6)
    assert health["accuracy"]["low"] < 4 / 6 < health["accuracy"]["high"]
    assert health["worst_group"] is None


def test_the_worst_group_is_named_if_attributes_are_known() -> None:
    health = assess_health(context([0, 0, 1, 1], [0, 1, 1, 1], [0, 1, 0, 1]), torch.zeros(4, dtype=torch.bool))
    assert (health["worst_group"]["name"], health["worst_group"]["value"]) == ("cow, sand", 0.0)


def test_calibration_compares_confidence_with_accuracy() -> None:
    health = assess_health(context([0] * 10, [0] * 6 + [1] * 4), torch.zeros(10, dtype=torch.bool))
    (part,) = health["calibration"]["bins"]
    assert (part["confidence"], part["value"], part["count"]) == pytest.approx((0.8, 0.6, 10))
    assert health["calibration"]["error"] == pytest.approx(0.2)


def test_equal_inputs_are_found_in_the_split_and_in_train() -> None:
    own = context([0, 0, 1, 1], [0, 0, 1, 1])
    x = own.split.x.clone()  # type: ignore[union-attr]  # a tensor
    x[3] = x[1]
    train = replace(own.split, x=torch.tensor([[9.0, 9.0], [2.0, 2.0], [8.0, 8.0], [7.0, 7.0]]))
    own = replace(own, split=replace(own.split, x=x), train=train)
    duplicates = assess_health(own, torch.zeros(4, dtype=torch.bool))["duplicates"]
    assert (duplicates["within_rows"], duplicates["train_rows"]) == ([[3, 1]], [[2, 1]])
    assert (duplicates["compared"], duplicates["compared_train"]) == (4, 4)


def test_the_map_is_bounded_and_needs_one_direction_only() -> None:
    n = MAX_POINTS + 50
    found = assess_health(context([0, 1] * (n // 2), [0] * n), torch.zeros(n, dtype=torch.bool))["map"]
    assert [len(found[key]) for key in ("rows", "x", "y", "label", "predicted", "suspected")] == [MAX_POINTS] * 6
    assert found["rows"] == sorted(set(found["rows"]))
    assert set(found["y"]) == {0.0}


def test_an_audit_has_health_and_typical_examples_of_images() -> None:
    x = torch.randint(0, 256, (240, 3, 8, 8), dtype=torch.uint8)
    y = torch.arange(240) % 2
    x[y == 1, :, :4] //= 8
    data = sp.from_tensors(x, y)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    result = audit(model, data, only=["worst-class"], permutations=19)
    assert result.health["accuracy"]["count"] == len(data.val)
    assert result.typical
    for example in result.typical:
        assert (example.label, example.suspected) == (example.predicted, False)
        assert example.picture is not None
    assert audit(model, data, only=["worst-class"], permutations=19, pictured=0).typical == ()
