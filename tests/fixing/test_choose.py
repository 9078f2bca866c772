"""Tests of the rules: what was found and which labels there are decide; no method gets a label that is not there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import nn

import spurless as sp
from spurless.core.findings import Audit, Finding
from spurless.fixing.choose import (
    SETTINGS,
    RepairContext,
    choose,
    compute_repair_context,
    get_choice_info,
    list_applicable,
    make_choice,
    trains_network,
)
from spurless.fixing.holdout import Holdout
from spurless.methods import METHODS, make_method
from spurless.train.config import TrainConfig
from spurless.train.run import Compute, make_run

Labels = Mapping[str, bool]
KNOWN: Labels = {"train_attributes": True, "val_labels": True, "val_attributes": True}
BLIND: Labels = {"train_attributes": False, "val_labels": True, "val_attributes": False}
NONE: Labels = {**BLIND, "val_labels": False}
TRAIN: Labels = {**BLIND, "train_attributes": True}


def here(labels: Labels = BLIND, gap: float = 0.3, steps: int = 10, val: int = 200) -> RepairContext:
    return RepairContext(val, steps, labels["train_attributes"], labels["val_labels"], labels["val_attributes"], gap)


def audit(*names: str) -> Audit:
    return Audit(tuple(Finding(name, f"Found by {name}", 0.5, True, 0.002, "", "") for name in names))


@pytest.mark.parametrize(
    ("found", "where", "method"),
    [
        (("attribute-use", "hidden-regions"), here(KNOWN), "dfr"),
        (("group-gap",), here(KNOWN, gap=0.0), "dfr"),
        (("attribute-use",), here(TRAIN), "class-balanced-head"),  # none on validation
        (("error-slices",), here(KNOWN), "class-balanced-head"),  # a shortcut, and not the known attribute
        (("hidden-regions", "error-slices"), here(), "masktune"),
        (("error-slices",), here(), "class-balanced-head"),
        (("error-slices",), here(gap=0.02), "afr"),
        (("worst-class",), here(gap=0.02), "class-balanced-head"),
        (("attribute-use",), here({**TRAIN, "val_labels": False}, gap=0.0), "afr"),
    ],
)
def test_the_first_rule_that_fits(found: tuple[str, ...], where: RepairContext, method: str) -> None:
    first, *_ = choose(audit(*found), where)
    assert first.method == method
    assert first.why.endswith(".")
    assert first.why.count(". ") == 0  # one sentence


FOLLOWED = replace(here(), properties=("the frame", "the color"), can_restart=True)


def test_followed_properties_are_transplanted_first_then_methods_that_train_then_heads() -> None:
    choices = choose(audit("transplants"), FOLLOWED)
    assert [c.method for c in choices] == ["transplant", "lff", "jtt", "dcwp", "class-balanced-head", "afr"]
    images = replace(FOLLOWED, can_infer_groups=True, has_regions=True)
    more = [c for c in choose(audit("transplants"), images) if c.infers_groups or c.hides_regions]
    assert [(c.method, c.options) for c in more] == [("dfr", {"balance": "weight"}), ("masktune", {"epochs": 8})]
    assert not any(c.infers_groups for c in choose(audit("transplants"), replace(images, val_labels=False)))
    first, lff, jtt, dcwp, *heads = choices
    assert first.options["properties"] == ("the frame", "the color")
    assert "the frame and the color of random other examples" in first.why
    assert [c.restart for c in choices] == [False, True, True, False, False, False]
    assert dcwp.preset == "digits"  # of small data
    assert choose(audit("transplants"), replace(FOLLOWED, steps_per_epoch=1000))[3].preset is None
    assert [trains_network(c) for c in choices] == [True] * 4 + [False] * 2
    assert all(c.why.endswith(".") and c.why.count(". ") == 0 for c in (first, lff, jtt, dcwp, *heads))
    get_choice_info(dcwp)


def test_a_property_that_may_contain_the_object_is_no_reason_to_repair_unless_it_is_named() -> None:
    (finding,) = audit("transplants").findings
    doubtful = Audit((replace(finding, doubt="A part of the object may be in it."),))
    assert choose(doubtful, here()) == []
    assert choose(doubtful, FOLLOWED)[0].method == "transplant"
    assert choose(Audit(()), FOLLOWED)[0].method == "transplant"


def test_a_model_that_cannot_be_initialised_again_is_not_restarted() -> None:
    methods = [c.method for c in choose(audit("transplants"), replace(FOLLOWED, can_restart=False))]
    assert methods == ["transplant", "class-balanced-head", "afr"]


def test_with_attributes_groups_come_before_properties() -> None:
    known = replace(here(KNOWN), properties=("the frame",))
    choices = choose(audit("attribute-use", "transplants"), known)
    assert [c.method for c in choices][:3] == ["dfr", "dfr", "transplant"]
    assert [c.display_name for c in choices][:2] == ["DFR with weights", "DFR"]


def test_known_attributes_are_tried_last_if_the_audit_does_not_name_them() -> None:
    choices = choose(audit("error-slices"), here(KNOWN))
    assert [c.method for c in choices] == ["class-balanced-head", "afr", "dfr", "dfr"]
    assert choices[2].why.startswith("Validation has an attribute, although the audit does not name it")


def test_nothing_to_repair_is_nothing_to_do() -> None:
    assert choose(audit(), here()) == []
    assert choose(audit("attribute-association"), here(KNOWN)) == []  # in the data, and nothing more
    assert choose(audit("property-association", "attribute-association"), here()) == []
    quiet = replace(audit("error-slices").findings[0], flagged=False)
    assert choose(Audit((quiet,)), here()) == []


def test_the_sentence_tells_the_numbers_it_goes_by() -> None:
    (first, _) = choose(audit("error-slices"), here(gap=0.31))
    assert "31 points lower on validation than on train" in first.why
    second = choose(audit("error-slices"), here(gap=-0.02))[1]
    assert second.why == "The last layer is tuned on validation, with equal weight for every class."  # no gap to go by
    assert "about that on train" not in choose(audit("error-slices"), here(gap=0.31))[1].why
    (masks, *_) = choose(audit("hidden-regions"), here())
    assert masks.why.startswith("Found by hidden-regions: ")


@pytest.mark.parametrize("labels", [KNOWN, BLIND, NONE, TRAIN])
def test_no_method_needs_a_label_that_is_not_there(labels: Labels) -> None:
    for training in (False, True):
        choices = list_applicable(here(labels), training=training)
        assert choices
        for choice in choices:
            info = get_choice_info(choice)
            assert labels["train_attributes"] or not info.train_attributes
            assert labels["val_labels"] or not info.val_labels
            assert labels["val_attributes"] or not info.val_attributes


def test_repairs_are_quick_ones_and_all_are_more() -> None:
    quick, every = ([c.method for c in list_applicable(here(KNOWN), training=training)] for training in (False, True))
    assert quick == ["masktune", "class-balanced-head", "afr", "self", "jtt-head", "neurontune", "dfr"]
    assert set(quick) < set(every)
    assert set(every) == {name for name, method in METHODS.items() if method.info.fix != "never"}
    assert set(METHODS) - set(every) == {
        "erm",
        "erm-loss-ratio",
        "selectivenet",
        "deep-gamblers",
        "one-sided",
        "random-prune",
        "magnitude-prune",
        "randmask",
        "transplant",
    }
    assert "dfr" not in [choice.method for choice in list_applicable(here(BLIND), training=True)]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("labels", [KNOWN, NONE])
def test_settings_are_options_of_their_methods(name: str, labels: Labels) -> None:
    make_method(name, **SETTINGS[name](here(labels)))


def test_settings_follow_the_size_of_the_data() -> None:
    assert SETTINGS["masktune"](here(steps=16)) == {"epochs": 5}
    assert SETTINGS["masktune"](here(steps=80)) == SETTINGS["masktune"](here(steps=5000)) == {"epochs": 1}
    assert [SETTINGS["self"](here(val=n))["n"] for n in (40, 400, 40_000)] == [10, 50, 500]


def test_what_the_user_says_goes_over_the_settings_and_a_preset_in_their_place() -> None:
    assert make_choice("afr", here(), "", None, {"gamma": 3.0}).options == {"on": "val", "gamma": 3.0}
    assert make_choice("masktune", here(), "", "paper").options == {}


def test_labels_are_those_that_the_data_have() -> None:
    data = sp.load("planted", n_train=100, n_val=100, n_test=50)
    blind = replace(data, train=data.train.hide_attributes(), val=data.val.hide_attributes())
    run = make_run(Compute("cpu"), 0, TrainConfig())

    def labels(data: sp.Splits, is_split: bool = True) -> Labels:
        context = compute_repair_context(sp.build("linear", data), Holdout(data, data.val, is_split, data), 64, run)
        return {name: getattr(context, name) for name in KNOWN}

    assert labels(data) == KNOWN
    assert labels(data, is_split=False) == {**TRAIN, "val_labels": False}
    assert labels(blind) == BLIND


def test_a_named_word_is_an_attribute_and_an_attribute_is_no_word() -> None:
    word = Finding("tokens", "The model relies on a negation", 0.8, True, 0.002, "b", "r", shortcut="a negation")
    named = replace(here(KNOWN), has_word=True)
    first, second, *others = choose(Audit((word,)), named)
    assert (first.method, second.method) == ("dfr", "dfr")
    assert (first.options, second.options) == ({"balance": "weight"}, {})
    assert first.why == (
        "The model relies on a negation, which is known for every text: DFR refits the last layer on validation, with "
        "equal weight for texts of every label with it and without it."
    )
    assert [choice.method for choice in others] == ["class-balanced-head", "afr"]
    given = replace(named, has_word=False)  # the attribute is another thing than the word
    assert [choice.method for choice in choose(Audit((word,)), given)] == ["class-balanced-head", "afr", "dfr", "dfr"]


def test_the_gap_is_that_between_train_and_validation() -> None:
    data = sp.load("planted", n_train=300, n_val=200, n_test=50)
    model = sp.build("linear", data)
    head = cast(nn.Linear, model.head)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0, -1.0], [0.0, 1.0]]))  # the shortcut and nothing else
        head.bias.zero_()
    found = compute_repair_context(
        model, Holdout(data, data.val, True, data), 64, make_run(Compute("cpu"), 0, TrainConfig())
    )
    right = [
        float(((torch.as_tensor(part.x)[:, 1] > 0).long() == part.y).double().mean()) for part in (data.train, data.val)
    ]
    assert found.accuracy_gap == pytest.approx(right[0] - right[1])
    assert (found.n_val, found.steps_per_epoch) == (200, 5)
