"""Criteria: each against a table made by hand, and honest about its labels."""

import pytest
import torch

from spurless.core.errors import InputError, UnknownNameError
from spurless.core.groups import Groups
from spurless.metrics.groupwise import group_table
from spurless.train.selection import CRITERIA, get_criterion

GROUPS = Groups(("no", "yes"), ("left", "right"))
# no-left 3 of 4, no-right 0 of 1, yes-left 1 of 1, yes-right 2 of 4
Y = torch.tensor([0] * 5 + [1] * 5)
A = torch.tensor([0, 0, 0, 0, 1, 0, 1, 1, 1, 1])
PRED = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 0, 0])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("val-average", 0.6),
        ("val-worst-class", 0.6),  # no: 3 of 5, yes: 3 of 5
        ("val-balanced", 0.6),
        ("val-worst-group", 0.0),
        ("val-balanced-groups", (0.75 + 0 + 1 + 0.5) / 4),
        ("val-worst-inferred", 0.0),  # of whatever groups it is given; see tests/fitting/test_checks.py
    ],
)
def test_scores_by_hand(name: str, expected: float) -> None:
    assert get_criterion(name).score(group_table(PRED, Y, A, GROUPS)) == pytest.approx(expected)


def test_a_criterion_that_declares_no_attributes_scores_the_same_without_them() -> None:
    table, hidden = group_table(PRED, Y, A, GROUPS), group_table(PRED, Y, torch.full_like(A, -1), GROUPS)
    for criterion in CRITERIA.values():
        if not criterion.attributes and not criterion.inferred:  # that one is given groups of another kind
            assert criterion.score(table) == criterion.score(hidden)


def test_those_that_look_at_groups_declare_it() -> None:
    assert {name for name, row in CRITERIA.items() if row.attributes} == {"val-worst-group", "val-balanced-groups"}
    assert not CRITERIA["last"].labels
    assert {name for name, row in CRITERIA.items() if row.inferred} == {"val-worst-inferred"}
    assert CRITERIA["val-worst-inferred"].labels


def test_a_typo_is_answered_with_a_suggestion() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'val-worst-group'"):
        get_criterion("val-worst-grup")


def test_properties_are_named_after_a_colon() -> None:
    criterion = get_criterion("val-transplants: the frame ;the color;the frame")
    assert criterion.properties == ("the frame", "the color")
    assert criterion.name == "val-transplants:the frame;the color"  # as the record has it
    assert (criterion.labels, criterion.attributes, criterion.inferred) == (True, False, False)
    assert "3 random examples" in criterion.what


@pytest.mark.parametrize("name", ["val-transplants", "val-transplants:", "val-transplants: ; "])
def test_a_missing_property_is_an_error_with_an_example(name: str) -> None:
    with pytest.raises(InputError, match=r"needs the names of the properties .* 'val-transplants:the frame'"):
        get_criterion(name)


def test_other_criteria_have_no_properties() -> None:
    with pytest.raises(UnknownNameError):
        get_criterion("val-average:the frame")
