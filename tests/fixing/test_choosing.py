"""Tests of the rules: what was found and which labels there are decide; no method gets a label that is not there."""

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import nn

import spurless as sp
from spurless.core.findings import Audit, Finding
from spurless.fixing.choosing import (
    APART,
    SETTINGS,
    Labels,
    Situation,
    applicable,
    choice_of,
    choose,
    info_of,
    situation,
)
from spurless.fixing.holding import Held
from spurless.methods import METHODS, make_method
from spurless.train.config import TrainConfig
from spurless.train.run import Engine, start

KNOWN = Labels(train_attributes=True, val_labels=True, val_attributes=True)
BLIND = Labels()
NONE = Labels(val_labels=False)


def here(labels: Labels = BLIND, gap: float = 0.3, steps: int = 10, val: int = 200) -> Situation:
    return Situation(labels, val, steps, gap)


def audit(*names: str) -> Audit:
    return Audit(tuple(Finding(name, f"Found by {name}", 0.5, True, 0.002, "", "") for name in names))


@pytest.mark.parametrize(
    ("found", "where", "method"),
    [
        (("attribute-use", "hidden-regions"), here(KNOWN), "dfr"),
        (("group-gap",), here(KNOWN, gap=0.0), "dfr"),
        (("attribute-use",), here(Labels(train_attributes=True)), "class-balanced-head"),  # none on validation
        (("error-slices",), here(KNOWN), "class-balanced-head"),  # a shortcut, and not the known attribute
        (("hidden-regions", "error-slices"), here(), "masktune"),
        (("error-slices",), here(), "class-balanced-head"),
        (("error-slices",), here(gap=0.02), "afr"),
        (("worst-class",), here(gap=0.02), "class-balanced-head"),
        (("attribute-use",), here(replace(KNOWN, val_labels=False, val_attributes=False), gap=0.0), "afr"),
    ],
)
def test_the_first_rule_that_fits(found: tuple[str, ...], where: Situation, method: str) -> None:
    first, *_ = choose(audit(*found), where)
    assert first.method == method
    assert first.why.endswith(".")
    assert first.why.count(". ") == 0  # one sentence


def test_nothing_to_repair_is_nothing_to_do() -> None:
    assert choose(audit(), here()) == []
    assert choose(audit("attribute-association"), here(KNOWN)) == []  # in the data, and nothing more
    quiet = replace(audit("error-slices").findings[0], flagged=False)
    assert choose(Audit((quiet,)), here()) == []


def test_the_sentence_tells_the_numbers_it_goes_by() -> None:
    (first, _) = choose(audit("error-slices"), here(gap=0.31))
    assert "31 points less often on validation than on train" in first.why
    second = choose(audit("error-slices"), here(gap=-0.02))[1]
    assert second.why == "The last layer is tuned on validation, with every class counting alike."  # no gap to go by
    assert "about as good" not in choose(audit("error-slices"), here(gap=0.31))[1].why
    (masks, *_) = choose(audit("hidden-regions"), here())
    assert masks.why.startswith("Found by hidden-regions: ")


@pytest.mark.parametrize("labels", [KNOWN, BLIND, NONE, Labels(train_attributes=True)])
def test_no_method_needs_a_label_that_is_not_there(labels: Labels) -> None:
    for training in (False, True):
        choices = applicable(here(labels), training=training)
        assert choices
        for choice in choices:
            info = info_of(choice)
            assert labels.train_attributes or not info.train_attributes
            assert labels.val_labels or not info.val_labels
            assert labels.val_attributes or not info.val_attributes


def test_repairs_are_quick_ones_and_all_are_more() -> None:
    quick, every = ([c.method for c in applicable(here(KNOWN), training=training)] for training in (False, True))
    assert quick == ["masktune", "class-balanced-head", "afr", "self", "jtt-head", "neurontune", "dfr"]
    assert set(quick) < set(every)
    assert set(every) == set(METHODS) - set(APART)
    assert "dfr" not in [choice.method for choice in applicable(here(BLIND), training=True)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("labels", [KNOWN, NONE])
def test_settings_are_options_of_their_methods(name: str, labels: Labels) -> None:
    make_method(name, **SETTINGS[name](here(labels)))


def test_settings_follow_the_size_of_the_data() -> None:
    assert SETTINGS["masktune"](here(steps=16)) == {"epochs": 5}
    assert SETTINGS["masktune"](here(steps=80)) == SETTINGS["masktune"](here(steps=5000)) == {"epochs": 1}
    assert [SETTINGS["self"](here(val=n))["n"] for n in (40, 400, 40_000)] == [10, 50, 500]


def test_what_the_user_says_goes_over_the_settings_and_a_preset_in_their_place() -> None:
    assert choice_of("afr", here(), "", None, {"gamma": 3.0}).options == {"on": "val", "gamma": 3.0}
    assert choice_of("masktune", here(), "", "paper").options == {}


def test_labels_are_those_that_the_data_have() -> None:
    data = sp.load("planted", n_train=100, n_val=100, n_test=50)
    assert Labels.of(data) == KNOWN
    assert Labels.of(data, learn=False) == Labels(True, False, False)
    blind = replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())
    assert Labels.of(blind) == BLIND


def test_a_named_word_is_an_attribute_and_an_attribute_is_no_word() -> None:
    word = Finding("tokens", "The model leans on a negation", 0.8, True, 0.002, "b", "r", shortcut="a negation")
    named = Situation(KNOWN, 200, 10, gap=0.3, named=True)
    first, *others = choose(Audit((word,)), named)
    assert first.method == "dfr"
    assert first.why == (
        "The model leans on a negation, and every text can be asked for that: DFR refits the last layer on validation, "
        "with every label counting alike with it and without."
    )
    assert [choice.method for choice in others] == ["class-balanced-head", "afr"]
    given = replace(named, named=False)  # the attribute is another thing than the word
    assert [choice.method for choice in choose(Audit((word,)), given)] == ["class-balanced-head", "afr"]


def test_the_gap_is_that_between_train_and_validation() -> None:
    data = sp.load("planted", n_train=300, n_val=200, n_test=50)
    model = sp.build("linear", data)
    head = cast(nn.Linear, model.head)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))  # the shortcut and nothing else
        head.bias.zero_()
    found = situation(model, Held(data, data.val, True, data), 64, start(Engine("cpu"), 0, TrainConfig()))
    right = [
        float(((torch.as_tensor(part.x)[:, 1] > 0).long() == part.y).double().mean()) for part in (data.train, data.val)
    ]
    assert found.gap == pytest.approx(right[0] - right[1])
    assert (found.val, found.steps) == (200, 5)
